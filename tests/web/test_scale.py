"""A log of many sessions, through HTTP against a real server: lists, trees, search, and the event loop meanwhile.

`UPCALL_SCALE=full` makes it 100,000 sessions and two million events, and holds the server to its bounds. Otherwise
the log is small, and the bounds are for the server's processor time: other tests run at the same time.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pace import cpu_used
from web.large_log import make_large_log
from web.serving import Server, get, serving
from web.test_streams import memory

FULL = os.environ.get("UPCALL_SCALE") == "full"
TREES = 88_000 if FULL else 600
TIMES = 40 if FULL else 5
SLACK = 1 if FULL else 5

LISTS = (
    "/api/sessions",
    "/api/sessions?limit=200",
    "/api/sessions?status=done",
    "/api/sessions?status=waiting",
    "/api/sessions?status=failed",
    "/api/sessions?status=cancelled",
    "/api/sessions?status=running",
    "/api/sessions?status=interrupted",
    "/api/sessions?agent=planner",
    "/api/sessions?agent=nobody",
    "/api/sessions?tag=team=red",
    "/api/sessions?tag=customer=c77",
    "/api/sessions?tag=customer=nobody",
    "/api/sessions?tag=team=red&status=cancelled",
    "/api/sessions?q=order-0001",
    "/api/sessions?q=qqq",
    "/api/sessions?q=please&status=cancelled",
    "/api/sessions?q=please&tag=customer=c77",
)
SEARCHES = (
    "order-000123",
    "please",
    "the line is dead",
    "qqqqqq",
    "penbistbetargar",
    "a",
    "paid 7",
    "barista look",
)


def summary(name: str, times: Sequence[float]) -> float:
    """Print percentiles in milliseconds; returns the 95th in seconds."""
    found = sorted(times)
    p50, p95, p99 = (found[math.ceil(len(found) * part) - 1] for part in (0.5, 0.95, 0.99))
    print(f"{name}: p50={p50 * 1000:.1f} p95={p95 * 1000:.1f} p99={p99 * 1000:.1f} ms, {len(found)} times")
    return p95


class Clock:
    """The time that the bounds are for: what passes, or what the server's processor spends."""

    def __init__(self, server: Server) -> None:
        assert server.process is not None
        self._pid = server.process.pid

    def now(self) -> float:
        return time.perf_counter() if FULL else cpu_used(self._pid)


async def timed(client: aiohttp.ClientSession, clock: Clock, path: str, pause: float = 0.0) -> float:
    times: list[float] = []
    for _ in range(TIMES):
        began = clock.now()
        await get(client, path)
        times.append(clock.now() - began)
        await asyncio.sleep(pause)
    return summary(path, times)


async def lateness(server: Server, stop: asyncio.Event) -> list[float]:
    """How late the server's event loop is: a request that needs nothing but the loop takes that long."""
    found: list[float] = []
    async with aiohttp.ClientSession(server.url) as client:
        while not stop.is_set():
            began = time.perf_counter()
            async with client.get("/nothing") as response:
                await response.read()
            found.append(time.perf_counter() - began)
            await asyncio.sleep(0.01)
    return found


async def build_index(server: Server, client: aiohttp.ClientSession) -> None:
    """Wait until the index has everything, and hold the event loop to its bound meanwhile."""
    stop, began, lists = asyncio.Event(), time.perf_counter(), list[float]()
    late = asyncio.ensure_future(lateness(server, stop))
    async with asyncio.timeout(1800):
        while (await get(client, "/api/search?q=please&limit=1"))["indexed"] < 1:
            before = time.perf_counter()
            await get(client, "/api/sessions")
            lists.append(time.perf_counter() - before)
            await asyncio.sleep(0.5)
    stop.set()
    assert server.process is not None
    print(f"indexed in {time.perf_counter() - began:.1f} s, {memory(server.process.pid) // 1_000_000} MB of memory")
    summary("lists meanwhile", lists or [0.0])
    times = sorted(await late)
    summary("event loop late by", times)
    assert times[int(len(times) * 0.99)] < 0.05 * SLACK


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_lists_trees_and_search_stay_fast_however_many_sessions_there_are(tmp_path: Path) -> None:
    counts = await make_large_log(tmp_path / "log.db", TREES)
    print(counts)
    slow: dict[str, float] = {}
    async with serving(tmp_path, "--store", "log.db") as server, server.client() as client:
        await build_index(server, client)
        clock = Clock(server)
        found: Any = await get(client, "/api/sessions")
        assert found["counts"]["all"] == TREES
        for path in (*LISTS, f"/api/sessions?before={found['next']}", "/api/sessions?before=tree-large"):
            slow[path] = await timed(client, clock, path) / (0.1 * SLACK)
        (tree, *_) = [
            row["id"] for row in (await get(client, "/api/sessions?q=large-"))["sessions"] if "large" in row["id"]
        ]
        began = clock.now()
        nodes = (await get(client, f"/api/sessions/{tree}/nodes"))["nodes"]
        opened = clock.now() - began
        print(f"a tree of 1,000 events, first time: {opened * 1000:.1f} ms, {len(nodes)} nodes")
        slow["tree"] = opened / (0.1 * SLACK)
        for path in ("", "/nodes", "/conversation", "/events/500"):
            slow[path] = await timed(client, clock, f"/api/sessions/{tree}{path}") / (0.1 * SLACK)
        for words in SEARCHES:
            slow[words] = await timed(client, clock, f"/api/search?q={words}", 0.11) / (0.3 * SLACK)
        slow["/api/inbox"] = await timed(client, clock, "/api/inbox") / (0.1 * SLACK)
        assert server.process is not None
        print(f"{memory(server.process.pid) // 1_000_000} MB of memory")
    assert {path: part for path, part in slow.items() if part > 1} == {}
