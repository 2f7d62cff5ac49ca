"""What a page shows when its stream or its server was away: no gap, and nothing twice."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

from playwright.async_api import Page, expect

from page.browser import open_desk, run_desk, served, shown
from upcall import Agent, Runtime
from upcall.models import Script
from web.serving import Server, get, post, until

echo = Agent("echo", model=Script(lambda request: f"I heard: {request.messages[-1].text}"))


async def has_nodes(page: Page, server: Server, session: str) -> None:
    """Wait until the page has exactly the server's nodes, with the same values and histories."""
    async with server.client() as client, asyncio.timeout(20):
        while True:
            nodes = (await get(client, f"/api/sessions/{session}/nodes"))["nodes"]
            mine: list[Any] = await page.evaluate("() => window.upcall?.nodes() ?? []")
            if sorted(mine, key=_id) == sorted(nodes, key=_id):
                return
            await asyncio.sleep(0.1)


def _id(node: Any) -> str:
    return node["id"]


async def prompts(folder: Path, session: str, *texts: str) -> None:
    """Run turns of a session in this process, over the folder's log."""
    (folder / ".upcall").mkdir(exist_ok=True)
    async with Runtime(folder / ".upcall" / "log.db", agents=[echo]) as runtime:
        new = not await runtime.rows(session=session) if await runtime.rows() else True
        found = await (runtime.start("echo", session) if new else runtime.load(session))
        for text in texts:
            await found.prompt(text)


async def lose_stream(page: Page) -> None:
    """Break the page's stream and let no other one begin."""
    await page.route("**/api/live*", lambda route: route.abort())
    await page.evaluate("() => window.dispatchEvent(new Event('online'))")
    await page.get_by_text("Connection lost").wait_for()


async def find_stream(page: Page) -> None:
    """Let the page have its stream again."""
    await page.unroute("**/api/live*")
    await page.evaluate("() => window.dispatchEvent(new Event('online'))")


async def test_a_page_goes_on_where_it_was_when_its_server_was_killed_and_started_again(tmp_path: Path) -> None:
    open_desk(tmp_path)
    await prompts(tmp_path, "s1", "one")
    server = Server(tmp_path, "desk:talker")
    await server.start()
    port = server.url.rpartition(":")[2]
    async with shown(server, "sessions/s1") as page:
        await page.get_by_role("treeitem", name="echo").first.wait_for()
        await has_nodes(page, server, "s1")
        async with server.client() as client:
            await post(client, "/api/sessions", {"agent": "talker", "text": "wait never", "id": "cut"})
            await until(client, "/api/sessions/cut", lambda one: one["session"]["tool_calls"])
        await server.stop(signal.SIGKILL)
        await expect(page.get_by_text("Connection lost, trying again in")).to_be_visible()
        await expect(page.get_by_text("Nothing is lost: agents continue, questions wait.")).to_be_visible()
        await prompts(tmp_path, "s1", "two", "three")
        await run_desk(tmp_path, "clerk", "colour")

        again = Server(tmp_path, "desk:talker", "--port", port)
        await again.start()
        try:
            assert again.token == server.token
            await expect(page.get_by_text("live", exact=True)).to_be_visible(timeout=20_000)
            await has_nodes(page, again, "s1")
            await expect(page).to_have_title("(1) upcall")
            await page.get_by_role("link", name="Sessions").click()
            await page.get_by_role("link", name="wait never").click()
            await expect(page.get_by_text("The program that ran this ended in the middle.")).to_be_visible()
            (tmp_path / "never").touch()
            await page.get_by_role("button", name="Continue").click()
            await expect(page.get_by_text("done", exact=True).first).to_be_visible()
            await has_nodes(page, again, "cut")
        finally:
            await again.stop()


async def test_a_page_that_lost_its_stream_gets_what_it_missed_and_nothing_twice(tmp_path: Path) -> None:
    await prompts(tmp_path, "s1", "one")
    async with served(tmp_path) as server, shown(server, "sessions/s1") as page:
        await page.get_by_role("treeitem", name="echo").first.wait_for()
        await lose_stream(page)
        await prompts(tmp_path, "s1", *(f"again {number}" for number in range(20)))
        await run_desk(tmp_path, "clerk", "colour")
        await expect(page).to_have_title("upcall")
        await find_stream(page)
        await expect(page).to_have_title("(1) upcall")
        await has_nodes(page, server, "s1")


async def test_a_page_reads_the_tree_again_when_more_changed_than_is_told(tmp_path: Path) -> None:
    await prompts(tmp_path, "s1", "one")
    async with served(tmp_path) as server, shown(server, "sessions/s1") as page:
        await page.get_by_role("treeitem", name="echo").first.wait_for()
        await lose_stream(page)
        await prompts(tmp_path, "s1", "two", "three")
        async with server.client() as client:
            newest = (await get(client, "/api/me"))["pos"]
        hello = f'event: hello\ndata: {{"pos":{newest},"time":1}}\n\n'
        told = f'{hello}id: {newest}\nevent: reset\ndata: {{"tree":true}}\n\n'
        await page.unroute("**/api/live*")
        await page.route(
            "**/api/live*", lambda route: route.fulfill(body=told, content_type="text/event-stream"), times=1
        )
        await page.evaluate("() => window.dispatchEvent(new Event('online'))")
        await has_nodes(page, server, "s1")
        await prompts(tmp_path, "s1", "four")
        await has_nodes(page, server, "s1")


async def test_a_page_that_slept_while_more_happened_than_is_told_reads_its_lists_again(tmp_path: Path) -> None:
    await prompts(tmp_path, "s1", "one")
    async with served(tmp_path) as server, shown(server, "sessions") as page:
        await page.get_by_role("link", name="one").wait_for()
        await lose_stream(page)
        async with Runtime(tmp_path / ".upcall" / "log.db", agents=[echo]) as runtime:
            for number in range(120):
                await (await runtime.start("echo", f"n{number:03}")).prompt(f"task {number:03}")
        await run_desk(tmp_path, "clerk", "colour")
        await find_stream(page)
        await expect(page).to_have_title("(1) upcall")
        await expect(page.get_by_role("link", name="task 119")).to_be_visible()
        await expect(page.get_by_role("button", name="all 122")).to_be_visible()
        titles = await page.locator("a.title").all_inner_texts()
        assert len(titles) == len(set(titles)) == 50


async def test_hidden_pages_know_the_newest_questions_and_one_of_them_tells_the_desktop(tmp_path: Path) -> None:
    async with served(tmp_path) as server, shown(server, "inbox") as page:
        await run_desk(tmp_path, "clerk", "colour", "first")
        await page.get_by_text("Tell you on the desktop when an agent asks?").wait_for()
        await page.get_by_role("button", name="Yes").click()
        other = await page.context.new_page()
        await other.goto(f"{server.url}/sessions#token={server.token}")
        await expect(other).to_have_title("(1) upcall")
        for one in (page, other):
            await one.evaluate("() => window.Notification.permission = 'granted'")
            await one.evaluate("() => hide(true)")
        await run_desk(tmp_path, "clerk", "name", "second")
        await expect(page).to_have_title("(2) upcall")
        await expect(other).to_have_title("(2) upcall")
        told = [*await page.evaluate("() => told"), *await other.evaluate("() => told")]
        assert told[0] == "clerk asks: What about name?"
        await page.evaluate("() => hide(false)")
        await expect(page.get_by_role("heading", name="What about name?")).to_be_visible()
        await expect(page.get_by_role("article")).to_have_count(2)
