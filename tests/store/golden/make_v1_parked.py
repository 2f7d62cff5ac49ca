"""How `v1.parked.sql` was made: the dump of a SQLite file in which programs, approvals, teams and hooks wait.
It was written once, by the first version; every later one has to resume what waits in it.

    PYTHONPATH=tests python -m store.golden.make_v1_parked
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from upcall import Agent, Context, Hooks, Message, Request, Runtime, SessionAccess, Team, tool
from upcall.messages import Call
from upcall.models import Script, call
from upcall.store.sqlite.store import SqliteStore
from upcall.workspace import run_python

NOW = 1_800_000_000.0
MARKS = ("application_id", "user_version")
PROGRAM = """
seen = []
for name in ['a', 'b', 'c']:
    seen.append(look(name=name))
    if name == 'b':
        seen.append(raise_callback('Go on after b?', 'blocker'))
', '.join(seen)
"""
PLAN = '[{"role": "developer", "task": "build", "sequence": 1, "caller": "manager"}]'


def clock() -> float:
    """The time at which everything in the file happened."""
    return NOW


@tool
async def look(name: str) -> str:
    """Look at something."""
    return f"saw {name}"


@tool
async def colour(ctx: Context) -> str:
    """Ask one question."""
    return f"it is {await ctx.raise_callback('Which colour?', 'blocker')}"


@tool
async def two(ctx: Context) -> str:
    """Ask two questions at once."""
    asked = [ctx.raise_callback(f"{name}?", "blocker") for name in ("First", "Second")]
    return " and ".join(await asyncio.gather(*asked))


@tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def results(request: Request) -> list[str]:
    """What the tools have said so far."""
    return [result.text for message in request.messages for result in message.results]


def _program(request: Request) -> str | Call:
    return results(request)[0] if results(request) else call("run_python", code=PROGRAM)


def _pay(request: Request) -> str | Call:
    return results(request)[0] if results(request) else call("pay", amount=250)


def _colour(request: Request) -> str | Call:
    return results(request)[0] if results(request) else call("colour")


def _two(request: Request) -> str | Call:
    return results(request)[0] if results(request) else call("two")


def _delegate(request: Request) -> str | list[Call]:
    said = results(request)
    return " / ".join(said) if said else [call("task", agent="painter", prompt=str(n)) for n in (1, 2)]


async def _ask_first(session: SessionAccess, message: Message) -> None:
    await session.raise_callback("May it begin?", "blocker")


painter = Agent("painter", model=Script(_colour), tools=[colour])
AGENTS = [
    Agent("programmer", model=Script(_program), tools=[run_python(), look]),
    Agent("cashier", model=Script(_pay), tools=[pay]),
    Agent("chief", model=Script(_delegate), agents=[painter]),
    Agent("twice", model=Script(_two), tools=[two]),
    Agent("careful", model=Script(lambda _: "begun"), hooks=Hooks(pre_request=[_ask_first])),
]


def _manage(request: Request) -> str | Call:
    if request.purpose == "side_turn":
        return call("pass_up_callback", reason="not mine")
    return PLAN


TEAM = Team(
    Agent("manager", model=Script(_manage)),
    roles={"developer": Agent("developer", model=Script(_colour), tools=[colour])},
    reviewer=Agent("reviewer", model=Script(lambda request: f"reviewed: {request.messages[-1].text[-40:]}")),
)
SESSIONS = {
    "program": "programmer", "approval": "cashier", "children": "chief", "pair": "twice", "hook": "careful",
    "team": TEAM.name,
}  # fmt: skip


async def fill(path: Path) -> None:
    """Run each session until it waits."""
    async with Runtime(SqliteStore(path, clock), agents=[*AGENTS, TEAM]) as runtime:
        for session_id, agent in SESSIONS.items():
            reply = await (await runtime.start(agent, id=session_id)).prompt("begin")
            assert reply.status == "waiting", (session_id, reply)


async def main() -> None:
    """Write the dump beside this file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.db"
        await fill(path)
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("DELETE FROM processes")
            marks = [f"PRAGMA {name} = {db.execute(f'PRAGMA {name}').fetchone()[0]};" for name in MARKS]
            dump = "\n".join([*marks, *db.iterdump()])
    Path(__file__).with_name("v1.parked.sql").write_text(f"{dump}\n")


if __name__ == "__main__":
    asyncio.run(main())
