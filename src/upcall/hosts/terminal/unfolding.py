"""A tool call unfolded: its arguments and its result whole, where a run shows it as one line."""

from __future__ import annotations

from typing import Any

from upcall.hosts.terminal.phrases import lasted
from upcall.hosts.terminal.question import exact
from upcall.hosts.terminal.screen import Piece
from upcall.hosts.terminal.story import Running
from upcall.observe.plain import plain, visible


def unfolded(call: Running, agent: str, width: int) -> list[list[Piece]]:
    """The call, row by row. Text of several lines, such as a file's, is shown as it was written."""
    room = max(width - 4, 20)
    head = [
        Piece("┌ ", "dim"),
        Piece(visible(call.call.name), "bold"),
        Piece(f"  called by {visible(agent)}", "dim"),
    ]
    rows = [head]
    for name, value in call.call.args.items():
        first, *more = _shown(value, room)
        several = bool(more) or len(first) + len(name) > room
        rows.append([_BAR, Piece(f"{visible(name)} ", "cyan"), Piece("= ", "dim"), Piece("" if several else first)])
        rows += [[_BAR, Piece(f"  {row}")] for row in ((first, *more) if several else ())]
    result, ended = call.result, call.ended
    if result is None or ended is None:
        return rows
    took = lasted(ended.time - call.started) if call.started is not None else ""
    how = "failed" if result.is_error and ended.how == "ran" else ended.how
    facts = " · ".join(part for part in (how, took, f"{len(result.text):,} characters") if part)
    rows.append([Piece("├ ", "dim"), Piece("result", "bold"), Piece(f"  {facts}", "dim")])
    rows += [[_BAR, Piece(row)] for row in _cut(plain(result.text).expandtabs(4), room + 2)]
    return [*rows, [Piece("└", "dim")]]


_BAR = Piece("│ ", "dim")


def _shown(value: Any, room: int) -> list[str]:
    if isinstance(value, str) and "\n" in value.strip():
        return _cut(visible(value, lines=True).expandtabs(4), room)
    return exact(value, room)


def _cut(text: str, room: int) -> list[str]:
    """Every row of a text, long ones on several rows."""
    rows = text.strip("\n").split("\n")
    return [row[at : at + room] for row in rows for at in range(0, max(len(row), 1), room)]
