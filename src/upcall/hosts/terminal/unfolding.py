"""An unfolded tool call, with its full arguments and result."""

from __future__ import annotations

from typing import Any

from upcall.hosts.terminal.layout import Piece
from upcall.hosts.terminal.question import json_rows
from upcall.observe.phrases import duration
from upcall.observe.plain import plain, visible
from upcall.observe.story import ShownCall


def unfold_call(call: ShownCall, agent: str, width: int) -> list[list[Piece]]:
    """Format the call as rows. Texts with several lines, such as files, are shown as written."""
    room = max(width - 4, 20)
    head = [
        Piece("┌ ", "dim"),
        Piece(visible(call.call.name), "bold"),
        Piece(f"  called by {visible(agent)}", "dim"),
    ]
    rows = [head]
    for name, value in call.call.args.items():
        first, *more = _value_rows(value, room)
        several = bool(more) or len(first) + len(name) > room
        rows.append([_BAR, Piece(f"{visible(name)} ", "cyan"), Piece("= ", "dim"), Piece("" if several else first)])
        rows += [[_BAR, Piece(f"  {row}")] for row in ((first, *more) if several else ())]
    result, ended = call.result, call.ended
    if result is None or ended is None:
        return rows
    took = duration(ended.time - call.started) if call.started is not None else ""
    how = "failed" if result.is_error and ended.how == "ran" else ended.how
    facts = " · ".join(part for part in (how, took, f"{len(result.text):,} characters") if part)
    rows.append([Piece("├ ", "dim"), Piece("result", "bold"), Piece(f"  {facts}", "dim")])
    rows += [[_BAR, Piece(row)] for row in _cut(plain(result.text).expandtabs(4), room + 2)]
    return [*rows, [Piece("└", "dim")]]


_BAR = Piece("│ ", "dim")


def _value_rows(value: Any, room: int) -> list[str]:
    if isinstance(value, str) and "\n" in value.strip():
        return _cut(visible(value, lines=True).expandtabs(4), room)
    return list(json_rows(value, room, longest=None))


def _cut(text: str, room: int) -> list[str]:
    """Split a text into rows, breaking long ones."""
    rows = text.strip("\n").split("\n")
    return [row[at : at + room] for row in rows for at in range(0, max(len(row), 1), room)]
