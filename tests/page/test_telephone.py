"""The page on a telephone: everything can be read to its end and hit with a finger."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from playwright.async_api import expect

from page.browser import open_dialog, run_demo, run_desk, served, shown

SMALL = """() => [...document.querySelectorAll(
    "main :is(a, button, summary, select, [type=range], label:has(input)), nav a, [role=treeitem], dialog label"
  )]
  .filter((one) => one.checkVisibility({ opacityProperty: true }) && !one.matches("td a"))
  .map((one) => [one.innerText, Math.round(one.getBoundingClientRect().height)])
  .filter(([, height]) => height < 44)
  .map(([text, height]) => `${text}: ${height} px`)"""
"""What is less high than a finger is wide. The link in a row of a table is as high as its row."""


async def test_everything_that_can_be_touched_is_as_high_as_a_finger(tmp_path: Path) -> None:
    await run_demo(tmp_path)
    await run_desk(tmp_path, "deployer", "deploy it")
    await run_desk(tmp_path, "crew", "Pack the boxes")
    small: dict[str, list[str]] = {}
    async with served(tmp_path, "shop:team") as server, shown(server, "inbox", wide=360) as page:
        await page.get_by_role("article").nth(2).wait_for()
        small["inbox"] = await page.evaluate(SMALL)
        await page.goto(f"{server.url}/sessions/crew")
        await page.get_by_role("button", name="3 more").wait_for()
        await page.get_by_role("treeitem", name="script").first.wait_for()
        small["session"] = await page.evaluate(SMALL)
        await page.get_by_role("treeitem", name="script").first.click()
        await page.get_by_text("in the request").wait_for()
        small["model call"] = await page.evaluate(SMALL)
        await page.get_by_role("tab", name="JSON").click()
        await page.get_by_role("button", name="Copy").first.wait_for()
        small["json"] = await page.evaluate(SMALL)
        await page.get_by_role("button", name="Back").click()
        await page.get_by_role("button", name="More", exact=True).click()
        await page.get_by_role("menuitem", name="Replay").click()
        await page.get_by_role("slider", name="Moment").wait_for()
        small["replay"] = await page.evaluate(SMALL)
        await page.goto(f"{server.url}/sessions")
        row = page.get_by_role("row", name="deploy it")
        await row.wait_for()
        small["sessions"] = await page.evaluate(SMALL)
        assert not {name: found for name, found in small.items() if found}
        size = await row.bounding_box()
        assert size is not None
        await page.touchscreen.tap(size["x"] + size["width"] - 4, size["y"] + size["height"] - 4)
        await expect(page.get_by_role("heading", name="deploy it", level=1)).to_be_visible()


async def test_how_a_session_stands_comes_before_its_facts_and_these_before_what_can_be_done(
    tmp_path: Path,
) -> None:
    await run_demo(tmp_path)
    async with served(tmp_path, "shop:team") as server, shown(server, "sessions/demo", wide=360) as page:
        main = page.get_by_role("main")
        parts = (
            page.get_by_role("heading", name="Build the sign-in page"),
            main.get_by_text("waits for you", exact=True),
            main.get_by_text("of work"),
            page.get_by_role("button", name="Cancel the run"),
        )
        boxes = [await part.bounding_box() for part in parts]
        middles = [box["y"] + box["height"] / 2 for box in boxes if box]
        assert len(middles) == len(parts)
        assert all(one - before >= -1 for before, one in pairwise(middles)), middles


async def test_a_mark_that_folds_is_hit_beside_it_and_rows_are_lower_on_a_wide_screen(tmp_path: Path) -> None:
    await run_demo(tmp_path)
    async with served(tmp_path) as server:
        async with shown(server, "sessions/demo", wide=360) as page:
            await page.get_by_role("treeitem").first.wait_for()
            await page.get_by_role("tree").evaluate("tree => { tree.scrollTop = 0; }")
            top = page.get_by_role("treeitem", name="team").first
            await expect(top).to_have_attribute("aria-expanded", "true")
            size = await top.locator(".mark").bounding_box()
            assert size is not None
            await page.touchscreen.tap(size["x"] + 20, size["y"] + 40)
            await expect(page.get_by_role("treeitem")).to_have_count(1)
            await expect(page.get_by_role("tabpanel")).to_be_hidden()
        async with shown(server, "sessions/demo") as page:
            size = await page.get_by_role("treeitem").first.bounding_box()
            assert size is not None
            assert size["height"] == 28


async def test_the_help_is_read_in_one_column_without_scrolling(tmp_path: Path) -> None:
    await run_demo(tmp_path)
    async with served(tmp_path) as server, shown(server, "inbox", wide=360) as page:
        await page.get_by_role("article").wait_for()
        await open_dialog(page, "?")
        dialog = page.get_by_role("dialog")
        whole = "one => one.scrollHeight <= one.clientHeight && one.scrollWidth <= one.clientWidth"
        assert await dialog.evaluate(whole)
        starts = await dialog.locator("dd").evaluate_all(
            "all => all.map((one) => one.getBoundingClientRect().left)"
        )
        assert len(starts) > 10
        assert len(set(starts)) == 1
        await expect(dialog.get_by_role("button", name="Close")).to_be_in_viewport(ratio=1)


@pytest.mark.parametrize("wide", [360, 1400])
async def test_json_that_is_longer_than_the_screen_is_read_to_its_end(wide: int, tmp_path: Path) -> None:
    await run_desk(tmp_path, "writer", "long")
    async with served(tmp_path) as server, shown(server, "sessions/writer", wide=wide) as page:
        await page.get_by_role("treeitem", name="script").first.click()
        await page.get_by_role("tab", name="JSON").click()
        response = page.get_by_role("region", name="Response")
        lines = response.locator(".cm-line")
        await expect(lines.nth(1)).to_contain_text('"type": "response"')
        box = response.locator(".cm-scroller")
        assert await box.evaluate("box => box.scrollWidth <= box.clientWidth")
        await response.scroll_into_view_if_needed()
        await box.hover()
        await page.mouse.wheel(0, 100_000)
        await expect(lines.last).to_have_text("}")
        await page.wait_for_function(
            "box => box.scrollTop + box.clientHeight > box.scrollHeight - 2", arg=await box.element_handle()
        )
        assert await box.evaluate("box => box.clientHeight <= 0.7 * innerHeight && box.scrollTop > 0")
