"""A run tree as one page: what it holds, what it leaves out, and that it opens offline."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.async_api import expect
from starlette.types import ASGIApp, Message

from page.browser import picture, run_demo, served, shown, violations
from upcall import Agent, Runtime
from upcall.hosts.web import export_page
from upcall.models import Script, call
from upcall.web import app as web_app
from web.serving import get, make_agents, post, serving, until
from web.test_debugging import KEY, read_file, run_reader

DATA = re.compile(rb'<script type="application/json" id="upcall-export">(.*?)</script>', re.DOTALL)


def exported(page: bytes) -> dict[str, Any]:
    """The data inside an exported page."""
    found = DATA.search(page)
    assert found is not None
    return msgspec.json.decode(found[1])


def unnumbered(messages: list[Any]) -> str:
    """Messages as text, without the numbers of hidden values: these count within whatever is shown at once."""
    return re.sub(r"#\d+⟧", "⟧", str(messages))


async def asked(application: ASGIApp, path: str) -> tuple[int, bytes]:
    """The status and the body of an answer, from an application in this process."""
    code, body, left = 0, b"", asyncio.Event()

    async def receive() -> Message:
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal code, body
        code, body = message.get("status", code), body + message.get("body", b"")

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"format=html", "root_path": ""}
    await application({**scope, "headers": [(b"host", b"test")], "scheme": "http"}, receive, send)
    return code, body


async def test_an_exported_page_holds_the_whole_view_under_a_policy_of_hashes(tmp_path: Path) -> None:
    await run_reader(tmp_path)
    async with serving(tmp_path, "--store", "log.db") as server, server.client() as client:
        async with client.get("/api/sessions/s1/export?format=html") as response:
            page = await response.read()
            assert response.headers["content-disposition"] == 'attachment; filename="session.html"'
            assert response.content_type == "text/html"
        nodes = await get(client, "/api/sessions/s1/nodes")
        talk = await get(client, "/api/sessions/s1/conversation")
        second = await get(client, "/api/sessions/s1/calls/2")
        (began,) = (one["seq"] for one in nodes["nodes"] if one["kind"] == "model" and one["call"] == 2)
    data = exported(page)
    assert data["nodes"] == nodes["nodes"]
    assert all(node["history"] for node in data["nodes"])
    assert data["conversations"]["s1"] == talk
    request = data["calls"][f"s1/{began}"]["request"]
    messages = [data["parts"][str(one)] for one in request["messages"]]
    assert unnumbered(messages) == unnumbered(second["request"]["messages"])
    called = next(node for node in data["nodes"] if node["kind"] == "tool")
    assert data["events"][f"s1/{called['end_seq']}"]["type"] == "tool_ended"
    assert data["left_out"] == 0
    assert KEY.encode() not in page
    assert page.count(b"alert(1)</script>") == 0

    (policy,) = re.findall(rb'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert b"unsafe" not in policy
    (script,) = re.findall(rb'<script type="module">(.*?)</script>', page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script).digest())
    assert b"script-src 'sha256-" + digest + b"'" in policy


async def test_an_exported_page_has_the_cards_of_questions(tmp_path: Path) -> None:
    agent = make_agents(tmp_path)
    async with serving(tmp_path, agent, "--store", "log.db") as server, server.client() as client:
        await post(client, "/api/sessions", {"agent": "clerk", "text": "deploy staging", "id": "s1"})
        (card,) = (await until(client, "/api/inbox", lambda found: found["open"]))["open"]
        async with client.get("/api/sessions/s1/export?format=html") as response:
            data = exported(await response.read())
    assert data["cards"][card["id"]]["label"] == "Deploy"
    assert data["session"]["can_prompt"] is False
    assert "topsecret" not in str(data)


async def test_an_export_that_would_be_too_large_leaves_the_largest_bodies_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script([call("read_file", name="x" * 300_000), call("read_file", name="small"), "done"])
    agent = Agent("reader", model=script, tools=[read_file])
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        await (await runtime.start("reader", "s1")).prompt("go")
        application = web_app(runtime, lambda request: "ada")
        _, whole = await asked(application, "/api/sessions/s1/export")
        most = len(whole) - 500_000
        monkeypatch.setattr(export_page, "MOST_BYTES", most)
        _, page = await asked(application, "/api/sessions/s1/export")
        monkeypatch.setattr(export_page, "MOST_BYTES", 10_000)
        code, refused = await asked(application, "/api/sessions/s1/export")
    assert len(page) <= most
    data = exported(page)
    assert data["nodes"] == exported(whole)["nodes"]
    assert data["left_out"] >= 2
    assert any("small" in str(event) for event in data["events"].values())
    assert code == 422
    assert b"too large for one page" in refused


async def test_an_exported_page_opens_offline_and_replays_the_run(tmp_path: Path) -> None:
    await run_demo(tmp_path)
    async with served(tmp_path) as server, shown(server, "sessions/demo") as page:
        await page.get_by_role("button", name="More").click()
        async with page.expect_download() as started:
            await page.get_by_role("menuitem", name="Export as a page").click()
        file = tmp_path / "exported" / "demo.html"
        await (await started.value).save_as(file)
        await server.stop()
        context, problems = page.context, list[str]()
        offline = await context.new_page()
        offline.on("pageerror", lambda error: problems.append(str(error)))
        offline.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
        offline.on("request", lambda sent: problems.append(sent.url) if sent.url.startswith("http") else None)
        await offline.goto(file.as_uri())
        await expect(offline.get_by_role("heading", name="Build the sign-in page")).to_be_visible()
        await expect(offline.get_by_role("heading", name="Which colour")).to_be_visible()
        await expect(offline.get_by_role("button", name="green")).to_have_count(0)
        rows = await offline.get_by_role("treeitem").count()
        await offline.get_by_role("treeitem", name="script Run tests").click()
        await expect(offline.get_by_role("heading", name="It calls run_tests")).to_be_visible()
        await offline.get_by_role("tab", name="Difference").click()
        await expect(offline.locator(".cm-changedLine").first).to_be_visible()
        await offline.get_by_role("tab", name="JSON").click()
        await expect(offline.get_by_role("region", name="Request").get_by_text('"developer01"')).to_be_visible()
        await offline.get_by_role("treeitem", name="Run tests").last.click()
        await offline.get_by_role("tab", name="Readable").click()
        await expect(offline.get_by_text("212 passed").first).to_be_visible()
        await offline.get_by_role("treeitem", name="developer01").first.click()
        await expect(offline.get_by_text("The service runs on").first).to_be_visible()
        assert not await violations(offline)
        await picture(offline, "export")
        await offline.get_by_role("button", name="More").click()
        await offline.get_by_role("menuitem", name="Replay").click()
        await offline.get_by_role("slider", name="Moment").focus()
        await offline.keyboard.press("Home")
        await expect(offline.get_by_role("treeitem")).to_have_count(1)
        await offline.get_by_role("button", name="Back to now").click()
        await expect(offline.get_by_role("treeitem")).to_have_count(rows)
    assert not problems
