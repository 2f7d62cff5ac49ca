"""What models, tools and users wrote can't steer a terminal."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upcall.hosts.terminal.markdown_text import stable_length
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


@given(st.lists(st.sampled_from(["word", "\n", "\n\n", "```", "~~~~", "- item\n", "    ", "`"])))
def test_what_is_settled_never_ends_inside_a_fence_and_never_shrinks(parts: list[str]) -> None:
    text, before = "", 0
    for part in parts:
        text += part
        end = stable_length(text)
        assert before <= end <= len(text)
        before = end


def test_a_blank_line_inside_a_code_fence_settles_nothing() -> None:
    text = "One.\n\n```python\nx = 1\n\ny = 2\n"
    assert text[: stable_length(text)] == "One.\n\n"
    assert stable_length(text + "```\n\n") == len(text + "```\n\n")
