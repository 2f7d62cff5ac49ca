"""Questions of servers: forms, links, refusals and expiry reach the server as what they are."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcp_client.peers import UNASKED, Person, agent, node_server, raw, shop
from upcall import Decline, Runtime
from upcall.callbacks import Callback
from upcall.links.mcp import McpServers
from upcall.links.mcp.questions import OPENED
from upcall.messages import Request, Result
from upcall.models import call

logging.getLogger("upcall").addHandler(logging.NullHandler())

FORM = {
    "name": "Ada", "check": True, "email": "ada@example.org", "date": "2026-01-02", "integer": 42, "number": 2.5,
    "homepage": "https://example.org", "firstLine": "a line", "untitledSingleSelectEnum": "Monica",
    "titledSingleSelectEnum": "hero-1", "untitledMultipleSelectEnum": ["Guitar"],
    "titledMultipleSelectEnum": ["fish-1"], "legacyTitledEnum": "pet-1",
}  # fmt: skip


def results(session: Any) -> list[Result]:
    return [one for message in session.get_messages() for one in message.results]


async def play(
    servers: McpServers, plan: Any, answer: Callable[[Callback], Any], **more: Any
) -> tuple[Any, Person]:
    person = Person(answer)
    worker = agent(servers, plan, **more)
    async with Runtime(":memory:", agents=[worker], host=person) as runtime:
        session = await runtime.start("worker")
        await session.prompt("Begin.")
        return session, person


def filled(callback: Callback) -> dict[str, Any]:
    """A value for each field of the form that was asked."""
    fields = (callback.schema or {})["properties"]
    return {name: FORM[name] for name in fields if name in FORM}


@pytest.mark.slow
async def test_a_form_with_every_type_of_field_is_answered() -> None:
    servers = McpServers({"everything": node_server("everything", **UNASKED)}, wait=30)

    session, person = await play(servers, [call("everything__trigger-elicitation-request")], filled)

    assert {one["type"] for one in (person.asked[0].schema or {})["properties"].values()} == {
        "string", "boolean", "integer", "number", "array",
    }  # fmt: skip
    assert "Ada" in results(session)[0].text
    assert person.asked[0].context["mcp_server"] == "everything"


@pytest.mark.slow
async def test_a_declined_form_is_declined_at_the_server() -> None:
    servers = McpServers({"everything": node_server("everything", **UNASKED)}, wait=30)

    session, _ = await play(
        servers, [call("everything__trigger-elicitation-request")], lambda callback: Decline("not today")
    )

    assert "decline" in results(session)[0].text.lower()


@pytest.mark.slow
async def test_a_form_that_expires_is_cancelled_at_the_server() -> None:
    servers = McpServers({"everything": node_server("everything", **UNASKED)}, wait=30)
    policy = {"timeout": 0.5}

    session, person = await play(
        servers, [call("everything__trigger-elicitation-request")], lambda callback: asyncio.Event().wait(),
        callback_policy=policy,
    )  # fmt: skip

    assert "cancel" in results(session)[0].text.lower()
    assert any("expired" in reason for reason in person.withdrawn)


@pytest.mark.slow
async def test_a_legacy_question_is_answered_with_its_defaults(tmp_path: Path) -> None:
    servers = McpServers({"one": raw("asks", str(tmp_path / "notes"), **UNASKED)}, wait=20)

    session, person = await play(servers, [call("one__act")], lambda callback: {"name": "Ada"})

    assert json.loads(results(session)[0].text) == {"action": "accept", "content": {"age": 7, "name": "Ada"}}
    schema = person.asked[0].schema or {}
    assert schema["properties"]["name"]["title"] == "Name"  # without what was hidden in it


@pytest.mark.slow
async def test_a_question_that_its_server_takes_back_disappears(tmp_path: Path) -> None:
    servers = McpServers({"one": raw("takes_back", str(tmp_path / "notes"), **UNASKED)}, wait=20)

    session, person = await play(servers, [call("one__act")], lambda callback: asyncio.Event().wait())

    assert results(session)[0].text == "act ran"
    assert len(person.asked) == len(person.withdrawn) == 1


@pytest.mark.slow
async def test_a_link_is_for_a_person_and_is_accepted_by_opening_it(tmp_path: Path) -> None:
    servers = McpServers({"one": raw("link", str(tmp_path / "notes"), **UNASKED)}, wait=20)

    session, person = await play(servers, [call("one__act")], lambda callback: OPENED)

    (asked,) = person.asked
    assert asked.kind == "request_user_input"
    assert asked.context["url"] == "https://pay.example/login?x=1"
    assert "pay.example" in asked.message
    assert json.loads(results(session)[0].text) == {"action": "accept"}


@pytest.mark.parametrize("url", ["https://evil.example\\@pay.example/login", "https://pay.example@evil.example/"])
async def test_a_link_that_hides_its_host_is_shown_to_nobody(tmp_path: Path, url: str) -> None:
    servers = McpServers({"one": raw("link", str(tmp_path / "notes"), url, **UNASKED)}, wait=20)

    _, person = await play(servers, [call("one__act")], lambda callback: OPENED)

    assert person.asked == []


async def test_a_link_is_cancelled_where_the_agent_may_not_ask_a_person(tmp_path: Path) -> None:
    servers = McpServers({"one": raw("link", str(tmp_path / "notes"), **UNASKED)}, wait=20)

    session, person = await play(
        servers, [call("one__act")], lambda callback: OPENED, can_use_host_interaction=False
    )

    assert person.asked == []
    assert json.loads(results(session)[0].text) == {"action": "cancel"}


@pytest.mark.slow
async def test_a_call_that_needs_a_page_to_be_opened_first_is_repeated_once_that_was_done() -> None:
    servers = McpServers({"everything": node_server("everything", **UNASKED)}, wait=30)
    plan = [call("everything__trigger-url-elicitation", url="https://pay.example/login", errorPath=True)]

    session, person = await play(servers, plan, lambda callback: OPENED)

    first, second = person.asked  # the server's error -32042 names the first, and its request the second
    assert first.context["url"] == "https://modelcontextprotocol.io"
    assert "only while this process" in first.context["lasts"]
    assert second.context["url"] == "https://pay.example/login"
    (result,) = results(session)
    assert not result.is_error, result.text


@pytest.mark.slow
async def test_a_call_whose_page_was_not_opened_says_so() -> None:
    servers = McpServers({"everything": node_server("everything", **UNASKED)}, wait=30)
    plan = [call("everything__trigger-url-elicitation", url="https://pay.example/login", errorPath=True)]

    session, person = await play(servers, plan, lambda callback: Decline("no"))

    (result,) = results(session)
    assert result.is_error
    assert "was asked to open a page, but did not: decline" in result.text
    assert len(person.asked) == 1


@pytest.mark.slow
async def test_a_legacy_question_is_held_in_memory_and_answered_from_the_inbox(tmp_path: Path) -> None:
    servers = McpServers({"one": raw("asks", str(tmp_path / "notes"), **UNASKED)}, wait=20)
    worker = agent(servers, [call("one__act")])
    async with Runtime(str(tmp_path / "log.db"), agents=[worker], hold=0.1) as runtime:
        session = await runtime.start("worker")
        running = asyncio.ensure_future(session.prompt("Begin."))
        while not (waiting := await runtime.inbox()):
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)  # longer than what is held otherwise
        assert not running.done()
        assert "only while this process" in waiting[0].context["lasts"]
        await runtime.answer(waiting[0].id, {"name": "Bo"}, by="ops")
        reply = await running

    assert reply.status == "done"
    assert json.loads(results(session)[0].text)["content"] == {"age": 7, "name": "Bo"}


@pytest.mark.slow
async def test_two_questions_of_one_leg_are_asked_at_once_and_answered_in_any_order(tmp_path: Path) -> None:
    effects = tmp_path / "orders"
    servers = McpServers({"shop": shop(effects, **UNASKED)}, wait=30)
    worker = agent(servers, [call("shop__fit", item="hat")])
    async with Runtime(str(tmp_path / "log.db"), agents=[worker], hold=0.1) as runtime:
        session = await runtime.start("worker")
        reply = await session.prompt("Begin.")
        waiting = {("colour" if "colour" in one.message else "size"): one for one in await runtime.inbox()}
        assert (reply.status, set(waiting)) == ("waiting", {"colour", "size"})
        await runtime.answer(waiting["size"].id, {"size": 7})
        await runtime.answer(waiting["colour"].id, {"colour": "red"})
        reply = await runtime.resume(session.id)

    assert reply.status == "done"
    assert effects.read_text().splitlines().count("ordered hat in red, size 7") == 1


@pytest.mark.slow
async def test_a_declined_question_of_the_2026_era_ends_the_call_and_orders_nothing(tmp_path: Path) -> None:
    effects = tmp_path / "orders"
    servers = McpServers({"shop": shop(effects, **UNASKED)}, wait=30)

    session, _ = await play(servers, [call("shop__order", item="hat")], lambda callback: Decline("no"))

    assert results(session)[0].is_error
    assert "ordered" not in effects.read_text()


@pytest.mark.slow
async def test_a_question_goes_to_the_session_whose_call_caused_it_when_two_sessions_use_one_server(
    tmp_path: Path,
) -> None:
    """A legacy server does not say which call asks: with two sessions it is told once only one call is left."""
    servers = McpServers({"one": raw("asks_second", str(tmp_path / "notes"), **UNASKED)}, wait=20)
    person = Person(lambda callback: {"name": callback.session_id})
    worker = agent(servers, lambda request: "done" if request.messages[-1].results else _call_for(request))
    async with Runtime(":memory:", agents=[worker], host=person) as runtime:
        first = await runtime.start("worker", id="first")
        second = await runtime.start("worker", id="second")
        await asyncio.gather(first.prompt("slow"), second.prompt("act"))

    called = [line for line in (tmp_path / "notes").read_text().splitlines() if line.startswith("called")]
    asker = "second" if called[1] == "called act" else "first"
    assert [one.session_id for one in person.asked] == [asker]


def _call_for(request: Request) -> Any:
    return call(f"one__{request.messages[0].text}", seconds=0.3)
