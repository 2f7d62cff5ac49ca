"""What goes over the wire to a provider is logged where it is captured, and shown without secrets."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from models.openai_wire import DONE, OK, STOP, USAGE, model, said
from models.server import Server, plain, serving, stream
from upcall import Agent, Runtime
from upcall.contracts import Exchange
from upcall.events import WireCaptured, encode
from upcall.models import Script
from upcall.observe import Redactor, model_call_json
from upcall.observe.shown_events import HeldBack, shown_event
from upcall.observe.wire_json import exchange_json


def bodies(server: Server) -> list[str]:
    return [one.body.decode() for one in server.asked]


async def captured(server: Server, store: str | Path, prompts: Sequence[str], id: str = "s") -> list[WireCaptured]:
    """Ask a provider once for each prompt, in one runtime; all that was captured in the session so far."""
    chat = model(server)
    agent = Agent("helper", model=chat)
    async with Runtime(store, agents=[agent], capture=True) as runtime:
        rows = await runtime.rows()
        session = await (runtime.load(id) if any(row.id == id for row in rows) else runtime.start(agent, id))
        for text in prompts:
            await session.prompt(text)
        found = [one async for one in runtime.events(id) if isinstance(one, WireCaptured)]
    await chat.close()
    return found


async def test_each_body_that_was_sent_is_rebuilt_exactly_over_processes(tmp_path: Path) -> None:
    async with serving(OK) as server:
        await captured(server, tmp_path / "log.db", ["one ☃", "two"])
        found = await captured(server, tmp_path / "log.db", ["three", "four"])
        assert [one.ordinal for one in found] == [1, 2, 3, 4]
        async with Runtime(tmp_path / "log.db") as runtime:
            calls = [await runtime.model_call("s", ordinal) for ordinal in (1, 2, 3, 4)]

    wires = [call.wire for call in calls if call is not None]
    assert [[one.request for one in wire] for wire in wires] == [[body] for body in bodies(server)]
    assert {one.status for wire in wires for one in wire} == {200}
    assert all("llo 🙂" in one.response and one.url == f"{server.url}/v1/chat/completions" for (one,) in wires)


async def test_a_request_that_was_sent_again_is_an_exchange_of_its_own() -> None:
    async with serving(plain(503, '{"error": {"message": "busy"}}'), OK) as server:
        (found,) = await captured(server, ":memory:", ["one"])
    first, second = found.exchanges
    assert (first.status, second.status) == (503, 200)
    assert "busy" in first.response
    assert second.body == ""


async def test_nothing_is_captured_unless_it_is_asked_for() -> None:
    async with serving(OK) as server:
        chat = model(server)
        agent = Agent("helper", model=chat)
        async with Runtime(agents=[agent]) as runtime:
            await (await runtime.start(agent, "s")).prompt("go")
            call = await runtime.model_call("s", 1)
            assert not [one async for one in runtime.events() if isinstance(one, WireCaptured)]
        await chat.close()
    assert call is not None
    assert call.wire == ()


@pytest.mark.slow  # pydantic-ai takes seconds to import
async def test_what_a_model_of_pydantic_ai_sends_and_receives_is_captured() -> None:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.models.wrapper import WrapperModel
    from pydantic_ai.providers.openai import OpenAIProvider

    from upcall.models.providers import Provided

    busy = plain(503, '{"error": {"message": "busy"}}')
    async with serving(busy, OK, OK) as server:
        provider = OpenAIProvider(base_url=f"{server.url}/v1", api_key="sk-very-secret-key-123")
        theirs = OpenAIChatModel("m-1", provider=provider)
        first, second = (
            Agent("first", model=Provided(theirs)),
            Agent("second", model=Provided(WrapperModel(theirs))),
        )
        async with Runtime(agents=[first, second], capture=True) as runtime:
            for agent in (first, second):
                session = await runtime.start(agent, agent.name)
                assert (await session.prompt("one ☃")).text == "Héllo 🙂"
            calls = [await runtime.model_call(name, 1) for name in ("first", "second")]
        await provider.client.close()

    wires = [call.wire for call in calls if call is not None]
    assert [one.status for wire in wires for one in wire] == [503, 200, 200]
    assert [one.request for wire in wires for one in wire] == bodies(server)
    assert all("llo 🙂" in wire[-1].response for wire in wires)
    assert all(one.url == f"{server.url}/v1/chat/completions" for wire in wires for one in wire)
    assert "sk-very-secret" not in str(wires)


async def test_a_model_without_a_wire_has_none(tmp_path: Path) -> None:
    agent = Agent("helper", model=Script(["ok"]))
    async with Runtime(agents=[agent], capture=True) as runtime:
        await (await runtime.start(agent, "s")).prompt("go")
        call = await runtime.model_call("s", 1)
    assert call is not None
    assert model_call_json(call, Redactor())["wire"] == []


@pytest.mark.slow
async def test_a_thousand_turns_of_capture_cost_at_most_twice_the_payload(tmp_path: Path) -> None:
    prompts = [f"question {number}: " + "word " * 50 for number in range(1000)]
    async with serving(OK) as server:
        found = await captured(server, tmp_path / "log.db", prompts)
    sent = bodies(server)
    new = [len(sent[0]), *(len(after) - len(before) for before, after in itertools.pairwise(sent))]
    payload = sum(new) + sum(one.received_bytes for event in found for one in event.exchanges)
    cost = sum(len(encode(one)) for one in found)
    assert len(found) == 1000
    assert sum(map(len, sent)) > 50 * payload  # without differences it would cost so much more
    assert cost <= 2 * payload


# --- shown ------------------------------------------------------------------------------------


def test_a_secret_that_is_split_between_events_is_hidden_in_all_of_them() -> None:
    pieces = ["use sk-proj-", "abcdefghij", "klmnop12", " now"]
    answer = b"".join((*(said(content=piece) for piece in pieces), STOP, USAGE, DONE)).decode()
    shown = json.dumps(exchange_json(Exchange("http://x/", 200, "{}", answer), Redactor()))
    assert "use " in shown
    assert " now" in shown
    for piece in ("sk-proj", "abcdefghij", "klmnop12"):
        assert piece not in shown


def test_streamed_arguments_with_the_name_of_a_secret_are_hidden() -> None:
    pieces = ['{"user": "ada", "pass', 'word": "hun', "ter2hun", 'ter2", "n": 1}']
    calls = [{"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in pieces]
    answer = b"".join(said(**one) for one in calls).decode()
    shown = json.dumps(exchange_json(Exchange("", 200, "{}", answer), Redactor()))
    assert "ada" in shown
    assert "hun" not in shown
    assert "ter2" not in shown


def test_requests_are_shown_without_secrets_by_name_pattern_and_value() -> None:
    request = {"messages": [{"content": "it is zq8-11-ff-09-xy"}], "api_key": "abc", "note": "sk-abcdefghijklmnop1"}
    redactor = Redactor(environ={"SHOP_TOKEN": "zq8-11-ff-09-xy"})
    exchange = Exchange(
        "https://u:pw-1234567@host/?token=tt-123456", 200, json.dumps(request), "not json token=abc"
    )
    shown = json.dumps(exchange_json(exchange, redactor))
    for secret in ("zq8-11", '"abc"', "sk-abc", "pw-1234567", "tt-123456"):
        assert secret not in shown


@pytest.mark.parametrize("text", ["", "[" * 5000, "data: " + "[" * 5000, "\x00\ud800", "data:", "data: {", "null"])
def test_whatever_came_back_can_be_shown(text: str) -> None:
    json.dumps(exchange_json(Exchange("x", 200, text, text), Redactor()))


async def test_the_events_that_are_shown_have_no_part_of_a_body() -> None:
    split = stream(said(content="a secret: sk-proj-"), said(content="abcdefghijklmnop"), STOP, USAGE, DONE)
    async with serving(split) as server:
        (found,) = await captured(server, ":memory:", ["go"])
    assert "sk-proj-" in found.exchanges[0].response
    for shown in (shown_event(found, Redactor(), set()), *HeldBack().take(found)):
        assert "sk-proj-" not in str(shown)
        assert "go" not in str(shown)
