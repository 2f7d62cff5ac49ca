"""Questions as forms: every schema has one, and what is typed into it is checked against the real schema."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quick import examples
from upcall.callbacks import Approve, Callback, Decline, Reject
from upcall.hosts.mcp.forms import ANSWER, Reply, answer_of, schema_of
from upcall.hosts.mcp.question_text import question_text
from upcall.observe.form import InvalidInput, check
from upcall.observe.hidden_question import hide_secrets
from upcall.observe.redact import Redactor

REDACTOR = Redactor()
APPROVAL = Callback(
    "q1", "s", "clerk", "", "approval", tool="pay", args={"amount": 3}, patterns={"small": "amount < 10"}
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
SIMPLE = st.one_of(
    st.just({"type": "string"}),
    st.just({"type": "integer", "minimum": 0}),
    st.just({"type": "number"}),
    st.just({"type": "boolean"}),
    st.lists(st.text(min_size=1), min_size=1, max_size=4, unique=True).map(lambda some: {"enum": some}),
    st.just({"type": "array", "items": {"type": "integer"}}),
    st.just({"type": "object", "properties": {"id": {"type": "integer"}}}),
    st.just({"anyOf": [{"type": "string"}, {"type": "null"}]}),
    st.just({}),
)
SCHEMAS = SIMPLE | st.dictionaries(st.text(min_size=1, max_size=5), SIMPLE, min_size=1, max_size=4).map(
    lambda some: {"type": "object", "properties": some, "required": list(some)[:1]}
)
ALLOWED = {
    "string": {"enum", "oneOf", "enumNames", "minLength", "maxLength", "format"},
    "integer": {"minimum", "maximum"},
    "number": {"minimum", "maximum"},
    "boolean": set[str](),
    "array": {"items"},
}


def question(**fields: Any) -> Callback:
    return Callback("q1", "s", "clerk", "Which one?", "user_input", **fields)


def accepted(callback: Callback, **content: Any) -> Any:
    return answer_of(callback, Reply("accept", content), REDACTOR)


@given(SCHEMAS)
@settings(max_examples=examples(100))
def test_every_schema_becomes_a_flat_form_of_simple_fields(schema: dict[str, Any]) -> None:
    made = schema_of(question(schema=schema), REDACTOR)
    assert made["type"] == "object"
    assert set(made.get("required", ())) <= set(made["properties"])
    for one in made["properties"].values():
        assert set(one) - {"type", "title", "description", "default"} <= ALLOWED[one["type"]]


@pytest.mark.slow
@given(SCHEMAS, st.dictionaries(st.text(max_size=5), VALUES, max_size=4), VALUES)
@settings(max_examples=examples(200))
def test_whatever_a_client_sends_is_a_valid_answer_or_is_refused_with_a_reason(
    schema: dict[str, Any], content: dict[str, Any], value: Any
) -> None:
    names = list(schema.get("properties", ())) or [ANSWER]
    try:
        answer = answer_of(question(schema=schema), Reply("accept", {**content, names[0]: value}), REDACTOR)
    except InvalidInput:
        return
    check(answer, schema)


@given(
    st.dictionaries(st.sampled_from(["decision", "arguments", "reason", "answer", "approve"]), VALUES, max_size=4)
)
@settings(max_examples=examples(200))
def test_no_form_approves_a_call_without_the_word_for_it(content: dict[str, Any]) -> None:
    try:
        answer = answer_of(APPROVAL, Reply("accept", content), REDACTOR)
    except InvalidInput:
        return
    assert isinstance(answer, Reject) or content["decision"] in ("approve", "approve for this session")


@pytest.mark.parametrize(
    "said", ["yes", "Yes", "ok", "true", True, 1, "APPROVE", " approve", "", None, ["approve"]]
)
def test_a_bare_yes_is_not_an_approval(said: Any) -> None:
    with pytest.raises(InvalidInput, match="choose 'approve' or 'reject'"):
        accepted(APPROVAL, decision=said)


def test_a_call_is_approved_once_for_the_session_by_a_pattern_or_with_other_arguments() -> None:
    assert accepted(APPROVAL, decision="approve") == Approve()
    assert accepted(APPROVAL, decision="approve for this session") == Approve(for_session=True)
    assert accepted(APPROVAL, decision="approve by pattern: small") == Approve(pattern="small")
    assert accepted(APPROVAL, decision="approve", arguments='{"amount": 2}') == Approve({"amount": 2})
    assert accepted(APPROVAL, decision="approve", arguments='{"amount": 3}') == Approve()
    assert accepted(APPROVAL, decision="reject", reason="no") == Reject("no")
    with pytest.raises(InvalidInput):
        accepted(APPROVAL, decision="approve by pattern: large")
    with pytest.raises(InvalidInput):
        accepted(APPROVAL, decision="approve by pattern: small", arguments='{"amount": 2}')
    with pytest.raises(InvalidInput, match="not valid JSON"):
        accepted(APPROVAL, decision="approve", arguments="amount = 2")


def test_a_declined_form_declines_or_rejects_and_a_closed_one_settles_nothing() -> None:
    assert isinstance(answer_of(question(), Reply("decline", {}), REDACTOR), Decline)
    assert isinstance(answer_of(APPROVAL, Reply("decline", {}), REDACTOR), Reject)
    assert answer_of(question(), Reply("cancel", {"answer": "x"}), REDACTOR) is None
    assert answer_of(APPROVAL, Reply("cancel", {"decision": "approve"}), REDACTOR) is None


def test_a_choice_with_a_secret_or_an_invisible_character_is_numbered_and_its_real_value_is_the_answer() -> None:
    callback = question(choices=("keep", "password=hunter2hunter2", "keep\u200b"))
    shown: list[str] = schema_of(callback, REDACTOR)["properties"][ANSWER]["enum"]
    assert "hunter2" not in "".join(shown)
    assert len(set(shown)) == 3
    assert [accepted(callback, answer=one) for one in shown] == list(callback.choices)
    with pytest.raises(InvalidInput):
        accepted(callback, answer="keep")


def test_an_approval_shows_every_argument_and_every_character_of_it() -> None:
    args = {"path": "a\u202eb", "text": "x" * 5000, "nested": {"list": [1, {"deep": "value"}]}, "empty": ""}
    shown = question_text(hide_secrets(APPROVAL.replace(args=args), REDACTOR))
    assert "clerk wants to run pay:" in shown
    assert "a\\u202eb" in shown
    assert "x" * 5000 in shown
    assert '{"list":[1,{"deep":"value"}]}' in shown
    assert 'empty = ""' in shown


def test_a_question_shows_its_route_its_context_and_what_was_wrong_with_the_last_answer() -> None:
    callback = question(
        context={"task": "sort mail"}, given={"room": "hall"}, reworded="Which of these?", problem="too short"
    )
    shown = question_text(hide_secrets(callback, REDACTOR))
    assert shown.startswith("Invalid answer:\n> too short\n")
    for part in ("reworded:\n> Which of these?\n", "asked as:\n> Which one?\n", "context:\n> room: hall\n"):
        assert part in shown
    assert shown.endswith("\ntask: sort mail")


def test_numbers_and_texts_become_what_the_schema_says() -> None:
    schema = {
        "type": "object",
        "properties": {"count": {"type": "integer"}, "share": {"type": "number"}, "note": {"type": "string"}},
        "required": ["count"],
    }
    assert accepted(question(schema=schema), count=3.0, share=2, note="") == {"count": 3, "share": 2}
    assert accepted(question(schema=schema), count="4") == {"count": 4}
    with pytest.raises(InvalidInput, match="count"):
        accepted(question(schema=schema), share=1)
    assert msgspec.json.encode(schema_of(question(schema={"type": "integer"}), REDACTOR)) == (
        b'{"type":"object","properties":{"answer":{"type":"integer"}},"required":["answer"]}'
    )


def test_labels_of_a_form_contain_nothing_invisible_and_no_secret() -> None:
    fields = {
        "a": {"type": "string", "title": "Na\u202eme", "description": "password=hunter2hunter2"},
        "b": {"type": "string", "enum": ["x", "x\u200b"]},
    }
    made = schema_of(question(schema={"type": "object", "properties": fields}), REDACTOR)["properties"]
    assert made["a"]["title"] == "Name"
    assert "hunter2" not in made["a"]["description"]
    assert [one["title"] for one in made["b"]["oneOf"]] == ["x", "x\\u200b"]
    assert accepted(question(schema={"type": "object", "properties": fields}), b="x\u200b") == {"b": "x\u200b"}
