"""Lay out the lines of a run: marks, colours, widths and blank lines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from upcall.observe.phrases import duration
from upcall.observe.plain import one_line
from upcall.observe.story import Line, Story

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment
    from rich.text import Text


WIDEST = 100
"""The most columns to use: longer lines are hard to read."""
_ROWS_AT_ONCE, _ROWS_AHEAD = 20, 200
"""Rows that are printed before others have their turn, and rows that are made before they are printed."""

_MARKS = {
    "ok": ("✓", "green"),
    "failed": ("✗", "red"),
    "refused": ("✗", "red"),
    "by a hook": ("✓", "magenta"),
    "": ("▸", "cyan"),
}
_TODOS = {"completed": ("☑", "dim green"), "in_progress": ("▸", "bold"), "pending": ("☐", "")}
_ENDS = {"done": "green", "failed": "red", "limit": "yellow", "cancelled": "yellow", "waiting": "cyan"}


class Piece(NamedTuple):
    """A piece of text with its style."""

    text: str
    style: str = ""


def line_pieces(line: Line, width: int) -> list[Piece]:
    """Format one line, other than text, for a screen of `width` columns."""
    bar = [Piece("│ " * line.depth, "dim")] if line.depth else []
    room = max(width - 2 * line.depth, 20)
    match line.kind:
        case "tool":
            return [*bar, *_tool_pieces(line, room)]
        case "hook":
            named = f"  ↳ hook {line.label} " if line.label else "  ↳ hooks "
            return [*bar, Piece(named, "magenta"), _fill_rest(line.text, room, len(named))]
        case "callback":
            return [*bar, Piece(f"{line.label} ", "yellow"), _fill_rest(line.text, room, 1 + len(line.label))]
        case "result":
            style = "red" if line.state in ("failed", "refused") else "dim"
            return [*bar, Piece(f"  → {one_line(line.text, room - 4)}", style)]
        case "todo":
            mark, style = _TODOS.get(line.state, _TODOS["pending"])
            return [*bar, Piece(f"  {mark} ", style), Piece(one_line(line.text, room - 4), style)]
        case "session":
            bar = [Piece("│ " * (line.depth - 1), "dim"), Piece("┌ ", "dim")] if line.depth else []
            return [*bar, Piece(line.label, "bold"), Piece(f"  {line.text}", "dim")]
        case "prompt":
            return [*bar, Piece("› ", "cyan"), _fill_rest(line.text, room, 2)]
        case "end":
            return [*([Piece("│ " * (line.depth - 1) + "└ ", "dim")] if line.depth else []), *_end_pieces(line)]
        case _:
            return [*bar, Piece(one_line(line.text, room * 4), "red" if line.state == "failed" else "dim")]


def _tool_pieces(line: Line, room: int) -> list[Piece]:
    mark, style = _MARKS.get(line.state, ("–", "yellow"))
    how = " ".join(part for part in (line.state, duration(line.seconds)) if part)
    args = one_line(line.text, max(room - len(line.label) - len(how) - 6, 8))
    gap = max(room - 4 - len(line.label) - len(args) - len(how), 1)
    named = [Piece(f"{mark} ", style), Piece(line.label, "bold"), Piece(f"  {args}" if args else "  ", "dim")]
    return [*named, Piece(" " * gap), Piece(how, style if line.state != "ok" else "dim")]


def _end_pieces(line: Line) -> list[Piece]:
    parts = [part for part in (line.text, duration(line.seconds)) if part]
    return [Piece(line.state, _ENDS.get(line.state, "")), Piece("".join(f" · {part}" for part in parts), "dim")]


def _fill_rest(text: str, room: int, used: int) -> Piece:
    return Piece(one_line(text, max(room - used, 20)))


def rich_text(row: Iterable[Piece]) -> Text:
    """Build a row for a console, cut at the edge of the screen."""
    from rich.text import Text

    return Text.assemble(*((piece.text, piece.style) for piece in row), no_wrap=True, overflow="ellipsis")


async def print_rows(console: Console, rows: Iterable[Iterable[Piece]]) -> None:
    """Print rows, a few of them at a time. They are made in a thread: some of them may take long.

    The terminal itself breaks a row that is longer than the screen, so that it can be copied as one.
    """
    from rich.segment import Segments

    made = iter(rows)
    while ahead := await asyncio.to_thread(lambda: list(islice(made, _ROWS_AHEAD))):
        for at in range(0, len(ahead), _ROWS_AT_ONCE):
            console.print(Segments(_segments(console, ahead[at : at + _ROWS_AT_ONCE])), end="", soft_wrap=True)
            await asyncio.sleep(0)


def _segments(console: Console, rows: Iterable[Iterable[Piece]]) -> Iterator[Segment]:
    from rich.segment import Segment

    for row in rows:
        yield from (Segment(text, console.get_style(style) if style else None) for text, style in row)
        yield Segment.line()


def is_shown(line: Line, prompts: bool) -> bool:
    """Return whether to print a line; the root's own prompts and failure only if `prompts`."""
    if line.depth:
        return True
    own_failure = line.kind == "note" and line.state == "failed"  # the caller reports the error itself
    return prompts or not (line.kind in ("session", "prompt") or own_failure)


class Spacing:
    """Decides where a blank line belongs, and where a child's name has to be repeated."""

    def __init__(self, *, fresh: bool) -> None:
        self._last = "" if fresh else "other"
        self._session: str = ""

    @property
    def in_work(self) -> bool:
        """True if the last line was about work, so that no blank line is needed before the next."""
        return self._last == "work"

    def before(self, line: Line, story: Story) -> list[Line | None]:
        """Return what to print before the line; None is a blank line."""
        kind = (
            "work"
            if line.depth or line.kind in ("tool", "hook", "result", "note", "session", "callback", "todo")
            else line.kind
        )
        first: list[Line | None] = [None] if self._last and kind != self._last else []
        if line.kind == "text" and self._last == "text" and not line.depth:
            first = [None]
        if line.depth and line.session != self._session and line.kind != "session":
            first.append(Line("session", "continued", line.session, line.depth, story.agent_of(line.session)))
        self._last, self._session = kind, line.session
        return first
