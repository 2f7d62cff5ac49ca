"""Connections: several servers in one turn, killed servers, outages, closing, and what is known afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mcp_client.peers import (
    UNASKED,
    agent,
    free_port,
    node_server,
    python_server,
    raw,
    shop,
    states,
    web_everything,
    web_shop,
)  # fmt: skip
from upcall import Approve, Runtime, SessionAccess, ToolsetFailed
from upcall.hooks import Hooks
from upcall.links.mcp import McpServers, with_servers
from upcall.messages import Request, Result
from upcall.models import call
from upcall.workspace import Folder, file_tools


def results(session: Any) -> list[Result]:
    return [one for message in session.get_messages() for one in message.results]


def processes_with(text: str) -> list[int]:
    """The processes whose command line has a text."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if text.encode() in line and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


@pytest.mark.slow
async def test_five_servers_of_both_eras_work_in_one_turn_beside_our_own_file_tools(tmp_path: Path) -> None:
    home, theirs = tmp_path / "home", tmp_path / "theirs"
    home.mkdir()
    theirs.mkdir()
    (theirs / "note.txt").write_text("from the filesystem server")
    subprocess.run(["git", "init", "-q", str(theirs)], check=True)
    servers = McpServers(
        {
            "everything": node_server("everything", **UNASKED),
            "filesystem": node_server("filesystem", str(theirs), **UNASKED),
            "memory": node_server("memory", env={"MEMORY_FILE_PATH": str(tmp_path / "memory.json")}, **UNASKED),
            "time": python_server("mcp_server_time", trusted=True),
            "git": python_server("mcp_server_git", trusted=True),
        },
        wait=60,
    )
    plan = [
        [
            call("everything__get-sum", a=2, b=3),
            call("filesystem__read_text_file", path=str(theirs / "note.txt")),
            call("memory__create_entities", entities=[{"name": "Ada", "entityType": "person", "observations": []}]),
            call("time__get_current_time", timezone="UTC"),
            call("git__git_status", repo_path=str(theirs)),
            call("write_file", path="own.txt", content="ours"),
            call("everything__get-tiny-image"),
            call("everything__get-structured-content", location="New York"),
        ]
    ]
    worker = agent(servers, plan, kit=[file_tools()], workspace=Folder(home))
    async with Runtime(":memory:", agents=[worker]) as runtime:
        session = await runtime.start("worker")
        reply = await session.prompt("Begin.")

    texts = [one.text for one in results(session)]
    assert reply.status == "done"
    assert not any(one.is_error for one in results(session)), texts
    for text, wanted in zip(texts, ("5", "from the filesystem server", "Ada", "UTC", "note.txt"), strict=False):
        assert wanted in text
    assert (home / "own.txt").read_text() == "ours"
    assert results(session)[6].images
    assert results(session)[7].json["conditions"]


async def test_closing_a_runtime_ends_the_servers_of_its_agents(tmp_path: Path) -> None:
    mark = str(tmp_path / "only-here")
    servers = McpServers({"one": raw("plain", mark, **UNASKED)}, wait=20)
    worker = agent(servers, [call("one__act")])
    async with Runtime(":memory:", agents=[worker]) as runtime:
        session = await runtime.start("worker")
        await session.prompt("Begin.")
        assert len(processes_with(mark)) == 1

    assert processes_with(mark) == []
    assert states(servers) == {"one": "not started"}


async def test_a_killed_server_is_started_again_for_the_next_call(tmp_path: Path) -> None:
    mark = str(tmp_path / "notes")
    servers = McpServers({"one": raw("plain", mark, **UNASKED)}, wait=20)

    async def kill(session: SessionAccess[Any], call: Any, result: Any) -> None:
        for process in processes_with(mark):
            os.kill(process, signal.SIGKILL)
        while states(servers)["one"] == "connected":
            await asyncio.sleep(0.01)

    worker = agent(servers, [call("one__act"), call("one__act")], hooks=Hooks(after_tool=[kill]))
    async with Runtime(":memory:", agents=[worker]) as runtime:
        session = await runtime.start("worker")
        reply = await session.prompt("Begin.")

    assert reply.status == "done"
    assert [one.text for one in results(session)] == ["act ran", "act ran"]
    assert Path(mark).read_text().splitlines().count("called act") == 2


@pytest.mark.slow
async def test_an_outage_of_five_seconds_costs_the_call_under_way_and_nothing_else(tmp_path: Path) -> None:
    effects, port = tmp_path / "orders", free_port()
    server = await web_shop(effects, port)
    servers = McpServers({"shop": {"url": f"http://127.0.0.1:{port}/mcp", **UNASKED}}, wait=20)
    seen: list[Result] = []

    async def outage(session: SessionAccess[Any], call: Any) -> None:
        nonlocal server
        if call.name == "shop__slowly":
            asyncio.get_running_loop().call_later(0.6, server.kill)
        elif call.args["item"] == "second":
            await asyncio.sleep(5.0)
            server = await web_shop(effects, port)

    def plan(request: Request) -> Any:
        seen[:] = [one for message in request.messages for one in message.results]
        item = ["first", "slow", "between", "second"]
        if len(seen) == 4:
            return "done"
        return call("shop__slowly", steps=20) if len(seen) == 1 else call("shop__buy", item=item[len(seen)])

    worker = agent(servers, plan, hooks=Hooks(before_tool=[outage]))
    try:
        async with Runtime(":memory:", agents=[worker]) as runtime:
            session = await runtime.start("worker")
            reply = await session.prompt("Begin.")
    finally:
        server.kill()
        await server.wait()

    first, slow, between, second = results(session)
    assert reply.text == "done"
    assert first.text == "bought first"
    assert slow.is_error
    assert "was not called again by itself" in slow.text
    assert between.is_error
    assert second.text == "bought second"
    assert effects.read_text().splitlines() == ["bought first", "bought second"]


@pytest.mark.slow
async def test_progress_is_shown_and_prompts_and_resources_are_read(tmp_path: Path) -> None:
    servers = McpServers({"shop": shop(tmp_path / "orders", **UNASKED)}, wait=30)
    plan = [
        call("shop__slowly", steps=3),
        call("shop__list_resources"),
        call("shop__read_resource", uri="shop://prices"),
    ]
    worker = agent(servers, plan)
    async with Runtime(":memory:", agents=[worker]) as runtime:
        session = await runtime.start("worker")
        items = [item async for item in session.stream("Begin.")]
        shown = [item.text for item in items if item.type == "delta" and item.kind == "output"]
        prompts = servers.prompts()
        text = await servers.prompt("shop", "greet", {"name": "Ada"})

    assert shown[0] == "0 of 3 step 0\n"
    assert "shop://prices" in results(session)[1].text
    assert "lamp: 12" in results(session)[2].text
    assert [(one.command, one.required) for one in prompts] == [("shop:greet", ("name",))]
    assert text == "Say hello to Ada."


async def test_servers_given_to_one_session_serve_that_session_alone(tmp_path: Path) -> None:
    seen: dict[str, list[str]] = {}

    def plan(request: Request) -> Any:
        seen[request.messages[0].text] = [one.name for one in request.tools]
        return "done"

    own = McpServers({"one": raw("plain"), "two": raw("plain")}, wait=20)
    worker = agent(own, plan)
    editors = McpServers({"two": raw("changes"), "three": raw("plain")}, wait=20)
    async with Runtime(":memory:", agents=[worker]) as runtime:
        given = await runtime.start(with_servers(worker, editors))
        await given.prompt("given")
        await (await runtime.start("worker")).prompt("plain")

    assert {"one__act", "two__first", "three__act"} <= set(seen["given"])
    assert "two__act" not in seen["given"]
    assert {"one__act", "two__act"} <= set(seen["plain"])
    assert not any(name.startswith("three__") for name in seen["plain"])


@pytest.mark.slow
async def test_a_server_of_2026_says_that_its_tools_have_changed(tmp_path: Path) -> None:
    servers = McpServers({"shop": shop(tmp_path / "orders", **UNASKED)}, wait=30)
    seen: list[list[str]] = []

    def plan(request: Request) -> Any:
        seen.append([one.name for one in request.tools])
        if "shop__grown" in seen[-1]:
            return "done" if request.messages[-1].results[0].text == "grown" else call("shop__grown")
        return call("shop__grow") if len(seen) == 1 else call("shop__slowly", steps=1)

    worker = agent(servers, plan)
    async with Runtime(":memory:", agents=[worker]) as runtime:
        session = await runtime.start("worker")
        reply = await session.prompt("Begin.")

    assert reply.text == "done"
    assert "shop__grown" not in seen[0]
    assert results(session)[-1].text == "grown"


async def test_a_worker_leaves_a_session_whose_servers_are_missing_and_says_which(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def plan(request: Request) -> Any:
        return "done" if request.messages[-1].results else call("one__act")

    servers = McpServers({"one": raw("plain")}, wait=20)
    store = str(tmp_path / "log.db")
    async with Runtime(store, agents=[agent(servers, plan)], hold=0.1) as runtime:
        session = await runtime.start("worker")
        await session.prompt("Begin.")
        await runtime.answer((await runtime.inbox())[0].id, Approve())
    without = agent(McpServers({"other": raw("plain")}), plan)

    async with Runtime(store, agents=[without]) as runtime:
        stop = asyncio.Event()
        working = asyncio.ensure_future(runtime.work(stop))
        while "needs the MCP server 'one'" not in caplog.text:
            await asyncio.sleep(0.05)
        stop.set()
        await working
        assert await runtime.ready() == [session.id]


@pytest.mark.slow
async def test_a_turn_fails_and_keeps_its_answer_while_the_server_of_an_open_call_can_not_be_started(
    tmp_path: Path,
) -> None:
    def plan(request: Request) -> Any:
        found = request.messages[-1].results
        return found[0].text if found else call("shop__order", item="hat")

    store, effects = str(tmp_path / "log.db"), tmp_path / "orders"
    there = {"shop": shop(effects, **UNASKED)}
    async with Runtime(store, agents=[agent(McpServers(there, wait=30), plan)], hold=0.1) as runtime:
        session = await runtime.start("worker")
        assert (await session.prompt("Begin.")).status == "waiting"
        await runtime.answer((await runtime.inbox())[0].id, {"colour": "blue"})

    broken = McpServers({"shop": {"command": "/does/not/exist"}})
    async with Runtime(store, agents=[agent(broken, plan)]) as runtime:
        with pytest.raises(ToolsetFailed, match="has an open call, but is not connected"):
            await runtime.resume(session.id)
    async with Runtime(store, agents=[agent(McpServers(there, wait=30), plan)]) as runtime:
        reply = await runtime.resume(session.id)

    assert reply.text == "ordered hat in blue"
    assert effects.read_text().splitlines().count("ordered hat in blue") == 1


@pytest.mark.slow
@pytest.mark.parametrize("status", [404, 400])
async def test_a_call_of_a_session_that_the_server_has_forgotten_runs_once_in_a_new_session(
    tmp_path: Path, status: int
) -> None:
    effects, port = tmp_path / "orders", free_port()

    async def serve() -> asyncio.subprocess.Process:
        return await (web_everything(port) if status == 400 else web_shop(effects, port, "--legacy"))

    server = await serve()
    servers = McpServers({"one": {"url": f"http://127.0.0.1:{port}/mcp", **UNASKED}}, wait=30)

    async def restart(session: SessionAccess[Any], call: Any) -> None:
        nonlocal server
        if len(results(session)) == 1:
            server.kill()
            await server.wait()
            server = await serve()

    name, args = ("one__echo", {"message": "lamp"}) if status == 400 else ("one__buy", {"item": "lamp"})
    worker = agent(servers, [call(name, **args)] * 2, hooks=Hooks(before_tool=[restart]))
    try:
        async with Runtime(":memory:", agents=[worker]) as runtime:
            session = await runtime.start("worker")
            await session.prompt("Begin.")
            (about,) = servers.status()
    finally:
        server.kill()
        await server.wait()

    assert about.version == "2025-11-25"
    assert [one.text for one in results(session)] == ["Echo: lamp" if status == 400 else "bought lamp"] * 2
    if status == 404:
        assert effects.read_text().splitlines() == ["bought lamp"] * 2
