"""Messages and events as values: every type goes to its stored body and back; what providers refuse is settled."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from core.doubles import Asked, turn
from core.rules import check
from upcall import Agent, Call, Message, Request, Response, Result, Usage
from upcall.contracts import Reply
from upcall.core.log.state import FOLDS
from upcall.events import (
    AnyEvent,
    CallbackAnswered,
    CallbackAsked,
    CallbackDeclined,
    CallbackDelivered,
    CallbackExpired,
    CallbackPassed,
    CallbackRaised,
    CallbackRevealed,
    CallbackWithdrawn,
    CancelRequested,
    Carried,
    Change,
    Compacted,
    CompactionAsked,
    ContextSet,
    HookRaised,
    HooksPassed,
    InnerCalled,
    MessageAdded,
    ModelFailed,
    ModelStarted,
    OnceEnded,
    OnceStarted,
    OptionsSet,
    OutputRefused,
    Parked,
    Planned,
    ProgramSaved,
    Responded,
    SessionAdopted,
    SessionOptions,
    SessionStarted,
    Steered,
    StepEnded,
    StepStarted,
    ToolEnded,
    ToolStarted,
    ToolTriedAgain,
    TurnEnded,
    TurnQueued,
    TurnResumed,
    TurnStarted,
    WireCaptured,
    WireExchange,
    decode,
    digest,
    encode,
    stamp,
)
from upcall.messages import Image, Instruction, Text, Thinking, cancelled, close_dangling_calls, user
from upcall.models import Script
from upcall.observe.public_json import event_json
from upcall.store.rules import without_body

ASSISTANT = Message(
    "assistant",
    (
        Thinking("hm", {"signature": "x", "nested": [1, None]}),
        Text("I will look"),
        Call("r1c0", "look", {"where": "here", "deep": {"list": [1, 2.5, "ü", None]}}),
        Call("r1c1", "look", {}, broken='{"wher'),
    ),
)
TOLD = Message(
    "user", (Text("hello"), Instruction("be brief"), Image("aGk=", "image/jpeg"), Image(url="https://x/y"))
)
RESULT = Result("r1c0", "saw", is_error=True, json={"a": [1]}, images=(Image("aGk="),))

ROUTE: dict[str, Any] = {"stations": [{"agent": "boss", "step": "ask", "reason": ""}], "end": "person", "why": ""}
EVENTS: list[AnyEvent] = [
    SessionStarted(
        "a", parent="s", root="root", origin="r1c0", depth=2, kind="side_turn", reads=7, source="file.md"
    ),
    TurnStarted(1, TOLD, "setup"),
    TurnQueued(2, TOLD, "high", "acme", "ops"),
    TurnResumed(1, "setup"),
    HooksPassed("after_tool", "r1c0", 5, TOLD, Call("r1c0", "look", {}), RESULT, "text"),
    TurnEnded(1, "limit", "tokens", "why", 2.5),
    OutputRefused("no JSON"),
    Steered("left", "ops"),
    CancelRequested("ops", "enough"),
    MessageAdded(TOLD, "pre_request", 4),
    ContextSet("k", {"list": [1, None, True, 1.5, "x"]}, "pre_request"),
    CompactionAsked(10, True, "after_tool.r1c0"),
    Compacted((TOLD, ASSISTANT), "SUM", base=2, origin="o", carried=Carried(turn=1, ordinal=2, context={"k": 1})),
    ModelStarted(3, "summary", "i", "t", Change("i", "t", 1, 2, (TOLD,), spliced=True)),
    Responded(3, ASSISTANT, Usage(1, 2, 3), "stop", "m", by_hook=True, pending=True),
    WireCaptured(3, (WireExchange("http://x/v1", 200, 5, 2, "middle", "answer", 6),)),
    ModelFailed(3, "gone", "ModelUnavailable"),
    ToolStarted("r1c0", name="look", args={"where": "there"}, approval="approval"),
    ToolEnded("r1c0", RESULT, "interrupted", pending=True, dropped=True),
    ToolTriedAgain("r1c0", 2),
    InnerCalled("r1c0", Call("r1c0.1", "look", {"where": "here"})),
    ProgramSaved("r1c0", "hash", 3, 1.5, ended=True),
    OnceStarted("r1c0", "pay"),
    OnceEnded("r1c0", "pay", {"paid": 1}, "why"),
    CallbackRaised(
        "q", "r1c0", "a", "which?", "query", "callback_to_caller", ROUTE, "digest", priority="high",
        choices=("a", "b"), context={"k": [1]}, tool="look", args={"where": "here"}, expires=9.5, group="g",
    ),
    CallbackAsked("q", "user", 1, 9.5),
    CallbackPassed("q", "boss", "not mine", 1, "better words", skipped=True),
    CallbackAnswered("q", {"x": [1, None]}, "ops", "os-user", covered_by="q0"),
    CallbackDeclined("q", "no", "ops", "os-user"),
    CallbackExpired("q"),
    CallbackWithdrawn("q", "cancelled", unresolved=True),
    CallbackDelivered("q", "r1c0"),
    CallbackRevealed("q", "ops", "os-user"),
    Parked(("q",), 2.5, ("r1c0",)),
    HookRaised("on_callback", "faq", "ValueError: x"),
    Planned("plan1", [{"role": "writer"}]),
    StepStarted("s1", "writer", "s~1", 2, "writer", "note"),
    StepEnded("s1", "failed", "text", "error", Usage(1, 2), "SUM"),
    SessionAdopted("ops", ("q",)),
    OptionsSet(SessionOptions("fast", "ask")),
]  # fmt: skip
BARE: list[AnyEvent] = [
    SessionStarted("a"),
    TurnStarted(1, user("x")),
    TurnResumed(1),
    HooksPassed("pre_request"),
    TurnEnded(1, "done"),
    MessageAdded(user("x")),
    ContextSet("k", None),
    Compacted(()),
    ModelStarted(1),
    Responded(1, Message("assistant", ())),
    ModelFailed(1, "gone"),
    ToolStarted("r1c0", name="look"),
    ToolEnded("r1c0", Result("r1c0", "")),
]


def name_of(event: AnyEvent) -> str:
    return event.type


# --- events -----------------------------------------------------------------------------


@pytest.mark.parametrize("event", [*EVENTS, *BARE], ids=name_of)
def test_an_event_comes_back_from_its_stored_body_with_its_stamps(event: AnyEvent) -> None:
    back = decode(encode(event), "s", 4, 11, 99.5)

    assert type(back) is type(event)
    assert back == event.replace(session="s", seq=4, pos=11, time=99.5)
    assert (back.session, back.seq, back.pos, back.time, back.version) == ("s", 4, 11, 99.5, 1)


@pytest.mark.parametrize("event", EVENTS, ids=name_of)
def test_a_body_leaves_out_what_equals_its_default(event: AnyEvent) -> None:
    body = msgspec.json.decode(encode(event))
    assert body["type"] == event.type
    assert not {"session", "seq", "time", "pos", "version"} & set(body)


@pytest.mark.parametrize("event", EVENTS, ids=name_of)
def test_fields_of_a_later_version_are_tolerated(event: AnyEvent) -> None:
    body: dict[str, Any] = msgspec.json.decode(encode(event))
    later = msgspec.json.encode({**body, "a_new_field": {"deep": [1]}})

    back = decode(later, "s", 1, 1, 0.0)

    assert back.replace(session="", seq=0, pos=0) == event


@pytest.mark.parametrize("event", EVENTS, ids=name_of)
def test_an_event_in_a_later_format_is_refused(event: AnyEvent) -> None:
    body: dict[str, Any] = msgspec.json.decode(encode(event))

    with pytest.raises(ValueError, match="it has format 2, but this version of upcall reads only formats up to 1"):
        decode(msgspec.json.encode({**body, "version": 2}), "s", 1, 1, 0.0)


@pytest.mark.parametrize("event", EVENTS, ids=name_of)
def test_an_event_is_printed_with_session_seq_time_and_type_first(event: AnyEvent) -> None:
    stamp(back := decode(encode(event), "", 0, 0, 0.0), "s", 4, 11, 99.5)

    printed = event_json(back)

    assert list(printed)[:4] == ["session", "seq", "time", "type"]
    assert list(printed.values())[:4] == ["s", 4, 99.5, event.type]
    assert list(msgspec.json.decode(msgspec.json.encode(printed))) == list(printed)


@pytest.mark.parametrize("event", [ToolStarted("r1c0", name="look"), ToolEnded("r1c0", RESULT)], ids=name_of)
def test_every_tool_event_carries_its_call_id(event: AnyEvent) -> None:
    assert event_json(event)["call_id"] == "r1c0"


def test_the_list_above_has_every_type_once() -> None:
    known: set[Any] = set(get_args(AnyEvent))
    assert {type(e) for e in EVENTS} == known
    assert len({e.type for e in EVENTS}) == len(EVENTS)


def test_a_session_is_folded_from_every_type() -> None:
    assert set(FOLDS) == set(get_args(AnyEvent))


@pytest.mark.parametrize("event", EVENTS, ids=name_of)
def test_no_field_of_an_event_can_be_set(event: AnyEvent) -> None:
    with pytest.raises(AttributeError):
        event.session = "other"  # pyright: ignore[reportAttributeAccessIssue]


def test_an_event_whose_body_was_replaced_keeps_the_fact_and_loses_the_body() -> None:
    ended = without_body(ToolEnded("r1c0", Result("r1c0", "a long story"), pending=True))
    assert isinstance(ended, ToolEnded)
    assert (ended.call_id, ended.dropped, ended.pending) == ("r1c0", True, True)
    assert b"a long story" not in encode(ended)
    assert b"hello" not in encode(without_body(TurnStarted(1, user("hello"))))
    assert b"hello" not in encode(without_body(Responded(1, Message("assistant", (Text("hello"),)))))


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})
    assert digest([1, 2]) != digest([2, 1])


# --- messages ---------------------------------------------------------------------------


def test_a_message_reads_as_text_calls_and_results() -> None:
    assert ASSISTANT.text == "I will look"
    assert [(c.id, c.name) for c in ASSISTANT.calls] == [("r1c0", "look"), ("r1c1", "look")]
    assert Message("tool", (RESULT,)).results == (RESULT,)
    assert TOLD.text == "hellobe brief"


@pytest.mark.parametrize(
    "value",
    [user("x"), RESULT, Call("i", "n", {}), Response("t"), Reply("t"), Request("a", "turn", "", [user("x")])],
    ids=lambda v: type(v).__name__,
)
def test_values_are_frozen_and_replaced(value: Any) -> None:
    field = str(msgspec.structs.fields(value)[0].name)
    with pytest.raises(AttributeError):
        setattr(value, field, "x")
    changed = value.replace(**{field: getattr(value, field)})
    assert changed == value
    assert changed is not value


async def test_the_providers_own_order_of_parts_is_kept_in_the_history() -> None:
    asked = Asked()
    layout = (Thinking("a", {"signature": "x"}), Text("one"), Call("c", "look", {}), Text("two"))
    first = Response("onetwo", (Call("c", "look", {}),), layout=layout)
    agent = Agent("a", model=Script(asked.then(lambda r: first if len(asked) == 1 else "ok")))

    await turn(agent)

    kept = asked.requests[1].messages[1].parts
    assert [type(p) for p in kept] == [Thinking, Text, Call, Text]
    assert kept[0] == layout[0]


# --- settling ---------------------------------------------------------------------------


def calling(*ids: str) -> Message:
    return Message("assistant", tuple(Call(i, "look", {}) for i in ids))


def results(*ids: str) -> Message:
    return Message("tool", tuple(Result(i, f"of {i}") for i in ids))


VALID = [user("go"), calling("a", "b"), results("a", "b"), user("more"), calling("c"), results("c")]


def test_settling_leaves_a_valid_conversation_as_it_is() -> None:
    assert close_dangling_calls(VALID) == VALID


def test_a_call_without_a_result_gets_a_cancelled_one_that_says_why() -> None:
    settled = close_dangling_calls([user("go"), calling("a"), user("and?")])
    assert settled[2] == Message("tool", (cancelled("a"),))
    assert settled[2].results[0].is_error
    assert "cancelled" in settled[2].results[0].text
    check(settled)


def test_a_result_without_its_call_is_left_out() -> None:
    assert close_dangling_calls([user("go"), results("a"), user("more")]) == [user("go"), user("more")]


def test_an_empty_message_is_left_out() -> None:
    assert close_dangling_calls([user("go"), Message("assistant", ())]) == [user("go")]


def test_settling_answers_open_calls_at_the_end() -> None:
    check(close_dangling_calls([user("go"), calling("a", "b")]))


def test_settling_twice_changes_nothing_more() -> None:
    once = close_dangling_calls([user("go"), calling("a", "b"), user("x"), results("a")])
    assert close_dangling_calls(once) == once


def test_what_an_agent_was_declared_with_can_be_read_from_it() -> None:
    def look(path: str) -> str:
        """Look at it."""
        return path

    policy = {"max_bubble_hops": 2}
    agent = Agent("a", tools=[look], can_query_caller=False, callback_policy=policy)

    assert [one.name for one in agent.tools] == ["look"]
    assert (agent.can_query_caller, agent.can_use_host_interaction) == (False, True)
    assert agent.callback_policy.max_bubble_hops == 2
