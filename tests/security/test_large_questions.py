"""Questions and calls as large as they may be, in an editor and in an MCP client: the event loop is not held up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp_types import ElicitResult

from editor.inside import Editor, sessions
from mcp_server.serving import client_on, own_server, text_of
from security.measuring import measured
from upcall import Agent, tool
from upcall.hosts.acp.protocol import Client as EditorAbilities
from upcall.models import Script, call

pytestmark = pytest.mark.slow

COMMAND = "curl -u a:b "
MOST_GROWTH = 600_000_000
"""Bytes: these tests are about time; an editor is sent what it approves whole."""


@tool
def eat(x: object = None) -> str:
    """Take anything."""
    return "eaten"


@tool(needs_approval=True)
def danger(x: object = None) -> str:
    """Take anything, after an approval."""
    return "ran"


LARGE: dict[str, Callable[[], Any]] = {
    "a question with very many choices": lambda: call(
        "ask", message="m", choices=[f"a\u200b{COMMAND}{n}" for n in range(30_000)]
    ),
    "a long question": lambda: call("ask", message="a\u200b" * 240_000),
    "an approval of many commands": lambda: call("danger", x=COMMAND * 160_000),
    "an approval with invisible characters": lambda: call("danger", x="a\u200b" * 490_000),
    "an approval with very many keys": lambda: call("danger", x={f"k{n}": n for n in range(49_000)}),
    "very many calls": lambda: [call("eat", x=COMMAND * 300) for _ in range(1_000)],
    "many approvals": lambda: [call("danger", x=f"{COMMAND * 3_000}{n}") for n in range(100)],
}


def agent_that(what: str) -> Agent:
    return Agent("a", instructions="x", model=Script([LARGE[what](), "done"]), tools=[eat, danger])


@pytest.mark.parametrize(
    ("what", "forms"), [*((one, False) for one in LARGE), ("an approval of many commands", True)]
)
async def test_an_editor_that_is_shown_something_large_holds_nothing_up(
    what: str, forms: bool, tmp_path: Path
) -> None:
    editor = Editor(EditorAbilities(forms=forms))
    async with sessions(agent_that(what), tmp_path, editor) as made:
        session = await made.new()
        async with measured() as cost:
            assert await made.prompt(session) == "end_turn"
        cost.check(growth=MOST_GROWTH)
        live = [one for one in editor.updates if one["sessionUpdate"].startswith("tool_call")]
        editor.updates.clear()
        async with measured() as again:
            await made.load(session)
        again.check(growth=MOST_GROWTH)
        replayed = [one for one in editor.updates if one["sessionUpdate"].startswith("tool_call")]
    assert live
    assert replayed == live


@pytest.mark.parametrize(
    ("what", "era"),
    [*((one, "legacy") for one in LARGE if one != "very many calls"), ("an approval of many commands", "modern")],
)
async def test_an_mcp_client_that_is_shown_something_large_holds_nothing_up(
    what: str, era: str, tmp_path: Path
) -> None:
    async def closes(message: str, schema: dict[str, Any]) -> ElicitResult:
        return ElicitResult(action="cancel")

    async with (
        own_server(tmp_path, agents=[agent_that(what)]) as server,
        client_on(server.protocol, era, closes) as client,
        measured() as cost,
    ):
        asked = await client.call_tool("a", {"prompt": "go"})
        listed = await client.call_tool("inbox", {})
    cost.check(growth=MOST_GROWTH)
    assert "wait" in text_of(asked)
    assert "upcall answer" in text_of(listed)
