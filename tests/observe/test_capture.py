"""The JSON of model calls, prices, and what events say about prompts, models, labels and approvals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from observe.recorded import SECRET, recorded
from upcall import Agent, Approve, Reject, Runtime, Usage, tool
from upcall.errors import SetupError
from upcall.events import ModelStarted, TurnStarted
from upcall.messages import Response
from upcall.models import Script, call
from upcall.observe import Redactor, model_call_json, price_list, read_prices
from upcall.observe.public_json import all_fields


@tool(label="Look around")
def look(thing: str) -> str:
    """Look at something."""
    return f"saw {thing}"


async def _run(model: Any, **options: Any) -> tuple[Any, list[Any]]:
    agent = Agent("looker", model=model, tools=[look], instructions=f"The key is {SECRET}.")
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent, id="run")
        await session.prompt("Look", by="ada")
        await session.prompt("Look again")
        calls = [await runtime.model_call("run", number) for number in (1, 2)]
        return calls, [event async for event in runtime.events("run")]


def _script() -> Script:
    said = Response("", [call("look", thing="lamp")], usage=Usage(1000, 100, 500), model="m-1", stop="calls")
    return Script([said, "done", "again"], name="house:m-1")


async def test_a_model_call_is_shown_with_its_request_and_response_and_without_secrets() -> None:
    (first, _), _ = await _run(_script())

    shown = model_call_json(first, Redactor(), price_list({"m-*": (2.0, 10.0, 1.0)}))

    request, response = shown["request"], shown["response"]
    assert (request["type"], request["provider"], request["model"]) == ("request", "house", "m-1")
    assert request["instructions"] == "The key is ⟦hidden 24 #1⟧."
    assert request["messages"] == [{"role": "user", "parts": [{"part": "text", "text": "Look"}]}]
    assert [one["name"] for one in request["tools"]] == ["look"]
    assert (response["type"], response["stop"]) == ("response", "calls")
    assert [one["args"] for one in response["calls"]] == [{"thing": "lamp"}]
    assert response["usage"] == {"input": 1000, "output": 100, "cached": 500, "cache_written": 0}
    assert response["cost"] == pytest.approx((500 * 2 + 500 * 1 + 100 * 10) / 1e6)
    assert response["seconds"] >= 0


async def test_without_a_price_the_cost_is_not_zero_and_a_note_says_why() -> None:
    (first, _), _ = await _run(_script())

    for cost in (None, price_list({"other": (1.0, 1.0)})):
        response = model_call_json(first, Redactor(), cost)["response"]
        assert response["cost"] is None
        assert response["cost_note"] == "no price is known for the model 'm-1'; give one with --prices FILE"


async def test_the_log_says_who_gave_a_prompt_and_which_model_with_which_labels_is_asked_where_that_changes() -> (
    None
):
    _, log = await _run(_script())

    assert [event.by for event in log if isinstance(event, TurnStarted)] == ["ada", ""]
    started = [event for event in log if isinstance(event, ModelStarted)]
    assert [(event.model, event.labels) for event in started] == [
        ("house:m-1", {"look": "Look around"}), ("", None), ("", None)
    ]  # fmt: skip


def test_the_prompt_of_a_child_and_of_a_side_turn_is_given_by_an_agent() -> None:
    log = recorded("delegated")

    given = {event.session: event.by for event in log if isinstance(event, TurnStarted)}

    assert given.pop("run") == ""
    assert {by for session, by in given.items() if "q" in session} == {"painter"}
    assert {by for session, by in given.items() if "q" not in session} == {"lead"}


def test_a_settled_approval_says_in_its_json_whether_it_was_approved() -> None:
    assert all_fields([Approve(), Reject("no")]) == [
        {"approve": True, "args": None, "for_session": False, "pattern": None, "also": []},
        {"approve": False, "reason": "no", "for_session": False},
    ]


@pytest.mark.parametrize("body", ['{"m": [1]}', '{"m": "1, 2"}', '{"m": [1, -2]}', '{"m": [1, "x"]}', "[1]"])
def test_a_mistake_in_a_file_of_prices_names_the_file(tmp_path: Path, body: str) -> None:
    (tmp_path / "prices.json").write_text(body)

    with pytest.raises(SetupError, match=r"prices\.json"):
        read_prices(tmp_path / "prices.json")


def test_prices_are_read_from_a_file_in_the_shape_of_the_budget(tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text('"m-*" = [2.0, 10.0]\n')

    assert price_list(read_prices(tmp_path / "prices.toml"))("m-1", Usage(1_000_000, 0)) == 2.0
