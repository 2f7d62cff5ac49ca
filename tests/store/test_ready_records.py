"""A run tree that becomes ready is recorded in the transaction that makes it ready: both are there, or neither."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from store.factories import (
    Clock,
    child_of,
    open_sqlite,
    put,
    question,
    question_events,
    start_and_claim,
    turn,
    turn_end,
)
from upcall.contracts import Ready, Store
from upcall.events import (
    CallbackAnswered,
    CallbackAsked,
    Parked,
    SessionStarted,
    TurnEnded,
    TurnQueued,
    TurnResumed,
    TurnStarted,
)
from upcall.messages import user
from upcall.store.memory import MemoryStore
from upcall.store.sqlite.store import SqliteStore

ANSWER = """
import asyncio, os, signal, sys
from upcall.events import CallbackAnswered
from upcall.store.sqlite import ready_queue
from upcall.store.sqlite.store import SqliteStore

def die(tx, record):
    ready_queue.add(tx, record)
    os.kill(os.getpid(), signal.SIGKILL)

async def main(path, when):
    store = SqliteStore(path, on_ready=die if when == "before" else ready_queue.add)
    await store.open()
    await store.settle("q", {"q": CallbackAnswered("q", "yes", "ops")})
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_settling_parking_and_a_childs_end_record_that_a_run_tree_is_ready(kind: str, tmp_path: Path) -> None:
    records: list[Ready] = []

    def on_ready(_: Any, record: Ready) -> None:
        records.append(record)

    clock = Clock()
    store: Store = MemoryStore(clock, on_ready)
    if kind == "sqlite":
        store = SqliteStore(tmp_path / "log.db", clock, on_ready=on_ready)
    await store.open()
    claim = await start_and_claim(store)
    await put(store, "s", turn(), *question_events("q"), *question_events("late", clock.now + 9), claim=claim)
    await put(store, "s~1", child_of("s"), turn(), question("a"), CallbackAsked("a", "boss"), claim=claim)
    assert records == []
    await store.park(claim, {"s": [Parked(("q", "late"))], "s~1": [Parked(("a",))]}, ["q", "late", "a"])
    assert records == [Ready("s", "parked", clock.now + 9), Ready("s", "parked")]
    await store.settle("q", {"q": CallbackAnswered("q", "yes", "ops")})
    assert records[2:] == [Ready("s", "settled")]
    claim = await store.claim("s")
    await put(store, "s~1", turn_end(), claim=claim, release=True)
    assert records[3:] == [Ready("s", "child_ended")]
    await store.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_submitting_a_retry_and_a_release_record_that_a_run_tree_is_ready(kind: str, tmp_path: Path) -> None:
    records: list[Ready] = []

    def on_ready(_: Any, record: Ready) -> None:
        records.append(record)

    clock = Clock()
    store: Store = MemoryStore(clock, on_ready)
    if kind == "sqlite":
        store = SqliteStore(tmp_path / "log.db", clock, on_ready=on_ready)
    await store.open()
    await store.append_all({"s": [SessionStarted("writer"), TurnQueued(1, user("go"))]})
    assert records == [Ready("s", "queued")]
    claim = await store.take()
    await put(store, "s", TurnStarted(1, user("go"), queued=2), claim=claim)
    await store.append_all({"s": [TurnQueued(2, user("more"))]})
    assert records[1:] == []
    await put(store, "s", TurnEnded(1, "failed", retry=clock.now + 5), claim=claim, release=True)
    assert records[1:] == [Ready("s", "retry", clock.now + 5)]
    clock.now += 5
    claim = await store.take()
    assert claim is not None
    await put(store, "s", TurnResumed(1), claim=claim)
    await store.release(claim)
    assert records[2:] == [Ready("s", "released")]
    claim = await store.claim("s")
    await put(store, "s", turn_end(), claim=claim, release=True)
    assert records[3:] == [Ready("s", "queued")]
    claim = await store.take()
    assert claim is not None
    await put(store, "s", TurnStarted(2, user("more"), queued=4), turn_end(2), claim=claim, release=True)
    assert records[4:] == []
    await store.close()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_process_killed_while_it_settles_leaves_the_answer_and_the_record_or_neither(
    when: str, tmp_path: Path
) -> None:
    path = tmp_path / "log.db"
    async with open_sqlite(path) as store:
        claim = await start_and_claim(store)
        await put(store, "s", turn(), *question_events("q"), claim=claim)
        await store.park(claim, {"s": [Parked(("q",))]}, ["q"])
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", ANSWER, str(path), when)
    assert await process.wait() == -signal.SIGKILL
    async with open_sqlite(path) as store:
        held = await store.callback("q")
        assert held is not None
        assert held.status == ("open" if when == "before" else "answered")
    with closing(sqlite3.connect(path)) as db, db:
        tables = db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'ready_queue'").fetchone()[0]
        queued = db.execute("SELECT root, reason FROM ready_queue").fetchall() if tables else []
    assert queued == ([] if when == "before" else [("s", "settled")])


async def test_a_record_that_can_not_be_written_leaves_the_callback_open(tmp_path: Path) -> None:
    def fail(_: Any, record: Ready) -> None:
        raise RuntimeError("the queue is full")

    path = tmp_path / "log.db"
    async with open_sqlite(path) as store:
        claim = await start_and_claim(store)
        await put(store, "s", turn(), *question_events("q"), claim=claim)
        await store.park(claim, {"s": [Parked(("q",))]}, ["q"])
    store = SqliteStore(path, on_ready=fail)
    await store.open()
    with pytest.raises(Exception, match="the queue is full"):
        await store.settle("q", {"q": CallbackAnswered("q", "yes", "ops")})
    held = await store.callback("q")
    assert held is not None
    assert held.status == "open"
    await store.close()
