"""What every view promises: no barrier that axe finds, nothing wider than the screen, a small first load."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from page.browser import open_dialog, picture, run_demo, run_desk, served, shown, violations
from web.serving import Server

MOST_BYTES = 150_000
"""It is one second on an idle machine; tests share theirs."""
VIEWS = {
    "inbox": "inbox",
    "sessions": "sessions",
    "session": "sessions/demo",
    "failure": "sessions/importer",
    "team": "sessions/crew",
    "long": "sessions/writer",
}


async def looked_at(page: Page, name: str) -> list[str]:
    """What is wrong with a view as it is; keeps a picture of it."""
    await picture(page, name)
    wide = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return [*await violations(page), *([f"{wide} px wider than the screen"] if wide > 0 else [])]


async def replay(page: Page) -> None:
    """Show an earlier moment of the session on the screen."""
    await page.get_by_role("button", name="More", exact=True).click()
    await page.get_by_role("menuitem", name="Replay").click()
    await page.get_by_role("slider", name="Moment").focus()
    for key in ("Home", "PageUp", "PageUp"):
        await page.keyboard.press(key)
    await expect(page.get_by_text("You see")).to_be_visible()


async def show_failure(page: Page) -> None:
    """Show why a call of the session on the screen failed."""
    await page.get_by_role("treeitem", name="Import orders").last.click()
    await expect(page.get_by_role("heading", name="Failure")).to_be_visible()


async def open_export(page: Page, server: Server, folder: Path) -> None:
    """Open the demo's session as an exported page."""
    file = folder / "export.html"
    async with server.client() as client, client.get("/api/sessions/demo/export?format=html") as response:
        file.write_bytes(await response.read())
    await page.goto(file.as_uri())
    await expect(page.get_by_role("heading", name="Build the sign-in page")).to_be_visible()
    await expect(page.get_by_role("treeitem").first).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("wide", [360, 1400])
async def test_every_view_is_accessible_and_fits_the_screen(theme: str, wide: int, tmp_path: Path) -> None:
    await run_demo(tmp_path)
    await run_desk(tmp_path, "deployer", "deploy it")
    await run_desk(tmp_path, "importer", "Import the old orders")
    await run_desk(tmp_path, "crew", "Pack the boxes of the old shop")
    await run_desk(tmp_path, "writer", "long")
    found: dict[str, list[str]] = {}
    async with served(tmp_path, "shop:team") as server, shown(server, wide=wide, theme=theme) as page:
        await page.get_by_role("article").first.wait_for()
        for name, path in VIEWS.items():
            await page.goto(f"{server.url}/{path}")
            await page.get_by_text("live", exact=True).wait_for()
            await page.wait_for_timeout(500)
            found[name] = await looked_at(page, f"{name}-{theme}-{wide}")
        await page.get_by_role("treeitem", name="script").first.click()
        for tab in ("Readable", "JSON", "Difference"):
            await page.get_by_role("tab", name=tab).click()
            await expect(page.get_by_text("Loading the JSON view…")).to_have_count(0)
            found[tab] = await looked_at(page, f"{tab.lower()}-{theme}-{wide}")
        for key, name in (("?", "help"), ("/", "search")):
            await open_dialog(page, key)
            found[name] = await looked_at(page, f"{name}-{theme}-{wide}")
            await page.keyboard.press("Escape")
            await expect(page.get_by_role("dialog")).to_be_hidden()
    assert not {name: problems for name, problems in found.items() if problems}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("wide", [360, 1400])
async def test_what_is_opened_from_a_view_is_accessible_and_fits_the_screen(
    theme: str, wide: int, tmp_path: Path
) -> None:
    await run_demo(tmp_path)
    await run_desk(tmp_path, "importer", "Import the old orders")
    found: dict[str, list[str]] = {}
    async with served(tmp_path) as server, shown(server, "sessions/demo", wide=wide, theme=theme) as page:
        await replay(page)
        found["replay"] = await looked_at(page, f"replay-{theme}-{wide}")
        await page.goto(f"{server.url}/sessions/importer")
        await show_failure(page)
        found["failure detail"] = await looked_at(page, f"failure detail-{theme}-{wide}")
        await open_dialog(page, "/")
        await page.keyboard.type("orders")
        await expect(page.get_by_role("option").first).to_be_visible()
        found["hits"] = await looked_at(page, f"hits-{theme}-{wide}")
        await open_export(page, server, tmp_path)
        found["export"] = await looked_at(page, f"export-{theme}-{wide}")
    assert not {name: problems for name, problems in found.items() if problems}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("wide", [360, 1400])
async def test_every_form_is_accessible_and_fits_the_screen(theme: str, wide: int, tmp_path: Path) -> None:
    await run_desk(tmp_path, "writer", "short")
    await run_desk(tmp_path, "deployer", "deploy it")
    await run_desk(tmp_path, "clerk", "form")
    await run_desk(tmp_path, "talker", "hello")
    found: dict[str, list[str]] = {}
    agents = [f"desk:{name}" for name in ("writer", "deployer", "clerk", "talker")]
    async with served(tmp_path, *agents) as server, shown(server, "inbox", wide=wide, theme=theme) as page:

        async def look(name: str) -> None:
            found[name] = await looked_at(page, f"{name}-{theme}-{wide}")

        writer, deployer, clerk = (
            page.get_by_role("article", name=name) for name in ("writer", "deployer", "clerk")
        )
        await writer.get_by_role("button", name="Approve by pattern…").click()
        await expect(writer.get_by_role("group", name="Approve every call")).to_be_visible()
        await deployer.get_by_role("button", name="Edit count").click()
        await deployer.get_by_role("textbox", name="New value of count").fill("1")
        await deployer.scroll_into_view_if_needed()
        await look("pattern and edit")
        await deployer.get_by_role("button", name="Done").click()
        await expect(deployer.get_by_role("button", name="Approve with 1 change")).to_be_visible()
        await deployer.get_by_role("button", name="Reject…").click()
        await clerk.get_by_role("button", name="Answer").click()
        await expect(clerk.get_by_role("alert")).to_be_visible()
        await clerk.get_by_role("button", name="Decline…").click()
        await look("reject and decline")
        await deployer.get_by_role("button", name="Back").click()
        await page.wait_for_timeout(600)  # a card that moved takes no press in the first half second
        await deployer.get_by_role("button", name="Approve with 1 change").click()
        await expect(deployer.get_by_text("You approved it with other arguments at")).to_be_visible()
        await deployer.scroll_into_view_if_needed()
        await look("receipt")
        await page.goto(f"{server.url}/sessions/talker")
        await page.get_by_role("button", name="Say…").click()
        await expect(page.get_by_label("What should it do next?")).to_be_focused()
        await look("say")
        await page.goto(f"{server.url}/sessions")
        await page.get_by_role("button", name="Start one").click()
        await expect(page.get_by_role("dialog").get_by_label("Agent")).to_have_value("writer")
        await look("start")
    assert not {name: problems for name, problems in found.items() if problems}


async def test_the_first_load_is_small_and_the_second_loads_no_file_again(tmp_path: Path) -> None:
    await run_demo(tmp_path)
    async with served(tmp_path) as server, shown(server) as page:
        devtools: Any = await page.context.new_cdp_session(page)
        sizes: dict[str, float] = {}
        names: dict[str, str] = {}

        def responded(one: dict[str, Any]) -> None:
            names[one["requestId"]] = one["response"]["url"]

        def finished(one: dict[str, Any]) -> None:
            sizes[names[one["requestId"]]] = one["encodedDataLength"]

        devtools.on("Network.responseReceived", responded)
        devtools.on("Network.loadingFinished", finished)
        await devtools.send("Network.enable")

        async def loaded() -> dict[str, float]:
            sizes.clear()
            await page.goto(f"{server.url}/sessions")
            await page.get_by_role("link", name="Build the sign-in page").wait_for()
            return {url: size for url, size in sizes.items() if "/api/" not in url}

        await devtools.send("Network.setCacheDisabled", {"cacheDisabled": True})
        first = await loaded()
        await devtools.send("Network.setCacheDisabled", {"cacheDisabled": False})
        await loaded()
        again = await loaded()
    assert len([url for url in first if url.endswith(".woff2")]) == 1
    assert len([url for url in first if url.endswith((".js", ".css"))]) == 2
    assert sum(first.values()) < MOST_BYTES, first
    assert sum(size for url, size in again.items() if "/assets/" in url) == 0, again


async def test_files_are_sent_compressed_and_kept_by_browsers(tmp_path: Path) -> None:
    async with served(tmp_path) as server, server.client() as client:
        async with client.get("/") as response:
            found = re.findall(r'(?:src|href)="\./?(assets/[^"]+)"', await response.text())
        for name in found:
            async with client.get(f"/{name}", headers={"accept-encoding": "br, gzip;q=0.5"}) as small:
                body = await small.read()
                assert (small.status, small.headers["content-encoding"]) == (200, "gzip")
                assert "immutable" in small.headers["cache-control"]
                assert small.headers["vary"] == "accept-encoding"
            async with client.get(f"/{name}", headers={"accept-encoding": "gzip;q=0"}) as whole:
                assert "content-encoding" not in whole.headers
                assert await whole.read() == body
            async with client.get(f"/{name}", headers={"if-none-match": small.headers["etag"]}) as same:
                assert (same.status, await same.read()) == (304, b"")
        async with client.get("/export.html") as response:
            assert response.status == 404
    assert len(found) == 2


async def test_what_attackers_write_is_shown_and_does_nothing(tmp_path: Path) -> None:
    await run_desk(tmp_path, "importer", "<b>Import</b> \u202ethe old orders\x1b[2J")
    async with served(tmp_path) as server, shown(server, "sessions") as page:
        await expect(page.get_by_role("link", name="<b>Import</b>")).to_be_visible()
        await page.goto(f"{server.url}/sessions/importer")
        await page.get_by_role("tree").wait_for()
        await page.keyboard.press("e")
        await expect(page.get_by_role("heading", name="Failure")).to_be_visible()
        await expect(page.get_by_text('<img src=x onerror="').first).to_be_visible()
        assert await page.locator("main img, main script").count() == 0
        await expect(page).to_have_title("upcall")
