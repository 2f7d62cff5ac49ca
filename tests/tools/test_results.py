"""What a tool's return value becomes."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.kinds import Colour, Item, Node, Pet
from upcall.messages import Image, Result, Text
from upcall.tools import to_result

PICTURE = Image(data="aGk=")

VALUES: list[tuple[Any, Result]] = [
    ("hello\0", Result("c1", "hello\0")),
    ("", Result("c1", "")),
    (None, Result("c1", "done")),
    (Text("part"), Result("c1", "part")),
    (3, Result("c1", "3", json=3)),
    (True, Result("c1", "true", json=True)),
    ({"a": [1, None]}, Result("c1", '{"a":[1,null]}', json={"a": [1, None]})),
    ({1: {2}}, Result("c1", '{"1":[2]}', json={"1": [2]})),
    ([], Result("c1", "[]", json=[])),
    (Node(1), Result("c1", '{"value":1,"children":[]}', json={"value": 1, "children": []})),
    (Item("a"), Result("c1", '{"name":"a","size":0}', json={"name": "a", "size": 0})),
    (Pet(name="a"), Result("c1", '{"name":"a","tame":true}', json={"name": "a", "tame": True})),
    ([Path("a/b"), Colour.RED], Result("c1", '["a/b","red"]', json=["a/b", "red"])),
    (dt.date(2026, 1, 2), Result("c1", '"2026-01-02"', json="2026-01-02")),
    (b"text", Result("c1", "text")),
    (b"\xff\x00", Result("c1", '{"base64":"/wA="}', json={"base64": "/wA="})),
    (PICTURE, Result("c1", "(1 image)", images=(PICTURE,))),
    (["see", PICTURE, {"n": 1}], Result("c1", 'see\n{"n":1}', images=(PICTURE,))),
    (Result("other", "t", is_error=True, json=1), Result("c1", "t", is_error=True, json=1)),
]


@pytest.mark.parametrize(("value", "wanted"), VALUES)
def test_a_value_becomes_a_result_that_keeps_its_structure(value: Any, wanted: Result) -> None:
    assert to_result("c1", value) == wanted


def test_lone_surrogates_are_replaced_and_pairs_become_their_character() -> None:
    assert to_result("c", "a\ud800b").text == "a\ufffdb"
    assert to_result("c", "\ud83d\ude00").text == "\U0001f600"
    nested = to_result("c", {"k\udfff": ["\ud800"]})
    assert nested.json == {"k\ufffd": ["\ufffd"]}
    assert to_result("c", Result("", "\ud800", json="\ud800")).json == "\ufffd"


def test_what_is_nested_too_deeply_is_text_alone_or_an_error_that_says_so() -> None:
    deep: list[Any] = []
    for _ in range(800):
        deep = [deep]

    told = to_result("c", deep)

    assert not told.is_error
    assert told.json is None
    for _ in range(2000):
        deep = [deep]
    told = to_result("c", deep)
    assert told.is_error
    assert "the tool ran, but what it returned (list) can't be shown as JSON" in told.text
    assert to_result("c", [[1]] * 800).json == [[1]] * 800


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.integers() | st.text(st.characters()),
        lambda s: st.lists(s) | st.dictionaries(st.text(st.characters(codec=None)), s),
    )
)
def test_every_json_value_gives_a_result_that_can_be_stored(value: Any) -> None:
    result = to_result("c", value)
    assert msgspec.json.decode(msgspec.json.encode(result), type=Result) == result
    assert not result.is_error


async def _late() -> str:
    return "late"


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize("value", [3 + 2j, object(), [object()], (n for n in "ab"), CYCLE])
def test_a_value_that_is_no_json_is_an_error_that_says_the_tool_ran(value: Any) -> None:
    result = to_result("c", value)
    assert result.is_error
    assert result.text.startswith("the tool ran, but what it returned")


def test_a_forgotten_await_is_an_error_result_and_no_warning() -> None:
    assert "coroutine" in to_result("c", _late()).text


def test_a_result_with_a_payload_that_is_no_json_is_an_error_too() -> None:
    assert to_result("c", Result("", "text", json=object())).is_error
