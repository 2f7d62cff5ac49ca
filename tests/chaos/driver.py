"""The program that is killed: runs sessions with parallel tools, and says what was acknowledged.

    python -m chaos.driver work STORE EFFECTS TURNS SESSION...    turns whose tools write to EFFECTS
    python -m chaos.driver hold STORE EFFECTS GATE SESSION        one turn whose tool waits for the file GATE

Every effect and every model call is one line in EFFECTS, written in one go; every line of output is something that
must not be lost any more.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from upcall import Agent, Context, Delta, Request, Runtime, Session, SyncContext, tool
from upcall.errors import SessionExists, SessionTakenOver
from upcall.events import TurnEnded
from upcall.messages import Call
from upcall.models import Script, call
from upcall.tools import Tool

STEPS = 6
"""Things that each turn has to get done, each by a tool call of its own."""

ASIDE = 3
"""How many of them are tried side by side."""


class Effects:
    """A file outside the store."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def note(self, *words: object) -> None:
        os.write(self._fd, (" ".join(map(str, words)) + "\n").encode())


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def wanted(request: Request) -> list[str]:
    """What the newest turn has not got done yet, as far as its results say."""
    newest = max(i for i, m in enumerate(request.messages) if m.role == "user")
    name = request.messages[newest].text
    done = {r.text for m in request.messages[newest:] for r in m.results if not r.is_error}
    return [key for key in (f"{name}.{n}" for n in range(STEPS)) if key not in done]


def worker(effects: Effects) -> Agent:
    """An agent that goes on until every step of the turn has a result that is no error."""

    def decide(request: Request) -> str | list[Call]:
        effects.note("model", request.agent)
        left = wanted(request)
        if not left:
            return f"{request.messages[-1].role} done"
        kinds = ("in_a_task", "in_a_thread")
        return [call(kinds[n % 2], key=key) for n, key in enumerate(left[:ASIDE])]

    @tool
    async def in_a_task(key: str, ctx: Context) -> str:
        """Do a step.

        key: which one
        """
        effects.note("start", ctx.id, ctx.call_id, key)
        await asyncio.sleep(random.random() * 0.004)
        effects.note("end", ctx.id, ctx.call_id, key)
        return key

    @tool
    def in_a_thread(key: str, ctx: SyncContext) -> str:
        """Do a step.

        key: which one
        """
        effects.note("start", ctx.id, ctx.call_id, key)
        time.sleep(random.random() * 0.004)
        effects.note("end", ctx.id, ctx.call_id, key)
        return key

    tools: list[Tool | Callable[..., object]] = [in_a_task, in_a_thread]
    return Agent("worker", model=Script(decide), tools=tools)


def holder(effects: Effects, gate: Path) -> Agent:
    """An agent with one tool, which ends when a file is there."""

    @tool
    async def hold(ctx: Context) -> str:
        """Wait."""
        effects.note("start", ctx.id, ctx.call_id)
        say("holding")
        while not gate.exists():
            await asyncio.sleep(0.01)
        effects.note("end", ctx.id, ctx.call_id)
        return "held"

    def decide(request: Request) -> str | Call:
        effects.note("model", request.agent)
        last = request.messages[-1]
        return f"it said: {last.results[0].text}" if last.role == "tool" else call("hold")

    return Agent("holder", model=Script(decide), tools=[hold])


async def work(runtime: Runtime, session_id: str, turns: int) -> None:
    """All turns of one session, from wherever an earlier process left it."""
    try:
        session = await runtime.start("worker", id=session_id)
    except SessionExists:
        await runtime.resume(session_id)
        session = await runtime.load(session_id)
    ended = [e async for e in runtime.events(session_id) if isinstance(e, TurnEnded)]
    for number in range(len(ended), turns):
        await one_turn(session, f"turn{number}")
        say("done", session_id, number)


async def one_turn(session: Session, text: str) -> None:
    async for item in session.stream(text):
        if not isinstance(item, Delta):
            say("stored", item.session, item.seq, item.type)


async def main(mode: str, store: str, effects: str, *rest: str) -> None:
    noted = Effects(Path(effects))
    if mode == "work":
        async with Runtime(store, agents=[worker(noted)]) as runtime:
            await asyncio.gather(*[work(runtime, session, int(rest[0])) for session in rest[1:]])
        say("finished")
        return
    async with Runtime(store, agents=[holder(noted, Path(rest[0]))]) as runtime:
        session = await runtime.start("holder", id=rest[1])
        try:
            reply = await session.prompt("go")
        except SessionTakenOver:
            say("taken over")
        else:
            say("reply", reply.status, reply.text)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
