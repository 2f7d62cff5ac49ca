"""Tell large values from small ones, so that slow work on large ones can leave the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar, cast

import msgspec

_LARGE = 20_000
"""Characters of texts; each other value in it counts as a few."""
_OTHER = 10
P = ParamSpec("P")
T = TypeVar("T")


async def aside(work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Return what a function makes of a value, its first argument; it runs in a thread if the value is large."""
    return await asyncio.to_thread(work, *args, **options) if is_large(args[0]) else work(*args, **options)


def is_large(value: Any) -> bool:
    """Return whether a value is large. It is looked through only until that is certain."""
    left, waiting = _LARGE, [value]
    while waiting:
        one = waiting.pop()
        left -= len(one) if isinstance(one, str) else _OTHER
        if left < 0:
            return True
        if isinstance(one, msgspec.Struct):
            waiting += [getattr(one, name) for name in one.__struct_fields__]
        elif isinstance(one, Mapping | list | tuple):
            inner = cast("Mapping[Any, Any] | list[Any] | tuple[Any, ...]", one)
            if len(inner) * _OTHER > left:
                return True
            waiting += [*inner.keys(), *inner.values()] if isinstance(inner, Mapping) else inner
    return False
