"""An input line below a running turn: output is printed above it, and input is delivered at once."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import sys
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self, TextIO, cast

from upcall.hosts.terminal.console import PlainStream, make_console, prompts_on_screen, raw_stream
from upcall.hosts.terminal.views import Drawing

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.formatted_text import AnyFormattedText
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from rich.console import RenderableType

IDLE_SECONDS = 1.5
"""Seconds without a key before a question may replace the input line.

Keys that were meant for the input line must not answer the question.
"""

_INPUT_ROWS = 6
"""Rows of the screen that a drawing leaves free for the input line."""


class InputEvent(NamedTuple):
    """An input event: a line, Ctrl-C, leaving, or a request to unfold a call.

    `gone`: the terminal is closed. `ended` comes from the chat itself: the work it started is over.
    """

    kind: Literal["line", "stop", "leave", "unfold", "gone", "ended"]
    text: str = ""


class InputLine(Drawing, Protocol):
    """An input line that is also a place to draw."""

    events: asyncio.Queue[InputEvent]

    def ask(self, doing: str = "") -> None:
        """Wait for the next line; `doing` labels the input while something runs."""
        ...

    async def __aenter__(self) -> Self:
        """Start to listen."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """Stop listening."""
        ...


@contextlib.contextmanager
def _ctrl_c(events: asyncio.Queue[InputEvent]) -> Generator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, events.put_nowait, InputEvent("stop"))
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


# --- at a terminal that can move its cursor ---------------------------------------------


class EditorLine:
    """A multi-line editor at the bottom of the screen, with history and completion. It is also a Drawing.

    Everything that the process prints meanwhile appears above it.
    """

    def __init__(self, history: History, completer: Completer) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.filters import Condition
        from prompt_toolkit.renderer import CPR_Support

        self.events: asyncio.Queue[InputEvent] = asyncio.Queue()
        self._screen = raw_stream(sys.stdout)
        self._doing = ""
        self._picture = ""
        self._last_key = 0.0
        self._running: asyncio.Task[str] | None = None
        self._above = _OutputAbove(self)
        self._context = contextlib.ExitStack()
        with prompts_on_screen():
            self._editor: PromptSession[str] = PromptSession(
                self._prompt,
                multiline=True,
                prompt_continuation="  ",
                history=history,
                completer=completer,
                complete_while_typing=Condition(self._opens_menu),
                key_bindings=self._keys(),
                erase_when_done=True,
            )
        self._buffer = self._editor.default_buffer
        self._buffer.on_text_changed += self._on_key
        # the terminal's answer would arrive after we have printed something, and be wrong
        self._editor.app.renderer.cpr_support = CPR_Support.NOT_SUPPORTED

    async def __aenter__(self) -> Self:
        """Show the input line and redirect what is printed."""
        above = cast("TextIO", PlainStream(self._above, screen=self._screen))
        self._context.enter_context(contextlib.redirect_stdout(above))
        self._context.enter_context(contextlib.redirect_stderr(above))
        self._context.enter_context(_ctrl_c(self.events))
        self._above.loop = asyncio.get_running_loop()
        self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Remove the input line."""
        await self._stop()
        self._context.close()

    def ask(self, doing: str = "") -> None:
        """Set the label of the input line."""
        self._doing = doing
        self._editor.app.invalidate()

    # --- as a drawing ---------------------------------------------------------------------

    def begin(self) -> None:
        """Take the screen, and restore the text typed so far."""
        if self._running is None:
            typed = self._editor.prompt_async(
                default=self._buffer.document, handle_sigint=False, set_exception_handler=False
            )
            self._running = asyncio.ensure_future(typed)
            self._running.add_done_callback(self._on_editor_ended)

    def _on_editor_ended(self, ended: asyncio.Task[str]) -> None:
        if not ended.cancelled():
            ended.exception()  # whatever the error, the terminal can't be used any more
        if ended is self._running:
            self.events.put_nowait(InputEvent("gone"))

    def draw(self, picture: RenderableType) -> None:
        """Show this above the input line, cut at the top if it is too high."""
        console = make_console(self._above)
        with console.capture() as rendered:
            console.print(picture)
        rows = rendered.get().rstrip("\n").split("\n")
        self._picture = "\n".join(rows[-max(console.height - _INPUT_ROWS, 1) :])
        self._editor.app.invalidate()

    async def release(self) -> None:
        """Leave the screen to a question, once the person has stopped typing."""
        while self._buffer.text and time.monotonic() - self._last_key < IDLE_SECONDS:  # noqa: ASYNC110 - no key, no event
            await asyncio.sleep(0.1)
        await self._stop()

    def end(self) -> None:
        """Remove the drawing."""
        self._picture = ""
        self._editor.app.invalidate()

    async def _stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            if self._editor.app.is_running:
                self._editor.app.exit(result="")
            else:
                running.cancel()
            await asyncio.wait({running})
        self._above.flush_lines()

    # --- what is printed meanwhile --------------------------------------------------------

    def print_above(self, text: str) -> None:
        """Print above the input line."""
        app = self._editor.app
        if app.is_running:
            app.renderer.erase()
        self._screen.write(text)
        self._screen.flush()
        app.invalidate()

    # --- the line -------------------------------------------------------------------------

    def _prompt(self) -> AnyFormattedText:
        from prompt_toolkit.formatted_text import ANSI, FormattedText, merge_formatted_text

        picture = ANSI(f"{self._picture}\n") if self._picture.strip() else ""
        doing = f"{self._doing} " if self._doing else ""
        return merge_formatted_text([picture, doing, FormattedText([("ansicyan", "› ")])])

    def _on_key(self, _: Any) -> None:
        self._last_key = time.monotonic()

    def _opens_menu(self) -> bool:
        """Return whether a completion menu opens by itself, which needs room on the screen."""
        before = self._buffer.document.text_before_cursor
        word = before.rpartition("\n")[2].rpartition(" ")[2]
        return word.startswith("@") or (before.startswith("/") and before[1:].isalpha()) or before == "/"

    def _keys(self) -> KeyBindings:
        from prompt_toolkit.filters import has_focus
        from prompt_toolkit.key_binding import KeyBindings

        keys = KeyBindings()
        at_line = has_focus("DEFAULT_BUFFER")

        def send(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
                buffer.complete_state = None
            elif buffer.text.strip():
                buffer.append_to_history()
                self.events.put_nowait(InputEvent("line", buffer.text))
                buffer.reset()

        def break_line(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        def stop(event: KeyPressEvent) -> None:
            event.current_buffer.reset()
            self.events.put_nowait(InputEvent("stop"))

        def leave(event: KeyPressEvent) -> None:
            if event.current_buffer.text:
                event.current_buffer.delete()
            else:
                self.events.put_nowait(InputEvent("leave"))

        def unfold(_: KeyPressEvent) -> None:
            self.events.put_nowait(InputEvent("unfold"))

        keys.add("enter", filter=at_line)(send)
        keys.add("escape", "enter", filter=at_line)(break_line)
        keys.add("c-c", filter=at_line)(stop)
        keys.add("c-d", filter=at_line)(leave)
        keys.add("c-o", filter=at_line)(unfold)
        return keys


class _OutputAbove(io.StringIO):
    """A stand-in for stdout and stderr, for all threads: it prints complete lines above the input line."""

    loop: asyncio.AbstractEventLoop | None = None

    def __init__(self, typing: EditorLine) -> None:
        super().__init__()
        self._typing = typing
        self._text = ""
        self._due = False

    def isatty(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        self._text += text
        if not self._due and "\n" in text and self.loop is not None:
            self._due = True
            self.loop.call_soon_threadsafe(self.flush_lines)
        return len(text)

    def flush_lines(self) -> None:
        """Print the complete lines."""
        self._due = False
        whole, newline, self._text = self._text.rpartition("\n")
        if newline:
            self._typing.print_above(whole + newline)


# --- at one that can not ----------------------------------------------------------------


class PlainLine:
    """An input line without editing, drawing or completion, for simple terminals."""

    def __init__(self, out: TextIO) -> None:
        self.events: asyncio.Queue[InputEvent] = asyncio.Queue()
        self._out = out
        self._context = contextlib.ExitStack()

    async def __aenter__(self) -> Self:
        """Start to listen."""
        self._context.enter_context(_ctrl_c(self.events))
        self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening."""
        await self.release()
        self._context.close()

    def ask(self, doing: str = "") -> None:
        """Print the prompt sign, unless something is running."""
        if not doing:
            self._out.write("› ")
            self._out.flush()

    def begin(self) -> None:
        """Start to read."""
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._read)

    def draw(self, picture: RenderableType) -> None:
        """Do nothing: this terminal can't be drawn on."""

    async def release(self) -> None:
        """Stop reading."""
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())

    def end(self) -> None:
        """Do nothing: nothing was drawn."""

    def _read(self) -> None:
        try:
            line = os.read(sys.stdin.fileno(), 65536).decode("utf-8", "replace")
        except OSError:  # the terminal is closed
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self.events.put_nowait(InputEvent("gone"))
            return
        if not line:
            self.events.put_nowait(InputEvent("leave"))
        elif line.strip():
            self.events.put_nowait(InputEvent("line", line.rstrip("\n")))
