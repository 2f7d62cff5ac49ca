"""Names and forms that the MCP client and the MCP server share."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upcall.mcp_wire.forms import BadForm, answer_schema, with_defaults
from upcall.mcp_wire.names import LONGEST, clean, server_prefix, tool_name

SERVERS = st.text(min_size=1, max_size=60)
TOOLS = st.text(max_size=150)


@given(SERVERS, TOOLS)
def test_every_name_fits_every_provider(server: str, tool: str) -> None:
    made = tool_name(server, tool)

    assert 0 < len(made) <= LONGEST
    assert re.fullmatch(r"[a-zA-Z0-9_-]+", made)
    assert "__" in made


@given(st.tuples(SERVERS, TOOLS), st.tuples(SERVERS, TOOLS))
def test_tools_of_different_names_never_get_the_same(one: tuple[str, str], other: tuple[str, str]) -> None:
    if one != other:
        assert tool_name(*one) != tool_name(*other)


def test_close_names_stay_apart_and_plain_names_stay_as_they_are() -> None:
    assert tool_name("shop", "buy") == "shop__buy"
    pairs = [("a", "b__c"), ("a__b", "c"), ("a_", "b"), ("a", "_b"), ("a.b", "c"), ("a_b", "c"), ("A B", "c")]
    assert len({tool_name(*pair) for pair in pairs}) == len(pairs)
    assert tool_name("shop", "buy", {"shop__buy"}) != "shop__buy"
    assert not server_prefix("a__").endswith("_")


def test_a_text_loses_what_nobody_sees() -> None:
    assert clean("a\u200bb\x1b[2J\U000e0041\u202ec\n\td", 100) == "ab[2Jc\n\td"
    assert len(clean("x" * 1000, 100)) == 100


FORM = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "title": "T", "format": "email", "maxLength": 50},
        "many": {"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}]}, "maxItems": 1},
        "one": {"type": "string", "enum": ["x", "y"], "enumNames": ["X", "Y"], "default": "y"},
        "flag": {"type": "boolean", "default": False},
    },
    "required": ["text", "missing"],
}


def test_a_form_becomes_the_schema_of_its_answers() -> None:
    schema = answer_schema(FORM)

    assert schema["required"] == ["text"]
    assert schema["properties"]["one"]["oneOf"] == [{"const": "x", "title": "X"}, {"const": "y", "title": "Y"}]
    assert schema["properties"]["many"]["items"] == {"oneOf": [{"const": "a", "title": "A"}]}
    assert with_defaults(schema, {"text": "a@b.c"}) == {"text": "a@b.c", "one": "y", "flag": False}


@pytest.mark.parametrize(
    "form",
    [None, [], {"type": "array"}, {"properties": {"x": {"type": "object"}}}, {"properties": {"x": 3}},
     {"properties": {str(n): {"type": "string"} for n in range(101)}},
     {"properties": {"x": {"type": "string", "enum": [str(n) for n in range(501)]}}}],
)  # fmt: skip
def test_a_form_that_is_not_flat_or_too_large_is_refused(form: Any) -> None:
    with pytest.raises(BadForm):
        answer_schema(form)
