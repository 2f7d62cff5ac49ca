"""A live run at a terminal: finished lines above, text being written and running calls below."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncGenerator, Generator
from typing import TYPE_CHECKING, Any, Self, TextIO

from upcall.contracts import Delta
from upcall.events import AnyEvent
from upcall.hosts.terminal.console import make_console
from upcall.hosts.terminal.layout import Piece, is_shown, line_pieces, rich_text
from upcall.hosts.terminal.markdown_text import RenderedRows, markdown, stable_length
from upcall.hosts.terminal.views import Drawing, PlainView, RichView, View
from upcall.observe.phrases import args_line
from upcall.observe.plain import one_line, plain
from upcall.observe.redact_stream import RedactedStream
from upcall.observe.story import Line, ShownCall

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text


TICK = 0.08
_KEPT_OUTPUT = 4_000
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@contextlib.asynccontextmanager
async def open_view(
    out: TextIO | None, drawing: Drawing | None = None, **options: Any
) -> AsyncGenerator[View | None]:
    """Open the right view: a live one at a terminal; None if there is no stream."""
    if out is None:
        yield None
    elif can_redraw(out):
        async with TerminalView(make_console(out), drawing, **options) as view:
            yield view
    else:
        yield PlainView(out, drawing, **options)


def can_redraw(out: TextIO) -> bool:
    """Return whether the stream is a terminal whose lines can be redrawn."""
    return out.isatty() and not make_console(out).is_dumb_terminal


class TerminalView(RichView):
    """A view of a live run: finished lines above, text being written and running calls below.

    Use it with `async with`. Text is printed block by block, so that a long reply scrolls as usual.
    """

    def __init__(self, console: Console, drawing: Drawing | None = None, **options: Any) -> None:
        super().__init__(console, **options)
        self._root = ""
        self._written_text: list[str] = []
        self._printed_text = ""
        self._thinking = False
        self._text_stream = self._story.redactor.stream(numbered=False)
        self._call_output: dict[tuple[str, str], _Output] = {}
        self._call_started: dict[tuple[str, str], float] = {}
        self._drawing = drawing or BottomDrawing(console)
        self._paused_items: list[AnyEvent | Delta] | None = None
        self._ticker: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Start to draw."""
        self.resume()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop drawing; printed lines stay."""
        self._stop_drawing()
        self._drawing.end()
        for item in self._paused_items or ():
            self._show(item)

    async def pause(self) -> None:
        """Leave the screen to somebody else; events are shown after `resume`."""
        self._stop_drawing()
        await self._drawing.release()

    def _stop_drawing(self) -> None:
        if self._paused_items is None:
            self._paused_items = []
        if self._ticker is not None:
            self._ticker.cancel()

    def resume(self) -> None:
        """Take the screen again."""
        self._drawing.begin()
        self._ticker = asyncio.ensure_future(self._tick())
        waiting_items, self._paused_items = self._paused_items or [], None
        for item in waiting_items:
            self._show(item)

    def feed(self, item: AnyEvent | Delta) -> None:
        """Show an event or a delta."""
        if self._paused_items is not None:
            self._paused_items.append(item)
        else:
            self._show(item)

    def _show(self, item: AnyEvent | Delta) -> None:
        if isinstance(item, Delta):
            self._take_delta(item)
            return
        self._root = self._root or item.session
        for line in self._story.feed(item):
            if line.kind == "text" and not line.depth:
                self._finish_text(line)
            elif is_shown(line, self._prompts):
                self.show(line)

    def _take_delta(self, delta: Delta) -> None:
        self._root = self._root or delta.session
        if delta.kind == "output":
            key = (delta.session, delta.call_id)
            if key not in self._call_output:
                self._call_output[key] = _Output(self._story.redactor.stream(numbered=False))
            self._call_output[key].feed(delta.text)
        elif delta.session != self._root:
            return
        elif delta.kind == "text":
            self._written_text.append(self._text_stream.feed(delta.text))
            self._thinking = False
        elif delta.kind == "thinking":
            self._thinking = True
        elif delta.kind == "drop":
            self._forget_text()

    def _forget_text(self) -> None:
        self._written_text.clear()
        self._text_stream = self._story.redactor.stream(numbered=False)

    def _finish_text(self, line: Line) -> None:
        """Print the rest of a text whose blocks were printed as they came; print a changed text in full."""
        rest = (
            line.text.removeprefix(self._printed_text).strip("\n")
            if line.text.startswith(self._printed_text)
            else line.text
        )
        self._forget_text()
        self._printed_text, self._thinking = "", False
        if rest.strip():
            self.show(line.replace(text=rest))

    # --- the moving part ------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            self._print_finished_blocks()
            self._drawing.draw(self._picture())
            await asyncio.sleep(TICK)

    def _print_finished_blocks(self) -> None:
        """Print the blocks that later text can't change, unless a call has to be printed first."""
        if not self._written_text or self._story.has_open_calls(self._root):
            return
        text = plain("".join(self._written_text)).lstrip()
        if not text.startswith(self._printed_text):
            self._printed_text = ""
        end = stable_length(text)
        if end > len(self._printed_text):
            self.show(Line("text", text[len(self._printed_text) : end].strip("\n"), self._root))
            self._printed_text = text[:end]

    def _picture(self) -> RenderableType:
        from rich.console import Group

        rows: list[RenderableType] = []
        text = plain("".join(self._written_text)).lstrip()
        if tail := text.removeprefix(self._printed_text).strip("\n"):
            rows += ["", RenderedRows(markdown(tail), self._width, most=max(self._console.height - 8, 5))]
        calls = sorted(self._story.open.values(), key=lambda one: f"{one.session}~{one.call.id}".split("~"))
        running: list[RenderableType] = [row for one in calls if (row := self._running_row(one))]
        if not running and not rows and not self._story.has_open_calls(self._root):
            what = "thinking" if self._thinking else "waiting for the model"
            rows += ["", rich_text([Piece(f"{self._spin()} {what}", "dim")])]
        elif running and not self._spacing.in_work:
            running = ["", *running]
        return Group(*rows, *running)

    def _running_row(self, one: ShownCall) -> Text | None:
        if one.started is None or one.ended is not None or self._story.is_side_turn(one.session):
            return None
        key = (one.session, one.call.id)
        started = self._call_started.setdefault(key, time.monotonic())
        output = self._call_output[key].line if key in self._call_output else ""
        text = f"{args_line(one.call.args)}{'  ' + output if output else ''}"
        seconds = time.monotonic() - started
        line = Line(
            "tool",
            text,
            one.session,
            one.depth,
            self._story.tool_label(one.session, one.call.name),
            "running",
            seconds,
        )
        row = [p if p.text != "– " else Piece(f"{self._spin()} ", "cyan") for p in line_pieces(line, self._width)]
        return rich_text(row)

    def _spin(self) -> str:
        return _SPINNER[int(time.monotonic() / TICK) % len(_SPINNER)]


class _Output:
    """The newest line of what a call shows while it runs, without its secrets."""

    def __init__(self, stream: RedactedStream) -> None:
        self._stream, self._text = stream, ""

    def feed(self, text: str) -> None:
        """Take what the call shows next."""
        shown = self._stream.feed(text)
        self._text = (self._text + shown)[-_KEPT_OUTPUT:]

    @property
    def line(self) -> str:
        """The newest line, cut."""
        return one_line(self._text.strip().rpartition("\n")[2], 40)


class BottomDrawing:
    """A drawing that has the bottom of the screen for itself."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._live = Live(console=console, transient=True, auto_refresh=False, vertical_overflow="crop")
        self._echo_off = contextlib.ExitStack()

    def begin(self) -> None:
        """Take the screen."""
        self._echo_off.enter_context(_without_echo())
        self._live.start()

    def draw(self, picture: RenderableType) -> None:
        """Replace the current drawing."""
        self._live.update(picture, refresh=True)

    async def release(self) -> None:
        """Leave the screen to somebody else until `begin`."""
        self.end()

    def end(self) -> None:
        """Remove the drawing."""
        self._live.update("", refresh=True)
        self._live.stop()
        self._echo_off.close()


@contextlib.contextmanager
def _without_echo() -> Generator[None]:
    """Switch echo off, so that typed keys (also the ^C of a Ctrl-C) don't disturb the drawing."""
    if not sys.stdin.isatty():
        yield
        return
    import termios

    before = termios.tcgetattr(sys.stdin)
    silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
