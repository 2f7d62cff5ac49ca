"""MCP's own tools drive the server: the inspector's command line, and `mcpdo`, which keeps a connection."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from cli.command import COMMAND
from mcp_server.serving import effects, http_server, make_desk, run_peer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
SERVER = (COMMAND[0], "-m", "upcall", "mcp", "desk:desk")


async def inspected(folder: Path, *command: str) -> Any:
    """The JSON that the inspector prints."""
    code, out, errors = await run_peer(folder, "mcp-inspector", "--cli", *command)
    assert code == 0, (out, errors)
    return msgspec.json.decode(out)


async def done(folder: Path, *command: str) -> Any:
    """The JSON that `mcpdo` prints."""
    at = command.index("--") if "--" in command else len(command)
    code, out, errors = await run_peer(folder, "mcpdo", *command[:at], "--format", "json", *command[at:])
    assert code == 0, (out, errors)
    return msgspec.json.decode(out)


@pytest_asyncio.fixture
async def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Path]:
    """A folder with the agent; the daemon of `mcpdo` is stopped afterwards."""
    make_desk(tmp_path)
    with tempfile.TemporaryDirectory(prefix="mcpdo-", dir="/tmp") as sockets:  # a socket's path has to be short
        monkeypatch.setenv("MCP_INSPECTOR_DAEMON_DIR", sockets)
        yield tmp_path
        if Path(sockets, "mcpdod.sock").exists():
            await run_peer(tmp_path, "mcpdo", "daemon", "stop")


async def test_the_inspector_lists_the_tools_and_calls_an_agent_over_stdio(folder: Path) -> None:
    listed = await inspected(folder, *SERVER, "--method", "tools/list")
    called = await inspected(
        folder, *SERVER, "--method", "tools/call", "--tool-name", "desk", "--tool-arg", "prompt=hello there"
    )
    assert [one["name"] for one in listed["tools"]] == ["desk", "answer", "status", "inbox", "cancel"]
    assert called["structuredContent"]["text"] == "you said: hello there"


async def test_the_inspector_finds_no_fault_in_the_schemas(folder: Path) -> None:
    code, _, errors = await run_peer(
        folder, "mcp-inspector", "--cli", *SERVER, "--method", "tools/list", "--strict"
    )
    assert code == 0, errors


async def test_the_inspector_sees_a_question_over_http_and_answers_it_with_the_tool(folder: Path) -> None:
    async with http_server(folder) as server:
        to = (server.url, "--header", f"Authorization: Bearer {server.token}", "--method", "tools/call")
        asked = await inspected(folder, *to, "--tool-name", "desk", "--tool-arg", "prompt=name")
        question = asked["structuredContent"]["questions"][0]
        told = ("--tool-arg", f"callback={question['id']}", "value=Rex")
        answered = await inspected(folder, *to, "--tool-name", "answer", *told)
    assert question["message"] == "What is its name?"
    assert answered["structuredContent"]["text"] == "done: registered Rex"
    assert effects(folder) == ["registered Rex"]


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_mcpdo_keeps_a_connection_and_answers_a_question_and_an_approval_later(
    folder: Path, era: str
) -> None:
    connection = await done(folder, "connect", "--era", era, "--", "upcall", "mcp", "desk:desk")
    at = f"@{connection['name']}"
    asked = (await done(folder, at, "tools/call", "desk", "prompt:=name"))["elicitationPending"]
    named = await done(folder, "elicitation/respond", asked["elicitationId"], "answer:=Rex")
    approval = (await done(folder, at, "tools/call", "desk", "prompt:=pay 3 ann"))["elicitationPending"]
    paid = await done(folder, "elicitation/respond", approval["elicitationId"], "decision:=approve")
    assert connection["protocolEra"] == era
    assert "What is its name?" in asked["message"]
    assert named["structuredContent"]["text"] == "done: registered Rex"
    assert 'to = "ann"' in approval["message"]
    assert paid["structuredContent"]["text"] == "done: paid 3 to ann"
    assert effects(folder) == ["registered Rex", "paid 3 to ann"]
