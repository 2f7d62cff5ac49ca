"""SQLite under many sessions and long ones: few commits, constant cost, nothing left over."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from store.agents import counted, worker
from store.factories import child_of, open_sqlite, put, start_and_claim, turn
from upcall import Runtime
from upcall.errors import UnknownSession
from upcall.events import ContextSet


def left_over(folder: Path) -> tuple[int, set[str], set[str]]:
    """Threads, open files under the folder, and the folder's content."""
    time.sleep(0.05)  # a thread that has ended needs a moment to be gone
    threads = len(list(Path("/proc/self/task").iterdir()))  # the store's own are none that `threading` lists
    files = {str(f.readlink()) for f in Path("/proc/self/fd").iterdir() if f.exists()}
    return threads, {f for f in files if f.startswith(str(folder))}, {f.name for f in folder.iterdir()}


@pytest.mark.slow
async def test_two_hundred_sessions_at_once_finish_in_few_commits_and_leave_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    threads, _, _ = left_over(tmp_path)
    tasks = asyncio.all_tasks()
    with counted() as work:
        async with Runtime(tmp_path / "log.db", agents=[worker(calls=2)]) as runtime:

            async def one(number: int) -> str:
                session = await runtime.start("worker", id=f"s{number}")
                return (await session.prompt("go")).text

            texts = await asyncio.gather(*[one(number) for number in range(200)])
            appends = len({(e.session, e.time) for e in await runtime.store.read_all(0, 100_000)})
    assert texts == ["looked up 2"] * 200
    with capsys.disabled():
        print(f"\n200 sessions: at least {appends} appends in {work.commits} commits")
    assert work.commits < 200
    assert asyncio.all_tasks() == tasks
    assert left_over(tmp_path) == (threads, set(), {"log.db"})


async def test_a_runtime_closed_in_the_middle_of_a_turn_leaves_nothing_over(tmp_path: Path) -> None:
    threads, _, _ = left_over(tmp_path)
    async with Runtime(tmp_path / "log.db", agents=[worker()]) as runtime:
        session = await runtime.start("worker", id="s")
        watching = asyncio.ensure_future(anext(runtime.events(after=10_000, follow=True)))
        running = asyncio.ensure_future(session.prompt("go"))
        await asyncio.sleep(0.1)
    await asyncio.gather(running, watching, return_exceptions=True)
    assert left_over(tmp_path) == (threads, set(), {"log.db"})


async def test_appending_costs_the_same_however_long_the_session_is(tmp_path: Path) -> None:
    with counted() as work:
        async with open_sqlite(tmp_path / "log.db") as store:
            claim = await start_and_claim(store)
            costs: list[tuple[int, int]] = []
            for number in range(600):
                before = work.statements, work.steps
                await put(store, "s", ContextSet("k", "x" * 300), turn(number), claim=claim)
                costs.append((work.statements - before[0], work.steps - before[1]))
    # The middle one of fifty: on a slow machine a look at what others wrote falls into some of them.
    early, late = (sorted(costs[at : at + 50])[25] for at in (10, 540))
    assert late[0] <= early[0]
    assert late[1] <= early[1] * 1.1


@pytest.mark.slow
async def test_a_turn_costs_the_same_however_long_the_session_is(tmp_path: Path) -> None:
    with counted() as work:
        async with Runtime(tmp_path / "log.db", agents=[worker()]) as runtime:
            session = await runtime.start("worker")
            costs: list[int] = []
            for _ in range(200):
                before = work.steps
                await session.prompt("go")
                costs.append(work.steps - before)
    assert sum(costs[170:190]) <= sum(costs[10:30]) * 1.2


@pytest.mark.slow
async def test_a_page_of_a_run_tree_costs_about_the_same_wherever_it_begins(tmp_path: Path) -> None:
    with counted() as work:
        async with open_sqlite(tmp_path / "log.db") as store:
            claim = await start_and_claim(store)
            await put(store, "s~1", child_of("s"), claim=claim)
            for number in range(100):
                await put(store, "s", *[ContextSet("k", number) for _ in range(50)], claim=claim)
            costs: list[tuple[int, int]] = []
            for after in (100, 2500, 4900):
                before = work.statements, work.steps
                assert len(await store.read_tree("s", after, 20)) == 20
                costs.append((work.statements - before[0], work.steps - before[1]))
    assert {statements for statements, _ in costs} == {1}
    assert max(steps for _, steps in costs) < 4000  # of 5,000 events


@pytest.mark.slow
async def test_a_failed_claim_is_given_up_so_that_others_may_continue(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with open_sqlite(path) as store, open_sqlite(path) as other:
        kept, lost = await start_and_claim(store, "kept"), await start_and_claim(store, "lost")
        with pytest.raises(UnknownSession):
            await put(store, "nobody", turn(), claim=lost)

        async def free() -> None:
            while (await other.rows())[0].owner:
                await asyncio.sleep(0.02)

        await asyncio.wait_for(free(), 10)
        await other.claim("lost")
        assert kept.failure is None
