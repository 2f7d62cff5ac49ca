"""Read JSON that somebody else wrote: what is not of the expected type is empty."""

from __future__ import annotations

from typing import Any, cast


def as_object(value: Any) -> dict[str, Any]:
    """Return a JSON object, or an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return a JSON list, or an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a JSON list."""
    return [cast("dict[str, Any]", one) for one in as_list(value) if isinstance(one, dict)]
