"""The begin_session hooks of a submitted session run in the worker that takes it, and end its turn if they fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from core.doubles import Place
from upcall import Agent, Hooks, Runtime, SessionAccess
from upcall.core.runtime.retrying import Retries
from upcall.core.runtime.worker import Segment
from upcall.errors import LimitReached
from upcall.models import Script
from upcall.store.memory import MemoryStore
from upcall.store.sqlite.store import SqliteStore


def beginning(hook: Any) -> Agent:
    return Agent(
        "a", model=Script(lambda request: f"heard {request.messages[-1].text}"), hooks=Hooks(begin_session=[hook])
    )


def away(times: int) -> Callable[[SessionAccess], None]:
    """A hook that can't reach its service so many times."""
    left = iter(range(times))

    def reach(session: SessionAccess) -> None:
        if next(left, None) is not None:
            raise ConnectionError("the service is away")

    return reach


async def work(runtime: Runtime, **options: Any) -> list[str]:
    """Work until nothing is left; returns what came of each segment."""
    seen: list[Segment] = []
    await runtime.work(once=True, on_segment=seen.append, **options)
    return [one.outcome for one in seen]


async def test_a_hook_that_fails_at_every_attempt_fails_the_turn_after_the_last_one() -> None:
    now = [1000.0]
    outcomes: list[str] = []
    async with Runtime(MemoryStore(clock=lambda: now[0]), agents=[beginning(away(3))]) as runtime:
        await runtime.submit("a", "go", id="s")
        for _ in range(4):
            outcomes += await work(runtime, retries=Retries(2, 1.0))
            now[0] += 1000
        assert (outcomes, await runtime.status("s")) == (["retry", "retry", "failed"], "failed")
        assert (await runtime.resume("s")).text == "heard go"


async def test_the_turn_that_is_tried_again_is_not_replaced_by_the_next_one() -> None:
    now = [1000.0]
    async with Runtime(MemoryStore(clock=lambda: now[0]), agents=[beginning(away(2))]) as runtime:
        await runtime.submit("a", "one", id="s")
        await runtime.submit("a", "two", id="s", turn=2)
        for _ in range(4):
            await work(runtime, retries=Retries(3, 1.0))
            now[0] += 1000
        session = await runtime.load("s")
        said = [message.text for message in session.get_messages()]
        assert said == ["one", "heard one", "two", "heard two"]


async def test_a_limit_in_the_hooks_ends_the_turn(place: Place) -> None:
    def limited(session: SessionAccess) -> None:
        raise LimitReached("budget", "3 euros")

    async with Runtime(place.store(), agents=[beginning(limited)]) as runtime:
        await runtime.submit("a", "go", id="s")
        assert (await work(runtime), await runtime.status("s"), await runtime.ready()) == (["limit"], "limit", [])


async def test_a_session_that_is_cancelled_in_its_hooks_after_a_death_ends(tmp_path: Path) -> None:
    path, now, begun = tmp_path / "log.db", [1_000_000.0], asyncio.Event()

    async def slow(session: SessionAccess) -> None:
        begun.set()
        await asyncio.Event().wait()

    dead = SqliteStore(path, lambda: now[0])
    async with Runtime(SqliteStore(path), agents=[beginning(slow)]) as runtime:
        await runtime.submit("a", "go", id="s")
    await dead.open()
    assert await dead.take() is not None
    now[0] += 3600
    async with Runtime(SqliteStore(path, lambda: now[0]), agents=[beginning(slow)]) as runtime:
        working = asyncio.ensure_future(work(runtime))
        await begun.wait()
        await runtime.cancel("s")
        assert (await working, await runtime.status("s"), await runtime.ready()) == (["cancelled"], "cancelled", [])
    await dead.close()


async def test_a_session_that_was_cancelled_in_its_hooks_begins_with_its_next_turn(place: Place) -> None:
    begun, ran = asyncio.Event(), list[str]()

    async def slow(session: SessionAccess) -> None:
        ran.append(session.id)
        begun.set()
        if len(ran) == 1:
            await asyncio.Event().wait()

    async with Runtime(place.store(), agents=[beginning(slow)]) as runtime:
        await runtime.submit("a", "one", id="s")
        working = asyncio.ensure_future(work(runtime))
        await begun.wait()
        await runtime.cancel("s")
        await working
        assert await runtime.status("s") == "cancelled"
        await runtime.submit("a", "two", id="s", turn=2)
        assert (await work(runtime), ran) == (["done"], ["s", "s"])
