"""Check the numbers that are passed to kits."""

from __future__ import annotations

from upcall.errors import BadKit


def check_number(kit: str, name: str, value: object, *, whole: bool = False) -> None:
    """Raise BadKit unless the value is a number above 0."""
    types = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, types) or not value > 0:
        kind = "a whole number" if whole else "a number"
        raise BadKit(kit, f"{name}={value!r} is not {kind} above 0")
