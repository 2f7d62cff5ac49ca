"""What a server's tool may do without being approved, and how approvals hold."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcp_client.peers import Person, agent, raw, shop
from upcall import Approve, Reject, Runtime, Tool
from upcall.callbacks import Callback
from upcall.kit import approve
from upcall.links.mcp import McpServers, read_servers
from upcall.links.mcp.tools import ANY_ARGUMENTS
from upcall.messages import Request, Result
from upcall.models import call

logging.getLogger("upcall").addHandler(logging.NullHandler())


def results(session: Any) -> list[Result]:
    return [one for message in session.get_messages() for one in message.results]


async def play(servers: Any, plan: Any, answer: Callable[[Callback], Any], **more: Any) -> tuple[Any, Person]:
    person = Person(answer)
    worker = agent(servers, plan, **more)
    async with Runtime(":memory:", agents=[worker], host=person) as runtime:
        session = await runtime.start("worker")
        await session.prompt("Begin.")
        return session, person


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "asked"),
    [({}, ["shop__stock", "shop__buy"]), ({"trusted": True}, ["shop__buy"]),
     ({"readOnly": ["st*"]}, ["shop__buy"]), ({"autoApprove": ["buy"]}, ["shop__stock"])],
    ids=["unknown server", "trusted server", "known to be read-only", "approved by the file"],
)  # fmt: skip
async def test_a_tool_asks_unless_it_is_known_to_be_read_only(
    tmp_path: Path, config: dict[str, Any], asked: list[str]
) -> None:
    servers = McpServers({"shop": shop(tmp_path / "orders", **config)}, wait=30)

    session, person = await play(
        servers, [[call("shop__stock", item="hat"), call("shop__buy", item="hat")]], lambda callback: Approve()
    )

    assert sorted(one.tool for one in person.asked) == sorted(asked)
    assert not any(one.is_error for one in results(session))


async def test_a_rejected_call_does_not_reach_the_server(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    servers = McpServers({"one": raw("plain", str(notes))}, wait=20)

    session, _ = await play(servers, [call("one__act")], lambda callback: Reject("no"))

    assert results(session)[0].is_error
    assert not notes.exists()


async def test_every_call_of_a_tool_is_approved_by_one_pattern_in_a_session(tmp_path: Path) -> None:
    servers = McpServers({"one": raw("plain", str(tmp_path / "notes"))}, wait=20)

    session, person = await play(
        servers, [call("one__act", n=1), call("one__act", n=2)],
        lambda callback: Approve(for_session=True, pattern=ANY_ARGUMENTS),
    )  # fmt: skip

    assert len(person.asked) == 1
    assert [one.text for one in results(session)] == ["act ran", "act ran"]


async def test_an_approval_by_pattern_ends_when_the_server_describes_its_tool_otherwise(tmp_path: Path) -> None:
    servers = McpServers({"one": raw("turns_bad", str(tmp_path / "notes"))}, wait=20)
    seen: list[str] = []

    def plan(request: Request) -> Any:
        about = next(one.description for one in request.tools if one.name == "one__act")
        seen.append(about)
        if "Deletes" in about:
            return "done" if sum("Deletes" in one for one in seen) == 2 else call("one__act", n=len(seen))
        return call("one__act", n=len(seen)) if len(seen) < 100 else "done"

    _, person = await play(servers, plan, lambda callback: Approve(for_session=True, pattern=ANY_ARGUMENTS))

    assert "Deletes" in seen[-1]
    assert len(person.asked) == 2  # once for each description, however often it was called


async def test_the_preset_edits_ask_asks_for_tools_that_others_describe() -> None:
    async def write(arguments: dict[str, Any]) -> str:
        return "written"

    foreign = Tool.from_schema("filesystem_write_file", {"type": "object"}, write)
    reading = Tool.from_schema("filesystem_read_file", {"type": "object"}, write, read_only=True)

    class Others:
        name = "others"

        async def list_tools(self, session: Any) -> list[Tool]:
            return [foreign, reading]

    _, person = await play(
        Others(), [[call("filesystem_write_file"), call("filesystem_read_file")]], lambda callback: Approve(),
        kit=[approve("edits_ask")],
    )  # fmt: skip

    assert [one.tool for one in person.asked] == ["filesystem_write_file"]


async def test_allow_and_deny_decide_which_tools_are_offered() -> None:
    servers = McpServers({"one": raw("plain", allow=["a*"]), "two": raw("plain", deny=["act"])}, wait=20)
    seen: list[str] = []

    def plan(request: Request) -> str:
        seen.extend(one.name for one in request.tools)
        return "done"

    await play(servers, plan, lambda callback: Approve())

    assert [name for name in seen if "__" in name] == ["one__act", "two__slow"]


@pytest.mark.parametrize(
    ("config", "problem"),
    [({}, "either a command"), ({"command": "x", "url": "http://x"}, "either a command"),
     ({"command": 3}, "must be a text"), ({"url": "http://u:p@host"}, "holds a password"),
     ({"command": "x", "trusted": "yes"}, "true or false"), ({"command": "x", "alow": []}, "Did you mean allow")],
)  # fmt: skip
def test_a_wrong_description_is_refused_with_its_key(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(Exception, match=problem):
        McpServers({"one": config})


def test_a_description_shows_no_secret() -> None:
    given = {"one": {"url": "https://x.example", "headers": {"Authorization": "Bearer s3cret"}}}
    servers = McpServers(given)

    assert "s3cret" not in repr(servers) + repr(servers.status()) + repr(read_servers(given))
