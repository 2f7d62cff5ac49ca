"""Servers that hang, flood, die, change and deceive: the turn continues, nothing runs twice or unasked."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mcp_client.peers import UNASKED, Person, agent, free_port, listening, raw, states
from quick import slow_after
from security.measuring import measured
from upcall import Approve, Reject, Runtime, tool
from upcall.callbacks import Callback
from upcall.links.mcp import McpServers
from upcall.messages import Request, Result
from upcall.models import call

logging.getLogger("upcall").addHandler(logging.NullHandler())


def results(session: Any) -> list[Result]:
    return [one for message in session.get_messages() for one in message.results]


async def play(servers: McpServers, plan: Any, host: Any = None, **more: Any) -> tuple[Any, Any]:
    """Run one turn; the reply and the session."""
    worker = agent(servers, plan, **more)
    async with Runtime(":memory:", agents=[worker], host=host) as runtime:
        session = await runtime.start(worker.name)
        return await session.prompt("Begin."), session


@pytest.mark.slow
async def test_a_server_that_never_answers_holds_up_the_others_for_less_than_two_seconds() -> None:
    servers = McpServers({"good": raw("plain", **UNASKED), "silent": raw("silent")})
    await servers.connect("good")  # the library is imported, and the machine's speed is not measured
    offered: list[tuple[float, list[str]]] = []
    began = time.monotonic()

    def plan(request: Request) -> Any:
        offered.append((time.monotonic() - began, [one.name for one in request.tools]))
        return call("good__act") if len(offered) == 1 else "done"

    reply, session = await play(servers, plan)

    assert reply.text == "done"
    assert offered[0][0] < 2.0
    assert {"good__act", "silent__wait_until_ready"} <= set(offered[0][1])
    assert [one.text for one in results(session)] == ["act ran"]


@pytest.mark.slow
async def test_a_server_that_ignores_unknown_methods_is_connected_without_the_ten_seconds_of_the_probe() -> None:
    servers = McpServers({"one": raw("ignores")})
    await servers.connect("one")
    await servers.close()
    began = time.monotonic()

    status = await servers.connect("one")

    assert status.state == "connected"
    assert time.monotonic() - began < 5.0
    await servers.close()


async def test_a_server_that_dies_in_a_call_gives_an_error_result_and_is_not_called_again(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    servers = McpServers({"one": raw("dies", str(notes), **UNASKED)}, wait=20)

    reply, session = await play(servers, [call("one__act"), call("one__act")])

    assert reply.text == "done"
    first, second = results(session)
    assert first.is_error
    assert "was not called again by itself" in first.text
    assert notes.read_text().splitlines() == ["called act", "called act"]  # once for each call of the model
    assert second.is_error


@pytest.mark.parametrize("mode", ["floods", "endless_line"])
@pytest.mark.slow
async def test_a_server_that_floods_does_not_hold_up_the_turn(mode: str) -> None:
    servers = McpServers({"loud": raw(mode, **UNASKED), "good": raw("plain", **UNASKED)}, wait=20)
    began = time.monotonic()

    reply, session = await play(servers, [call("loud__act"), *[call("good__act")] * 5])

    assert reply.text == "done"
    assert [one.text for one in results(session)][1:] == ["act ran"] * 5
    assert time.monotonic() - began < 30


async def test_a_server_with_thousands_of_tools_gets_a_few_of_them_offered() -> None:
    servers = McpServers({"one": raw("many_tools")}, wait=30)
    seen: list[Request] = []

    def plan(request: Request) -> str:
        seen.append(request)
        return "done"

    reply, _ = await play(servers, plan)

    assert reply.text == "done"
    assert 0 < len(seen[0].tools) <= 210
    assert "left out" in servers.status()[0].problem


async def test_a_tool_that_is_listed_thousands_of_times_is_offered_once_and_holds_nothing_up() -> None:
    servers = McpServers({"one": raw("same_tool")}, wait=30)
    await servers.connect("one")
    offered: list[str] = []

    def plan(request: Request) -> str:
        offered.extend(one.name for one in request.tools if one.name.startswith("one__"))
        return "done"

    async with measured() as cost:
        await play(servers, plan)

    assert len(offered) == 1
    cost.check()


async def test_tools_that_change_in_mid_turn_are_there_at_a_later_model_call(tmp_path: Path) -> None:
    servers = McpServers({"one": raw("changes", str(tmp_path / "notes"), **UNASKED)}, wait=20)
    seen: list[list[str]] = []

    def plan(request: Request) -> Any:
        seen.append([one.name for one in request.tools if one.name.startswith("one__")])
        if len(seen) < 100 and seen[-1] == ["one__first"]:
            return call("one__first")
        called_old = "one__first" in str(request.messages[-1].results)
        return "done" if called_old else call("one__first")

    reply, session = await play(servers, plan)

    assert reply.text == "done"
    assert seen[-1] == ["one__second"]
    assert "there is no tool called 'one__first'" in results(session)[-1].text
    calls = len(results(session)) - 1  # the last one was refused here
    assert (tmp_path / "notes").read_text().splitlines().count("called first") == calls


@tool
def write_file(path: str) -> str:
    """Write a file."""
    return f"our own write_file wrote {path}"


async def test_names_and_texts_of_a_hostile_server_deceive_neither_providers_nor_agents() -> None:
    servers = McpServers({"evil": raw("attacks"), "evil_": raw("attacks")}, wait=20)
    asked: list[Callback] = []
    seen: list[Request] = []

    def person(callback: Callback) -> Any:
        asked.append(callback)
        return Reject("no")

    def plan(request: Request) -> Any:
        seen.append(request)
        return [call("write_file", path="a"), call("evil__write_file")] if len(seen) == 1 else "done"

    _, session = await play(servers, plan, Person(person), tools=[write_file])

    names = [one.name for one in seen[0].tools]
    assert len(names) == len(set(names))
    assert all(len(name) <= 64 and name.replace("_", "").replace("-", "").isalnum() for name in names)
    assert all(one.description.isprintable() or "\n" in one.description for one in seen[0].tools)
    texts = " ".join(one.description for one in seen[0].tools)
    assert not any(0xE0000 <= ord(letter) <= 0xE0FFF or letter in "\x1b\u202e" for letter in texts)
    assert "evil__bad_schema" not in names
    assert "evil__ask" in names
    ours, theirs = results(session)
    assert ours.text == "our own write_file wrote a"
    assert "rejected" in theirs.text
    assert [one.tool for one in asked] == ["evil__write_file"]  # it called itself read-only, and is not trusted


async def test_an_own_tool_keeps_its_name_when_a_server_has_one_that_would_be_called_the_same() -> None:
    @tool(name="one__act")
    def own() -> str:
        """Ours."""
        return "ours"

    servers = McpServers({"one": raw("plain", **UNASKED)}, wait=20)
    seen: list[Request] = []

    def plan(request: Request) -> Any:
        seen.append(request)
        theirs = next(one.name for one in request.tools if one.name.startswith("one__act_"))
        return [call("one__act"), call(theirs)] if len(seen) == 1 else "done"

    _, session = await play(servers, plan, tools=[own])

    assert [one.text for one in results(session)] == ["ours", "act ran"]


@pytest.mark.slow
async def test_a_cancelled_call_is_cancelled_at_the_server_too(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    servers = McpServers({"one": raw("plain", str(notes), **UNASKED)}, wait=20)
    worker = agent(servers, [call("one__slow", seconds=1)])
    async with Runtime(":memory:", agents=[worker]) as runtime:
        session = await runtime.start("worker")
        running = asyncio.ensure_future(session.prompt("Begin."))
        while not notes.exists():
            await asyncio.sleep(0.02)
        await session.cancel()
        reply = await running
        for _ in range(200):
            if "heard that it was cancelled" in notes.read_text():
                break
            await asyncio.sleep(0.02)

    assert reply.status == "cancelled"
    assert "heard that it was cancelled" in notes.read_text()


async def test_a_command_that_does_not_exist_is_a_failed_server_and_not_a_failed_turn() -> None:
    servers = McpServers({"none": {"command": "/does/not/exist"}, "good": raw("plain", **UNASKED)}, wait=20)

    reply, session = await play(servers, [call("good__act")])

    assert reply.text == "done"
    assert results(session)[0].text == "act ran"
    assert "there is no such program" in servers.status()[0].problem


async def test_a_missing_variable_is_said_and_its_server_is_not_started() -> None:
    servers = McpServers({"one": raw("plain", env={"TOKEN": "${NO_SUCH_VARIABLE}"})}, environ={})

    status = await servers.connect("one")

    assert (status.state, status.problem) == ("failed", "NO_SUCH_VARIABLE is not set")


async def test_a_result_of_every_kind_is_read(tmp_path: Path) -> None:
    given = {
        "content": [
            {"type": "text", "text": "plain"},
            {"type": "image", "data": "aGk=", "mimeType": "image/png"},
            {"type": "image", "data": "!!", "mimeType": "image/png"},
            {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
            {"type": "resource_link", "name": "r", "uri": "file:///r"},
            {"type": "resource", "resource": {"uri": "file:///t", "text": "inside"}},
        ],
        "structuredContent": {"n": 1},
    }
    says = tmp_path / "says"
    says.write_text(json.dumps(given))
    servers = McpServers({"one": raw("says", str(says), **UNASKED)}, wait=20)

    _, session = await play(servers, [call("one__act")])

    (read,) = results(session)
    assert read.json == {"n": 1}
    assert [one.data for one in read.images] == ["aGk="]
    for text in ("plain", "not valid base64", "audio/wav", "file:///r", "inside"):
        assert text in read.text


SLOW = pytest.mark.slow


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def keys(place: str) -> dict[str, Any]:
    return {"content": [], place: dict.fromkeys(numbers(400_000), 0)}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        pytest.param(lambda: {"content": numbers(20_000)}, "content has more than 5000 items", id="many texts"),
        pytest.param(lambda: {"content": numbers(400_000)}, "answer", id="very many texts"),
        pytest.param(lambda: keys("structuredContent"), "answer", id="many keys", marks=SLOW),
        pytest.param(lambda: keys("_meta"), "answer", id="many keys beside it", marks=SLOW),
    ],
)
async def test_an_answer_of_very_many_values_is_an_error_result_and_holds_nothing_up(
    tmp_path: Path, given: Callable[[], Any], problem: str
) -> None:
    says = tmp_path / "says"
    says.write_text(json.dumps(given()))
    servers = McpServers({"one": raw("says", str(says), **UNASKED)}, wait=20)
    await servers.connect("one")

    async with measured() as cost:
        reply, session = await play(servers, [call("one__act")])

    (result,) = results(session)
    assert (reply.text, result.is_error) == ("done", True)
    assert problem in result.text
    cost.check()


FORMS = ["one_event", "lines", "after_comment", "returns", "charset", "compressed", "whole"]


@pytest.mark.parametrize("form", slow_after(1, FORMS))
async def test_an_answer_of_very_many_values_over_http_is_an_error_result_in_whatever_form(
    tmp_path: Path, form: str
) -> None:
    says = tmp_path / "says"
    says.write_text(json.dumps({"content": [], "structuredContent": {"all": list(range(1_500_000))}}))
    async with web_server(form, says) as servers:
        await servers.connect("one")
        async with measured() as cost:
            reply, session = await play(servers, [call("one__act")])

    (result,) = results(session)
    assert (reply.text, result.is_error) == ("done", True)
    cost.check()


@pytest.mark.parametrize("form", ["one_event", "lines", "after_comment", "returns", "whole"])
async def test_an_answer_over_http_is_read_in_whatever_form(tmp_path: Path, form: str) -> None:
    given = {"content": [{"type": "text", "text": 'a "b", [c], ' * 50_000}]}
    says = tmp_path / "says"
    says.write_text(json.dumps(given))
    async with web_server(form, says) as servers:
        _, session = await play(servers, [call("one__act")])

    (result,) = results(session)
    assert not result.is_error
    assert result.text.startswith('a "b", [c], a "b", [c], ')


@asynccontextmanager
async def web_server(form: str, says: Path) -> AsyncGenerator[McpServers]:
    """The server of raw_web_server.py in one of its forms."""
    port = free_port()
    script = str(Path(__file__).parent / "raw_web_server.py")
    process = await listening(port, sys.executable, "-I", script, str(port), form, str(says))
    servers = McpServers({"one": {"url": f"http://127.0.0.1:{port}/mcp", **UNASKED}}, wait=20)
    try:
        yield servers
    finally:
        await servers.close()
        process.kill()
        await process.wait()


async def test_nobody_is_asked_by_a_server_that_no_call_has_caused_to_ask(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    person = Person(lambda callback: Approve())
    servers = McpServers({"one": raw("asks_late", str(notes), **UNASKED)}, wait=20)

    reply, _ = await play(servers, [call("one__act")], person)

    assert reply.text == "done"
    assert person.asked == []
    assert states(servers) == {"one": "not started"}
