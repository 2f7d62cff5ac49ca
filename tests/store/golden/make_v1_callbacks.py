"""How `v1.callbacks.jsonl` and `v1.callbacks.expected.json` were made: real turns of a developer who asks.
Answers by a side turn, a hook and a person, and an expiry; a reworded question, an edited approval, a cancel.
They were made once; what a version has written never changes.

    PYTHONPATH=tests python -m store.golden.make_v1_callbacks
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import msgspec

from store.golden.make_v1 import FOLDER, summary
from upcall import Agent, Answer, Approve, Callback, Context, Hooks, Reply, Request, Runtime, SessionAccess, tool
from upcall.models import Script, call
from upcall.store.memory import MemoryStore


class Kept(MemoryStore):
    """In memory, but somebody will find what waits in it."""

    durable = True


class Clock:
    """A clock that goes on by a second each time somebody looks."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@tool
async def colour(ctx: Context) -> str:
    """Ask what the manager knows."""
    answer = await ctx.raise_callback("Which colour?", choices=["blue", "red"], context={"tried": "green"})
    return f"it is {answer}"


@tool
async def owner(ctx: Context) -> str:
    """Ask what only a person knows, after an effect that happens once."""
    await ctx.once("look", lambda: {"looked": 1})
    return f"it is {await ctx.raise_callback('Whose is it?', 'blocker', priority='high')}'s"


@tool
async def size(ctx: Context) -> str:
    """Ask what a hook of the manager knows."""
    return f"it is {await ctx.raise_callback('Which size?', 'clarification', schema={'type': 'integer'})} wide"


@tool
async def late(ctx: Context) -> str:
    """Ask what nobody answers in time."""
    return (
        f"it is {await ctx.raise_callback('Which shape?', kind='request_user_input', timeout=600, default='round')}"
    )


def anywhere(env: str) -> bool:
    return True


@tool(needs_approval=True, approve_patterns={"anywhere": anywhere})
async def deploy(env: str) -> str:
    """Deploy."""
    return f"deployed {env}"


TOOLS = [colour, owner, size, late, deploy]


def developer_says(request: Request) -> Any:
    last = request.messages[-1]
    if last.role == "tool":
        return " / ".join(result.text for result in last.results)
    return call(last.text, env="prod") if last.text == "deploy" else call(last.text)


def manager_says(request: Request) -> Any:
    last = request.messages[-1].text
    if request.purpose == "side_turn":
        if "Nobody reads plain text" in last:
            return call("answer_callback", value="blue")
        if "Which colour?" in last:
            return "Let me think."
        if "Whose is it?" in last:
            return call("reword_callback", message="Whose is the car?", reason="the person knows")
        return call("pass_up_callback", reason="not mine to say")
    results = [
        r.text for message in request.messages[-2:] for r in message.results
    ]  # it may be told something after
    return results[-1] if results else call("task", agent="developer", prompt=last)


def faq(session: SessionAccess, callback: Callback) -> Answer | None:
    if "colour" in callback.message:
        raise LookupError("the list of colours is lost")
    return Answer(4) if "size" in callback.message else None


async def answered(runtime: Runtime, answer: Callable[[], Any]) -> Reply:
    """Answer the one question in the inbox and go on."""
    (callback,) = await runtime.inbox()
    await runtime.answer(callback.id, answer(), by="ops")
    return await runtime.resume("golden")


async def run(runtime: Runtime, clock: Clock) -> None:
    """The run itself."""
    session = await runtime.start("manager", id="golden")
    said = [(await session.prompt(text)).text for text in ("colour", "size")]
    assert said == ["it is blue", "it is 4 wide"]
    for text, answer, comes_to in [
        ("owner", lambda: "Otto", "it is Otto's"),
        ("deploy", lambda: Approve(args={"env": "staging"}, for_session=True), "deployed staging"),
    ]:
        session = await runtime.load("golden")
        assert (await session.prompt(text)).status == "waiting"
        assert comes_to in (await answered(runtime, answer)).text
    session = await runtime.load("golden")
    assert (await session.prompt("late")).status == "waiting"
    clock.now += 3600
    assert (await runtime.resume("golden")).text == "it is round"
    session = await runtime.load("golden")
    assert (await session.prompt("owner")).status == "waiting"
    await runtime.cancel("golden", "never mind")


async def main() -> None:
    clock = Clock()
    developer = Agent("developer", instructions="Work.", model=Script(developer_says), tools=TOOLS)
    manager = Agent(
        "manager", instructions="Lead.", model=Script(manager_says), agents=[developer],
        hooks=Hooks(on_callback=[faq]),
    )  # fmt: skip
    async with Runtime(Kept(clock), agents=[manager]) as runtime:
        await run(runtime, clock)
        events = await runtime.store.read_all(0, 10_000)
    name = "v1.callbacks"
    (FOLDER / f"{name}.jsonl").write_bytes(b"".join(msgspec.json.encode(e) + b"\n" for e in events))
    (FOLDER / f"{name}.expected.json").write_text(json.dumps(summary(events), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
