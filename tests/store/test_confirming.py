"""The contract of stores: a claim says until when it holds, and a late owner asks before it acts."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from postgres import server
from store.factories import open_sqlite, start_and_claim, wait_until
from upcall.contracts import Store
from upcall.errors import SessionTakenOver, StoreError
from upcall.store.postgres.store import PostgresStore
from upcall.store.sqlite.store import SqliteStore


async def test_a_claim_holds_for_one_lease_of_the_store(store: Store) -> None:
    before = time.monotonic()
    claim = await start_and_claim(store)
    if not store.lease:  # nobody else can own anything
        assert claim.until == math.inf
    else:
        assert before < claim.until <= time.monotonic() + store.lease


async def test_a_confirmed_claim_holds_for_another_lease(store: Store) -> None:
    claim = await start_and_claim(store)
    claim.until = 0.0
    await store.confirm(claim)
    assert claim.is_active
    if store.lease:
        assert time.monotonic() < claim.until <= time.monotonic() + store.lease


async def test_a_lost_claim_is_not_confirmed_and_its_owner_is_told(store: Store, other: Store) -> None:
    old = await start_and_claim(store)
    told: list[Exception] = []
    old.on_failure = told.append
    await other.claim("s", take_over=True)
    with pytest.raises(SessionTakenOver):
        await store.confirm(old)
    assert isinstance(old.failure, SessionTakenOver)
    await wait_until(lambda: told)


async def test_a_claim_that_was_given_up_is_not_confirmed(store: Store) -> None:
    claim = await start_and_claim(store)
    await store.release(claim)
    with pytest.raises(StoreError, match="given up"):
        await store.confirm(claim)


@pytest.mark.slow
async def test_every_heartbeat_moves_the_end_of_a_claim(store: Store) -> None:
    claim = await start_and_claim(store)
    first = claim.until
    if store.lease:
        await wait_until(lambda: claim.until > first)


async def test_the_lease_of_a_file_is_what_the_store_was_given(tmp_path: Path) -> None:
    now = 1000.0
    async with open_sqlite(tmp_path / "log.db", lambda: 1000.0) as owner:
        await start_and_claim(owner)
        late = SqliteStore(tmp_path / "log.db", lambda: now, lease=60.0)
        await late.open()
        now = 1059.0
        assert [bool(row.owner) for row in await late.rows()] == [True]
        now = 1061.0
        assert [bool(row.owner) for row in await late.rows()] == [False]
        await late.close()


# --- a process that is stopped ------------------------------------------------------------

STOPPED = """
import asyncio, os, signal, sys
from pathlib import Path
from upcall import Agent, Context, Runtime, tool
from upcall.errors import SessionTakenOver
from upcall.models import Script, call
from upcall.store.postgres.store import PostgresStore
from upcall.store.sqlite.store import SqliteStore

path, at, effects = sys.argv[1], sys.argv[2], Path(sys.argv[3])
armed = resuming = False

class Stopping(PostgresStore if "://" in path else SqliteStore):
    '''Stops this process once an event of that type is stored, before anybody is told.'''

    def append(self, session, events, *args, **options):
        global armed
        future = super().append(session, events, *args, **options)
        if armed and any(e.type == at for e in events):
            armed = False
            async def stop():
                if future is not None:
                    await future
                os.kill(os.getpid(), signal.SIGSTOP)
            return asyncio.ensure_future(stop())
        return future

def happened(what):
    with effects.open("a") as file:
        file.write(what + " ")

@tool(repeatable=True)
async def work(ctx: Context) -> str:
    '''Work.'''
    if at == "once_started":
        return await ctx.once("pay", lambda: happened("pay"))
    if at == "callback_asked":
        return await ctx.raise_callback("which?")
    happened("work")
    if at == "tool_tried_again" and not resuming:
        os._exit(9)
    return "done"

def boss(request):
    if request.purpose == "side_turn":
        happened("side_turn")
        return call("answer_callback", value="this one")
    return "all done" if any(m.results for m in request.messages) else call("task", agent="writer", prompt="write")

def writer(request):
    return "done" if request.messages[-1].role == "tool" else call("work")

below = Agent("writer", model=Script(writer), tools=[work], can_query_caller=True)
top = Agent("boss", model=Script(boss), agents=[below]) if at == "callback_asked" else below

async def main():
    global armed, resuming
    async with Runtime(Stopping(path, lease=0.5), agents=[top]) as runtime:
        if at == "tool_tried_again" and "s" in [row.id for row in await runtime.store.rows()]:
            armed = resuming = True
            await runtime.resume("s")
        else:
            armed = at != "tool_tried_again"
            await (await runtime.start(top, id="s")).prompt("go")

try:
    asyncio.run(main())
except SessionTakenOver:
    sys.exit(7)
"""


async def start_stopped(path: str, at: str, effects: Path) -> asyncio.subprocess.Process:
    """Start a process that stops itself at an event; return when it has stopped or ended."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STOPPED, path, at, str(effects), stderr=asyncio.subprocess.PIPE
    )
    deadline = time.monotonic() + 60
    while process.returncode is None and not is_stopped(process.pid):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    return process


def is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except FileNotFoundError:  # it has ended
        return False


@pytest.mark.slow
@pytest.mark.parametrize("at", ["tool_started", "tool_tried_again", "once_started", "callback_asked"])
@pytest.mark.parametrize("taken", [True, False], ids=["taken over", "not taken over"])
@pytest.mark.parametrize("kind", ["file", "postgres"])
async def test_a_process_that_was_stopped_starts_nothing_after_another_one_took_over(
    at: str, taken: bool, kind: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "log.db") if kind == "file" else server().database()
    effects = tmp_path / "effects"
    effects.touch()
    if at == "tool_tried_again":
        died = await start_stopped(path, at, effects)
        assert await died.wait() == 9
        effects.write_text("")
    process = await start_stopped(path, at, effects)
    assert process.returncode is None
    late = SqliteStore(path, lease=0.5) if kind == "file" else PostgresStore(path)
    await late.open()
    if taken:
        await asyncio.sleep(0.6)  # more than the lease of the process that is stopped
        await late.claim("s")
    os.kill(process.pid, signal.SIGCONT)
    _, problem = await process.communicate()
    assert process.returncode == (7 if taken else 0), problem.decode()
    last = (await late.read("s"))[-1].type
    await late.close()
    if kind == "postgres":
        server().drop(path)
    if taken:
        assert effects.read_text() == ""
        assert last != "turn_ended"
    else:
        wanted = {"once_started": "pay ", "callback_asked": "side_turn "}
        assert effects.read_text() == wanted.get(at, "work ")
        assert last == "turn_ended"
