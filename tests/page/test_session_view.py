"""One session on the page: its tree by keyboard, its moments, its JSON, and what is found in it."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.async_api import Locator, Page, expect

from page.browser import open_desk, picture, run_demo, run_desk, served, shown, upcall, violations
from web.serving import post, until


def chosen(page: Page) -> Locator:
    """The chosen row of the tree."""
    return page.locator('[role=treeitem][aria-selected="true"]')


async def test_the_tree_is_one_tab_stop_and_arrows_move_and_fold(tmp_path: Path) -> None:
    await run_demo(tmp_path)
    async with served(tmp_path) as server, shown(server, "sessions/demo") as page:
        tree = page.get_by_role("tree")
        await tree.focus()
        await page.keyboard.press("Home")
        await expect(chosen(page)).to_contain_text("team")
        rows = await page.get_by_role("treeitem").count()
        await page.keyboard.press("ArrowLeft")
        await expect(page.get_by_role("treeitem")).to_have_count(1)
        await expect(chosen(page)).to_have_attribute("aria-expanded", "false")
        await page.keyboard.press("ArrowRight")
        await expect(page.get_by_role("treeitem")).to_have_count(rows)
        await page.keyboard.press("ArrowRight")
        await expect(chosen(page)).to_contain_text("manager")
        assert await chosen(page).get_attribute("aria-level") == "2"
        active = await tree.get_attribute("aria-activedescendant")
        assert active == await chosen(page).get_attribute("id")
        await page.keyboard.press("End")
        await expect(chosen(page)).to_be_in_viewport()
        await page.keyboard.press("n")
        await expect(chosen(page)).to_contain_text("asks you")
        await expect(page.get_by_role("treeitem", name=re.compile("^You"))).to_have_count(1)
        await expect(page.get_by_role("treeitem", name="A person")).to_have_count(0)
        await page.keyboard.press("ArrowLeft")
        await page.keyboard.press("ArrowLeft")
        await expect(chosen(page)).to_contain_text("Run python")


async def test_a_session_is_replayed_with_a_slider_and_nothing_can_be_answered_there(tmp_path: Path) -> None:
    await run_demo(tmp_path)
    async with served(tmp_path, "shop:team") as server, shown(server, "sessions/demo") as page:
        await expect(chosen(page)).to_contain_text("asks you")
        rows = await page.get_by_role("treeitem").count()
        await page.get_by_role("button", name="More").click()
        await page.get_by_role("menuitem", name="Replay").click()
        await expect(page.get_by_text("You see")).to_be_visible()
        await expect(page.get_by_role("button", name="green")).to_have_count(0)
        await expect(page.get_by_role("button", name="Cancel the run")).to_have_count(0)
        slider = page.get_by_role("slider", name="Moment")
        await slider.focus()
        await page.keyboard.press("Home")
        await expect(page.get_by_role("treeitem")).to_have_count(1)
        await page.keyboard.press("ArrowRight")
        await page.keyboard.press("PageUp")
        assert 1 <= await page.get_by_role("treeitem").count() < rows
        panel = page.get_by_role("tabpanel")
        await expect(panel.get_by_text("Build the sign-in page")).to_be_visible()
        await expect(panel.get_by_text("The service runs on port")).to_have_count(0)  # it has not been said yet
        assert not await violations(page)
        await picture(page, "replay")
        await page.get_by_label("Speed").select_option("64×")
        await page.get_by_role("button", name="Play").click()
        await expect(
            page.get_by_role("treeitem", name="asked").or_(page.get_by_role("treeitem", name="asks")).last
        ).to_be_visible()
        await expect(page.get_by_role("button", name="Play")).to_be_visible()
        await expect(page.get_by_role("treeitem")).to_have_count(rows)
        await page.get_by_role("button", name="Back to now").click()
        await expect(page.get_by_role("button", name="green")).to_be_visible()


async def test_the_slider_of_a_replay_stands_under_the_cursor_of_the_timeline(tmp_path: Path) -> None:
    await run_demo(tmp_path)
    async with served(tmp_path, "shop:team") as server, shown(server, "sessions/demo") as page:
        await expect(chosen(page)).to_contain_text("asks you")
        await page.get_by_role("button", name="More").click()
        await page.get_by_role("menuitem", name="Replay").click()
        slider = page.get_by_role("slider", name="Moment")
        cursor = page.locator(".cursor").first

        async def apart() -> float:
            size, line = await slider.bounding_box(), await cursor.bounding_box()
            assert size is not None
            assert line is not None
            share = float(await slider.input_value())
            return abs(size["x"] + 8 + share * (size["width"] - 16) - (line["x"] + line["width"] / 2))

        await slider.focus()
        seen = set[str]()
        for key in ("Home", "ArrowRight", "PageUp", "PageUp", "PageUp", "End"):
            await page.keyboard.press(key)
            seen.add(await slider.input_value())
            assert await apart() < 3, key
        assert len(seen) > 3
        rows = await page.get_by_role("treeitem").count()
        size = await slider.bounding_box()
        assert size is not None
        await slider.click(position={"x": size["width"] * 0.3, "y": size["height"] / 2})
        await expect(page.get_by_role("treeitem", name="The service runs on")).to_have_count(0)
        assert 1 < await page.get_by_role("treeitem").count() < rows
        assert await apart() < 3


async def test_a_model_call_is_read_as_json_and_compared_with_the_one_before(tmp_path: Path) -> None:
    await run_demo(tmp_path)
    async with served(tmp_path) as server, shown(server, "sessions/demo") as page:
        await page.get_by_role("treeitem", name="script Run tests").click()
        await expect(page.get_by_role("heading", name="It calls run_tests")).to_be_visible()
        await expect(page.get_by_text("3 messages", exact=True)).to_be_visible()
        await page.get_by_role("tab", name="Readable").focus()
        await page.keyboard.press("ArrowRight")
        request = page.get_by_role("region", name="Request")
        await expect(request.get_by_text('"developer01"')).to_be_visible()
        await expect(page.get_by_role("region", name="Response").get_by_text('"run_tests"')).to_be_visible()
        await request.get_by_role("button", name="Find").click()
        await page.keyboard.type("settings.ini")
        await page.keyboard.press("Enter")
        await expect(request.locator(".cm-searchMatch").first).to_be_visible()
        assert not await violations(page)
        await page.get_by_role("tab", name="Difference").click()
        await expect(page.get_by_text("unchanged lines").first).to_be_visible()
        assert await page.locator(".cm-changedLine").count() > 5
        assert not await violations(page)
        await picture(page, "difference")
        await page.get_by_role("treeitem", name="script Read settings").click()
        await expect(page.get_by_text("This is the first request of this session.")).to_be_visible()


async def test_steps_are_found_and_the_next_failure_is_chosen(tmp_path: Path) -> None:
    await run_desk(tmp_path, "crew", "Pack the boxes")
    async with served(tmp_path) as server, shown(server, "sessions/crew") as page:
        await expect(chosen(page)).to_contain_text("asks you")
        await page.keyboard.press("e")
        await expect(chosen(page)).to_contain_text("Import orders")
        await expect(page.get_by_role("heading", name="Failure")).to_be_visible()
        await page.keyboard.press("f")
        await page.keyboard.type("box 7")
        await page.keyboard.press("Enter")
        await expect(chosen(page)).to_contain_text("Pack box 7")
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name="failed").click()
        await expect(page.get_by_role("treeitem")).to_have_count(1)
        await page.get_by_role("button", name="questions").click()
        await expect(page.get_by_role("treeitem", name="What about colour?")).to_be_visible()
        await page.get_by_role("button", name="3 more").click()
        await expect(page.get_by_text("packer08").first).to_be_visible()


async def test_a_filter_that_finds_nothing_says_so(tmp_path: Path) -> None:
    await run_demo(tmp_path)
    async with served(tmp_path) as server, shown(server, "sessions/demo") as page:
        await page.get_by_role("button", name="failed").click()
        await expect(page.get_by_text("Nothing failed in these")).to_be_visible()
        await page.get_by_role("button", name="Show all").click()
        await expect(page.get_by_role("treeitem", name="manager").first).to_be_visible()


async def test_what_is_read_stays_where_it_is_while_a_session_goes_on(tmp_path: Path) -> None:
    open_desk(tmp_path)
    async with served(tmp_path, "desk:talker") as server, shown(server, "inbox") as page, server.client() as client:
        await post(client, "/api/sessions", {"agent": "talker", "text": "hello", "id": "s1"})
        for number in range(12):
            await until(client, "/api/sessions/s1", lambda one: one["session"]["can_prompt"])
            await post(client, "/api/sessions/s1/prompt", {"text": f"turn {number}"})
        await until(client, "/api/sessions/s1", lambda one: one["session"]["can_prompt"])
        await page.goto(f"{server.url}/sessions/s1")
        await expect(chosen(page)).to_be_visible()
        await page.get_by_role("tree").focus()
        await page.keyboard.press("Home")
        before = await chosen(page).bounding_box()
        await post(client, "/api/sessions/s1/prompt", {"text": "one more"})
        await page.get_by_role("button", name="new ↓").wait_for()
        assert await chosen(page).bounding_box() == before
        await page.keyboard.press(".")
        await expect(page.get_by_role("treeitem", name="one more").last).to_be_in_viewport()
        await expect(page.get_by_role("button", name="new ↓")).to_be_hidden()
        await until(client, "/api/sessions/s1", lambda one: one["session"]["can_prompt"])
        await post(client, "/api/sessions/s1/prompt", {"text": "the last one"})
        await expect(page.get_by_role("treeitem", name="the last one").last).to_be_in_viewport()


async def test_a_link_to_a_step_chooses_it(tmp_path: Path) -> None:
    await run_demo(tmp_path)
    async with served(tmp_path) as server, shown(server, "sessions/demo") as page:
        await page.get_by_role("treeitem", name="Run tests").last.click()
        await expect(page.get_by_text("212 passed").first).to_be_visible()
        address = page.url
        await page.goto(f"{server.url}/inbox")
        await page.goto(address)
        await expect(chosen(page)).to_contain_text("Run tests")
        await expect(page.get_by_text("212 passed").first).to_be_visible()


async def test_search_finds_a_step_and_opens_it(tmp_path: Path) -> None:
    await run_demo(tmp_path)
    async with served(tmp_path) as server, shown(server, "sessions") as page:
        await page.get_by_role("link", name="Build the sign-in page").wait_for()
        await page.keyboard.press("/")
        await page.keyboard.type("212 passed")
        await expect(page.get_by_role("option").first).to_contain_text("212 passed")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog")).to_be_hidden()
        await expect(page.get_by_role("heading", name="Build the sign-in page")).to_be_visible()
        await expect(chosen(page)).to_be_visible()
        assert await upcall(tmp_path, "inbox", "--ids")
