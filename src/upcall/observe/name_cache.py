"""Remember what is known about short names, and nothing about long ones, which would stay in memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Concatenate, ParamSpec

_NAMES, _LONGEST = 4096, 100
"""Names that are remembered, and the characters of the longest of them: at most 2 MB together."""

P = ParamSpec("P")


def cached_by_name(tells: Callable[Concatenate[str, P], bool]) -> Callable[Concatenate[str, P], bool]:
    """Return the function with its answers for short names cached. Models choose names of any length."""
    cached = lru_cache(_NAMES)(tells)

    @wraps(tells)
    def answer(name: str, *args: P.args, **options: P.kwargs) -> bool:
        return (cached if len(name) <= _LONGEST else tells)(name, *args, **options)

    return answer
