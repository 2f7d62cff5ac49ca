"""MCP servers that an editor passes serve that session."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cli.command import upcall
from editor.clients import CLIENTS, PEERS, Acpx, Client, PythonSdk, connected, node, sent_requests
from editor.raw import COMMAND, HANGING
from mcp_client.peers import free_port, web_everything, web_shop
from pace import slowness
from web.serving import Server, get, post

pytestmark = pytest.mark.slow

SECRET = "hush-hush-1234567890"
LEGACY: dict[str, Any] = {
    "name": "everything",
    "command": node(),
    "args": [str(PEERS / "node_modules/@modelcontextprotocol/server-everything/dist/index.js"), "stdio"],
    "env": [{"name": "SECRET", "value": SECRET}],
}
MODERN: dict[str, Any] = {"name": "time", "command": sys.executable, "args": ["-m", "mcp_server_time"], "env": []}


@pytest.mark.parametrize("kind", CLIENTS, ids=[one.name for one in CLIENTS])
async def test_servers_of_both_eras_are_called_after_an_approval(
    kind: type[Client], folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Acpx, "servers", [LEGACY, MODERN])
    async with connected(kind, folder, *COMMAND) as client:
        session = await client.new([LEGACY, MODERN])
        await _until_connected(client, session, "everything", "time")
        for prompt, found in (
            ('mcp everything__echo {"message": "heard"}', "heard"),
            ('mcp time__get_current_time {"timezone": "UTC"}', "UTC"),
        ):
            turn = client.prompt(session, prompt)
            await (await client.asked(60)).select("Allow once")
            assert await turn == "end_turn"
            assert found in client.text()
    log = b"".join(file.read_bytes() for file in (folder / ".upcall").glob("log.db*"))
    assert SECRET.encode() not in log
    assert b"everything" in log


@pytest.mark.parametrize("kind", CLIENTS, ids=[one.name for one in CLIENTS])
async def test_servers_over_http_of_both_eras_are_called_and_ask(
    kind: type[Client], folder: Path, monkeypatch: pytest.MonkeyPatch
):
    orders, ports = folder / "orders", (free_port(), free_port())
    running = [await web_shop(orders, ports[0], "--token", SECRET), await web_everything(ports[1])]
    bearer = [{"name": "Authorization", "value": f"Bearer {SECRET}"}]
    servers: list[dict[str, Any]] = [
        {"type": "http", "name": "shop", "url": f"http://127.0.0.1:{ports[0]}/mcp", "headers": bearer},
        {"type": "http", "name": "everything", "url": f"http://127.0.0.1:{ports[1]}/mcp", "headers": []},
    ]
    monkeypatch.setattr(Acpx, "servers", servers)
    try:
        async with connected(kind, folder, *COMMAND) as client:
            session = await client.new(servers)
            await _until_connected(client, session, "shop", "everything")
            turn = client.prompt(session, 'mcp shop__order {"item": "lamp"}')
            await (await client.asked(60)).select("Allow once")
            form = await client.asked(60)
            assert "Which colour for lamp?" in form.text
            await form.accept(colour="red")
            assert await turn == "end_turn"
            turn = client.prompt(session, 'mcp everything__echo {"message": "heard"}')
            await (await client.asked(60)).select("Allow once")
            assert await turn == "end_turn"
            assert "ordered lamp in red" in client.text()
            assert "Echo: heard" in client.text()
    finally:
        for one in running:
            one.kill()
            await one.wait()
    assert orders.read_text().splitlines().count("ordered lamp in red") == 1
    log = b"".join(file.read_bytes() for file in (folder / ".upcall").glob("log.db*"))
    assert SECRET.encode() not in log


async def _until_connected(client: Client, session: str, *names: str) -> None:
    """Wait until servers are connected: a model call waits only a moment for them."""
    async with asyncio.timeout(60):
        while not all(f"{name}: connected" in client.text() for name in names):
            assert await client.prompt(session, "/mcp") == "end_turn"
            await asyncio.sleep(0.3)


async def test_a_new_session_waits_for_no_server(folder: Path):
    async with connected(PythonSdk, folder, *COMMAND) as client:
        await client.new()  # what is opened once is opened
        taken, session = list[float](), ""
        for _ in range(3):  # one of them is not disturbed by what else the machine does
            before = time.monotonic()
            session = await client.new([HANGING])
            taken.append(time.monotonic() - before)
        assert min(taken) < 0.1 or min(taken) < 0.1 * slowness(), taken
        assert await client.prompt(session, "add") == "end_turn"


async def test_a_session_that_needs_a_server_is_left_alone_where_it_is_not(folder: Path):
    async with connected(PythonSdk, folder, *COMMAND, capabilities={}) as client:
        session = await client.new([MODERN])
        assert await client.prompt(session, "question why") == "end_turn"
    inbox = upcall("inbox", cwd=folder).stdout.split()
    callback = next(word for word in inbox if word.startswith("q") and len(word) > 10)
    assert upcall("answer", callback, "because", cwd=folder).returncode == 0
    resumed = upcall("resume", "--all", cwd=folder)
    assert "needs the MCP server 'time'" in resumed.stderr
    assert "why -> because" not in resumed.stdout
    server = Server(folder)
    await server.start()
    assert server.process is not None
    assert server.process.stderr is not None
    async with server.client() as web:
        said = (await asyncio.wait_for(server.process.stderr.readline(), 30)).decode()
        refused = await post(web, f"/api/sessions/{session}/resume", {}, 422)
        assert (await get(web, f"/api/sessions/{session}"))["session"]["status"] == "waiting"
    await server.stop()
    assert f"session {session} can't be resumed" in said
    assert "needs the MCP server 'time'" in said
    assert "needs the MCP server 'time'" in refused["error"]
    async with connected(PythonSdk, folder, *COMMAND, capabilities={}) as client:
        await client.request("session/load", sessionId=session, cwd=str(folder), mcpServers=[MODERN])
        async with asyncio.timeout(20):
            while "why -> because" not in client.text():
                await asyncio.sleep(0.05)


async def test_a_server_that_can_not_be_used_is_named(folder: Path):
    async with connected(PythonSdk, folder, *COMMAND) as client:
        for wrong in ({"type": "sse", "name": "a", "url": "http://x"}, {"name": "a"}, {"command": "x"}):
            with pytest.raises(Exception, match="mcpServers"):
                await client.request("session/new", cwd=str(folder), mcpServers=[wrong])


@pytest.mark.parametrize("can_show_links", [True, False])
@pytest.mark.parametrize("kind", CLIENTS[:2], ids=[one.name for one in CLIENTS[:2]])
async def test_a_page_that_a_server_wants_opened_is_a_link_or_a_text(
    kind: type[Client], folder: Path, can_show_links: bool
):
    dialogs: dict[str, Any] = {"form": {}, "url": {}} if can_show_links else {"form": {}}
    async with connected(kind, folder, *COMMAND, capabilities={"elicitation": dialogs}) as client:
        session = await client.new([LEGACY])
        await _until_connected(client, session, "everything")
        turn = client.prompt(
            session, 'mcp everything__trigger-url-elicitation {"url": "https://pay.example/x?y=1"}'
        )
        await (await client.asked(60)).select("Allow once")
        ask = await client.asked(60)
        assert "Open this page on pay.example only if you expect it" in ask.params["message"]
        sent = sent_requests(client, "elicitation/create")[-1]
        if can_show_links:
            assert (sent["mode"], sent["url"]) == ("url", "https://pay.example/x?y=1")
            await ask.answer({"action": "accept"})
        else:
            assert sent["mode"] == "form"
            await ask.accept(answer="I opened the page")
        assert await turn == "end_turn"
        assert "User completed the URL elicitation flow" in client.text()


TEAMS = """
import json

from upcall import Agent
from upcall.models import Script, call
from upcall.teams import Team, chain

PLAN = json.dumps([{"role": "watch", "task": "Tell the time.", "sequence": 1}])


def plan(request):
    return PLAN


def tell(request):
    results = [one.text for message in request.messages for one in message.results]
    if results and "UTC" in results[-1]:
        return f"It is: {results[-1]}"
    offered = {one.name for one in request.tools}
    now = "time__get_current_time"
    return call(now, timezone="UTC") if now in offered else call("time__wait_until_ready")


def report(request):
    return request.messages[-1].text


watch = Agent("clockwatcher", model=Script(tell), can_use_host_interaction=True)
team = Team(Agent("boss", model=Script(plan)), {"watch": watch})
line = chain(watch, Agent("reporter", model=Script(report)), name="line")
"""


@pytest.mark.parametrize("root", ["team", "line"])
async def test_the_members_of_a_team_or_a_chain_get_the_servers_that_the_editor_passes(folder: Path, root: str):
    (folder / "teams.py").write_text(TEAMS)
    async with connected(PythonSdk, folder, "upcall", "acp", f"teams:{root}") as client:
        session = await client.new([MODERN])
        turn = client.prompt(session, "What time is it?")
        ask = await client.asked(60)
        assert "get_current_time" in ask.text
    await asyncio.gather(turn, return_exceptions=True)
    resumed = upcall("resume", session, cwd=folder)  # the server is not described here
    assert "needs the MCP server 'time'" in resumed.stderr
    async with connected(PythonSdk, folder, "upcall", "acp", f"teams:{root}") as client:
        loading = {"sessionId": session, "cwd": str(folder), "mcpServers": [MODERN]}
        await client.request("session/load", **loading)
        await (await client.asked(60)).select("Allow once")
        async with asyncio.timeout(30):
            while "It is: " not in client.text() or "timezone" not in client.text():
                await asyncio.sleep(0.05)
