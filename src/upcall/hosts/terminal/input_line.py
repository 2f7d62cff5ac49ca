"""A line to type in below a run that goes on: what is printed goes above it, what is sent is heard at once."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import sys
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self, TextIO

from upcall.hosts.terminal.console import make_console, plain_stream, raw_stream
from upcall.hosts.terminal.screen import Drawing

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.formatted_text import AnyFormattedText
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from rich.console import RenderableType

CALM = 1.5
"""Seconds without a key before a question may take the screen from somebody who types: keys meant for the one line
must not answer the other."""

_ROOM = 6
"""Rows of the screen that a drawing leaves to what is typed."""


class Heard(NamedTuple):
    """What a person did: sent a line, pressed Ctrl-C, wants to leave, or to see a call whole.

    `gone`: nobody can type any more. `ended` is for who listens: what was begun for an earlier one is over.
    """

    kind: Literal["line", "stop", "leave", "unfold", "gone", "ended"]
    text: str = ""


class Keyboard(Drawing, Protocol):
    """Where somebody types, and where a run may draw meanwhile."""

    heard: asyncio.Queue[Heard]

    def ask(self, doing: str = "") -> None:
        """Wait for the next line: a prompt, or while something goes on what is said to that."""
        ...

    async def __aenter__(self) -> Self:
        """Begin to listen."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """Listen no more."""
        ...


@contextlib.contextmanager
def _ctrl_c(heard: asyncio.Queue[Heard]) -> Generator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, heard.put_nowait, Heard("stop"))
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


# --- at a terminal that can move its cursor ---------------------------------------------


class Typing:
    """An editor of several lines at the bottom of the screen, with history and completion; it is also a Drawing.

    What the process prints meanwhile, by whatever part, appears above it.
    """

    def __init__(self, history: History, completer: Completer) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.filters import Condition
        from prompt_toolkit.renderer import CPR_Support

        self.heard: asyncio.Queue[Heard] = asyncio.Queue()
        self._screen = raw_stream(sys.stdout)
        self._doing = ""
        self._picture = ""
        self._touched = 0.0
        self._running: asyncio.Task[str] | None = None
        self._above = _Above(self)
        self._context = contextlib.ExitStack()
        self._editor: PromptSession[str] = PromptSession(
            self._prompt,
            multiline=True,
            prompt_continuation="  ",
            history=history,
            completer=completer,
            complete_while_typing=Condition(self._completes),
            key_bindings=self._keys(),
            erase_when_done=True,
        )
        self._buffer = self._editor.default_buffer
        self._buffer.on_text_changed += self._touch
        # its answer to where the cursor is would come after we have printed something, and be wrong
        self._editor.app.renderer.cpr_support = CPR_Support.NOT_SUPPORTED

    async def __aenter__(self) -> Self:
        """Show the line, and take over what is printed."""
        above = plain_stream(self._above)
        self._context.enter_context(contextlib.redirect_stdout(above))
        self._context.enter_context(contextlib.redirect_stderr(above))
        self._context.enter_context(_ctrl_c(self.heard))
        self._above.loop = asyncio.get_running_loop()
        self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Take the line away."""
        await self._stop()
        self._context.close()

    def ask(self, doing: str = "") -> None:
        """Say what the next line will be."""
        self._doing = doing
        self._editor.app.invalidate()

    # --- as a drawing ---------------------------------------------------------------------

    def begin(self) -> None:
        """Take the screen, with what had been typed so far."""
        if self._running is None:
            typed = self._editor.prompt_async(
                default=self._buffer.document, handle_sigint=False, set_exception_handler=False
            )
            self._running = asyncio.ensure_future(typed)
            self._running.add_done_callback(self._left_alone)

    def _left_alone(self, ended: asyncio.Task[str]) -> None:
        if not ended.cancelled():
            ended.exception()  # whatever it was, the terminal is of no use any more
        if ended is self._running:
            self.heard.put_nowait(Heard("gone"))

    def draw(self, picture: RenderableType) -> None:
        """Show this above the line, as much of its end as there is room for."""
        console = make_console(self._above)
        with console.capture() as rendered:
            console.print(picture)
        rows = rendered.get().rstrip("\n").split("\n")
        self._picture = "\n".join(rows[-max(console.height - _ROOM, 1) :])
        self._editor.app.invalidate()

    async def rest(self) -> None:
        """Leave the screen to a question, once whoever types has stopped to."""
        while self._buffer.text and time.monotonic() - self._touched < CALM:  # noqa: ASYNC110 - no key, no event
            await asyncio.sleep(0.1)
        await self._stop()

    def end(self) -> None:
        """Nothing is drawn."""
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
        self._above.pour()

    # --- what is printed meanwhile --------------------------------------------------------

    def put(self, text: str) -> None:
        """Print above the line."""
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

    def _touch(self, _: Any) -> None:
        self._touched = time.monotonic()

    def _completes(self) -> bool:
        """Whether a menu opens by itself: where it does, the screen needs room for it."""
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
                self.heard.put_nowait(Heard("line", buffer.text))
                buffer.reset()

        def break_line(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        def stop(event: KeyPressEvent) -> None:
            event.current_buffer.reset()
            self.heard.put_nowait(Heard("stop"))

        def leave(event: KeyPressEvent) -> None:
            if event.current_buffer.text:
                event.current_buffer.delete()
            else:
                self.heard.put_nowait(Heard("leave"))

        def unfold(_: KeyPressEvent) -> None:
            self.heard.put_nowait(Heard("unfold"))

        keys.add("enter", filter=at_line)(send)
        keys.add("escape", "enter", filter=at_line)(break_line)
        keys.add("c-c", filter=at_line)(stop)
        keys.add("c-d", filter=at_line)(leave)
        keys.add("c-o", filter=at_line)(unfold)
        return keys


class _Above(io.StringIO):
    """Stands where stdout and stderr are, for threads too: whole lines are printed above the line to type in."""

    loop: asyncio.AbstractEventLoop | None = None

    def __init__(self, typing: Typing) -> None:
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
            self.loop.call_soon_threadsafe(self.pour)
        return len(text)

    def pour(self) -> None:
        """Print what is complete."""
        self._due = False
        whole, newline, self._text = self._text.rpartition("\n")
        if newline:
            self._typing.put(whole + newline)


# --- at one that can not ----------------------------------------------------------------


class PlainTyping:
    """Lines as the terminal itself takes them: nothing is drawn, edited or completed."""

    def __init__(self, out: TextIO) -> None:
        self.heard: asyncio.Queue[Heard] = asyncio.Queue()
        self._out = out
        self._context = contextlib.ExitStack()

    async def __aenter__(self) -> Self:
        """Begin to listen."""
        self._context.enter_context(_ctrl_c(self.heard))
        self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Listen no more."""
        await self.rest()
        self._context.close()

    def ask(self, doing: str = "") -> None:
        """Ask for a prompt; what is said meanwhile is typed without being asked for."""
        if not doing:
            self._out.write("› ")
            self._out.flush()

    def begin(self) -> None:
        """Take what is typed."""
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._read)

    def draw(self, picture: RenderableType) -> None:
        """Nothing can be drawn here."""

    async def rest(self) -> None:
        """Leave what is typed to somebody else."""
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())

    def end(self) -> None:
        """Nothing was drawn."""

    def _read(self) -> None:
        try:
            line = os.read(sys.stdin.fileno(), 65536).decode("utf-8", "replace")
        except OSError:  # the terminal is gone
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self.heard.put_nowait(Heard("gone"))
            return
        if not line:
            self.heard.put_nowait(Heard("leave"))
        elif line.strip():
            self.heard.put_nowait(Heard("line", line.rstrip("\n")))
