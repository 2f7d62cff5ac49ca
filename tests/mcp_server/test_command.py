"""The command `upcall mcp`: what it needs, what it refuses, and what it writes beside the log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.command import COMMAND, environment
from mcp_server.desk import pay
from mcp_server.serving import make_desk, stdio_session, text_of
from upcall import Agent, Reject, Runtime
from upcall.links.mcp import McpServers
from upcall.messages import Request
from upcall.models import Script, call
from upcall.safety.agent_commands import VARIABLE

pytestmark = pytest.mark.slow


def run(folder: Path, *args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "mcp", *args], cwd=folder, env=env or environment(), capture_output=True, text=True, timeout=60,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


def test_without_the_extra_the_command_says_how_to_install_it(tmp_path: Path) -> None:
    make_desk(tmp_path)
    hidden = tmp_path / "hide.py"
    hidden.write_text(
        "import importlib.util, sys\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'mcp' else found(name, *more)\n"
        "from upcall.cli import main\n"
        "sys.exit(main(['mcp', 'desk:desk']))\n"
    )
    done = subprocess.run(
        [sys.executable, str(hidden)], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "pip install 'upcall[mcp]'" in done.stderr
    assert not done.stdout


def test_wrong_usage_is_refused_before_anything_is_served(tmp_path: Path) -> None:
    make_desk(tmp_path)
    for args, said in (
        (("--wait", "-1"), "not a number of seconds"),
        (("--wait", "soon"), "not a number of seconds"),
        (("--port", "80"), "--port is for --http"),
        (("--agent", "desk"), "give AGENT"),
        (("--store", ":memory:"), "give the path of a file"),
        (("nowhere:agent",), "nowhere"),
    ):
        done = run(tmp_path, *args)
        assert done.returncode == 2, (args, done)
        assert said in done.stderr, (args, done.stderr)
        assert not done.stdout
        assert "Traceback" not in done.stderr


def test_an_agents_own_command_may_not_start_it(tmp_path: Path) -> None:
    make_desk(tmp_path)
    done = run(tmp_path, "desk:desk", env={**environment(), VARIABLE: "s1 c1"})
    assert done.returncode == 1
    assert "a person has to run it" in done.stderr
    assert not done.stdout


async def test_an_agent_can_not_answer_its_own_approval_through_a_server_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "log.db"
    start = [*COMMAND[1:], "mcp", "--store", str(log)]
    servers = McpServers({"own": {"command": COMMAND[0], "args": start, "autoApprove": ["*"]}}, wait=30)

    def play(request: Request) -> Any:
        if request.messages[-1].role == "tool":
            return call("own__inbox") if len(request.messages) < 6 else "done"
        return call("pay", amount=3, to="ann")

    clerk = Agent("clerk", instructions="x", model=Script(play), tools=[pay, servers])
    async with Runtime(log, agents=[clerk]) as runtime:
        session = await runtime.start(clerk)
        reply = await session.prompt("go")
        await runtime.answer(reply.callbacks[0].id, Reject("no"))
        await runtime.resume(session.id)
        told = [one.text for message in (await runtime.load(session.id)).get_messages() for one in message.results]
        states = servers.status()
    assert reply.status == "waiting"
    assert not any("Nothing waits" in one or "[q" in one for one in told)
    assert "a person has to run it" in str(states)


def test_an_agent_whose_name_is_that_of_a_tool_can_not_be_served(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "status.md").write_text("---\nname: status\nmodel: openai:x\n---\nBe brief.\n")
    done = run(tmp_path, "agents")
    assert done.returncode == 2
    assert "a tool of the server has that name" in done.stderr


async def test_without_an_agent_clients_look_after_what_is_there(tmp_path: Path) -> None:
    make_desk(tmp_path)
    subprocess.run(
        [*COMMAND, "run", "desk:desk", "name", "--id", "rex"], cwd=tmp_path, env=environment(), capture_output=True,
        check=False,
    )  # fmt: skip
    async with stdio_session(tmp_path, "modern", None, "--wait", "1") as client:
        tools = [one.name for one in (await client.list_tools()).tools]
        inbox = await client.call_tool("inbox", {})
        answered = await client.call_tool(
            "answer", {"callback": inbox.structured_content["questions"][0]["id"], "value": "Rex"}
        )
    assert tools == ["answer", "status", "inbox", "cancel"]
    assert "its agent 'desk' is not loaded here" in text_of(answered)
    assert "upcall resume rex" in text_of(answered)


async def test_every_agent_of_a_folder_is_a_tool_and_one_can_be_chosen(tmp_path: Path) -> None:
    agents = tmp_path / "agents"
    agents.mkdir()
    (agents / "play.py").write_text(
        "from upcall.models import Script\nscript = Script(lambda request: request.agent)\n"
    )
    for name in ("clerk", "writer"):
        (agents / f"{name}.md").write_text(f"---\nname: {name}\nmodel: script:play.py\n---\nBe brief.\n")
    async with stdio_session(tmp_path, "modern", None, "agents") as client:
        both = [one.name for one in (await client.list_tools()).tools]
        reply = await client.call_tool("writer", {"prompt": "hello"})
    async with stdio_session(tmp_path, "legacy", None, "agents", "--agent", "clerk") as client:
        one = [found.name for found in (await client.list_tools()).tools]
    assert both[:2] == ["clerk", "writer"]
    assert reply.structured_content["text"] == "writer"
    assert one[0] == "clerk"
    assert "writer" not in one


async def test_log_files_are_written_as_by_the_other_commands(tmp_path: Path) -> None:
    make_desk(tmp_path)
    (tmp_path / "labels.json").write_text('{"sleep": "Rest"}')
    options = ("--log-dir", "logs", "--capture", "--labels", "labels.json")
    lines: list[str] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        lines.append(message or "")

    async with stdio_session(tmp_path, "modern", None, "desk:desk", *options) as client:
        await client.call_tool("desk", {"prompt": "sleep 0.3"}, progress_callback=note)
    logs = [file.read_text() for file in (tmp_path / "logs").rglob("*") if file.is_file()]
    assert any("Rest" in text for text in logs)
    assert any("Rest" in line for line in lines)
