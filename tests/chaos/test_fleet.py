"""Workers on PostgreSQL are killed, stopped and replaced, and the server is restarted: all runs end right."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from chaos.fleet import lead
from postgres import server
from upcall import Runtime
from upcall.contracts import Selection
from upcall.errors import AlreadySettled, UpcallError
from upcall.events import AnyEvent, Responded, ToolEnded, TurnResumed

HERE = Path(__file__).parent
FULL = os.environ.get("UPCALL_CHAOS") == "full"
RUNS, KILLS, STOPS, RESTARTS, WORKERS = (600, 20, 5, 2, 4) if FULL else (40, 4, 1, 1, 3)
LEASE = 2.0
SEED = int(os.environ.get("UPCALL_SEED", "16"))


class Fleet:
    """Worker processes on one database."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder = url, folder
        self.effects = folder / "effects.txt"
        self.workers = [self.start() for _ in range(WORKERS)]

    def start(self) -> subprocess.Popen[bytes]:
        arguments = ["worker", "--store", self._url, "--agents", "fleet:lead", "--lease", str(LEASE), "--json"]
        environment = {**os.environ, "UPCALL_TEST_EFFECTS": str(self.effects)}
        with (self._folder / "out.txt").open("ab") as out, (self._folder / "errors.txt").open("ab") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "upcall", *arguments], cwd=HERE, env=environment, stdout=out, stderr=errors
            )

    def replace(self, at: int, number: signal.Signals) -> None:
        self.workers[at].send_signal(number)
        self.workers[at].wait()
        self.workers[at] = self.start()

    def stop(self) -> None:
        for one in self.workers:
            one.send_signal(signal.SIGCONT)
            one.terminate()
        for one in self.workers:
            one.wait(timeout=120)

    def errors(self) -> str:
        return (self._folder / "errors.txt").read_text()


async def disturb(fleet: Fleet) -> None:
    """Kill, stop, restart and deploy, in an order that the seed decides."""
    chance = random.Random(SEED)
    plan = ["kill"] * KILLS + ["stop"] * STOPS + ["restart"] * RESTARTS + ["deploy"]
    chance.shuffle(plan)
    for what in plan:
        await asyncio.sleep(chance.uniform(0.3, 1.5))
        at = chance.randrange(WORKERS)
        if what == "kill":
            await asyncio.to_thread(fleet.replace, at, signal.SIGKILL)
        elif what == "stop":
            fleet.workers[at].send_signal(signal.SIGSTOP)
            await asyncio.sleep(LEASE + 1.5)
            fleet.workers[at].send_signal(signal.SIGCONT)
        elif what == "restart":
            await asyncio.to_thread(server().engine.stop)
            await asyncio.to_thread(server().engine.ensure_postgres_running)
        else:
            for each in range(WORKERS):
                await asyncio.to_thread(fleet.replace, each, signal.SIGTERM)


async def answer_all(url: str, count: int, done: asyncio.Event) -> None:
    """Answer every question, each from two stores at once; the first one wins."""
    while not done.is_set():
        try:
            async with Runtime(url) as one, Runtime(url) as other:
                while not done.is_set():
                    for callback in await one.inbox(count):
                        sent = [r.answer(callback.id, "yes", by="ops") for r in (one, other)]
                        outcomes = await asyncio.gather(*sent, return_exceptions=True)
                        assert sum(not isinstance(each, AlreadySettled) for each in outcomes) >= 1
                    await asyncio.sleep(0.1)
        except UpcallError:  # the server is restarted
            await asyncio.sleep(0.3)


async def all_ended(url: str, seconds: float) -> Counter[str]:
    """Wait until every run has ended; returns how many ended how."""
    until, counts = time.monotonic() + seconds, Counter[str]()
    while time.monotonic() < until:
        try:
            async with Runtime(url) as runtime:
                while time.monotonic() < until:
                    counts = Counter(await runtime.store.counts())
                    if sum(counts[status] for status in ("done", "failed", "limit", "cancelled")) == RUNS:
                        return counts
                    await asyncio.sleep(0.3)
        except UpcallError:
            await asyncio.sleep(0.5)
    return counts


async def events_of(url: str) -> list[AnyEvent]:
    async with Runtime(url) as runtime:
        found: list[AnyEvent] = []
        while page := await runtime.store.read_all(found[-1].pos if found else 0, 5000):
            found += page
        return found


def check_events(events: list[AnyEvent]) -> None:
    """No event is missing or doubled: sequence numbers have no gap, positions rise."""
    numbers: dict[str, list[int]] = {}
    for event in events:
        numbers.setdefault(event.session, []).append(event.seq)
    assert all(found == [*range(1, len(found) + 1)] for found in numbers.values())
    assert [e.pos for e in events] == sorted({e.pos for e in events})


def check_effects(events: list[AnyEvent], effects: list[str]) -> None:
    """Every effect happened once, or its call says that nobody knows how it ended."""
    happened = Counter(line for line in effects if line.startswith("charged"))
    assert {line for line, count in happened.items() if count > 1} == set()
    wanted = {f"charged run{n}-{part}" for n in range(RUNS) for part in "ab"}
    unknown = [e for e in events if isinstance(e, ToolEnded) and e.result.is_error]
    assert len(wanted - {*happened}) <= len(unknown)


@pytest.mark.timeout(3600 if FULL else 400)
async def test_all_runs_end_right_though_workers_die_and_the_server_restarts(tmp_path: Path) -> None:
    url = server().database()
    done = asyncio.Event()
    async with Runtime(url, agents=[lead]) as runtime:
        for n in range(RUNS):
            await runtime.submit("lead", f"run{n}", id=f"run{n}")
    fleet = Fleet(url, tmp_path)
    answering = asyncio.ensure_future(answer_all(url, 50, done))
    try:
        await disturb(fleet)
        counts = await all_ended(url, 3000 if FULL else 240)
    finally:
        done.set()
        await asyncio.wait({answering})
        await asyncio.to_thread(fleet.stop)
    answering.result()
    events = await events_of(url)
    assert counts == {"done": RUNS}, (counts, fleet.errors()[-3000:])
    assert "Traceback" not in fleet.errors(), fleet.errors()[-3000:]
    check_events(events)
    check_effects(events, fleet.effects.read_text().splitlines())
    called = sum(line.startswith("model") for line in fleet.effects.read_text().splitlines())
    answered = sum(isinstance(e, Responded) for e in events)
    died = sum(isinstance(e, TurnResumed) and e.died for e in events)
    print(f"seed {SEED}: {called} model calls, {called - answered} of them redone; {died} runs taken over")
    async with Runtime(url) as runtime:
        assert await runtime.store.rows(which=Selection(status="queued")) == []
    server().drop(url)
