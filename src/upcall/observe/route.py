"""Draw a callback's route, before and after it is settled."""

from __future__ import annotations

import textwrap

from upcall.callbacks import Callback
from upcall.core.routing.explain import printable, rows
from upcall.core.routing.route import Route

_UNLIMITED = 1_000_000
_ROOM = 24
"""Below this many columns, a reason is printed under a name instead of beside it."""


def draw(route: Route, callback: Callback | None = None, width: int = _UNLIMITED) -> str:
    """Return the route as a few lines: who is asked, who is skipped and why, where it ends and why.

    With the callback itself, what happened so far takes the place of what was planned.
    """
    stations = rows(route, callback.path if callback else ())
    if callback and callback.answer:
        stations.append(
            (callback.answer.by or "somebody", f"{callback.status} ({callback.answer.right or 'no right noted'})")
        )
    elif callback and callback.status != "open":
        stations.append(("nobody", f"the callback was {callback.status}"))
    else:
        stations.append(_last_row(route))
    column = max(len(name) for name, _ in stations) + 5
    lines = _rows(f"{route.asker} raises: {route.intent}, {route.kind}", "", "  ", width)
    for index, (name, text) in enumerate(stations):
        branch, bar = ("└─", " ") if index == len(stations) - 1 else ("├─", "│")
        if width - column >= _ROOM:
            lines += _rows(text, f"{branch} {name}".ljust(column), bar.ljust(column), width)
        else:
            lines += [printable(f"{branch} {name}"), *_rows(text, f"{bar}    ", f"{bar}    ", width)]
    for note in (*(f"further with: {allow}" for allow in route.allow), *(f"note: {note}" for note in route.notes)):
        lines += _rows(note, "   ", "     ", width)
    return "\n".join(lines)


def _rows(text: str, first: str, more: str, width: int) -> list[str]:
    """Return a text in rows, the first one after `first` and all others after `more`."""
    return textwrap.wrap(
        printable(text), width, initial_indent=printable(first), subsequent_indent=more, break_on_hyphens=False
    )


def _last_row(route: Route) -> tuple[str, str]:
    if route.end == "person":
        return "the person", f"asked: {route.why}"
    means = "CallbackUnresolved" if route.unresolved == "raise" else "the asker gets None, and a warning is logged"
    return ("fail" if route.end == "fail" else "nobody"), f"{means}: {route.why}"
