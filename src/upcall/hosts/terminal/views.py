"""Show a run to a person: views that print complete lines, and the protocols of all views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TextIO

from upcall.contracts import Delta
from upcall.events import AnyEvent
from upcall.hosts.terminal.console import plain_stream
from upcall.hosts.terminal.layout import WIDEST, Piece, Spacing, is_shown, line_pieces, rich_text
from upcall.hosts.terminal.markdown_text import RenderedRows, markdown
from upcall.observe.story import Line, Story

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text


class View(Protocol):
    """Shows a run to a person."""

    def recall(self, event: AnyEvent) -> None:
        """Take in an earlier event without showing it."""
        ...

    def feed(self, item: AnyEvent | Delta) -> None:
        """Show an event or a delta."""
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


class PlainView:
    """A view that prints complete lines: for pipes, and for terminals that can't move the cursor."""

    def __init__(
        self,
        out: TextIO,
        drawing: Drawing | None = None,
        *,
        width: int = 80,
        prompts: bool = False,
        story: Story | None = None,
        fresh: bool = True,
    ) -> None:
        self._out, self._drawing = plain_stream(out), drawing
        self._width, self._prompts = width, prompts
        self._story = story or Story()
        self._spacing = Spacing(fresh=fresh)
        self._paused_items: list[AnyEvent | Delta] | None = None

    def feed(self, item: AnyEvent | Delta) -> None:
        """Show an event; deltas are ignored."""
        if self._paused_items is not None:
            self._paused_items.append(item)
            return
        for line in () if isinstance(item, Delta) else self._story.feed(item):
            if is_shown(line, self._prompts):
                self._print(line)

    async def pause(self) -> None:
        """Leave the screen to somebody else; events are shown after `resume`."""
        self._paused_items = []
        if self._drawing is not None:
            await self._drawing.release()

    def resume(self) -> None:
        """Take the screen again."""
        if self._drawing is not None:
            self._drawing.begin()
        waiting_items, self._paused_items = self._paused_items or [], None
        for item in waiting_items:
            self.feed(item)

    def recall(self, event: AnyEvent) -> None:
        """Take in an earlier event without showing it."""
        self._story.recall(event)

    def _print(self, line: Line) -> None:
        for first in self._spacing.before(line, self._story):
            self._out.write(_line_text(first, self._width) + "\n" if first else "\n")
        if line.kind == "text" or (line.kind == "prompt" and not line.depth):
            bar = "│ " * line.depth + ("› " if line.kind == "prompt" else "")
            self._out.write("".join(f"{bar}{row}".rstrip() + "\n" for row in line.text.splitlines()))
        else:
            self._out.write(_line_text(line, self._width) + "\n")
        self._out.flush()


def _line_text(line: Line, width: int) -> str:
    return "".join(piece.text for piece in line_pieces(line, width)).rstrip()


class RichView:
    """A view that prints complete lines with colours and Markdown."""

    def __init__(
        self, console: Console, *, prompts: bool = False, story: Story | None = None, fresh: bool = True
    ) -> None:
        self._console, self._prompts = console, prompts
        self._story = story or Story()
        self._spacing = Spacing(fresh=fresh)

    def feed(self, item: AnyEvent | Delta) -> None:
        """Show an event; deltas are ignored."""
        for line in () if isinstance(item, Delta) else self._story.feed(item):
            if is_shown(line, self._prompts):
                self.show(line)

    def recall(self, event: AnyEvent) -> None:
        """Take in an earlier event without showing it."""
        self._story.recall(event)

    def show(self, line: Line) -> None:
        """Print one line that stays."""
        for first in self._spacing.before(line, self._story):
            self._console.print(self._text(first) if first else "")
        if line.kind == "text":
            self._console.print(RenderedRows(markdown(line.text), self._width, bar="│ " * line.depth))
        elif line.kind == "prompt" and not line.depth:
            self._console.print(rich_text([Piece("› ", "cyan"), Piece(line.text, "bold")]))
        else:
            self._console.print(self._text(line))

    @property
    def _width(self) -> int:
        return min(self._console.width, WIDEST)

    def _text(self, line: Line) -> Text:
        return rich_text(line_pieces(line, self._width))
