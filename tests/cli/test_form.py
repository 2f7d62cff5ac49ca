"""Typed answers and the dialogue with a person, without a terminal."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from upcall.callbacks import Approve, Callback, Decline, Reject, Step
from upcall.hosts.terminal.dialogue import Ambiguous, Later, ask_person, match_choice
from upcall.hosts.terminal.layout import Piece
from upcall.hosts.terminal.question import answer_command, json_rows, question_rows, route_steps, wrap
from upcall.observe import form
from upcall.observe.phrases import args_line
from upcall.observe.plain import visible

INTEGER = {"type": "integer"}
REFERRING = {
    "type": "object",
    "properties": {"size": {"$ref": "#/$defs/Size"}, "lid": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}},
    "required": ["size"],
    "$defs": {"Size": {"enum": ["small", "large"]}},
}


class Desk:
    """A person who has made up their mind, and what they were shown."""

    def __init__(self, *typed: str, edited: str | None = None) -> None:
        self.typed, self.edited = list(typed), edited
        self.shown: list[str] = []

    async def read_line(self, prompt: str, default: str = "") -> str:
        self.shown.append(prompt)
        if not self.typed:
            raise Later
        return self.typed.pop(0)

    def show_row(self, row: Sequence[Piece]) -> None:
        self.shown.append("".join(piece.text for piece in row))

    async def open_editor(self, text: str) -> str | None:
        return self.edited


def question(**fields: Any) -> Callback:
    return Callback("q1", "s1~r1c0", "developer", "Well?", **fields)


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("5", INTEGER, 5),
        ("5", {"type": "string"}, "5"),
        ("2.5", {"type": "number"}, 2.5),
        ("yes", {"type": "boolean"}, True),
        ("false", {"type": "boolean"}, False),
        ("two words", {"type": ["string", "integer"]}, "two words"),
        ("7", {"type": ["string", "integer"]}, 7),
        ("[1, 2]", {"type": "array", "items": INTEGER}, [1, 2]),
        ("large", {"enum": ["small", "large"]}, "large"),
        ("1", {"enum": ["small", "large"]}, "small"),
        ("3", {"enum": [3, 5]}, 3),
        ("null", {"anyOf": [INTEGER, {"type": "null"}]}, None),
        ("anything", {}, "anything"),
    ],
)
def test_a_text_is_read_as_the_schema_wants_it(text: str, schema: dict[str, Any], value: Any) -> None:
    assert form.parse(text, schema) == value


@pytest.mark.parametrize(
    ("text", "schema", "why"),
    [
        ("many", INTEGER, "it must be integer"),
        ("0", {"type": "integer", "minimum": 1}, "it must be bigger than or equal to 1"),
        ("{", {"type": "object"}, "not valid JSON; expected JSON object"),
        ('{"a": "x"}', {"type": "object", "properties": {"a": INTEGER}}, "a must be integer"),
        ("huge", {"enum": ["small", "large"]}, "it must be one of ['small', 'large']"),
    ],
)
def test_a_text_that_does_not_fit_is_told_why(text: str, schema: dict[str, Any], why: str) -> None:
    with pytest.raises(form.InvalidInput) as wrong:
        form.parse(text, schema)
    assert str(wrong.value) == why


@given(st.text())
def test_any_text_is_a_text_answer_or_is_refused_by_name(text: str) -> None:
    assert form.parse(text, {"type": "string"}) == text
    with contextlib.suppress(form.InvalidInput):
        assert isinstance(form.parse(text, INTEGER), int | float)


async def test_references_are_followed_and_what_may_be_nothing_is_left_out() -> None:
    desk = Desk("huge", "2", "")
    assert await ask_person(question(schema=REFERRING), desk) == {"size": "large"}
    assert desk.shown[0] == "size (one of small, large)"
    assert desk.shown[-1] == "lid (yes or no or nothing, or nothing)"


async def test_a_single_typed_value_is_asked_for_until_it_fits() -> None:
    desk = Desk("x", "", "5")
    assert await ask_person(question(schema=INTEGER), desk) == 5
    assert [row for row in desk.shown if row.startswith("  ")] == ["  it must be integer", "  a value is required"]


async def test_an_empty_answer_is_none_and_later_is_later() -> None:
    assert await ask_person(question(), Desk("", "  ", "so")) == "so"
    with pytest.raises(Later):
        await ask_person(question(), Desk(""))
    with pytest.raises(Later):
        await ask_person(question(tool="rm", args={}), Desk("l"))


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["a"], Approve()),
        (["?", "s"], Approve(for_session=True)),
        (["p", "1"], Approve(for_session=True, pattern="folder")),
        (["r", ""], Reject("")),
        (["r", " too big "], Reject("too big")),
        (["e", '{"path": "/tmp"}'], Approve({"path": "/tmp"})),
        (["e", "{", '{"path": "/tmp"}'], Approve({"path": "/tmp"})),
        (["e", '{"path": "/"}', "a"], Approve()),
    ],
)
async def test_an_approval_is_given_in_each_of_its_forms(typed: list[str], said: Any) -> None:
    call = question(tool="rm", args={"path": "/"}, schema={"type": "object", "properties": {"path": {}}})
    assert await ask_person(call.replace(patterns={"folder": "/"}), Desk(*typed)) == said


async def test_arguments_come_back_from_the_editor() -> None:
    call = question(tool="rm", args={"path": "/"})
    assert await ask_person(call, Desk("e", edited='{"path": "/tmp"}\n')) == Approve({"path": "/tmp"})


@pytest.mark.parametrize(("before", "after"), [(1, "true"), (0, "false"), (1, "1.0"), ([1], "[true]")])
async def test_an_edit_at_the_terminal_that_python_calls_equal_is_an_edit(before: Any, after: str) -> None:
    call = question(tool="pay", args={"amount": before})
    said = await ask_person(call, Desk("e", edited=f'{{"amount": {after}}}\n'))
    assert isinstance(said, Approve)
    assert msgspec.json.encode(said.args) == f'{{"amount":{after}}}'.encode()


def test_a_given_value_is_a_choice_by_its_text_or_its_number_and_never_one_of_two() -> None:
    assert match_choice("1", ["a", "b"]) == "a"
    assert match_choice("B ", ["a", "b"]) == "b"
    assert match_choice("3", ["a", "b"]) is None
    assert match_choice("9" * 5000, ["a", "b"]) is None
    assert match_choice("yes", ["Yes", "yes"]) == "yes"
    assert match_choice("1", ["1", "2"]) == "1"
    assert match_choice("20", ["10", "20"]) == "20"
    with pytest.raises(Ambiguous, match=r"'1' is both a choice and the number of the choice '2'") as refused:
        match_choice("1", ["2", "1"])
    assert """'"1"'""" in str(refused.value)
    assert match_choice('"1"', ["2", "1"]) == "1"


@pytest.mark.parametrize(
    ("choices", "typed", "taken"),
    [
        (("2", "1"), "1", "2"),
        (("10", "20"), "2", "20"),
        (("drop", "keep"), "Keep ", "keep"),
    ],
)
async def test_at_the_prompt_a_number_is_the_one_beside_a_choice(
    choices: tuple[str, ...], typed: str, taken: str
) -> None:
    assert await ask_person(question(choices=choices), Desk(typed)) == taken


async def test_a_number_that_stands_beside_no_choice_is_asked_again() -> None:
    desk = Desk("20", "2")
    assert await ask_person(question(choices=("10", "20")), desk) == "20"
    assert "'20' is not one of the choices" in "\n".join(desk.shown)


def test_a_number_is_no_place_in_a_list_of_numbers() -> None:
    with pytest.raises(form.InvalidInput):
        form.parse("2", {"enum": [3, 5]})


# --- how it looks -----------------------------------------------------------------------


def text_of(callback: Callback, **options: Any) -> str:
    lines = question_rows(callback, now=1000.0, **options)
    return "\n".join("".join(piece.text for piece in line) for line in lines)


def test_a_question_shows_its_age_deadline_way_and_why_an_answer_was_not_taken() -> None:
    path = (Step("lead", "skipped", "it passes all"), Step("boss", "asked"), Step("boss", "passed", "no idea"))
    path += (Step("user", "asked", "desk may ask a person"),)
    asked = question(created=940.0, expires=4600.0, path=path, priority="critical", problem="too short")
    shown = text_of(asked)
    assert shown.startswith("developer asks · query · critical · 1 min 0 s ago · expires in 1 h 0 min\n\n│ Well?\n")
    for part in (
        "route     lead was skipped: it passes all\nroute     boss passed it up: no idea\n",
        "why you   desk may ask a person\n",
        "invalid answer: too short",
    ):
        assert part in shown
    assert route_steps((Step("boss", "asked"),)) == ["boss is asked"]


def test_a_reworded_question_keeps_what_was_asked_first() -> None:
    shown = text_of(question(reworded="May I?"))
    assert "\n\n│ May I?\n" in shown
    assert "asked as  Well?" in shown


def test_an_argument_hides_nothing_from_who_approves_it() -> None:
    shown = text_of(question(tool="sh", args={"run": "echo \u202e\x1b[8mhidden\u200b\U000e0041 é"}))
    assert 'run = "echo \\u202e\\u001b[8mhidden\\u200b\\U000e0041 é"' in shown


BLANKS = (
    "\xa0\u034f\u115f\u1160\u1680\u17b4\u180b\u2003\u200b\u200d\u202f\u205f\u2066\u2800\u3000\u3164\ufe0f\uffa0"
    "\U000e0061\U000e0100"
)


@pytest.mark.parametrize("blank", BLANKS)
def test_no_argument_has_a_character_that_can_not_be_seen(blank: str) -> None:
    escape = f"\\u{ord(blank):04x}" if ord(blank) < 0x10000 else f"\\U{ord(blank):08x}"
    call = question(
        tool="sh",
        args={f"run{blank}": f"rm{blank}-rf", "more": {f"key{blank}": [f"value{blank}"]}},
        choices=(f"yes{blank}",),
    )
    shown = text_of(call.replace(patterns={f"name{blank}": f"git{blank}"}))
    assert blank not in shown
    for text in ("run", "rm", "key", "value", "yes", "name", "git"):
        assert f"{text}{escape}" in shown
    assert blank not in args_line({f"run{blank}": f"rm{blank}"})
    assert f"rm{escape}" in args_line({f"run{blank}": f"rm{blank}"})


@given(st.text(st.sampled_from('ab\\"\n\u200b\U000e0041\xa0')), st.integers(20, 40))
def test_no_row_of_an_argument_ends_inside_an_escape(text: str, width: int) -> None:
    shown = json_rows(text, width)
    assert "".join(shown) == visible(json.dumps(text, ensure_ascii=False))
    for row in shown:
        assert not re.search(r"\\(?:u[0-9a-f]{0,3}|U[0-9a-f]{0,7})?\Z", row.replace("\\\\", "  "))


def test_a_long_argument_is_whole_where_it_is_answered_and_cut_in_a_list() -> None:
    call = question(tool="write", args={"body": "x" * 5000})
    assert text_of(call).count("x") == 5000
    assert "more lines" in text_of(call, in_full=False)
    assert all(len(row) <= 80 for row in text_of(call, width=78).splitlines())


@given(st.text() | st.text("漢字a é\u0301", min_size=30), st.integers(20, 100))
def test_wrapped_and_exact_rows_fit_and_steer_nothing(text: str, width: int) -> None:
    for row in [*wrap(text, width), *json_rows(text, width)]:
        assert cell_len(row) <= width
        assert "\x1b" not in row
        assert "\n" not in row


@pytest.mark.parametrize(
    ("fields", "typed"),
    [
        ({}, "upcall answer q1 'YOUR ANSWER'"),
        ({"choices": ("dark blue", "red")}, "upcall answer q1 'dark blue'"),
        ({"tool": "rm", "args": {}}, "upcall answer q1 --approve"),
        ({"schema": INTEGER}, "upcall answer q1 NUMBER"),
        ({"schema": REFERRING}, """upcall answer q1 '{"size": …, "lid": …}'"""),
    ],
)
def test_the_command_to_answer_fits_the_question(fields: dict[str, Any], typed: str) -> None:
    assert answer_command(question(**fields)) == typed
    assert answer_command(question(**fields), "my log.db") == f"{typed} --store 'my log.db'"


@pytest.mark.parametrize(
    "fields", [{}, {"choices": ("red", "blue")}, {"schema": INTEGER}, {"schema": REFERRING}], ids=str
)
async def test_a_question_of_any_shape_is_declined_at_its_prompt(fields: dict[str, Any]) -> None:
    assert await ask_person(question(**fields), Desk("/decline ask legal")) == Decline("ask legal")
    assert await ask_person(question(**fields), Desk("/Decline", "ask legal")) == Decline("ask legal")
    with pytest.raises(Later):
        await ask_person(question(**fields), Desk("/decline"))


async def test_a_word_that_only_begins_like_the_command_is_an_answer() -> None:
    assert await ask_person(question(), Desk("/declined")) == "/declined"
    assert await ask_person(question(), Desk("I /decline")) == "I /decline"
