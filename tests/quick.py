"""What `make check` takes of a test with many cases: a telling few. `make test` takes them all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import settings


def slow_but(quick: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """The parameters of a test, with a slow mark on all but the quick ones."""
    values, left = list(values), list(quick)
    params = [value if value in left else pytest.param(value, marks=pytest.mark.slow) for value in values]
    unknown = [value for value in left if value not in values]
    if unknown:
        raise ValueError(f"not among the parameters: {unknown}")
    return params


def slow_after(count: int, values: Sequence[Any]) -> list[Any]:
    """The parameters of a test, with a slow mark on all but so many at the beginning."""
    groups: list[tuple[Any, ...]] = [one if isinstance(one, tuple) else (one,) for one in values]
    return [*values[:count], *(pytest.param(*group, marks=pytest.mark.slow) for group in groups[count:])]


def examples(number: int) -> int:
    """The number of examples of a law that needs more or fewer than most; the profile's in `make check`."""
    quick = settings.get_current_profile_name() == "quick"
    return min(number, settings.get_profile("quick").max_examples) if quick else number
