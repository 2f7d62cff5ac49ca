"""The page under load, in a real browser in front of a real `upcall serve`: `make bench-web` runs it.

A team of workers writes 5,000 events a second in a process of its own. The page shows the team's tree, which has
50,000 nodes before the first of them. `tests/page/test_load.py` does a tenth of this.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from playwright.async_api import Page  # noqa: E402

from pace import cpu_used  # noqa: E402
from page.browser import served, shown, started_browser  # noqa: E402
from page.load import (  # noqa: E402
    PATH,
    Cost,
    Measured,
    Team,
    another_tab,
    caught_up,
    large_team,
    measured,
    nodes_of_server,
    same_nodes,
    whole_tree,
)
from web.serving import Server  # noqa: E402

BEFORE = 70_000
"""Events of a tree of 50,000 nodes."""

RATE = 5_000
FRAME, MEMORY = 20.0, 120.0
"""Milliseconds of a frame (p95), and megabytes of the page's scripts."""

_missed: list[str] = []


def said(name: str, text: str) -> None:
    """Print a result."""
    print(f"{name:<24}{text}", flush=True)


def show(name: str, cost: Cost) -> None:
    """Print what a page costs."""
    frames = " ".join(f"p{part}={cost.frame(part):.1f}" for part in (50, 95, 99))
    said(name, f"frames {frames} max={max(cost.frames):.0f} ms; memory at most {max(cost.heap):.0f} MB")


def hold(name: str, cost: Cost) -> None:
    """Print what a page costs, and note where it is over its bounds."""
    show(name, cost)
    if cost.frame(95) >= FRAME:
        _missed.append(f"{name}: p95 frame {cost.frame(95):.1f} ms, not under {FRAME:.0f}")
    if max(cost.heap) >= MEMORY:
        _missed.append(f"{name}: {max(cost.heap):.0f} MB, not under {MEMORY:.0f}")


@asynccontextmanager
async def large_tree(events: int = BEFORE) -> AsyncGenerator[tuple[Team, Server, Page]]:
    """A team with so many events in its log, a server, and a page that shows the team's tree."""
    with tempfile.TemporaryDirectory() as folder:
        async with large_team(Path(folder)) as team:
            await team.write(events)
            async with served(Path(folder)) as server, shown(server, PATH) as page:
                await whole_tree(page)
                yield team, server, page


async def grow() -> None:
    """50,000 nodes, and 5,000 events a second for 20 s."""
    async with large_tree() as (team, server, page):
        meter = await measured(page)
        said("", f"the tree has {await same_nodes(team, server, page):,} nodes")
        await idle("nothing written", meter)
        assert server.process is not None
        before = cpu_used(server.process.pid)
        writing = asyncio.ensure_future(team.write(20 * RATE, RATE))
        hold("5,000 events/s", await meter.during(writing))
        rate, used = 20 * RATE / writing.result(), cpu_used(server.process.pid) - before
        said("", f"{rate:,.0f} events/s were written; the server used {used:.1f} s of processor time")
        began = time.monotonic()
        nodes = await same_nodes(team, server, page)
        said("", f"{nodes:,} nodes, none missing, none twice; compared within {time.monotonic() - began:.1f} s")
        said("", f"memory without garbage {await meter.live_heap():.0f} MB")


async def idle(name: str, meter: Measured) -> None:
    """Print the frames of a page while nothing is written: what the browser itself can do here."""
    cost = await meter.during(asyncio.ensure_future(asyncio.sleep(5)))
    said(name, f"frames p95={cost.frame(95):.1f} p99={cost.frame(99):.1f} max={max(cost.frames):.0f} ms")


async def look_away(tab: Page) -> None:
    """Hide a tab from its own point of view, and let nothing move on it."""
    await tab.emulate_media(reduced_motion="reduce")
    await tab.evaluate("() => hide(true)")


async def tabs() -> None:
    """20 tabs of one browser: one is looked at, then each of the others."""
    async with large_tree() as (team, server, page):
        all_tabs = [page]
        for _ in range(19):
            await look_away(all_tabs[-1])
            all_tabs.append(await another_tab(page))
        seen, meter = all_tabs[-1], await measured(all_tabs[-1])
        await idle("20 tabs, idle", meter)
        writing = asyncio.ensure_future(team.write(10 * RATE, RATE))
        show("20 tabs", await meter.during(writing))
        _, newest = await nodes_of_server(team, server)
        waits: list[float] = []
        for tab in all_tabs[:-1]:
            await look_away(seen)
            seen, began = tab, time.monotonic()
            await tab.evaluate("() => hide(false)")
            await caught_up(tab, newest)
            waits.append(time.monotonic() - began)
        nodes, slowest = await same_nodes(team, server, *all_tabs), max(waits)
        said("", f"{nodes:,} nodes on each; the slowest had all of them {slowest:.1f} s after it was looked at")


async def windows() -> None:
    """20 browsers at once, all of them looked at, with a tenth of the nodes and of the rate."""
    async with large_tree(BEFORE // 10) as (team, server, page), AsyncExitStack() as stack:
        others = [await stack.enter_async_context(shown(server, PATH)) for _ in range(19)]
        for other in others:
            await whole_tree(other)
        await team.write(10 * RATE // 10, RATE // 10)
        nodes = await same_nodes(team, server, page, *others)
        said("20 windows", f"{nodes:,} nodes on each")


async def sleep() -> None:
    """A tab asleep for an hour in which the team wrote ten events a second."""
    async with large_tree() as (team, server, page):
        meter = await measured(page)
        await look_away(page)
        await team.write(36_000)
        _, newest = await nodes_of_server(team, server)
        await page.evaluate("() => hide(false)")
        began, waking = time.monotonic(), asyncio.ensure_future(caught_up(page, newest))
        cost = await meter.during(waking)
        took = time.monotonic() - began
        nodes = await same_nodes(team, server, page)
        said(
            "asleep for an hour",
            f"{nodes:,} nodes {took:.1f} s after it woke; longest frame {max(cost.frames):.0f} ms",
        )
        said("", f"memory at most {max(cost.heap):.0f} MB, without garbage {await meter.live_heap():.0f} MB")


async def kill() -> None:
    """The server killed and started again while the team writes."""
    with tempfile.TemporaryDirectory() as folder:
        async with large_team(Path(folder)) as team:
            await team.write(BEFORE)
            server = Server(Path(folder))
            await server.start()
            async with shown(server, PATH) as page:
                await whole_tree(page)
                writing = asyncio.ensure_future(team.write(10 * RATE, RATE))
                await page.wait_for_function(f"() => window.upcall.position() > {BEFORE + 2 * RATE}")
                await server.stop(signal.SIGKILL)
                await page.get_by_text("Connection lost").wait_for()
                async with served(Path(folder), "--port", server.url.rpartition(":")[2]) as again:
                    await page.get_by_text("live", exact=True).wait_for(timeout=60_000)
                    await writing
                    nodes = await same_nodes(team, again, page)
                    said("killed and restarted", f"{nodes:,} nodes, none missing, none twice")


PARTS: dict[str, Callable[[], Awaitable[None]]] = {
    "grow": grow,
    "tabs": tabs,
    "windows": windows,
    "sleep": sleep,
    "kill": kill,
}


async def measure(parts: list[str]) -> None:
    """Measure these parts, one after the other."""
    for part in parts:
        await PARTS[part]()


def main() -> int:
    """Measure and print; 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all of them without any")
    given: list[str] = parser.parse_args().parts
    if unknown := set(given) - set(PARTS):
        parser.error(f"unknown: {', '.join(unknown)}; the parts are {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, started_browser(Path(profile)):
        load, cores = os.getloadavg()[0], os.cpu_count()
        said("", f"{cores} cores, load {load:.1f}; the browser draws without a graphics card")
        asyncio.run(measure(given or list(PARTS)))
    for one in _missed:
        said("MISSED", one)
    return 1 if _missed else 0


if __name__ == "__main__":
    sys.exit(main())
