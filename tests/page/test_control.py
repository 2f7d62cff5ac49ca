"""Sessions run from the page: started, prompted, steered, cancelled and resumed."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from playwright.async_api import Page, Route, expect

from page.browser import DEMO, open_desk, run_demo, run_desk, served, shown
from web.people import give_token, revoke
from web.serving import get, post, until


async def start(page: Page, agent: str, text: str, title: str = "") -> None:
    """Start a session with the dialog."""
    await page.get_by_role("button", name="Start one").first.click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Agent").select_option(agent)
    await dialog.get_by_label("What should it do?").fill(text)
    await dialog.get_by_label("Title").fill(title)
    await dialog.get_by_role("button", name="Start", exact=True).click()
    await expect(page.get_by_role("heading", name=title or text, level=1)).to_be_visible()


async def say(page: Page, text: str) -> None:
    await page.get_by_role("button", name="Say…").click()
    await page.locator("#say").fill(text)
    await page.keyboard.press("Control+Enter")
    await expect(page.locator("#say")).to_be_hidden()


async def test_a_session_is_started_steered_prompted_and_cancelled_on_the_page(tmp_path: Path) -> None:
    open_desk(tmp_path)
    async with served(tmp_path, "desk:talker") as server, shown(server, "sessions") as page:
        main = page.get_by_role("main")
        await expect(main.get_by_text("Nothing has run here yet.")).to_be_visible()
        await start(page, "talker", "wait go", "A quiet talk")
        await expect(main.get_by_text("running", exact=True).first).to_be_visible()
        await say(page, "be brief")
        (tmp_path / "go").touch()
        await expect(main.get_by_text("I heard: be brief").first).to_be_visible()
        await expect(main.get_by_text("done", exact=True).first).to_be_visible()

        await say(page, "and now louder")
        await expect(main.get_by_text("I heard: and now louder").first).to_be_visible()

        await say(page, "wait forever")
        await page.get_by_role("button", name="Cancel the run").click()
        await expect(main.get_by_text("cancelled").first).to_be_visible()
        await page.get_by_role("link", name="Sessions").click()
        await expect(page.get_by_role("row", name="A quiet talk").get_by_text("cancelled")).to_be_visible()


async def test_what_is_said_while_the_page_reads_the_session_again_is_sent(tmp_path: Path) -> None:
    open_desk(tmp_path)
    async with served(tmp_path, "desk:talker") as server, shown(server, "sessions") as page:
        main, read = page.get_by_role("main"), asyncio.Event()
        await start(page, "talker", "hello", "A quiet talk")
        await expect(main.get_by_text("I heard: hello").first).to_be_visible()
        await expect(main.get_by_text("done", exact=True).first).to_be_visible()

        async def hold(route: Route) -> None:
            await read.wait()
            await route.continue_()

        await page.route(re.compile(r"/api/sessions/[^/]+$"), hold)
        for text in ("one", "two"):
            await say(page, text)
            await expect(main.get_by_text(f"I heard: {text}").first).to_be_visible()
        read.set()


async def test_what_is_said_to_a_session_that_waits_is_read_when_it_continues(tmp_path: Path) -> None:
    await run_desk(tmp_path, "talker", "ask colour")
    async with served(tmp_path, "desk:talker") as server, shown(server, "sessions/talker") as page:
        main = page.get_by_role("main")
        await expect(main.get_by_text("waits for you", exact=True)).to_be_visible()
        await page.get_by_role("button", name="Say…").click()
        await expect(page.get_by_label("This answers no question")).to_be_focused()
        await page.keyboard.type("be brief")
        await page.keyboard.press("Control+Enter")
        await expect(page.get_by_role("treeitem", name="be brief")).to_be_visible()
        await expect(main.get_by_text("waits for you", exact=True)).to_be_visible()
        async with server.client() as client:
            (card,) = (await get(client, "/api/inbox"))["open"]
            await post(client, f"/api/callbacks/{card['id']}/answer", {"value": "green"})
        await expect(page.get_by_role("treeitem", name="I heard: be brief").first).to_be_visible()


async def test_the_time_in_the_tree_is_explained_by_the_facts_of_a_session_that_waited(tmp_path: Path) -> None:
    await run_desk(tmp_path, "talker", "ask colour")
    async with served(tmp_path, "desk:talker") as server, server.client() as client:
        (card,) = (await get(client, "/api/inbox"))["open"]
        await until(client, "/api/sessions/talker", lambda one: one["session"]["waited_seconds"] > 1.1)
        await post(client, f"/api/callbacks/{card['id']}/answer", {"value": "green"})
        await until(client, "/api/sessions/talker", lambda one: one["session"]["status"] == "done")
        async with shown(server, "sessions/talker") as page:
            top = page.get_by_role("treeitem", name="talker ask colour")
            took = (await top.locator(".right").inner_text()).split(" · ")[-1]
            assert re.fullmatch(r"[\d.]+ s|\d+ min.*", took)
            facts = page.get_by_text("of work")
            await expect(facts).to_contain_text(f"{took} from start to end, ")
            await expect(facts).to_contain_text(", waited ")


async def test_a_session_that_works_shows_work_that_moves_on(tmp_path: Path) -> None:
    open_desk(tmp_path)
    async with served(tmp_path, "desk:talker") as server, shown(server, "sessions") as page:
        await start(page, "talker", "wait forever")
        facts = page.get_by_text("of work")
        await expect(facts).to_have_text(re.compile(r"^[2-9]\.\d s of work|^\d\d s of work|min"), timeout=30_000)
        await page.get_by_role("button", name="Cancel the run").click()
        await expect(page.get_by_role("main").get_by_text("cancelled").first).to_be_visible()


async def test_what_failed_is_continued_on_the_page(tmp_path: Path) -> None:
    open_desk(tmp_path)
    async with served(tmp_path, "desk:talker") as server, shown(server, "sessions") as page:
        await start(page, "talker", "fail once")
        await expect(page.get_by_text("It failed.")).to_be_visible()
        (tmp_path / "mended").touch()
        await page.get_by_role("button", name="Continue").click()
        await expect(page.get_by_role("main").get_by_text("I heard: fail once").first).to_be_visible()
        await expect(page.get_by_text("It failed.")).to_be_hidden()


async def test_text_is_shown_while_it_is_written(tmp_path: Path) -> None:
    open_desk(tmp_path)
    async with served(tmp_path, "desk:speaker") as server, shown(server, "sessions") as page:
        await start(page, "speaker", "count")
        await page.get_by_role("treeitem", name="speaker").first.click()
        panel = page.get_by_role("tabpanel")
        for word, text in (("one", "one"), ("two", "one two")):
            (tmp_path / word).touch()
            await expect(panel.get_by_text(text, exact=True)).to_be_visible()
        (tmp_path / "three").touch()
        await expect(panel.get_by_text("one two three", exact=True)).to_be_visible()
        await expect(panel.get_by_text("one two", exact=True)).to_be_hidden()


async def test_the_demo_team_is_watched_live_from_its_start_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_bytes(DEMO.read_bytes())
    async with served(tmp_path, "shop:team") as server, shown(server, "sessions") as page:
        await start(page, "team", "Build the sign-in page")
        await expect(page.get_by_role("button", name="following")).to_be_visible()
        await expect(page.get_by_role("treeitem", name="asks you")).to_be_visible()
        await page.keyboard.press("n")
        card = page.get_by_role("article")
        await expect(card.get_by_role("heading", name="Which colour")).to_be_visible()
        await expect(card.get_by_text("passed it up: a matter of taste")).to_be_visible()
        await page.wait_for_timeout(600)
        await card.get_by_role("button", name="orange").click()
        await expect(card.get_by_text("You answered orange at")).to_be_visible()
        await page.get_by_role("button", name="follow", exact=True).click()
        await expect(page.get_by_role("treeitem", name="reviewer").first).to_be_visible()
        await expect(page.get_by_role("main").get_by_text("done", exact=True).first).to_be_visible()
    assert "orange" in (tmp_path / "Sign in.html").read_text()


async def test_the_next_question_is_one_for_the_reader_even_below_one_that_an_agent_thinks_about(
    tmp_path: Path,
) -> None:
    open_desk(tmp_path)
    async with served(tmp_path, "desk:pair") as server, shown(server, "sessions") as page:
        await start(page, "team", "Test both")
        await expect(page.get_by_role("treeitem", name="asks you What about colour?")).to_be_visible()
        (tmp_path / "begin").touch()
        await expect(page.get_by_role("treeitem", name="asks What about name?")).to_be_visible()
        await page.keyboard.press("n")
        card = page.get_by_role("article")
        await expect(card.get_by_role("heading", name="What about colour?")).to_be_visible()
        await expect(card.get_by_text("How it came to you")).to_be_visible()
        await page.get_by_role("treeitem", name="asks What about name?").click()
        await expect(card.get_by_role("heading", name="What about name?")).to_be_visible()
        await expect(card.get_by_text("Who was asked")).to_be_visible()
        await expect(card.get_by_text("How it came to you")).to_have_count(0)
        (tmp_path / "decided").touch()
        await expect(card.get_by_text("lead answered Ada")).to_be_visible()


async def test_a_page_that_only_shows_has_no_buttons_that_change_anything(tmp_path: Path) -> None:
    async with served(tmp_path, "--view-only") as server, shown(server, "sessions") as page:
        await expect(page.get_by_text("You can look here and not answer")).to_be_visible()
        await expect(page.get_by_text("Nothing has run here yet.")).to_be_visible()
        await expect(page.get_by_role("button", name="Start one")).to_have_count(0)


async def test_a_page_shows_who_one_is_and_only_what_the_role_allows(tmp_path: Path) -> None:
    open_desk(tmp_path)
    async with served(tmp_path, "desk:talker") as server:
        place = tmp_path / ".upcall"
        viewer, answerer = await give_token(place, "vic", "viewer"), await give_token(place, "ada", "answerer")
        async with shown(server, "sessions") as page:
            await start(page, "talker", "wait go", "A quiet talk")
        server.token = viewer
        async with shown(server, "sessions") as page:
            await expect(page.get_by_role("banner").get_by_text("vic (viewer)")).to_be_visible()
            await expect(page.get_by_text("your token has the role viewer")).to_be_visible()
            await page.get_by_role("row", name="A quiet talk").get_by_role("link").first.click()
            await expect(page.get_by_role("heading", name="A quiet talk", level=1)).to_be_visible()
            await expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
        server.token = answerer
        async with shown(server, "sessions") as page:
            await expect(page.get_by_role("banner").get_by_text("ada (answerer)")).to_be_visible()
            await expect(page.get_by_text("You can look here and not answer")).to_have_count(0)
            await expect(page.get_by_role("button", name="Start one")).to_have_count(0)
            await revoke(place, "ada")
            await expect(page.get_by_text("This page's token is no longer valid")).to_be_visible(timeout=20_000)


async def test_whoever_may_only_look_is_not_told_that_a_question_waits_for_them(tmp_path: Path) -> None:
    await run_demo(tmp_path)
    async with served(tmp_path) as server:
        server.token = await give_token(tmp_path / ".upcall", "vic", "viewer")
        async with shown(server) as page:
            await expect(page.get_by_role("heading", name="1 question waits for an answer")).to_be_visible()
            await expect(page.get_by_text("The choices are: green · blue · orange")).to_be_visible()
            await expect(page.get_by_text("How it came to a person")).to_be_visible()
            await expect(page.get_by_role("button", name="green")).to_have_count(0)
            await expect(page.get_by_text("for you")).to_have_count(0)
        async with shown(server, "sessions/demo") as page:
            await expect(page.get_by_role("treeitem", name="asks a person")).to_be_visible()
            await expect(page.get_by_role("treeitem", name=re.compile("^A person"))).to_have_count(1)
            await expect(page.get_by_text("waits for an answer")).to_be_visible()
            assert await page.evaluate("() => document.documentElement.scrollHeight <= innerHeight")


async def test_an_answer_with_a_revoked_token_is_refused_in_plain_words(tmp_path: Path) -> None:
    await run_demo(tmp_path)
    place = tmp_path / ".upcall"
    async with served(tmp_path) as server:
        server.token = await give_token(place, "ada", "answerer")
        async with shown(server) as page:
            await expect(page.get_by_role("button", name="green")).to_be_visible()
            await revoke(place, "ada")
            await expect(page.get_by_text("This page's token is no longer valid. Open the link")).to_be_visible()
            alert = page.get_by_role("article").get_by_role("alert")
            while not await alert.count():  # a press does nothing while the card has just moved
                await page.get_by_role("button", name="green").click()
                await page.wait_for_timeout(200)
            await expect(alert).to_have_text("This page's token is no longer valid, so the server refused this")
