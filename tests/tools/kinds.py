"""Every kind of annotation a tool may have: JSON that fits it, what that becomes, and JSON that does not."""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional, Required, TypedDict, Union
from uuid import UUID

import msgspec
import pydantic


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Odd(enum.Enum):
    """msgspec refuses enums of several types."""

    NUMBER = 1
    WORD = "one"


@dataclass
class Node:
    value: int
    children: list[Node] = field(default_factory=list["Node"])


@dataclass
class Circle:
    radius: float = 1.0


@dataclass
class Square:
    side: float
    name: str = ""


class Options(TypedDict, total=False):
    depth: Required[int]
    note: str


class Point(NamedTuple):
    x: int
    y: int = 0


class Item(msgspec.Struct, frozen=True):
    name: str
    size: Annotated[int, msgspec.Meta(ge=0)] = 0


class Person(pydantic.BaseModel):
    name: str
    born: dt.date | None = None
    friends: list[Person] = []


class Pet(pydantic.BaseModel):
    name: str
    tame: bool = True


UserId = NewType("UserId", int)


class Kind(NamedTuple):
    """An annotation, its JSON schema, pairs of JSON and Python values, and JSON that must be refused."""

    annotation: Any
    schema: dict[str, Any]
    fits: list[tuple[Any, Any]]
    wrong: list[Any]


def same(*values: Any) -> list[tuple[Any, Any]]:
    return [(value, value) for value in values]


NUMBER, TEXT, NULL = {"type": "integer"}, {"type": "string"}, {"type": "null"}
REAL = {"type": "number"}
WHEN = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
ID = UUID("12345678123456781234567812345678")
NODE = {"$ref": "#/$defs/Node"}

KINDS: dict[str, Kind] = {
    "str": Kind(str, TEXT, same("", "a", "\0é"), [1, True, None, ["a"]]),
    "int": Kind(int, NUMBER, same(0, -3, 2**70), ["1", 1.5, True, None]),
    "float": Kind(float, REAL, [(1.5, 1.5), (2, 2.0)], ["1.5", True, None]),
    "bool": Kind(bool, {"type": "boolean"}, same(True, False), ["true", 1, 0, None]),
    "none": Kind(None, NULL, same(None), [0, "", "null"]),
    "any": Kind(Any, {}, same(None, 1, {"a": [1]}), []),
    "object": Kind(object, {}, same(None, 1, {"a": [1]}), []),
    "literal": Kind(Literal["a", "b"], {"enum": ["a", "b"]}, same("a", "b"), ["c", 1, None]),
    "enum": Kind(Colour, {"$ref": "#/$defs/Colour"}, [("red", Colour.RED)], ["RED", 1, None]),
    "int enum": Kind(Level, {"$ref": "#/$defs/Level"}, [(2, Level.HIGH)], [3, "2", None]),
    "mixed enum": Kind(
        Odd, {"title": "Odd", "enum": [1, "one"]}, [(1, Odd.NUMBER), ("one", Odd.WORD)], ["1", True, 2]
    ),
    "union": Kind(int | str, {"anyOf": [NUMBER, TEXT]}, same(1, "a"), [1.5, None, True]),
    "optional": Kind(Optional[str], {"anyOf": [TEXT, NULL]}, same("a", None), [1]),  # noqa: UP045
    "old union": Kind(
        Union[int, list[int]],  # noqa: UP007
        {"anyOf": [NUMBER, {"type": "array", "items": NUMBER}]},
        same(1, [1]),
        ["a", ["a"]],
    ),
    "list": Kind(list[int], {"type": "array", "items": NUMBER}, same([], [1, 2]), [1, ["a"], {"a": 1}]),
    "bare list": Kind(list, {"type": "array"}, same([], [1, "a"]), [1, {}]),
    "sequence": Kind(Sequence[str], {"type": "array", "items": TEXT}, same(["a"]), ["a", [1]]),
    "set": Kind(
        set[str], {"type": "array", "items": TEXT, "uniqueItems": True}, [(["a", "b"], {"a", "b"})], [[1], "a"]
    ),
    "frozenset": Kind(
        frozenset[int], {"type": "array", "items": NUMBER, "uniqueItems": True}, [([1], frozenset({1}))], [["a"]]
    ),
    "long tuple": Kind(tuple[int, ...], {"type": "array", "items": NUMBER}, [([1, 2], (1, 2))], [["a"], 1]),
    "tuple": Kind(
        tuple[int, str],
        {"type": "array", "minItems": 2, "maxItems": 2, "prefixItems": [NUMBER, TEXT], "items": False},
        [([1, "a"], (1, "a"))],
        [[1], [1, "a", 2], ["a", 1]],
    ),
    "dict": Kind(
        dict[str, int], {"type": "object", "additionalProperties": NUMBER}, same({}, {"a": 1}), [[], {"a": "b"}]
    ),
    "bare dict": Kind(dict, {"type": "object"}, same({}, {"a": "b"}), [[], 1]),
    "dict by number": Kind(
        dict[int, str], {"type": "object", "additionalProperties": TEXT}, [({"1": "a"}, {1: "a"})], [{"a": "a"}]
    ),
    "mapping": Kind(Mapping[str, Any], {"type": "object"}, same({"a": None}), [[], "a"]),
    "dataclass": Kind(
        Node,
        NODE,
        [({"value": 1}, Node(1)), ({"value": 1, "children": [{"value": 2}]}, Node(1, [Node(2)]))],
        [{}, {"value": "1"}, {"value": 1, "children": [{}]}, {"value": 1, "child": []}, [1]],
    ),
    "typed dict": Kind(
        Options, {"$ref": "#/$defs/Options"}, same({"depth": 1}, {"depth": 1, "note": "a"}), [{}, {"depth": "1"}]
    ),
    "named tuple": Kind(
        Point, {"$ref": "#/$defs/Point"}, [([1, 2], Point(1, 2)), ([1], Point(1))], [[], ["a"], [1, 2, 3]]
    ),
    "struct": Kind(
        Item, {"$ref": "#/$defs/Item"}, [({"name": "a"}, Item("a"))], [{}, {"name": "a", "size": -1}, {"nam": "a"}]
    ),
    "datetime": Kind(
        dt.datetime, {**TEXT, "format": "date-time"}, [("2026-01-02T03:04:05Z", WHEN)], ["yesterday", 1]
    ),
    "date": Kind(dt.date, {**TEXT, "format": "date"}, [("2026-01-02", dt.date(2026, 1, 2))], ["2026", 1]),
    "time": Kind(dt.time, {**TEXT, "format": "time"}, [("03:04:05Z", dt.time(3, 4, 5, tzinfo=dt.UTC))], ["now", 1]),
    "uuid": Kind(UUID, {**TEXT, "format": "uuid"}, [(str(ID), ID)], ["x", 1]),
    "decimal": Kind(Decimal, {**TEXT, "format": "decimal"}, [("1.50", Decimal("1.50"))], ["x", None]),
    "path": Kind(Path, {**TEXT, "format": "path"}, [("a/b", Path("a/b"))], [1, None]),
    "pure path": Kind(PurePosixPath, {**TEXT, "format": "path"}, [("a", PurePosixPath("a"))], [1]),
    "bytes": Kind(bytes, {**TEXT, "contentEncoding": "base64"}, [("YQ==", b"a")], ["?", 1]),
    "new type": Kind(UserId, NUMBER, same(7), ["7"]),
    "described": Kind(Annotated[int, "how many"], {**NUMBER, "description": "how many"}, same(3), ["3"]),
    "bounded": Kind(
        Annotated[int, msgspec.Meta(ge=1, le=9)], {**NUMBER, "minimum": 1, "maximum": 9}, same(1, 9), [0, 10, "1"]
    ),
    "described inside": Kind(
        list[Annotated[str, "a word"]],
        {"type": "array", "items": {**TEXT, "description": "a word"}},
        same(["a"]),
        [[1]],
    ),
    "union of classes": Kind(
        Circle | Square,
        {"anyOf": [{"$ref": "#/$defs/Circle"}, {"$ref": "#/$defs/Square"}]},
        [({}, Circle()), ({"radius": 2.0}, Circle(2.0)), ({"side": 2}, Square(2.0))],
        [{"side": "a"}, {"radius": 1, "side": 1}, 1],
    ),
    "list of a union of classes": Kind(
        list[Circle | Square | None],
        {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/Circle"}, {"$ref": "#/$defs/Square"}, NULL]}},
        [([{"side": 2}, None, {"radius": 1}], [Square(2.0), None, Circle(1.0)])],
        [[1], {}],
    ),
    "path or number": Kind(
        Path | int, {"anyOf": [{**TEXT, "format": "path"}, NUMBER]}, [("a", Path("a")), (1, 1)], [None, 1.5]
    ),
    "pydantic": Kind(
        Pet,
        {
            "title": "Pet",
            "type": "object",
            "properties": {
                "name": {**TEXT, "title": "Name"},
                "tame": {"type": "boolean", "default": True, "title": "Tame"},
            },
            "required": ["name"],
        },
        [({"name": "a", "tame": False}, Pet(name="a", tame=False))],
        [{}, {"name": 1}, {"name": "a", "tame": "true"}, 1],
    ),
    "recursive pydantic": Kind(
        list[Person],
        {"type": "array", "items": {"$ref": "#/$defs/Person.Person"}},
        [
            (
                [{"name": "a", "born": "2000-01-02", "friends": [{"name": "b"}]}],
                [Person(name="a", born=dt.date(2000, 1, 2), friends=[Person(name="b")])],
            )
        ],
        [[{}], [{"name": "a", "friends": [{}]}]],
    ),
    "pydantic's field": Kind(
        Annotated[int, pydantic.Field(ge=1, description="at least one")],
        {**NUMBER, "minimum": 1, "description": "at least one"},
        same(1, 5),
        [0, "1"],
    ),
}
