"""Names of fields, headers and options, which models choose, do not stay in memory."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from upcall.observe.redact import Redactor

LONG = 500_000
SHAPES: dict[str, Callable[[str], Any]] = {
    "a field": lambda name: {name: 1},
    "a named value": lambda name: {"name": name, "value": "x"},
    "a pair of a list": lambda name: [[name, "x"], ["b", "y"]],
    "an option": lambda name: ["curl", f"--{name}", "x"],
    "a header": lambda name: ["curl", "-H", f"{name}: x", name, "x"],
    "a text": lambda name: f"{name}=x {name}: y --{name} z https://a.example/?{name}=x",
    "a schema": lambda name: {"properties": {name: {"default": "x"}}},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_no_long_name_is_kept_once_its_value_was_shown(shape: str) -> None:
    redactor, letter = Redactor(names=["own"]), "abcdefgh"[[*SHAPES].index(shape)]  # no name is known already
    redactor.show(SHAPES[shape]("warm"))
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(20):
            redactor.show(SHAPES[shape](f"{letter}{number}" + "k" * LONG))
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert kept < LONG


@pytest.mark.parametrize("length", [4, 99, 101, 900])
def test_a_name_of_any_length_tells_a_secret(length: int) -> None:
    name = "x" * length + "_token"

    for _ in range(2):
        assert "hunter2" not in str(Redactor().show({name: "hunter2"}))
        assert "hunter2" in str(Redactor().show({name.replace("token", "colour"): "hunter2"}))
