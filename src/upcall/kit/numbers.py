"""Numbers that pieces of the kit are given, checked."""

from __future__ import annotations

from upcall.errors import BadKit


def check_number(piece: str, name: str, value: object, *, whole: bool = False) -> None:
    """Refuse what is no number above 0."""
    kinds = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or not value > 0:
        kind = "a whole number" if whole else "a number"
        raise BadKit(piece, f"{name}={value!r} is not {kind} above 0")
