"""A disk without room: one clear error, nothing acknowledged lost, and once there is room it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.agents import worker
from store.disks import IS_ROOT, disk
from store.factories import open_sqlite
from upcall import Runtime
from upcall.errors import StoreUnavailable

WORDS = "the disk is full" if IS_ROOT else ""


async def prompt_until_full(runtime: Runtime) -> list[str]:
    """Prompt until it fails; returns what was acknowledged."""
    session = await runtime.start("worker", id="s")
    acknowledged: list[str] = []

    async def go_on() -> None:
        while True:
            acknowledged.append((await session.prompt("go")).text)

    with pytest.raises(StoreUnavailable, match=WORDS):
        await go_on()
    return acknowledged


def expected(turns: int) -> list[str]:
    return [f"looked up {2 * (n + 1)}" for n in range(turns)]


async def test_on_a_full_disk_nothing_acknowledged_is_lost_and_with_room_it_continues(tmp_path: Path) -> None:
    agent = worker(calls=2, size=4000)
    with disk(tmp_path / "disk", 1024) as small:
        async with Runtime(small.folder / "log.db", agents=[agent]) as runtime:
            acknowledged = await prompt_until_full(runtime)
            assert acknowledged == expected(len(acknowledged))
            assert len(acknowledged) > 5
            ended = [e async for e in runtime.events("s") if e.type == "turn_ended"]
            assert len(ended) == len(acknowledged)
            small.make_room()
            reply = await runtime.resume("s")
            session = await runtime.load("s")
            last = await session.prompt("go")
        finished = len(acknowledged) + (reply.text != acknowledged[-1])
        assert reply.text == expected(finished)[-1]
        assert last.text == expected(finished + 1)[-1]


@pytest.mark.slow
async def test_after_a_full_disk_another_process_continues(tmp_path: Path) -> None:
    agent = worker(calls=2, size=4000)
    with disk(tmp_path / "disk", 1024) as small:
        async with Runtime(small.folder / "log.db", agents=[agent]) as runtime:
            acknowledged = await prompt_until_full(runtime)
        small.make_room()
        async with Runtime(small.folder / "log.db", agents=[agent]) as runtime:
            await runtime.resume("s")
            ended = [e async for e in runtime.events("s") if e.type == "turn_ended"]
            assert len(ended) >= len(acknowledged)
            assert [e.seq async for e in runtime.events("s")] == list(range(1, (await runtime.store.last()) + 1))


async def test_a_store_that_found_no_room_to_be_made_is_made_later(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", 12) as small:
        path = small.folder / "log.db"
        with pytest.raises(StoreUnavailable, match=WORDS):
            async with open_sqlite(path):
                pass
        small.make_room()
        async with open_sqlite(path) as store:
            assert await store.rows() == []
