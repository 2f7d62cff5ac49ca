"""What several worker processes take: tenants share them, limits hold over all, and no run ends them one by one."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from chaos.crews import EXIT_CODE, asker, at_begin, clerk, in_child, in_hook, in_model, in_tool, porter
from chaos.workers import Workers, eventually, workers
from postgres import server
from upcall import Runtime
from upcall.events import FORMAT, AnyEvent, TurnEnded, TurnQueued, TurnResumed, TurnStarted

FULL = os.environ.get("UPCALL_CHAOS") == "full"


@pytest.fixture(params=["postgres", "sqlite"] if FULL else ["postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    """Where the log is."""
    if request.param == "sqlite":
        yield str(tmp_path / "log.db")
        return
    url = server().database()
    yield url
    server().drop(url)


@pytest.fixture
def effects(tmp_path: Path) -> Path:
    return tmp_path / "effects.txt"


@asynccontextmanager
async def opened(store: str) -> AsyncGenerator[Runtime]:
    crews = [clerk, porter, asker, in_tool, in_model, in_hook, in_child, at_begin]
    async with Runtime(store, agents=crews) as runtime:
        yield runtime


async def wait_for(runtime: Runtime, counts: dict[str, int]) -> None:
    """Wait until so many sessions have each status."""
    until = time.monotonic() + 300
    while (found := dict(await runtime.store.counts())) != counts:
        assert time.monotonic() < until, found
        await asyncio.sleep(0.1)


async def wait_until_begun(runtime: Runtime, count: int) -> None:
    """Wait until workers have taken so many sessions, whatever became of them."""
    until = time.monotonic() + 300
    while sum((found := Counter(await runtime.store.counts())).values()) - found["queued"] < count:
        assert time.monotonic() < until, found
        await asyncio.sleep(0.05)


async def events_of(runtime: Runtime) -> list[AnyEvent]:
    found: list[AnyEvent] = []
    while page := await runtime.store.read_all(found[-1].pos if found else 0, 5000):
        found += page
    return found


# --- tenants ------------------------------------------------------------------------------

MANY, FEW, COUNT = (1000, 10, 4) if FULL else (80, 10, 2)
"""Runs of a tenant with many, runs of one with few, and workers."""
PLACES = 10
"""Runs that a worker has at once."""


async def submit(runtime: Runtime, tenant: str, count: int, name: str = "") -> None:
    """Queue runs of a tenant in one go."""
    runs = [runtime.submission("porter", "go", f"{name or tenant}{n}", tenant=tenant) for n in range(count)]
    await runtime.submit_all(runs)


def seconds_of(events: list[AnyEvent], name: str) -> float:
    """How long it took from the submission of some runs until the last of them had ended."""
    mine = [e for e in events if e.session.startswith(name)]
    return max(e.time for e in mine if isinstance(e, TurnEnded)) - min(
        e.time for e in mine if isinstance(e, TurnQueued)
    )


@pytest.mark.timeout(900)
async def test_few_runs_of_one_tenant_do_not_wait_for_the_many_of_another(
    store: str, tmp_path: Path, effects: Path
) -> None:
    environment = {"UPCALL_TEST_EFFECTS": str(effects), "UPCALL_TEST_THINKING": "1.0" if FULL else "0.3"}
    with workers(store, tmp_path, ["chaos.crews:porter"], **environment) as fleet:
        async with opened(store) as runtime:
            fleet.start(COUNT)
            await asyncio.to_thread(fleet.wait_until_ready)
            await submit(runtime, "small", FEW, "alone")
            await wait_for(runtime, {"done": FEW})
            await submit(runtime, "large", MANY)
            await wait_until_begun(runtime, FEW + COUNT * PLACES)
            await submit(runtime, "small", FEW, "beside")
            await wait_for(runtime, {"done": 2 * FEW + MANY})
            events = await events_of(runtime)
        await asyncio.to_thread(fleet.stop)
    queued = min(e.pos for e in events if isinstance(e, TurnQueued) and e.session.startswith("beside"))
    started = [e.session for e in events if isinstance(e, TurnStarted) and e.pos > queued]
    last = max(n for n, session in enumerate(started) if session.startswith("beside"))
    before = sum(session.startswith("large") for session in started[:last])
    alone, beside = seconds_of(events, "alone"), seconds_of(events, "beside")
    print(f"\n{FEW} runs beside {MANY}: {before} of those began before the last of the {FEW};", end=" ")
    print(f"{alone:.2f} s alone, {beside:.2f} s beside them: {beside / alone:.2f} times as long")
    assert (
        before <= FEW + COUNT * PLACES
    )  # every second place that becomes free; all may have been taken just before
    assert not FULL or beside <= 2 * alone


# --- limits -------------------------------------------------------------------------------


def most_at_once(effects: Path, model: str) -> int:
    """How many calls of a model ran at the same time, as they noted outside the store."""
    now = most = 0
    for line in effects.read_text().splitlines():
        what, name = line.split()
        if name == model:
            now += 1 if what == "begin" else -1
            most = max(most, now)
    return most


@pytest.mark.timeout(400)
async def test_a_limit_on_a_model_holds_over_four_workers(store: str, tmp_path: Path, effects: Path) -> None:
    runs, limit = (200, 5) if FULL else (30, 3)
    agents = ["chaos.crews:clerk", "chaos.crews:porter"]
    environment = {"UPCALL_TEST_EFFECTS": str(effects), "UPCALL_TEST_THINKING": "0.2"}
    with workers(store, tmp_path, agents, "--at-most", f"model:scarce={limit}", **environment) as fleet:
        fleet.start(4)
        await asyncio.to_thread(fleet.wait_until_ready)
        async with opened(store) as runtime:
            for name, agent in (("scarce", clerk), ("plenty", porter)):
                await runtime.submit_all([runtime.submission(agent, "go", f"{name}{n}") for n in range(runs)])
            await wait_for(runtime, {"done": 2 * runs})
        await asyncio.to_thread(fleet.stop)
    took = sum('"outcome":"done"' in one.output for one in fleet.all)
    scarce, plenty = most_at_once(effects, "scarce"), most_at_once(effects, "plenty")
    print(f"\nat once: {scarce} of the limited model, {plenty} of the other; {took} workers took part")
    assert 0 < scarce <= limit < plenty
    assert took > 1


@pytest.mark.timeout(400)
async def test_a_limit_per_minute_holds_over_four_workers(store: str, tmp_path: Path, effects: Path) -> None:
    options, began = ("--once", "--at-most", "model:scarce=5/min"), time.monotonic()
    async with opened(store) as runtime:
        await runtime.submit_all([runtime.submission(clerk, "go", f"scarce{n}") for n in range(12)])
        with workers(store, tmp_path, ["chaos.crews:clerk"], *options, UPCALL_TEST_EFFECTS=str(effects)) as fleet:
            fleet.start(4)
            assert [await asyncio.to_thread(one.ended) for one in fleet.all] == [0] * 4
        counts = await runtime.store.counts()
    minutes = 1 + (time.monotonic() - began) // 60  # one, unless the machine is very slow
    assert 5 <= counts["done"] <= 5 * minutes
    assert sum(counts.values()) == 12


# --- a run that ends its worker -----------------------------------------------------------


def replaced_until(fleet: Workers, is_over: asyncio.Event) -> int:
    """Start a worker for each one that ends, as a supervisor does; returns how many ended."""
    ended = 0
    while not is_over.is_set():
        for one in tuple(fleet.running):
            if one.code is not None:
                assert one.code == EXIT_CODE, one.errors
                fleet.running.remove(one)
                fleet.start()
                ended += 1
        time.sleep(0.05)
    return ended


@pytest.mark.timeout(400)
@pytest.mark.parametrize("agent", ["in_tool", "in_model", *(["in_hook", "in_child", "at_begin"] if FULL else [])])
async def test_a_run_that_ends_three_workers_is_set_aside_and_others_continue(
    agent: str, tmp_path: Path, effects: Path
) -> None:
    url = server().database()
    agents = [f"chaos.crews:{agent}", "chaos.crews:porter"]
    async with opened(url) as runtime:
        await runtime.submit(agent, "go", id="poison")
        with workers(url, tmp_path, agents, "--lease", "1", UPCALL_TEST_EFFECTS=str(effects)) as fleet:
            fleet.start(2)
            is_over = asyncio.Event()
            supervising = asyncio.ensure_future(asyncio.to_thread(replaced_until, fleet, is_over))
            await runtime.submit_all([runtime.submission(porter, "go", f"other{n}") for n in range(10)])
            try:
                await wait_for(runtime, {"done": 10, "failed": 1})
            finally:
                is_over.set()
            ended = await supervising
            await asyncio.to_thread(fleet.stop)
        exits = effects.read_text().count("exit")
        events = [e for e in await runtime.store.read("poison") if isinstance(e, (TurnResumed, TurnEnded))]
        died = [e.died for e in events if isinstance(e, TurnResumed)]
        assert (exits, ended, died) == (3, 3, [True, True])
        assert isinstance(events[-1], TurnEnded)
        assert events[-1].error.startswith("poison: 3 workers in a row died")
        os.environ["UPCALL_TEST_MENDED"] = "1"
        try:
            assert (await runtime.resume("poison")).text == "mended"
        finally:
            del os.environ["UPCALL_TEST_MENDED"]
    server().drop(url)


# --- what a newer version wrote -----------------------------------------------------------


def rewritten(url: str, session: str, kind: str, **changes: object) -> None:
    """Change the newest event of a kind in a session, as a newer version might have written it."""
    where = "n = (SELECT n FROM upcall.sessions WHERE id = %s)"
    with psycopg.connect(url, autocommit=True) as db:
        rows = db.execute(f"SELECT pos, body FROM upcall.events WHERE {where} ORDER BY pos", (session,)).fetchall()
        found = [(pos, body) for pos, raw in rows if (body := json.loads(bytes(raw)))["type"] == kind]
        pos, body = found[-1]
        text = json.dumps({**body, **changes}).encode()
        db.execute("UPDATE upcall.events SET body = %s WHERE pos = %s", (text, pos))


@pytest.mark.timeout(400)
async def test_an_older_worker_leaves_what_a_newer_version_wrote_and_says_so(tmp_path: Path, effects: Path) -> None:
    url = server().database()
    agents = ["chaos.crews:porter", "chaos.crews:asker"]
    environment = {"UPCALL_TEST_EFFECTS": str(effects)}
    async with opened(url) as runtime:
        await runtime.submit("asker", "go", id="above")
        await run_once(Workers(url, tmp_path, agents, "--once", **environment))
        (question,) = await runtime.inbox()
        await runtime.answer(question.id, "yes")
        for name in ("format", "kind"):
            await runtime.submit("porter", "go", id=name)
        rewritten(url, "format", "turn_queued", version=FORMAT + 1)
        rewritten(url, "kind", "turn_queued", type="turn_sung")
        rewritten(url, question.session_id, "turn_started", version=FORMAT + 1)
        with workers(url, tmp_path, agents, **environment) as fleet:
            fleet.start(2)
            await asyncio.to_thread(eventually, lambda: len(left(fleet)) == 6, "both workers have left all three")
            for n in range(5):  # each lets both look again
                await runtime.submit("porter", "go", id=f"other{n}")
                await wait_for(runtime, {"queued": 2, "interrupted": 1, "done": n + 1})
            await asyncio.to_thread(fleet.stop)
        assert Counter(left(fleet)) == {"format": 2, "kind": 2, "above": 2}
        assert all("upgrade upcall" in one["error"] for one in fleet.segments if one["outcome"] == "left")

        rewritten(url, "format", "turn_queued", version=FORMAT)  # a newer worker could read all of them
        rewritten(url, "kind", "turn_sung", type="turn_queued")
        rewritten(url, question.session_id, "turn_started", version=FORMAT)
        await run_once(Workers(url, tmp_path, agents, "--once", **environment))
        assert dict(await runtime.store.counts()) == {"done": 8}
    server().drop(url)


def left(fleet: Workers) -> list[str]:
    return [one["session"] for one in fleet.segments if one["outcome"] == "left"]


async def run_once(fleet: Workers) -> None:
    """Let one worker do what it can, and end."""
    fleet.start()
    try:
        assert await asyncio.to_thread(fleet.all[0].ended) == 0
    finally:
        fleet.all[0].abandon()
