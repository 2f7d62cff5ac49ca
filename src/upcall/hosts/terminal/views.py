"""Show a run to a person: views that print complete lines, and the protocols of all views."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from upcall.contracts import Delta
from upcall.events import AnyEvent
from upcall.hosts.terminal.console import plain_stream
from upcall.hosts.terminal.layout import WIDEST, Piece, Spacing, is_shown, line_pieces, rich_text
from upcall.hosts.terminal.markdown_text import PrintedRows, PrintedText, render_rows
from upcall.hosts.terminal.text_steps import LONGEST_STEP, Step, TextSteps
from upcall.observe.plain import shortened
from upcall.observe.story import Line, Story
from upcall.observe.weight import aside

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text


_ROWS_AT_ONCE = 100
"""Rendered rows that are printed at once."""

_LINES_AT_ONCE = 20
"""Lines of one event that are printed at once."""


class View(Protocol):
    """Shows a run to a person."""

    def recall(self, event: AnyEvent) -> None:
        """Take an earlier event, which is not shown."""
        ...

    def feed(self, item: AnyEvent | Delta) -> None:
        """Take an event or a delta, which is shown soon."""
        ...

    async def pause(self) -> None:
        """Leave the screen to somebody else; events are shown after `resume`."""
        ...

    def resume(self) -> None:
        """Take the screen again."""
        ...


class Drawing(Protocol):
    """A place for the moving part of a run, below the lines that stay."""

    def begin(self) -> None:
        """Take the screen."""
        ...

    def draw(self, picture: RenderableType) -> None:
        """Replace the current drawing."""
        ...

    async def release(self) -> None:
        """Leave the screen to somebody else until `begin`."""
        ...

    def end(self) -> None:
        """Remove the drawing."""
        ...


class LineView:
    """A view that turns events into lines and prints each of them."""

    def __init__(self, *, prompts: bool = False, story: Story | None = None, fresh: bool = True) -> None:
        self._prompts = prompts
        self._story = story or Story()
        self._spacing = Spacing(fresh=fresh)

    async def show(self, item: AnyEvent | Delta) -> None:
        """Show an event; deltas are ignored."""
        for number, line in enumerate(() if isinstance(item, Delta) else await self._lines(item), 1):
            await self._show_line(line)
            if number % _LINES_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _show_line(self, line: Line) -> None:
        if is_shown(line, self._prompts):
            await self._print(line)

    async def skip(self, event: AnyEvent) -> None:
        """Take in an earlier event without showing it."""
        await aside(self._story.recall, event)

    async def tick(self) -> None:
        """Draw what moves; a view that only prints lines draws nothing."""

    async def _lines(self, event: AnyEvent) -> list[Line]:
        """Return the lines of an event; those of a large one are made in a thread."""
        return await aside(self._story.feed, event)

    async def _print(self, line: Line) -> None:
        raise NotImplementedError


class PlainView(LineView):
    """A view that prints complete lines: for pipes, and for terminals that can't move the cursor."""

    def __init__(self, out: TextIO, *, width: int = 80, **options: Any) -> None:
        super().__init__(**options)
        self._out, self._width = plain_stream(out), width

    async def _print(self, line: Line) -> None:
        for first in self._spacing.before(line, self._story):
            self._out.write(_line_text(first, self._width) + "\n" if first else "\n")
        if line.kind == "text" or (line.kind == "prompt" and not line.depth):
            bar = "│ " * line.depth + ("› " if line.kind == "prompt" else "")
            for part in _parts_with_bar(line.text, bar):
                self._out.write(part)
                await asyncio.sleep(0)
        else:
            self._out.write(_line_text(line, self._width) + "\n")
        self._out.flush()


def _parts_with_bar(text: str, bar: str) -> Iterator[str]:
    """Return the rows of a text with a bar before each, in parts of a bounded length."""
    at, in_row = 0, False
    while at < len(text):
        end = text.rfind("\n", at, at + LONGEST_STEP) + 1 if len(text) > at + LONGEST_STEP else len(text)
        end = end or at + LONGEST_STEP
        rows, ends_row = text[at:end].removesuffix("\n").split("\n"), end == len(text) or text[end - 1] == "\n"
        part = "\n".join(f"{'' if in_row and not number else bar}{row}".rstrip() for number, row in enumerate(rows))
        yield f"{part}\n" if ends_row else part
        at, in_row = end, not ends_row


def _line_text(line: Line, width: int) -> str:
    return "".join(piece.text for piece in line_pieces(line, width)).rstrip()


class RichView(LineView):
    """A view that prints complete lines with colours and Markdown."""

    def __init__(self, console: Console, **options: Any) -> None:
        super().__init__(**options)
        self._console = console

    async def _print(self, line: Line) -> None:
        """Print one line that stays."""
        if line.kind == "text":
            steps = TextSteps()
            steps.feed(line.text)
            await self._print_steps(line, steps)
            return
        self._print_before(line)
        if line.kind == "prompt" and not line.depth:
            text = shortened(line.text, LONGEST_STEP)
            self._console.print(rich_text([Piece("› ", "cyan"), Piece(text, "bold")]))
        else:
            self._console.print(self._text(line))

    def _print_before(self, line: Line) -> None:
        for first in self._spacing.before(line, self._story):
            self._console.print(self._text(first) if first else "")

    async def _print_steps(self, line: Line, steps: TextSteps) -> None:
        """Print the rest of a text."""
        gap = ""
        while (step := steps.take(ended=True)) is not None:
            await self._print_step(line, step, gap)
            gap = "│ " * line.depth

    async def _print_step(self, line: Line, step: Step, gap: str = "") -> None:
        """Print a part of a text; `gap` is the row between it and the part before it."""
        if step.is_markdown and not step.text.strip():
            return
        bar, width = "│ " * line.depth, self._width
        if gap and not step.continues:
            self._console.print(rich_text([Piece(gap.rstrip(), "dim")]))
        elif not step.continues:
            self._print_before(line)
        if not step.is_markdown:
            self._console.print(PrintedText(step.text, width, bar=bar), end="", crop=False)
            await asyncio.sleep(0)
            return
        rows = await asyncio.to_thread(render_rows, self._console, step.text, width, bar=bar)
        for at in range(0, len(rows), _ROWS_AT_ONCE):
            self._console.print(PrintedRows(rows[at : at + _ROWS_AT_ONCE]), end="")
            await asyncio.sleep(0)

    @property
    def _width(self) -> int:
        return min(self._console.width, WIDEST)

    def _text(self, line: Line) -> Text:
        return rich_text(line_pieces(line, self._width))
