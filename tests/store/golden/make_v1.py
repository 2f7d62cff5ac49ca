"""How `v1.jsonl` and `v1.expected.json` were made: real turns with tools, hooks, compaction, steering, a child, a
side turn, a cancel, a limit and a failure. They were made once; what a version has written never changes.

    PYTHONPATH=tests python -m store.golden.make_v1
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from upcall import (
    Agent,
    Call,
    Context,
    Hooks,
    Limits,
    Reply,
    Request,
    Response,
    Result,
    Runtime,
    SessionAccess,
    tool,
)
from upcall.contracts import Store
from upcall.core.log.state import SessionState
from upcall.errors import ModelUnavailable
from upcall.events import AnyEvent
from upcall.messages import Message, Thinking, Usage
from upcall.models import Script, call
from upcall.store.memory import MemoryStore

FOLDER = Path(__file__).parent
WAITS = asyncio.Event()


class Ticking:
    """A clock that goes on by a second each time somebody looks."""

    def __init__(self) -> None:
        self._now = 1_800_000_000.0

    def __call__(self) -> float:
        self._now += 1
        return self._now


@tool
async def read_file(path: str) -> str:
    """Read a file.

    path: where it is
    """
    if path == "missing":
        raise FileNotFoundError(path)
    return f"contents of {path}"


@tool
async def count(words: list[str]) -> dict[str, int]:
    """Count words.

    words: which ones
    """
    return {word: len(word) for word in words}


@tool
async def wait_for_it(ctx: Context) -> str:
    """Wait until the turn is cancelled."""
    ctx.set_context("waits", True)
    WAITS.set()
    await asyncio.sleep(3600)
    return "never"


async def remember(session: SessionAccess) -> None:
    session.set_context("born", {"as": session.id})
    session.add_message("system", "Be brief.")


def greet(session: SessionAccess, message: Message) -> str:
    return f"Hello. {message.text}"


def only_files(session: SessionAccess, request: Request) -> Request | None:
    return (
        request.replace(instructions=request.instructions + " Now.")
        if "narrow" in request.messages[-1].text
        else None
    )


def answer_pings(session: SessionAccess, request: Request) -> Response | None:
    return Response("pong") if request.messages[-1].text.endswith("ping") else None


def shout(session: SessionAccess, response: Response) -> str | None:
    return response.text.upper() if "loud" in response.text else None


def guard(session: SessionAccess, call: Call) -> Call | Result | None:
    if call.args.get("path") == "secret":
        return Result(call.id, "not allowed", is_error=True)
    return call.replace(args={"path": "b.txt"}) if call.args.get("path") == "a-link" else None


def redact(session: SessionAccess, call: Call, result: Result) -> str | None:
    return "[redacted]" if call.args.get("path") == "private" else None


def again(session: SessionAccess, request: Request, error: Exception) -> Request | None:
    return request.replace(instructions="Try again.") if "flaky" in str(error) else None


async def afterthought(session: SessionAccess, reply: Reply) -> str | None:
    if "compact" in reply.text:
        await session.trigger_compaction(keep_last=2)
    if "delegate" in reply.text:
        child = await session.start_child("helper", "help me")
        side = await session.prompt("what do you think?")
        return f"{reply.text} / {child.text} / {side}"
    return None


HOOKS = Hooks(
    begin_session=[remember], pre_request=[greet], before_model=[only_files, answer_pings], model_failed=[again],
    post_response=[shout], before_tool=[guard], after_tool=[redact], end_turn=[afterthought],
)  # fmt: skip

REPLIES: list[Any] = [
    # one: tools side by side, hooks that change calls and results
    [call("read_file", path="a-link"), call("read_file", path="secret"), call("count", words=["one", "three"])],
    [call("read_file", path="private"), call("read_file", path="missing"), call("nonsense")],
    [call("read_file", wrong=1)],
    Response("it is loud", thinking=(Thinking("hm", {"signature": "abc"}),), usage=Usage(10, 5, 3), model="script"),
    # two: a request that hooks change; the model fails once and is asked again
    ModelUnavailable("script", "flaky"),
    "narrowed",
    # three is answered by a hook; four delegates
    "I delegate",
    "helped",
    "I think so",
    # five: compaction at the end of the turn
    "please compact",
    "SUMMARY: files were read",
    # six: cancelled in the middle of a tool; seven: failed, then resumed
    [call("wait_for_it")],
    ModelUnavailable("script", "down"),
    "up again",
    # eight: steered; nine: a limit
    [call("count", words=["x"])],
    "steered",
    [call("count", words=["y"])],
    [call("count", words=["z"])],
    [call("count", words=["z"])],
    [call("count", words=["z"])],
]


async def run(runtime: Runtime) -> None:
    """The run itself."""
    session = await runtime.start("writer", id="golden")
    for text in ("read things", "narrow it", "ping", "who else?", "make it short"):
        await session.prompt(text)
    running = asyncio.ensure_future(session.prompt("wait"))
    await WAITS.wait()
    await session.cancel("enough")
    assert (await running).status == "cancelled"
    session = await runtime.load("golden")
    try:
        await session.prompt("fail")
    except ModelUnavailable:
        await runtime.resume("golden")
    session = await runtime.load("golden")
    await session.steer("and be quick")
    await session.prompt("go on")
    assert (await session.prompt("count on")).status == "limit"


def summary(events: list[AnyEvent]) -> dict[str, Any]:
    """What all sessions come to, in plain JSON."""
    states: dict[str, SessionState] = {}
    for event in events:
        states.setdefault(event.session, SessionState(event.session)).apply(event)
    return {name: of_state(state) for name, state in states.items()}


def of_state(state: SessionState) -> dict[str, Any]:
    """What one session is, in plain JSON."""
    return {
        "agent": state.header.agent,
        "parent": state.header.parent,
        "phase": state.turn.phase,
        "turn": state.turn.number,
        "text": state.conversation.reply_text,
        "summary": state.conversation.summary,
        "context": state.context,
        "messages": msgspec.json.decode(msgspec.json.encode(state.conversation.messages())),
    }


@asynccontextmanager
async def made() -> AsyncGenerator[Store]:
    """A store in memory with the run in it."""
    store = MemoryStore(Ticking())
    helper = Agent("helper", instructions="Help.", model=(script := Script(REPLIES)))
    writer = Agent(
        "writer", instructions="Write.", model=script, tools=[read_file, count, wait_for_it], agents=[helper],
        hooks=HOOKS, limits=Limits(model_calls=4),
    )  # fmt: skip
    async with Runtime(store, agents=[writer]) as runtime:
        await run(runtime)
        yield store


async def main() -> None:
    async with made() as store:
        events = await store.read_all(0, 10_000)
    (FOLDER / "v1.jsonl").write_bytes(b"".join(msgspec.json.encode(e) + b"\n" for e in events))
    (FOLDER / "v1.expected.json").write_text(json.dumps(summary(events), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
