"""Every supported annotation: the schema it gives, what it takes, and what it refuses."""

from __future__ import annotations

import contextlib
import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastjsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.kinds import KINDS, Colour, Item, Level, Node, Options, Point
from tools.making import taking, validator
from upcall.errors import BadTool
from upcall.tools import BadArguments, tool

FITS = [(kind, value, wanted) for kind, k in KINDS.items() for value, wanted in k.fits]
WRONG = [(kind, value) for kind, k in KINDS.items() for value in k.wrong]


@pytest.mark.parametrize("kind", KINDS)
def test_an_annotation_gives_the_schema_that_describes_it(kind: str) -> None:
    assert taking(x=KINDS[kind].annotation).schema["properties"]["x"] == KINDS[kind].schema


@pytest.mark.parametrize("kind", KINDS)
def test_every_reference_in_a_schema_leads_to_a_definition(kind: str) -> None:
    schema = taking(x=KINDS[kind].annotation).schema
    text = msgspec.json.encode(schema).decode()
    refs = {part.split('"')[0] for part in text.split("#/$defs/")[1:]}
    assert refs <= schema.get("$defs", {}).keys()


@pytest.mark.parametrize(("kind", "value", "wanted"), FITS)
def test_json_that_fits_becomes_what_is_annotated(kind: str, value: Any, wanted: Any) -> None:
    made = taking(x=KINDS[kind].annotation)
    validator(made.schema)({"x": value})
    got = made.check({"x": value})["x"]
    assert got == wanted
    assert type(got) is type(wanted)


@pytest.mark.parametrize(("kind", "value"), WRONG)
def test_json_that_does_not_fit_is_refused_by_name(kind: str, value: Any) -> None:
    with pytest.raises(BadArguments) as caught:
        taking(x=KINDS[kind].annotation).check({"x": value})
    assert caught.value.problems[0].startswith("x")


def test_two_classes_of_one_name_have_two_definitions() -> None:
    def another() -> type:
        @dataclass
        class Node:
            other: str

        return Node

    made = taking(a=Node, b=another(), c=Node | Item | int)
    assert len(made.schema["$defs"]) == 3
    assert made.check({"b": {"other": "x"}, "a": {"value": 1}, "c": {"name": "n"}})["c"] == Item("n")


def test_a_field_that_a_nested_class_does_not_have_is_refused_with_the_closest_one() -> None:
    made = taking(x=dict[str, list[Node]])
    with pytest.raises(BadArguments, match="unknown field `childs`; did you mean 'children'"):
        made.check({"x": {"a": [{"value": 1, "children": [{"value": 1, "childs": []}]}]}})


def test_local_types_are_found_though_annotations_are_strings() -> None:
    @dataclass
    class Local:
        size: int

    @tool
    def measure(thing: Local) -> int:
        return thing.size

    assert measure.check({"thing": {"size": 3}})["thing"] == Local(3)


def test_a_local_class_that_names_another_is_refused_with_what_to_do() -> None:
    @dataclass
    class Inner:
        size: int

    @dataclass
    class Outer:
        inner: Inner

    with pytest.raises(
        BadTool, match="refers to 'Inner', which is not defined in that class's module; define both"
    ):
        taking(x=Outer)


# --- "tool schemas accept what the function accepts" --------------------------------------

LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    Colour: st.sampled_from(Colour),
    Level: st.sampled_from(Level),
    UUID: st.uuids(),
    dt.date: st.dates(),
    dt.datetime: st.datetimes(timezones=st.just(dt.UTC)),
    Decimal: st.decimals(allow_nan=False, allow_infinity=False, places=3),
    Path: st.text("ab/", min_size=1).map(Path),
    Node: st.builds(Node, st.integers(0, 9), st.lists(st.builds(Node, st.integers(0, 9)), max_size=2)),
    Point: st.builds(Point, st.integers(0, 9), st.integers(0, 9)),
    Options: st.fixed_dictionaries({"depth": st.integers(0, 9)}, optional={"note": st.text()}),
    Item: st.builds(Item, st.text(), st.integers(0, 9)),
}
HASHABLE = (str, int, bool, UUID, dt.date, Path)

Typed = tuple[Any, st.SearchStrategy[Any]]


def _wrap(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    def containers(typed: Typed) -> st.SearchStrategy[Typed]:
        kind, values = typed
        made: list[Typed] = [
            (list[kind], st.lists(values, max_size=3)),
            (tuple[kind, ...], st.lists(values, max_size=3).map(tuple)),
            (tuple[kind, int], st.tuples(values, st.integers(0, 9))),
            (dict[str, kind], st.dictionaries(st.text(), values, max_size=3)),
            (kind | None, st.none() | values),
        ]
        if kind in HASHABLE:
            made.append((frozenset[kind], st.frozensets(values, max_size=3)))
        return st.sampled_from(made)

    return inner.flatmap(containers)


TYPES: st.SearchStrategy[Typed] = st.recursive(st.sampled_from(list(LEAVES.items())), _wrap, max_leaves=4)
SIGNATURES = st.dictionaries(st.sampled_from(["path", "mode", "text", "n"]), TYPES, min_size=1, max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["value", "children", "depth", "name", "q"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def _as_json(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=str))


@pytest.mark.slow
@given(data=st.data(), signature=SIGNATURES)
def test_a_schema_and_the_check_accept_what_the_function_accepts(
    data: st.DataObject, signature: dict[str, Typed]
) -> None:
    made = taking(**{name: kind for name, (kind, _) in signature.items()})
    values = {name: data.draw(strategy) for name, (_, strategy) in signature.items()}
    args = {name: _as_json(value) for name, value in values.items()}
    validator(made.schema)(args)
    assert made.check(args) == values


@given(typed=TYPES, value=JSON)
def test_what_a_schema_refuses_the_check_refuses_too(typed: Typed, value: Any) -> None:
    made = taking(x=typed[0])
    try:
        made.check({"x": value})
    except BadArguments:
        return
    if "decimal" in str(made.schema) or "uniqueItems" in str(made.schema):
        return  # a Decimal takes numbers too, and a set forgives what comes twice
    validator(made.schema)({"x": value})


@pytest.mark.slow
@given(value=JSON)
def test_a_check_never_fails_in_another_way_than_by_bad_arguments(value: Any) -> None:
    for kind in KINDS.values():
        made = taking(x=kind.annotation)
        with contextlib.suppress(BadArguments):
            made.check({"x": value})


def test_the_schema_of_a_tool_closes_its_arguments() -> None:
    made = taking(x=int)
    with pytest.raises(fastjsonschema.JsonSchemaException):
        validator(made.schema)({"x": 1, "y": 2})
