"""Safe output to a terminal: text is cleaned of control codes, whoever wrote it.

Text from models, tools, servers, files and logs reaches a screen in two ways. `make_console` returns a Rich console
for coloured output; it cleans every piece of text and keeps only its own control codes. `plain_output` replaces
stdout and stderr with a `PlainStream`, for everything else that a process prints: errors, stack traces, warnings,
log lines, the `print` of a tool, the bytes that a tool writes to `sys.stdout.buffer`. prompt_toolkit writes bytes,
too, and cleans them itself: its prompts are made in `prompts_on_screen`.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import sys
from collections.abc import Generator, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, TextIO, cast

from upcall.observe.plain import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment
    from typing_extensions import Buffer


class PlainStream:
    """A stream that removes control codes and invisible characters from text, also from text that comes as bytes.

    Everything else is delegated to `raw`, the stream it wraps.

    screen: where prompts are drawn, if not on `raw`
    """

    def __init__(self, raw: TextIO, screen: TextIO | None = None) -> None:
        self.raw = raw
        self.screen: TextIO = raw if screen is None else screen
        self.buffer = _PlainBytes(self)

    def write(self, text: str, /) -> int:
        """Write the cleaned text."""
        self.raw.write(plain(text))
        return len(text)

    def writelines(self, lines: Iterable[str], /) -> None:
        """Write each cleaned text."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


class _PlainBytes(io.RawIOBase):
    """The bytes of a PlainStream: they are read as UTF-8 and cleaned as text is.

    A character may be split between two writes. Bytes that are not UTF-8 are shown as `\ufffd`.
    """

    def __init__(self, text: PlainStream) -> None:
        super().__init__()
        self._text, self._decoder = text, codecs.getincrementaldecoder("utf-8")("replace")

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        given = bytes(data)
        self._text.write(self._decoder.decode(given))
        return len(given)

    def flush(self) -> None:
        self._text.raw.flush()

    def fileno(self) -> int:
        return self._text.raw.fileno()

    def isatty(self) -> bool:
        return self._text.raw.isatty()

    def close(self) -> None:
        """Do nothing: a wrapper around these bytes that is forgotten must not close the screen."""


def plain_stream(stream: TextIO) -> TextIO:
    """Wrap a stream in a PlainStream, unless it is one already."""
    return stream if isinstance(stream, PlainStream) else cast("TextIO", PlainStream(stream))


def raw_stream(stream: TextIO) -> TextIO:
    """Unwrap a PlainStream, for a writer that uses control codes and cleans all other text itself."""
    return stream.raw if isinstance(stream, PlainStream) else stream


@contextlib.contextmanager
def prompts_on_screen() -> Generator[None]:
    """Let prompts that are made in the block draw on the screen itself, whatever stdout is replaced with."""
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.output import create_output

    out = sys.stdout
    with create_app_session(output=create_output(out.screen if isinstance(out, PlainStream) else out)):
        yield


@contextlib.contextmanager
def plain_output() -> Generator[None]:
    """Clean everything that this process prints, until the end of the block."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = plain_stream(sys.stdout), plain_stream(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def make_console(out: TextIO) -> Console:
    """Return a console that interprets no markup, and that raises a broken pipe to its caller."""
    return _console_class()(file=raw_stream(out), highlight=False, markup=False, emoji=False)


@cache
def _console_class() -> type[Console]:
    from rich.console import Console as Base
    from rich.console import ConsoleOptions, RenderableType

    class PlainConsole(Base):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            """Render as Rich does, with cleaned text and without hidden links."""
            for segment in super().render(renderable, options):
                yield segment if segment.control else _plain_segment(segment)

        def on_broken_pipe(self) -> None:
            """Raise the exception; Rich itself would end the process with exit code 1."""
            raise  # noqa: PLE0704

    return PlainConsole


def _plain_segment(segment: Segment) -> Segment:
    text, style = plain(segment.text), segment.style
    if style is not None and style.link:
        style = style.update_link(None)
    return segment if text is segment.text and style is segment.style else segment._replace(text=text, style=style)
