"""How `v1.sql` was made: the dump of a SQLite file of format 1 in which sessions ended, wait and were interrupted.
It was made once; a file that a version has written can always be opened. `v2.sql`, `v3.sql` and `v4.sql` were
made in the same way by the last versions that wrote these formats, and do not say where their agents were loaded
from.

    PYTHONPATH=tests python -m store.golden.make_v1_file
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from store.factories import put
from upcall import Agent, Approve, Context, Request, Runtime, tool
from upcall.events import TurnStarted
from upcall.messages import Call, user
from upcall.models import Script, call
from upcall.store.sqlite.store import SqliteStore

NOW = 1_800_000_000.0
MARKS = ("application_id", "user_version")


def clock() -> float:
    """The time at which everything in the file happened."""
    return NOW


@tool
async def colour(ctx: Context) -> str:
    """Ask one question."""
    return f"it is {await ctx.raise_callback('Which colour?')}"


@tool(needs_approval=True)
async def deploy(ctx: Context) -> str:
    """Ask a question in a call that needs an approval."""
    return f"deployed to {await ctx.raise_callback('Where to?')}"


@tool
async def hurry(ctx: Context) -> str:
    """Ask a question that expires after a minute."""
    return f"it is {await ctx.raise_callback('How fast?', timeout=60, default='slow')}"


def _decide(request: Request) -> str | list[Call]:
    """Call the tool that the prompt names, then repeat what it said."""
    last = request.messages[-1]
    if last.role == "tool":
        return last.results[0].text
    return "hello" if last.text == "hello" else [call(last.text)]


child = Agent("child", model=Script(_decide), tools=[colour])


def _delegate(request: Request) -> str | list[Call]:
    said = [result.text for message in request.messages for result in message.results]
    return said[0] if said else [call("task", agent="child", prompt=request.messages[-1].text)]


AGENTS = [
    Agent("worker", model=Script(_decide), tools=[colour, deploy, hurry]),
    Agent("manager", model=Script(_delegate), agents=[child]),
]


async def fill(path: Path) -> None:
    """Run the sessions of the file."""
    async with Runtime(SqliteStore(path, clock), agents=AGENTS) as runtime:

        async def run(agent: str, session_id: str, prompt: str) -> None:
            await (await runtime.start(agent, id=session_id)).prompt(prompt)

        async def settle(session_id: str, value: object) -> None:
            held = await runtime.store.callbacks(root=session_id)
            await runtime.answer(held[-1].id, value, by="ops")

        await run("worker", "done", "hello")
        await run("worker", "waiting", "colour")
        await run("worker", "answered", "colour")
        await settle("answered", "blue")
        await run("worker", "approved", "deploy")
        await settle("approved", Approve())
        await runtime.resume("approved")  # it waits for its question now
        await run("worker", "expiring", "hurry")
        await run("manager", "family", "colour")
        await settle("family", "red")
        await runtime.start("worker", id="idle")
        await run("worker", "finished", "colour")
        await settle("finished", "green")
        await runtime.resume("finished")
        await runtime.start("worker", id="interrupted")
        claim = await runtime.store.claim("interrupted")
        await put(runtime.store, "interrupted", TurnStarted(1, user("hello")), claim=claim, release=True)


async def main() -> None:
    """Write the dump beside this file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.db"
        await fill(path)
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("DELETE FROM processes")
            marks = [f"PRAGMA {name} = {db.execute(f'PRAGMA {name}').fetchone()[0]};" for name in MARKS]
            dump = "\n".join([*marks, *db.iterdump()])
    Path(__file__).with_name("v1.sql").write_text(f"{dump}\n")


if __name__ == "__main__":
    asyncio.run(main())
