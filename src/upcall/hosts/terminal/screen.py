"""A run at a terminal: lines as they happen, Markdown as it is written, and what is still running below it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncGenerator, Generator, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TextIO

from upcall.contracts import Delta
from upcall.events import AnyEvent
from upcall.hosts.terminal.console import make_console, plain_stream
from upcall.hosts.terminal.phrases import args_line, lasted
from upcall.hosts.terminal.story import Line, Running, Story
from upcall.observe.plain import one_line, plain, visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.segment import Segment
    from rich.text import Text

WIDEST = 100
"""Columns that are used of a wider terminal: a line's end should be found from its beginning."""

TICK = 0.08
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
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
    """Text with how it looks."""

    text: str
    style: str = ""


class View(Protocol):
    """What shows a run to a person."""

    def recall(self, event: AnyEvent) -> None:
        """Know what happened before, without showing it."""
        ...

    def feed(self, item: AnyEvent | Delta) -> None:
        """Show one more thing that happened."""
        ...

    async def pause(self) -> None:
        """Leave the screen to somebody else; what happens meanwhile is shown afterwards."""
        ...

    def go_on(self) -> None:
        """Take the screen again."""
        ...


class Drawing(Protocol):
    """Where the moving part of a run is drawn, below the lines that are printed for good."""

    def begin(self) -> None:
        """Take the screen."""
        ...

    def draw(self, picture: RenderableType) -> None:
        """Show this in place of what was drawn before."""
        ...

    async def rest(self) -> None:
        """Leave the screen to somebody else until `begin`."""
        ...

    def end(self) -> None:
        """Nothing more is drawn."""
        ...


# --- lines ------------------------------------------------------------------------------


def pieces(line: Line, width: int) -> list[Piece]:
    """One line for a screen that is `width` columns wide; texts are not for this."""
    bar = [Piece("│ " * line.depth, "dim")] if line.depth else []
    room = max(width - 2 * line.depth, 20)
    match line.kind:
        case "tool":
            return [*bar, *_tool(line, room)]
        case "hook":
            named = f"  ↳ hook {line.label} " if line.label else "  ↳ hooks "
            return [*bar, Piece(named, "magenta"), _rest(line.text, room, len(named))]
        case "callback":
            return [*bar, Piece(f"{line.label} ", "yellow"), _rest(line.text, room, 1 + len(line.label))]
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
            return [*bar, Piece("› ", "cyan"), _rest(line.text, room, 2)]
        case "end":
            return [*([Piece("│ " * (line.depth - 1) + "└ ", "dim")] if line.depth else []), *_end(line)]
        case _:
            return [*bar, Piece(one_line(line.text, room * 4), "red" if line.state == "failed" else "dim")]


def _tool(line: Line, room: int) -> list[Piece]:
    mark, style = _MARKS.get(line.state, ("–", "yellow"))
    how = " ".join(part for part in (line.state, lasted(line.seconds)) if part)
    args = one_line(line.text, max(room - len(line.label) - len(how) - 6, 8))
    gap = max(room - 4 - len(line.label) - len(args) - len(how), 1)
    named = [Piece(f"{mark} ", style), Piece(line.label, "bold"), Piece(f"  {args}" if args else "  ", "dim")]
    return [*named, Piece(" " * gap), Piece(how, style if line.state != "ok" else "dim")]


def _end(line: Line) -> list[Piece]:
    parts = [part for part in (line.text, lasted(line.seconds)) if part]
    return [Piece(line.state, _ENDS.get(line.state, "")), Piece("".join(f" · {part}" for part in parts), "dim")]


def _rest(text: str, room: int, used: int) -> Piece:
    return Piece(one_line(text, max(room - used, 20)))


class _Spacing:
    """Decides where a blank line belongs and where a child's name has to be said again."""

    def __init__(self, *, fresh: bool) -> None:
        self._last = "" if fresh else "other"
        self._session: str = ""

    @property
    def in_work(self) -> bool:
        """Whether the last line was about work, so that the next such one follows it."""
        return self._last == "work"

    def before(self, line: Line, story: Story) -> list[Line | None]:
        """What to print first: None is a blank line."""
        kind = (
            "work"
            if line.depth or line.kind in ("tool", "hook", "result", "note", "session", "callback", "todo")
            else line.kind
        )
        first: list[Line | None] = [None] if self._last and kind != self._last else []
        if line.kind == "text" and self._last == "text" and not line.depth:
            first = [None]
        if line.depth and line.session != self._session and line.kind != "session":
            first.append(Line("session", "goes on", line.session, line.depth, story.agent_of(line.session)))
        self._last, self._session = kind, line.session
        return first


# --- without a terminal -----------------------------------------------------------------


class PlainView:
    """Writes each line when it is complete: for pipes, and for terminals that can't move their cursor."""

    def __init__(
        self,
        out: TextIO,
        drawing: Drawing | None = None,
        *,
        width: int = 80,
        prompts: bool = False,
        results: bool = False,
        fresh: bool = True,
    ) -> None:
        self._out, self._drawing = plain_stream(out), drawing
        self._width, self._prompts = width, prompts
        self._story = Story(results=results)
        self._spacing = _Spacing(fresh=fresh)
        self._kept: list[AnyEvent | Delta] | None = None

    def feed(self, item: AnyEvent | Delta) -> None:
        """Show one more thing that happened."""
        if self._kept is not None:
            self._kept.append(item)
            return
        for line in () if isinstance(item, Delta) else self._story.feed(item):
            if _wanted(line, self._prompts):
                self._print(line)

    async def pause(self) -> None:
        """Leave the screen to somebody else; what happens meanwhile is shown afterwards."""
        self._kept = []
        if self._drawing is not None:
            await self._drawing.rest()

    def go_on(self) -> None:
        """Take the screen again."""
        if self._drawing is not None:
            self._drawing.begin()
        kept, self._kept = self._kept or [], None
        for item in kept:
            self.feed(item)

    def recall(self, event: AnyEvent) -> None:
        """Know what happened before, without showing it."""
        self._story.recall(event)

    def _print(self, line: Line) -> None:
        for first in self._spacing.before(line, self._story):
            self._out.write(_joined(first, self._width) + "\n" if first else "\n")
        if line.kind == "text" or (line.kind == "prompt" and not line.depth):
            bar = "│ " * line.depth + ("› " if line.kind == "prompt" else "")
            self._out.write("".join(f"{bar}{row}".rstrip() + "\n" for row in line.text.splitlines()))
        else:
            self._out.write(_joined(line, self._width) + "\n")
        self._out.flush()


def _joined(line: Line, width: int) -> str:
    return "".join(piece.text for piece in pieces(line, width)).rstrip()


def _wanted(line: Line, prompts: bool) -> bool:
    if line.depth:
        return True
    own_failure = line.kind == "note" and line.state == "failed"  # whoever runs it is told by the error itself
    return prompts or not (line.kind in ("session", "prompt") or own_failure)


# --- at a terminal ----------------------------------------------------------------------


class RichView:
    """Prints each line when it is complete, with colours and Markdown."""

    def __init__(
        self, console: Console, *, prompts: bool = False, results: bool = False, fresh: bool = True
    ) -> None:
        self._console, self._prompts = console, prompts
        self._story = Story(results=results)
        self._spacing = _Spacing(fresh=fresh)

    def feed(self, item: AnyEvent | Delta) -> None:
        """Show one more thing that happened."""
        for line in () if isinstance(item, Delta) else self._story.feed(item):
            if _wanted(line, self._prompts):
                self.show(line)

    def recall(self, event: AnyEvent) -> None:
        """Know what happened before, without showing it."""
        self._story.recall(event)

    def show(self, line: Line) -> None:
        """Print one line for good."""
        for first in self._spacing.before(line, self._story):
            self._console.print(self._text(first) if first else "")
        if line.kind == "text":
            self._console.print(_Rows(markdown(line.text), self._width, bar="│ " * line.depth))
        elif line.kind == "prompt" and not line.depth:
            self._console.print(styled([Piece("› ", "cyan"), Piece(line.text, "bold")]))
        else:
            self._console.print(self._text(line))

    @property
    def _width(self) -> int:
        return min(self._console.width, WIDEST)

    def _text(self, line: Line) -> Text:
        return styled(pieces(line, self._width))


class TerminalView(RichView):
    """Shows a run as it happens: finished lines above, what is being written or still runs below them.

    Use it with `async with`. Text is printed for good block by block, so that a long reply scrolls as usual.
    """

    def __init__(self, console: Console, drawing: Drawing | None = None, **options: Any) -> None:
        super().__init__(console, **options)
        self._root = ""
        self._written: list[str] = []
        self._shown = ""
        self._thinking = False
        self._said: dict[tuple[str, str], str] = {}
        self._begun: dict[tuple[str, str], float] = {}
        self._drawing = drawing or _Alone(console)
        self._kept: list[AnyEvent | Delta] | None = None
        self._ticking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Begin to draw."""
        self.go_on()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Draw no more; what was printed stays."""
        self._still()
        self._drawing.end()
        for item in self._kept or ():
            self._show(item)

    async def pause(self) -> None:
        """Leave the screen to somebody else; what happens meanwhile is shown afterwards."""
        self._still()
        await self._drawing.rest()

    def _still(self) -> None:
        if self._kept is None:
            self._kept = []
        if self._ticking is not None:
            self._ticking.cancel()

    def go_on(self) -> None:
        """Take the screen again."""
        self._drawing.begin()
        self._ticking = asyncio.ensure_future(self._tick())
        kept, self._kept = self._kept or [], None
        for item in kept:
            self._show(item)

    def feed(self, item: AnyEvent | Delta) -> None:
        """Show one more thing that happened."""
        if self._kept is not None:
            self._kept.append(item)
        else:
            self._show(item)

    def _show(self, item: AnyEvent | Delta) -> None:
        if isinstance(item, Delta):
            self._take(item)
            return
        self._root = self._root or item.session
        for line in self._story.feed(item):
            if line.kind == "text" and not line.depth:
                self._finish(line)
            elif _wanted(line, self._prompts):
                self.show(line)

    def _take(self, delta: Delta) -> None:
        self._root = self._root or delta.session
        if delta.kind == "output":
            self._said[delta.session, delta.call_id] = delta.text
        elif delta.session != self._root:
            return
        elif delta.kind == "text":
            self._written.append(delta.text)
            self._thinking = False
        elif delta.kind == "thinking":
            self._thinking = True
        elif delta.kind == "drop":
            self._written.clear()

    def _finish(self, line: Line) -> None:
        """Print what is left of a text whose blocks were printed as they came; a changed one is printed whole."""
        rest = line.text.removeprefix(self._shown).strip("\n") if line.text.startswith(self._shown) else line.text
        self._written.clear()
        self._shown, self._thinking = "", False
        if rest.strip():
            self.show(line.replace(text=rest))

    # --- the moving part ------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            self._settle()
            self._drawing.draw(self._picture())
            await asyncio.sleep(TICK)

    def _settle(self) -> None:
        """Print the blocks that no later word can change, unless a call is still to be told before them."""
        if not self._written or self._story.calls_open(self._root):
            return
        text = plain("".join(self._written)).lstrip()
        if not text.startswith(self._shown):
            self._shown = ""
        end = settled(text)
        if end > len(self._shown):
            self.show(Line("text", text[len(self._shown) : end].strip("\n"), self._root))
            self._shown = text[:end]

    def _picture(self) -> RenderableType:
        from rich.console import Group

        rows: list[RenderableType] = []
        text = plain("".join(self._written)).lstrip()
        if tail := text.removeprefix(self._shown).strip("\n"):
            rows += ["", _Rows(markdown(tail), self._width, most=max(self._console.height - 8, 5))]
        calls = sorted(self._story.open.values(), key=lambda one: f"{one.session}~{one.call.id}".split("~"))
        running: list[RenderableType] = [row for one in calls if (row := self._running(one))]
        if not running and not rows and not self._story.calls_open(self._root):
            what = "thinking" if self._thinking else "waiting for the model"
            rows += ["", styled([Piece(f"{self._spin()} {what}", "dim")])]
        elif running and not self._spacing.in_work:
            running = ["", *running]
        return Group(*rows, *running)

    def _running(self, one: Running) -> Text | None:
        if one.started is None or one.ended is not None or self._story.is_aside(one.session):
            return None
        key = (one.session, one.call.id)
        begun = self._begun.setdefault(key, time.monotonic())
        said = one_line(self._said.get(key, "").strip().rpartition("\n")[2], 40)
        text = f"{args_line(one.call.args)}{'  ' + said if said else ''}"
        seconds = time.monotonic() - begun
        line = Line("tool", text, one.session, one.depth, visible(one.call.name), "running", seconds)
        row = [p if p.text != "– " else Piece(f"{self._spin()} ", "cyan") for p in pieces(line, self._width)]
        return styled(row)

    def _spin(self) -> str:
        return _SPINNER[int(time.monotonic() / TICK) % len(_SPINNER)]


class _Alone:
    """A drawing that has the bottom of the screen for itself."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._live = Live(console=console, transient=True, auto_refresh=False, vertical_overflow="crop")
        self._silence = contextlib.ExitStack()

    def begin(self) -> None:
        self._silence.enter_context(_without_echo())
        self._live.start()

    def draw(self, picture: RenderableType) -> None:
        self._live.update(picture, refresh=True)

    async def rest(self) -> None:
        self.end()

    def end(self) -> None:
        self._live.update("", refresh=True)
        self._live.stop()
        self._silence.close()


class _Rows:
    """Something rendered without blank rows around it: the last few of its rows, or all."""

    def __init__(self, body: RenderableType, width: int, *, bar: str = "", most: int = 0) -> None:
        self._body, self._width, self._bar, self._most = body, width, bar, most

    def __rich_console__(self, console: Console, options: Any) -> Iterable[Any]:
        from rich.segment import Segment
        from rich.style import Style

        bar = Segment(self._bar, Style(dim=True))
        narrow = options.update(width=max(self._width - len(self._bar), 20), height=None)
        rows = console.render_lines(self._body, narrow, pad=False)
        while rows and _is_blank(rows[0]):
            rows = rows[1:]
        while rows and _is_blank(rows[-1]):
            rows = rows[:-1]
        for row in rows[-self._most :]:
            yield from [bar, *_trimmed(row), Segment.line()]


def _trimmed(row: Sequence[Segment]) -> list[Segment]:
    """A row without the spaces that fill it up: people copy from a screen. Spaces with a colour stay."""
    kept = list(row)
    while kept and not (kept[-1].style and kept[-1].style.bgcolor):
        last = kept.pop()
        if bare := last.text.rstrip():
            return [*kept, last._replace(text=bare)]
    return kept


def _is_blank(row: Iterable[Segment]) -> bool:
    return not "".join(segment.text for segment in row).strip()


@contextlib.contextmanager
def _without_echo() -> Generator[None]:
    """What is typed meanwhile (the ^C of a Ctrl-C too) does not push the drawing out of place."""
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


def settled(text: str) -> int:
    """How much of a Markdown text no later word can change: up to its last blank line outside a code fence."""
    end, at, fence = 0, 0, ""
    for row in text.splitlines(keepends=True):
        at += len(row)
        bare = row.strip()
        if fence:
            fence = "" if bare.startswith(fence) and not bare.strip(fence[0]) else fence
        elif bare.startswith(("```", "~~~")):
            fence = bare[0] * (len(bare) - len(bare.lstrip(bare[0])))
        elif not bare and row.endswith("\n"):
            end = at
    return end


def styled(row: Iterable[Piece]) -> Text:
    """A row for a console, cut where the screen ends."""
    from rich.text import Text

    return Text.assemble(*((piece.text, piece.style) for piece in row), no_wrap=True, overflow="ellipsis")


def markdown(text: str) -> RenderableType:
    """Markdown to print. Links show where they lead: a model wrote them."""
    return _markdown_class()(text, hyperlinks=False, code_theme="ansi_dark")


@cache
def _markdown_class() -> Any:
    """Rich's Markdown with headings where the text begins, and with HTML as the text that it is."""
    from markdown_it import MarkdownIt
    from rich import markdown as rich_markdown

    class Heading(rich_markdown.Heading):
        def __rich_console__(self, console: Console, options: Any) -> Iterable[Any]:
            self.text.justify = "left"
            yield self.text

    class Markdown(rich_markdown.Markdown):
        elements = {**rich_markdown.Markdown.elements, "heading_open": Heading}  # noqa: RUF012

        def __init__(self, markup: str, **options: Any) -> None:
            super().__init__(markup, **options)
            parser = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")
            self.parsed = parser.parse(markup)

    return Markdown


@contextlib.asynccontextmanager
async def view_on(
    out: TextIO | None, drawing: Drawing | None = None, **options: Any
) -> AsyncGenerator[View | None]:
    """The view that fits: moving at a terminal, None where nobody would see it."""
    if out is None:
        yield None
    elif moves(out):
        async with TerminalView(make_console(out), drawing, **options) as view:
            yield view
    else:
        yield PlainView(out, drawing, **options)


def moves(out: TextIO) -> bool:
    """Whether it is a terminal whose lines can be drawn again."""
    return out.isatty() and not make_console(out).is_dumb_terminal
