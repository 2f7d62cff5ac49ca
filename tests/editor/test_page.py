"""The configurations on the page for editors start the agent."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.command import make_agents
from editor.raw import raw_agent

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parent.parent.parent / "docs/how-to/editors.md"


def commands() -> dict[str, list[str]]:
    """The command of each editor on the page."""
    found: dict[str, list[str]] = {}
    for name, section in re.findall(r"^### (.+?)\n(.*?)(?=^##)", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        language, code = re.search(r"```(\w+)\n(.*?)```", section, re.DOTALL).groups()  # type: ignore[union-attr]
        if language == "json":
            server: Any = next(iter(msgspec.json.decode(code)["agent_servers"].values()))
            found[name] = [server["command"], *server["args"]]
        elif language == "lua":
            found[name] = re.findall(r'"([^"]*)"', re.search(r"commands = \{ default = \{(.*?)\}", code)[1])  # type: ignore[index]
        elif language == "lisp":
            words = re.search(r':command "(.*?)"\s+:command-params \'\((.*?)\)', code).groups()  # type: ignore[union-attr]
            found[name] = [words[0], *re.findall(r'"([^"]*)"', words[1])]
        else:
            found[name] = shlex.split(shlex.split(code)[2])
    return found


@pytest.mark.parametrize("editor", ["Zed", "JetBrains IDEs", "Neovim", "Emacs", "Toad"])
async def test_the_command_of_an_editor_starts_a_session(editor: str, folder: Path):
    agents = make_agents(folder)
    places = {"/home/ada/agents": str(agents), "/home/ada/.upcall/log.db": str(folder / "log.db")}
    command, *args = commands()[editor]
    assert Path(command).name == "upcall"
    async with raw_agent(folder, command=["upcall", *[places.get(one, one) for one in args]]) as agent:
        await agent.initialize()
        session = await agent.new(folder)
        assert (await agent.answered(await agent.prompt(session, "add")))["result"]["stopReason"] == "end_turn"
