"""Workers on PostgreSQL are killed, stopped and replaced, and the server is restarted: all runs end right."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from chaos.fleet import lead
from chaos.fleet_checks import Log, Outside, stuck
from chaos.processes import TESTS
from chaos.workers import END_SECONDS, Workers, eventually, workers
from postgres import server
from upcall import Runtime
from upcall.contracts import Selection
from upcall.errors import StoreUnavailable
from upcall.events import AnyEvent, TurnResumed

FULL = os.environ.get("UPCALL_CHAOS") == "full"
RUNS, WORKERS, KILLS, AIMED, STOPS, RESTARTS = (600, 4, 12, 4, 5, 2) if FULL else (30, 3, 2, 1, 1, 1)
"""`AIMED` kills follow at once on an effect, as many on a call whose effect is stored; `KILLS` come at any time."""
LEASE = 2.0
SEED = int(os.environ.get("UPCALL_SEED", "16"))
ANSWERERS = ("ann", "ben")
SECONDS = 3000.0 if FULL else 240.0

Submit = Callable[[], Awaitable[None]]
"""Submits the runs that are new at a disturbance."""


# --- what happens to the workers ------------------------------------------------------------


class Disturbances:
    """What is done to the workers, in an order that the seed decides; new runs are submitted before each."""

    def __init__(self, url: str, fleet: Workers, folder: Path) -> None:
        self._url, self._fleet, self._folder = url, fleet, folder
        self._chance = random.Random(SEED)
        self._deaths = 0
        self.aimed_at: list[str] = []

    async def run(self) -> None:
        plan = [self._kill] * KILLS + [self._stop] * STOPS + [self._restart] * RESTARTS + [self._deploy]
        plan += [partial(self._kill_at, where) for where in ("effect", "call")] * AIMED
        self._chance.shuffle(plan)
        for number, disturb in enumerate(plan):
            submitted = range(number * RUNS // len(plan), (number + 1) * RUNS // len(plan))
            await disturb(partial(self._submit, submitted))

    async def _submit(self, numbers: range) -> None:
        """Submit runs, and give workers a little time to begin with them."""
        async with Runtime(self._url, agents=[lead]) as runtime:
            for n in numbers:
                await runtime.submit("lead", f"run{n}", id=f"run{n}")
        await asyncio.sleep(self._chance.uniform(0.3, 1.5))

    async def _before_death(self) -> None:
        """Let every run that was taken over continue, before each second death of a worker.

        A run whose workers die three times in a row fails, and this test is about those that need not.
        """
        self._deaths += 1
        if self._deaths % 2 == 0:
            return
        async with Runtime(self._url) as runtime:
            await asyncio.sleep(LEASE if self._deaths > 1 else 0.0)  # before that, nobody sees that a worker died
            until = time.monotonic() + END_SECONDS
            while await runtime.store.rows(which=Selection(status="interrupted")) or stuck(await log_of(runtime)):
                assert time.monotonic() < until, "runs that were taken over do not continue"
                await asyncio.sleep(0.1)

    async def _kill(self, submit: Submit) -> None:
        await submit()
        await self._before_death()
        await asyncio.to_thread(self._fleet.kill, self._chance.choice(self._fleet.running))

    async def _kill_at(self, where: str, submit: Submit) -> None:
        """Kill the next worker that comes to this point, at this point: it says so outside the store."""
        await self._before_death()
        (self._folder / f"aim.{where}").touch()
        await submit()
        await asyncio.to_thread(eventually, lambda: bool(self._hits(where)), f"a worker stands at {where!r}")
        (hit,) = self._hits(where)
        _, _, key, pid = hit.name.split(".")
        await asyncio.to_thread(self._fleet.kill, self._fleet.by_pid(int(pid)))
        self.aimed_at.append(key)
        hit.unlink()

    def _hits(self, where: str) -> list[Path]:
        return [*self._folder.glob(f"hit.{where}.*")]

    async def _stop(self, submit: Submit) -> None:
        """Stop a worker until it has lost all that it runs, and let it continue."""
        await submit()
        await self._before_death()
        one = self._chance.choice(self._fleet.running)
        one.signal(signal.SIGSTOP)
        await asyncio.sleep(LEASE + 1.5)
        one.signal(signal.SIGCONT)

    async def _restart(self, submit: Submit) -> None:
        await submit()
        await asyncio.to_thread(self._fleet.wait_until_ready)  # one that starts meanwhile exits with 1
        await asyncio.to_thread(server().engine.stop)
        await asyncio.to_thread(server().engine.ensure_postgres_running)

    async def _deploy(self, submit: Submit) -> None:
        await submit()
        for one in tuple(self._fleet.running):
            await asyncio.to_thread(self._fleet.replace, one)


# --- people -----------------------------------------------------------------------------


class Answerers:
    """Two processes that both answer every question, each question at the same time."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self.said: dict[str, list[str]] = {name: [] for name in ANSWERERS}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        for name in ANSWERERS:
            self._processes[name] = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "chaos.answering", self._url, name),
                cwd=TESTS, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            assert await self._line(name) == "ready"
        answering = asyncio.ensure_future(self._answer_all())
        try:
            yield
        finally:
            answering.cancel()
            await asyncio.wait({answering})
            for process in self._processes.values():
                process.kill()
                await process.communicate()
        if not answering.cancelled():
            answering.result()

    async def _line(self, name: str) -> str:
        out = self._processes[name].stdout
        assert out is not None
        line = (await out.readline()).decode()
        assert line, f"{name} has ended"
        return line.strip()

    async def _answer_all(self) -> None:
        sent: set[str] = set()
        while True:
            with contextlib.suppress(StoreUnavailable):  # the server is restarted
                async with Runtime(self._url) as runtime:
                    while True:
                        for callback in await runtime.inbox(50):
                            if callback.id not in sent:
                                sent.add(callback.id)
                                await self._answer(callback.id)
                        await asyncio.sleep(0.05)
            await asyncio.sleep(0.3)

    async def _answer(self, callback: str) -> None:
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.write(f"{callback}\n".encode())
        for name in ANSWERERS:
            self.said[name].append(await self._line(name))


# --- what came of it --------------------------------------------------------------------


async def all_ended(url: str, seconds: float) -> Counter[str]:
    """Wait until every run has ended; returns how many ended how."""
    until, counts = time.monotonic() + seconds, Counter[str]()
    async with Runtime(url) as runtime:
        while time.monotonic() < until:
            counts = Counter(await runtime.store.counts())
            if sum(counts[status] for status in ("done", "failed", "limit", "cancelled")) == RUNS:
                break
            await asyncio.sleep(0.3)
    return counts


async def log_of(runtime: Runtime) -> Log:
    found: list[AnyEvent] = []
    while page := await runtime.store.read_all(found[-1].pos if found else 0, 5000):
        found += page
    return Log(found)


@pytest.mark.timeout(3600 if FULL else 400)
async def test_all_runs_end_right_though_workers_die_and_the_server_restarts(tmp_path: Path) -> None:
    url, effects, began = server().database(), tmp_path / "effects.txt", time.monotonic()
    environment = {"UPCALL_TEST_EFFECTS": str(effects)}
    answerers = Answerers(url)
    with workers(url, tmp_path, ["chaos.fleet:lead"], "--lease", str(LEASE), **environment) as fleet:
        fleet.start(WORKERS)
        disturbances = Disturbances(url, fleet, tmp_path)
        async with answerers.running():
            await disturbances.run()
            counts = await all_ended(url, SECONDS)
        await asyncio.to_thread(fleet.stop)
        assert counts == {"done": RUNS}, (counts, fleet.failures, fleet.errors[-3000:])
        assert "Traceback" not in fleet.errors, fleet.errors[-3000:]
    async with Runtime(url, agents=[lead]) as runtime:
        assert await runtime.store.rows(which=Selection(status="queued")) == []
        log = await log_of(runtime)
    outside = Outside(effects.read_text().splitlines())
    log.check_order()
    log.check_replies({f"run{n}": f"run{n}-a: 3 steps | run{n}-b: 3 steps" for n in range(RUNS)})
    log.check_nothing_is_done_twice()
    log.check_answers(answerers.said)
    outcomes = log.check_charges(outside.charges, {f"run{n}-{part}" for n in range(RUNS) for part in "ab"})
    assert len(disturbances.aimed_at) == 2 * AIMED
    assert {*disturbances.aimed_at} <= {one.key for one in outside.charges}
    assert {*disturbances.aimed_at} <= log.interrupted()
    taken_over = sum(isinstance(e, TurnResumed) and e.died for e in log.events)
    print(
        f"\nseed {SEED}, {time.monotonic() - began:.0f} s: {len(log.events)} events, {taken_over} trees taken over"
    )
    print(f"effects: {dict(outcomes)}")
    print(log.check_model_calls(outside.model_calls))
    server().drop(url)
