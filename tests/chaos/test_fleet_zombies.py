"""A worker that was stopped for longer than its lease starts, asks and writes nothing when it continues."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from chaos.workers import Workers, eventually, workers
from chaos.zombies import EVERY
from postgres import server
from upcall import Runtime
from upcall.events import AnyEvent, CallbackAnswered

FULL = os.environ.get("UPCALL_CHAOS") == "full"
REFUSED = {"SessionTakenOver", "CancelledError"}
"""What an attempt raises: the store's refusal, or the end of the call's task, which that refusal has cancelled."""
STARTS = {"once": "effect", "tool": "tool", "again": "second"}
"""What happens where an attempt succeeds, as it is noted outside the store."""


async def events_of(runtime: Runtime) -> list[AnyEvent]:
    found: list[AnyEvent] = []
    while page := await runtime.store.read_all(found[-1].pos if found else 0, 5000):
        found += page
    return found


async def answered_until_done(runtime: Runtime) -> None:
    """Answer what is asked, until the run has ended."""
    until = time.monotonic() + 120
    while await runtime.status("s") != "done":
        assert time.monotonic() < until, await runtime.status("s")
        for one in await runtime.inbox():
            await runtime.answer(one.id, "yes")
        await asyncio.sleep(0.05)


async def begun(runtime: Runtime, where: str) -> None:
    """Submit the run; where a call has to start again, its questions were asked and answered before."""
    await runtime.submit(where, "go", id="s")
    if where == "again":
        await runtime.work(once=True)
        for one in await runtime.inbox():
            await runtime.answer(one.id, "yes")


def told(fleet: Workers) -> list[str]:
    """What the first worker said of the run that it lost."""
    words = fleet.all[0].output.splitlines()
    return [line for line in words if '"outcome":"left"' in line and "SessionTakenOver" in line]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("where", ["once", "again", "tool", *(["question", "answer"] if FULL else [])])
async def test_a_worker_that_continues_after_its_run_was_taken_over_is_refused(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, effects = server().database(), tmp_path / "effects.txt"
    monkeypatch.setenv("UPCALL_TEST_EFFECTS", str(effects))
    names = [f"chaos.zombies:{'started' if agent.name == 'tool' else agent.name}" for agent in EVERY]
    async with Runtime(url, agents=EVERY, hold=0) as runtime:
        await begun(runtime, where)
        (tmp_path / f"aim.{where}").touch()
        with workers(url, tmp_path, names, "--lease", "1") as fleet:
            fleet.start()
            hit = tmp_path / f"hit.{where}.{fleet.all[0].pid}"
            await asyncio.to_thread(eventually, hit.exists, "the worker stands there")
            fleet.all[0].signal(signal.SIGSTOP)
            fleet.start()
            await answered_until_done(runtime)
            before = await events_of(runtime)
            (tmp_path / f"go.{where}").touch()
            fleet.all[0].signal(signal.SIGCONT)
            await asyncio.to_thread(eventually, lambda: bool(told(fleet)), "the worker was told")
            await asyncio.to_thread(fleet.stop)
        after = await events_of(runtime)
    zombie, rescuer = (str(one.pid) for one in fleet.all)
    noted = [line.split() for line in effects.read_text().splitlines()] if effects.exists() else []
    print(f"\n{where}: {[told(fleet)[0], *(line for line in noted if line[1] == zombie)]}")
    assert after == before
    if where in ("once", "question"):
        (raised,) = [how for what, who, how in noted if (what, who) == (where, zombie)]
        # a worker parks at a question at once: then the park is refused, after the tool was left
        assert raised in REFUSED or (where, raised) == ("question", "Parking")
        assert "SessionTakenOver" in told(fleet)[0]
    if where in STARTS:
        assert {who for what, who, _ in noted if what == STARTS[where]} - {str(os.getpid())} == {rescuer}
    answers = [str(e.value) for e in after if isinstance(e, CallbackAnswered)]
    assert not any(zombie in one for one in answers)
    server().drop(url)
