"""JSON values that are small to make and large, deep or shared once they are worked on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from upcall.safety.bounds import DEPTH, PARTS

MB = 1_000_000


def nested(levels: int, inside: Any = None) -> Any:
    """A value so many lists deep."""
    value = inside
    for _ in range(levels):
        value = [value]
    return value


def nested_objects(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def doubled(times: int) -> Any:
    """A value of a few lists that are two to the power of `times` once they are written."""
    value: Any = "x"
    for _ in range(times):
        value = [value, value]
    return value


TOO_MUCH: dict[str, Callable[[], Any]] = {
    "960 lists inside each other": lambda: nested(960),
    "one list more than may be nested": lambda: nested(DEPTH),
    "one object more than may be nested": lambda: nested_objects(DEPTH),
    "100,000 lists inside each other": lambda: nested(100_000),
    "one text of a megabyte 400 times": lambda: ["x" * MB] * 400,
    "one list of 1,000 texts 4,000 times": lambda: [["x" * 100] * 1000] * 4000,
    "a list doubled 60 times": lambda: doubled(60),
    "a million empty texts": lambda: [""] * MB,
    "more values than may be": lambda: [0] * (PARTS + 1),
    "2,000 numbers of 1,900 digits": lambda: [10**1900] * 2000,
    "one text of 30 MB": lambda: "x" * (30 * MB),
    "one key of 30 MB": lambda: {"x" * (30 * MB): 1},
}
"""Each stands in an object under one key: one level more."""

ENOUGH: dict[str, Callable[[], Any]] = {
    "as many lists as may be nested": lambda: nested(DEPTH - 1),
    "as many objects as may be nested": lambda: nested_objects(DEPTH - 1),
    "nearly as many values as may be": lambda: [0] * (PARTS - 10),
    "48,000 objects, half of them empty": lambda: [{"a": dict[str, int]()}] * 24_000,
    "20 numbers of 1,900 digits": lambda: [10**1900] * 20,
    "a text of nearly a megabyte": lambda: "x" * 900_000,
}
