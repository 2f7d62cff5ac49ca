"""How `v1.later.jsonl` and `v1.later.expected.json` were made: real turns with the types that came later.
A program that asks, options, a compaction that waits for open calls, a declined and a revealed question, an
adopted log. They were made once; what a version has written never changes.

    PYTHONPATH=tests python -m store.golden.make_v1_later
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec

from store.golden.make_v1 import FOLDER, summary
from store.golden.make_v1_callbacks import Clock, Kept
from upcall import (
    Agent,
    Approve,
    Call,
    Context,
    Decline,
    Hooks,
    Request,
    Runtime,
    SessionAccess,
    SessionOptions,
    tool,
)
from upcall.events import SessionAdopted
from upcall.models import Script, call
from upcall.workspace import run_python

PROGRAM = "first = await colour(of='car')\nf'the car is {first}'"


@tool(read_only=True)
async def colour(of: str, ctx: Context) -> str:
    """Ask a person for a colour.

    of: the thing
    """
    return str(await ctx.raise_callback(f"Which colour has the {of}?", kind="request_user_input"))


@tool(needs_approval=True)
async def paint(of: str) -> str:
    """Paint a thing.

    of: the thing
    """
    return f"painted the {of}"


async def shorten(session: SessionAccess, call: Call) -> None:
    if call.args.get("of") == "door":
        await session.trigger_compaction(keep_last=1)


def decide(request: Request) -> Any:
    last = request.messages[-1]
    if request.purpose == "summary":
        return "SUMMARY: a car was painted"
    if last.results:
        return last.results[-1].text
    return {"program": call("run_python", code=PROGRAM), "door": call("colour", of="door")}.get(
        last.text, call("paint", of="house")
    )


async def answered(runtime: Runtime, value: Any) -> str:
    """Reveal and answer the one question in the inbox, and continue."""
    (callback,) = await runtime.inbox()
    await runtime.reveal(callback.id, by="ops", right="token")
    await runtime.answer(callback.id, value, by="ops")
    return (await runtime.resume("golden")).text


async def run(runtime: Runtime) -> None:
    """The run itself."""
    session = await runtime.start("painter", id="golden")
    assert (await session.prompt("program")).status == "waiting"
    assert "the car is red" in await answered(runtime, "red")
    session = await runtime.load("golden")
    await session.set_options(SessionOptions(model="deep"))
    assert (await session.prompt("door")).status == "waiting"
    await answered(runtime, Decline("ask somebody else"))
    session = await runtime.load("golden")
    assert (await session.prompt("house")).status == "waiting"
    (approval,) = await runtime.inbox()
    await runtime.answer(approval.id, Approve(), by="ops")
    await runtime.store.append_all({"golden": [SessionAdopted("ops", (approval.id,))]})


async def main() -> None:
    hooks = Hooks(before_tool=[shorten])
    models = {"fast": Script(decide), "deep": Script(decide)}
    painter = Agent(
        "painter", instructions="Paint.", models=models, tools=[run_python(), colour, paint], hooks=hooks
    )
    async with Runtime(Kept(Clock()), agents=[painter]) as runtime:
        await run(runtime)
        events = await runtime.store.read_all(0, 10_000)
    name = "v1.later"
    (FOLDER / f"{name}.jsonl").write_bytes(b"".join(msgspec.json.encode(e) + b"\n" for e in events))
    (FOLDER / f"{name}.expected.json").write_text(json.dumps(summary(events), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
