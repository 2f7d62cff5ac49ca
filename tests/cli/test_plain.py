"""What models, tools and users wrote can't steer a terminal."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upcall.hosts.terminal.text_steps import LONGEST_STEP, Step, TextSteps
from upcall.observe.plain import escaped, one_line, plain

FORBIDDEN = {"Cc", "Cs", "Zl", "Zp"}


@given(st.text())
def test_no_control_character_is_left_but_tabs_and_line_breaks(text: str) -> None:
    assert not [c for c in plain(text) if unicodedata.category(c) in FORBIDDEN and c not in "\n\t"]


@given(st.text(st.characters(exclude_categories=["C", "Zl", "Zp"])))
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert plain(text) == text


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]8;;http://evil\x07link\x1b]8;;\x07", "link"),
        ("\x1b]52;c;aGk=\x1b\\clip", "clip"),
        ("a\x9b2Jb", "ab"),
        ("over\rwritten", "overwritten"),
        ("line\r\nline", "line\nline"),
        ("\u202etxt.exe\u202c", "txt.exe"),
        ("unfinished \x1b[", "unfinished "),
        ("\x1b]0;a title without an end hides nothing", "0;a title without an end hides nothing"),
        ("half \ud800 pair", "half \ufffd pair"),
        ("back\x08space", "backspace"),
    ],
)
def test_sequences_that_steer_a_terminal_are_taken_out_whole(text: str, left: str) -> None:
    assert plain(text) == left


@given(st.text(), st.integers(1, 50))
def test_one_line_is_one_line_and_no_longer_than_allowed(text: str, most: int) -> None:
    short = one_line(text, most)
    assert len(short) <= most
    assert len(short.splitlines()) <= 1


@given(st.text())
def test_escaped_json_has_the_same_value(text: str) -> None:
    shown = escaped(json.dumps(text, ensure_ascii=False))
    assert json.loads(shown) == text
    assert "\x9b" not in shown
    assert "\u202e" not in shown


def steps_of(*parts: str) -> list[Step]:
    """The steps of a text that comes in these parts."""
    steps, taken = TextSteps(), list[Step]()
    for part in parts:
        steps.feed(part)
        while step := steps.take():
            taken.append(step)
    while step := steps.take(ended=True):
        taken.append(step)
    return taken


PIECES = ["word", "\n", "\n\n", "```", "~~~~", "- item\n", "    ", "`", "x" * 9_000, "- a\n" * 600]


@given(st.lists(st.sampled_from(PIECES)))
def test_steps_lose_nothing_of_a_text_and_are_short(parts: list[str]) -> None:
    for steps in (steps_of(*parts), steps_of("".join(parts))):
        assert "".join(step.given for step in steps) == "".join(parts)
        assert all(0 < len(step.given) <= LONGEST_STEP and step.given.count("\n") <= 500 for step in steps)


def test_a_blank_line_inside_a_code_fence_ends_no_step() -> None:
    code = "```python\nx = 1\n\ny = 2\n"
    assert [step.text for step in steps_of("One.\n\n", code, "```\n\n", "Two.")] == ["One.", f"{code}```", "Two."]


def test_a_short_text_that_is_complete_is_one_step() -> None:
    text = "One.\n\n- a\n\n- b\n\nTwo."
    assert steps_of(text)[-1].text == "Two."
    steps = TextSteps()
    steps.feed(text)
    assert steps.take(ended=True) == Step(text, is_markdown=True, ends=True)


def test_a_long_block_is_plain_and_what_follows_it_is_markdown_again() -> None:
    steps = steps_of("# One\n\n" + "- a\n" * 1_200 + "\n# Two\n")
    assert [(step.is_markdown, step.continues) for step in steps] == [
        (True, False),
        (False, False),
        (False, True),
        (False, True),
        (True, False),
    ]
    assert steps[-1].text == "# Two"


def test_the_rest_of_a_very_long_text_is_plain() -> None:
    steps = steps_of("Some words.\n\n" * 10_000)
    assert 50_000 < sum(len(step.given) for step in steps if step.is_markdown) < 70_000
    assert not steps[-1].is_markdown
