"""mcp.json beside agent files: checked without starting anything, used by the agents that name its servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mcp_client.peers import UNASKED, raw
from upcall import Runtime, load_agents
from upcall.errors import BadAgentFile, ServersMissing
from upcall.links.mcp import McpServers, with_servers
from web.serving import get, post, serving

PLAY = """
from upcall.models import Script, call

def says(request):
    results = [one for message in request.messages for one in message.results]
    return results[-1].text if results else call("one__act")

script = Script(says)
"""


def folder_with(tmp_path: Path, servers: Any, mcp: str = "mcp: [one]") -> Path:
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / "worker.md").write_text(f"---\nname: worker\nmodel: script:play.py\n{mcp}\n---\nAct.\n")
    (folder / "worker.json").write_text('{"can_query_caller": true, "can_use_host_interaction": true}')
    (folder / "play.py").write_text(PLAY)
    (folder / "mcp.json").write_text(servers if isinstance(servers, str) else json.dumps(servers))
    return folder


def upcall(*words: str, cwd: Path, code: int | None = 0, text: str | None = None) -> str:
    """Run the command; both of its outputs."""
    done = subprocess.run(  # noqa: PLW1510 - its code is compared below
        [sys.executable, "-m", "upcall", *words], cwd=cwd, capture_output=True, text=True, input=text, timeout=100,
        env={**os.environ, "COLUMNS": "400"},
    )  # fmt: skip
    assert code is None or done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_an_agent_file_names_its_servers_and_its_model_calls_their_tools(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {"mcpServers": {"one": raw("plain", **UNASKED)}, "wait": 30})

    assert "act ran" in upcall("run", str(folder), "Begin.", cwd=tmp_path)


@pytest.mark.slow
def test_mcp_in_a_chat_lists_who_is_connected(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {"mcpServers": {"one": raw("plain", **UNASKED)}, "wait": 30})

    out = upcall("chat", str(folder), cwd=tmp_path, text="/mcp\n/mcp one\n/mcp two\n", code=1)

    assert "one  not started" in out
    assert "one  connected, 2025-11-25, 2 tools" in out
    assert "there is no MCP server called 'two'" in out


@pytest.mark.slow
def test_commands_that_only_look_start_no_server(tmp_path: Path) -> None:
    notes = tmp_path / "started"
    touch = f"import pathlib; pathlib.Path({str(notes)!r}).touch()"
    servers = {"mcpServers": {"one": {"command": sys.executable, "args": ["-c", touch]}}}
    folder = folder_with(tmp_path, servers)

    upcall("check", str(folder), cwd=tmp_path)
    upcall("explain", str(folder), "callback_to_caller", "query", cwd=tmp_path)
    upcall("inbox", cwd=tmp_path, code=None)
    upcall("sessions", cwd=tmp_path, code=None)
    load_agents(folder)

    assert not notes.exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [("[]", "must be an object"), ("{", "this is not JSON"), ('{"servers": {}}', "Did you mean mcpServers?"),
     ('{"mcpServers": {"one": {"comand": "x"}}}', "mcpServers.one.comand: unknown key"),
     ('{"mcpServers": {"two": {"command": "x"}}}', "describes no server called 'one'"),
     ('{"mcpServers": {"one": {"command": "x"}}, "wait": 1e9}', "wait: must be seconds")],
)  # fmt: skip
def test_a_wrong_mcp_json_is_refused_with_file_and_key(tmp_path: Path, text: str, problem: str) -> None:
    folder = folder_with(tmp_path, text)

    with pytest.raises(BadAgentFile, match=problem.replace("[", r"\[").replace("?", r"\?")):
        load_agents(folder)


def test_a_folder_with_mcp_json_and_agents_that_do_not_use_it_can_be_loaded(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {"mcpServers": {"one": raw("plain")}}, mcp="")

    (worker,) = load_agents(folder)

    assert worker.name == "worker"


@pytest.mark.slow
def test_check_warns_of_variables_that_are_not_set(tmp_path: Path) -> None:
    servers = {"mcpServers": {"one": {"command": "x", "env": {"TOKEN": "${NO_SUCH_VARIABLE}"}}}}

    out = upcall("check", str(folder_with(tmp_path, servers)), cwd=tmp_path)

    assert "NO_SUCH_VARIABLE is not set in this environment" in out


async def waiting_session(store: Path, folder: Path) -> str:
    """A session that was given a server of its own, and waits for an approval of its tool."""
    editors = McpServers({"one": raw("plain", env={"TOKEN": "t0p-s3cret"})}, wait=30)
    (worker,) = load_agents(folder)
    async with Runtime(str(store), agents=[worker], hold=0.1) as runtime:
        session = await runtime.start(with_servers(worker, editors), id="given")
        assert (await session.prompt("Begin.")).status == "waiting"
        (asked,) = await runtime.inbox()
        return asked.id


async def test_a_session_runs_only_where_its_servers_are_described(tmp_path: Path) -> None:
    from upcall import Approve

    folder, store = folder_with(tmp_path, {"mcpServers": {}}, mcp=""), tmp_path / "log.db"
    callback = await waiting_session(store, folder)
    (without,) = load_agents(folder)
    async with Runtime(str(store), agents=[without]) as runtime:
        await runtime.answer(callback, Approve())
        with pytest.raises(ServersMissing, match="needs the MCP server 'one', but nothing here describes it"):
            await runtime.resume("given")
        assert await runtime.status("given") == "waiting"

    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"one": raw("plain")}, "wait": 30}))
    (described,) = load_agents(folder)
    async with Runtime(str(store), agents=[described]) as runtime:
        reply = await runtime.resume("given")
    assert reply.text == "act ran"
    assert b"t0p-s3cret" not in store.read_bytes()


async def test_an_agent_with_the_servers_can_be_given_when_the_session_is_loaded(tmp_path: Path) -> None:
    from upcall import Approve

    folder, store = folder_with(tmp_path, {"mcpServers": {}}, mcp=""), tmp_path / "log.db"
    callback = await waiting_session(store, folder)
    (plain,) = load_agents(folder)
    editors = McpServers({"one": raw("plain")}, wait=30)
    async with Runtime(str(store), agents=[plain]) as runtime:
        await runtime.answer(callback, Approve())
        session = await runtime.load("given", agent=with_servers(plain, editors))
        reply = await session.resume()

    assert reply.text == "act ran"


@pytest.mark.slow
async def test_resume_all_leaves_a_session_ready_and_says_which_servers_it_lacks(tmp_path: Path) -> None:
    from upcall import Approve

    folder, store = folder_with(tmp_path, {"mcpServers": {}}, mcp=""), tmp_path / "log.db"
    callback = await waiting_session(store, folder)
    (plain,) = load_agents(folder)
    async with Runtime(str(store), agents=[plain]) as runtime:
        await runtime.answer(callback, Approve())

    out = upcall("resume", "--all", "--agents", str(folder), "--store", str(store), cwd=tmp_path, code=None)

    assert "needs the MCP server 'one'" in out
    async with Runtime(str(store), agents=[plain]) as runtime:
        assert await runtime.ready() == ["given"]


@pytest.mark.slow
async def test_looking_at_a_session_whose_server_was_used_starts_no_server(tmp_path: Path) -> None:
    notes = tmp_path / "started"
    wrapped = raw("plain")
    begin = f"import pathlib, runpy, sys; pathlib.Path({str(notes)!r}).touch(); sys.argv[1:] = ['plain']"
    code = f"{begin}; runpy.run_path({wrapped['args'][1]!r}, run_name='__main__')"
    servers = {"mcpServers": {"one": {"command": sys.executable, "args": ["-c", code]}}, "wait": 30}
    folder = folder_with(tmp_path, servers)
    upcall("run", str(folder), "Begin.", "--id", "s1", cwd=tmp_path, code=3)  # the call waits for an approval
    assert notes.exists()
    notes.unlink()

    assert "one__act" in upcall("inbox", cwd=tmp_path)
    assert "one__act" in upcall("show", "s1", cwd=tmp_path)
    upcall("tree", "s1", cwd=tmp_path)
    upcall("events", "s1", cwd=tmp_path)
    upcall("sessions", cwd=tmp_path)
    async with serving(tmp_path, "--view-only") as server, server.client() as client:
        (card,) = (await get(client, "/api/inbox"))["open"]
        assert card["tool"] == "one__act"
        await get(client, "/api/sessions/s1")
        await post(client, "/api/sessions/s1/resume", {}, 403)

    assert not notes.exists()
