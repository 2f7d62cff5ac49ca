"""A live run at a terminal: finished lines above, text being written and running calls below."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncGenerator, Generator, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from upcall.contracts import Delta
from upcall.events import AnyEvent
from upcall.hosts.terminal.console import make_console
from upcall.hosts.terminal.layout import Piece, line_pieces, rich_text
from upcall.hosts.terminal.markdown_text import PrintedRows, Rows, plain_rows, render_rows
from upcall.hosts.terminal.queued_view import TICK, QueuedView
from upcall.hosts.terminal.text_steps import LONGEST_STEP, TextSteps
from upcall.hosts.terminal.views import Drawing, LineView, PlainView, RichView, View
from upcall.observe.phrases import args_line
from upcall.observe.plain import one_line, plain
from upcall.observe.redact_stream import RedactedStream
from upcall.observe.story import Line, ShownCall

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text


_LONGEST_DRAWN = 4_000
"""Characters of the text being written that are drawn as Markdown, again and again while it grows."""

_KEPT_OUTPUT = 4_000
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@contextlib.asynccontextmanager
async def open_view(
    out: TextIO | None, drawing: Drawing | None = None, **options: Any
) -> AsyncGenerator[View | None]:
    """Open the right view: a live one at a terminal; None if there is no stream."""
    if out is None:
        yield None
        return
    if can_redraw(out):
        console = make_console(out)
        drawing = drawing or BottomDrawing(console)
        shown: LineView = TerminalView(console, drawing, **options)
    else:
        shown = PlainView(out, **options)
    async with QueuedView(shown, drawing) as view:
        yield view


def can_redraw(out: TextIO) -> bool:
    """Return whether the stream is a terminal whose lines can be redrawn."""
    return out.isatty() and not make_console(out).is_dumb_terminal


class TerminalView(RichView):
    """A view of a live run: finished lines above, text being written and running calls below.

    Text is printed block by block, so that a long reply scrolls as usual.
    """

    def __init__(self, console: Console, drawing: Drawing, **options: Any) -> None:
        super().__init__(console, **options)
        self._drawing = drawing
        self._root = ""
        self._steps = TextSteps()
        self._printed_text: list[str] = []
        self._has_text = False
        self._thinking = False
        self._text_stream = self._story.redactor.stream(numbered=False)
        self._call_output: dict[tuple[str, str], _Output] = {}
        self._call_started: dict[tuple[str, str], float] = {}
        self._drawn_tail: tuple[tuple[str, int, int], Rows] | None = None

    async def show(self, item: AnyEvent | Delta) -> None:
        """Show an event or a delta."""
        if isinstance(item, Delta):
            await self._take_delta(item)
            return
        self._root = self._root or item.session
        await super().show(item)

    async def _show_line(self, line: Line) -> None:
        if line.kind == "text" and not line.depth:
            await self._finish_text(line)
        else:
            await super()._show_line(line)

    async def _take_delta(self, delta: Delta) -> None:
        self._root = self._root or delta.session
        if delta.kind == "output":
            key = (delta.session, delta.call_id)
            if key not in self._call_output:
                self._call_output[key] = _Output(self._story.redactor.stream(numbered=False))
            for part in _parts(delta.text):
                self._call_output[key].feed(part)
                await asyncio.sleep(0)
        elif delta.session != self._root:
            return
        elif delta.kind == "text":
            self._thinking = False
            for part in _parts(delta.text):
                self._take_text(plain(self._text_stream.feed(part)))
                await asyncio.sleep(0)
        elif delta.kind == "thinking":
            self._thinking = True
        elif delta.kind == "drop":
            self._forget_text()

    def _take_text(self, text: str) -> None:
        if not self._has_text:
            text = text.lstrip()
            self._has_text = bool(text)
            if text:
                self._printed_text.clear()  # of a response that was dropped
        self._steps.feed(text)

    def _forget_text(self) -> None:
        self._steps, self._has_text = TextSteps(), False
        self._text_stream = self._story.redactor.stream(numbered=False)

    async def _finish_text(self, line: Line) -> None:
        """Print the rest of a text whose blocks were printed as they came; print a changed text in full."""
        printed, steps = "".join(self._printed_text), self._steps
        if line.text.startswith(printed):
            steps.end_with(line.text[len(printed) :])
        elif line.text == printed.rstrip():
            steps.end_with("")
        else:
            steps = TextSteps()
            steps.feed(line.text)
        self._forget_text()
        self._printed_text, self._thinking = [], False
        await self._print_steps(line, steps)

    # --- the moving part ------------------------------------------------------------------

    async def tick(self) -> None:
        """Print the blocks that are finished, and draw the rest."""
        await self._print_finished_blocks()
        self._drawing.draw(await self._picture())

    async def _print_finished_blocks(self) -> None:
        """Print the blocks that later text can't change, unless a call has to be printed first."""
        if not self._has_text or self._story.has_open_calls(self._root):
            return
        while (step := self._steps.take()) is not None:
            self._printed_text.append(step.given)
            await self._print_step(Line("text", "", self._root), step)

    async def _picture(self) -> RenderableType:
        from rich.console import Group

        most = max(self._console.height - 8, 5)
        rows: list[RenderableType] = []
        if tail := self._steps.tail(LONGEST_STEP).strip("\n"):
            rows += ["", PrintedRows(await self._tail_rows(tail, most))]
        calls = sorted(self._story.open.values(), key=lambda one: f"{one.session}~{one.call.id}".split("~"))
        shown = [one for one in calls if self._is_running(one)]
        running: list[RenderableType] = [self._running_row(one) for one in shown[:most]]
        if len(shown) > most:
            running.append(rich_text([Piece(f"… and {len(shown) - most} more calls are running", "dim")]))
        if not running and not rows and not self._story.has_open_calls(self._root):
            what = "thinking" if self._thinking else "waiting for the model"
            rows += ["", rich_text([Piece(f"{self._spin()} {what}", "dim")])]
        elif running and not self._spacing.in_work:
            running = ["", *running]
        return Group(*rows, *running)

    async def _tail_rows(self, tail: str, most: int) -> Rows:
        """Return the last rows of the text that is being written, as Markdown if it is short."""
        drawn = (tail, self._width, most)
        if self._drawn_tail is None or self._drawn_tail[0] != drawn:
            if self._steps.is_plain or len(tail) > _LONGEST_DRAWN:
                rows = plain_rows(tail, self._width, most)
            else:
                rows = await asyncio.to_thread(render_rows, self._console, tail, self._width, most=most)
            self._drawn_tail = (drawn, rows)
        return self._drawn_tail[1]

    def _is_running(self, one: ShownCall) -> bool:
        if one.started is None or one.ended is not None or self._story.is_side_turn(one.session):
            return False
        self._call_started.setdefault((one.session, one.call.id), time.monotonic())
        return True

    def _running_row(self, one: ShownCall) -> Text:
        key = (one.session, one.call.id)
        output = self._call_output[key].line if key in self._call_output else ""
        text = f"{args_line(one.call.args)}{'  ' + output if output else ''}"
        seconds = time.monotonic() - self._call_started[key]
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


def _parts(text: str) -> Iterator[str]:
    """Cut a piece of a stream into parts of a bounded length."""
    return (text[at : at + LONGEST_STEP] for at in range(0, len(text), LONGEST_STEP))


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
