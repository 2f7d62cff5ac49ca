"""The contract of stores: whoever has seen a position never later finds anything new below it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from store.factories import StoreFactory, open_sqlite, put, start_and_claim
from upcall.contracts import Store
from upcall.events import AnyEvent, ContextSet

ROUNDS = 30

WRITER = """
import asyncio, sys
from upcall.events import ContextSet, SessionStarted
from upcall.store.sqlite.store import SqliteStore

async def main(path, session):
    store = SqliteStore(path)
    await store.open()
    first = store.append(session, [SessionStarted("writer")], None)
    if first is not None:
        await first
    claim = await store.claim(session)
    for number in range(60):
        stored = [store.append(session, [ContextSet("n", number)], claim) for _ in range(number % 4 + 1)]
        await asyncio.gather(*[one for one in stored if one is not None])
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


async def write(store: Store, session: str) -> None:
    """Append again and again, now one event and now several."""
    claim = await start_and_claim(store, session)
    for number in range(ROUNDS):
        await put(store, session, *[ContextSet("n", number) for _ in range(number % 4 + 1)], claim=claim)
        await asyncio.sleep(0)


async def follow(store: Store, done: asyncio.Event) -> list[AnyEvent]:
    """Read by position, a few events at a time, until nothing more comes."""
    seen: list[AnyEvent] = []
    while True:
        ending = done.is_set()
        page = await store.read_all(seen[-1].pos if seen else 0, 7)
        seen += page
        if not page:
            if ending:
                return seen
            await store.wait(seen[-1].pos if seen else 0, 0.05)
        await asyncio.sleep(0)


async def test_who_follows_the_log_by_position_misses_nothing_that_several_stores_write(
    factory: StoreFactory, store: Store, other: Store
) -> None:
    done = asyncio.Event()
    following = [asyncio.ensure_future(follow(one, done)) for one in (store, other)]
    await asyncio.gather(
        *[write(one, f"s{n}") for n, one in enumerate((store, other, await factory.open(), store))]
    )
    done.set()
    every = await store.read_all(0, 100_000)
    assert [e.pos for e in every] == sorted({e.pos for e in every})
    for seen in await asyncio.gather(*following):
        assert [(e.pos, e.session, e.seq) for e in seen] == [(e.pos, e.session, e.seq) for e in every]


async def test_nothing_appears_at_or_below_the_last_position_once_it_was_told(store: Store, other: Store) -> None:
    writing = asyncio.gather(write(store, "a"), write(other, "b"))
    looks: list[tuple[int, int]] = []
    while not writing.done():
        last = await other.last()
        looks.append((last, sum(e.pos <= last for e in await store.read_all(0, 100_000))))
        await asyncio.sleep(0)
    every = await store.read_all(0, 100_000)
    assert [count for _, count in looks] == [sum(e.pos <= last for e in every) for last, _ in looks]


@pytest.mark.slow
async def test_who_follows_one_file_misses_nothing_that_several_processes_write(tmp_path: Path) -> None:
    path, done = tmp_path / "log.db", asyncio.Event()
    async with open_sqlite(path) as store:
        following = asyncio.ensure_future(follow(store, done))
        writers = [
            await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, str(path), f"s{number}")
            for number in range(3)
        ]
        assert [await writer.wait() for writer in writers] == [0, 0, 0]
        done.set()
        seen = await following
        every = await store.read_all(0, 100_000)
    assert len(every) == 3 * (1 + 150)
    assert [(e.pos, e.session, e.seq) for e in seen] == [(e.pos, e.session, e.seq) for e in every]
