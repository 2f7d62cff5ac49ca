"""Processes on one file: what one writes wakes the other, and nobody polls for nothing."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from pathlib import Path

import pytest

from store.factories import open_sqlite, put, start_and_claim, turn, wait_until
from upcall import Agent, Context, Runtime, tool
from upcall.events import AnyEvent, Steered
from upcall.models import Script, call
from upcall.store.sqlite.store import SqliteStore

OTHER = """
import asyncio, sys, time
from upcall import Agent, Runtime
from upcall.models import Script

async def main():
    async with Runtime(sys.argv[1], agents=[Agent("holder", model=Script(lambda _: "x"))]) as runtime:
        for word in sys.argv[2:]:
            sys.stdin.readline()
            before = time.monotonic()
            await (runtime.cancel("s") if word == "cancel" else runtime.steer("s", word))
            print(before, flush=True)

asyncio.run(main())
"""

IDLE = """
import asyncio, resource, sys, time
from upcall.events import SessionStarted
from upcall.store.sqlite.store import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1])
    await store.open()
    done = store.append("s", [SessionStarted("a")], None)
    if done is not None: await done
    await store.release(await store.claim("s"))
    await asyncio.sleep(2.5)  # the heart beats once more, and falls asleep
    before = resource.getrusage(resource.RUSAGE_SELF)
    await asyncio.sleep(1.5)
    after = resource.getrusage(resource.RUSAGE_SELF)
    print(after.ru_nvcsw - before.ru_nvcsw)
    await store.close()

asyncio.run(main())
"""


@pytest.mark.slow
async def test_another_process_reaches_a_running_turn_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, words = tmp_path / "log.db", ["one", "two", "three", "four", "cancel"]
    began = asyncio.Event()

    @tool
    async def hold(ctx: Context) -> None:
        """Wait for ever."""
        began.set()
        await asyncio.sleep(3600)

    heard: list[tuple[float, AnyEvent]] = []
    async with Runtime(path, agents=[Agent("holder", model=Script([call("hold")]), tools=[hold])]) as runtime:
        runtime.store.listen(lambda event: heard.append((time.monotonic(), event)))
        session = await runtime.start("holder", id="s")
        running = asyncio.ensure_future(session.prompt("go"))
        await began.wait()
        pipe = asyncio.subprocess.PIPE
        other = await asyncio.create_subprocess_exec(
            sys.executable, "-c", OTHER, str(path), *words, stdin=pipe, stdout=pipe
        )
        assert other.stdin is not None
        assert other.stdout is not None
        said: list[float] = []
        for number in range(len(words)):
            other.stdin.write(b"go\n")
            said.append(float(await other.stdout.readline()))
            await wait_until(lambda wanted=number + 1: len(heard) >= wanted)
        reply = await running
        ended = time.monotonic()
        await other.communicate()
    late = [1000 * (at - before) for (at, _), before in zip(heard, said, strict=True)]
    with capsys.disabled():
        print(f"\nheard after {statistics.median(late):.1f} ms (at most {max(late):.1f}), ", end="")
        print(f"the turn was cancelled after {1000 * (ended - said[-1]):.1f} ms")
    assert [e.type for _, e in heard] == ["steered"] * 4 + ["cancel_requested"]
    assert reply.status == "cancelled"
    assert statistics.median(late) < 250
    assert max(late) < 2000


async def test_what_was_written_is_found_without_any_datagram(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    Path(f"{path}-wake").write_text("in the way: no socket can be made here")
    async with open_sqlite(path) as store, open_sqlite(path) as other:
        await start_and_claim(store)
        heard: list[AnyEvent] = []
        store.listen(heard.append)
        await put(other, "s", Steered("hello"))
        await wait_until(lambda: heard)
        assert heard[0].seq == 2


async def test_a_path_too_long_for_a_socket_wakes_all_the_same(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    async with open_sqlite(folder / "log.db") as store, open_sqlite(folder / "log.db") as other:
        claim = await start_and_claim(store)
        for number in (1, 2):
            waiting = asyncio.ensure_future(other.wait(await other.last(), 10))
            await asyncio.sleep(0.1)
            await put(store, "s", turn(number), claim=claim)
            await asyncio.wait_for(waiting, 5)
    assert [f.name for f in folder.iterdir()] == ["log.db"]


@pytest.mark.slow
async def test_what_a_killed_process_left_in_the_folder_is_cleared_away(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    program = (
        "import asyncio, os, sys\n"
        "from upcall.store.sqlite.store import SqliteStore\n"
        "async def main():\n"
        "    store = SqliteStore(sys.argv[1]); await store.open()\n"
        "    asyncio.get_running_loop().call_later(0.3, os._exit, 9)\n"
        "    await store.wait(99, 20)\n"
        "asyncio.run(main())\n"
    )
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(path))
    assert await killed.wait() == 9
    assert len(list(Path(f"{path}-wake").iterdir())) == 1
    async with open_sqlite(path) as store:
        await start_and_claim(store)
    assert not Path(f"{path}-wake").exists()


@pytest.mark.slow
async def test_a_process_in_which_nothing_waits_does_not_wake_up(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", IDLE, str(tmp_path / "log.db"), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert int(out) <= 4


async def test_a_dead_owner_counts_as_dead_by_the_clock_that_was_given(tmp_path: Path) -> None:
    now = 1000.0
    path = tmp_path / "log.db"
    async with open_sqlite(path, lambda: 1000.0) as frozen:
        await start_and_claim(frozen)
        late = SqliteStore(path, lambda: now)
        await late.open()
        now = 1004.9
        row = await late.row("s")
        assert row is not None
        assert row.owner
        now = 1005.1
        row = await late.row("s")
        assert row is not None
        assert not row.owner
        await late.claim("s")
        await late.close()
