"""The one door to a terminal: whatever is written through it is plain, whoever wrote the text.

Texts of models, tools, servers, files and logs reach a screen in two ways. `make_console` gives a Rich console for
what has colours: it cleans every piece of text and leaves only its own control codes. `plain_output` puts a
`PlainStream` where stdout and stderr are, for everything else that a process prints: errors, stack traces,
warnings, log lines, the `print` of a tool.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, TextIO, cast

from upcall.observe.plain import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment


class PlainStream:
    """A stream that writes text without anything that steers a terminal or hides in it.

    In all else it is the stream that it was made of, which `raw` is.
    """

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw

    def write(self, text: str, /) -> int:
        """Write the text, made plain."""
        self.raw.write(plain(text))
        return len(text)

    def writelines(self, lines: Iterable[str], /) -> None:
        """Write each text, made plain."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def plain_stream(stream: TextIO) -> TextIO:
    """The stream with a door before it; itself where it has one."""
    return stream if isinstance(stream, PlainStream) else cast("TextIO", PlainStream(stream))


def raw_stream(stream: TextIO) -> TextIO:
    """The stream behind the door, for a writer that has control codes of its own and cleans all other text."""
    return stream.raw if isinstance(stream, PlainStream) else stream


@contextlib.contextmanager
def plain_output() -> Generator[None]:
    """Make all that this process prints plain, until the end of the block."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = plain_stream(sys.stdout), plain_stream(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def make_console(out: TextIO) -> Console:
    """A console that takes nothing in a text for an instruction, and leaves a broken pipe to whoever prints."""
    return _console()(file=raw_stream(out), highlight=False, markup=False, emoji=False)


@cache
def _console() -> type[Console]:
    from rich.console import Console as Base
    from rich.console import ConsoleOptions, RenderableType

    class PlainConsole(Base):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            """Render as Rich does, with every text made plain and no hidden links."""
            for segment in super().render(renderable, options):
                yield segment if segment.control else _plain_segment(segment)

        def on_broken_pipe(self) -> None:
            """Raise what was caught; Rich's own way is to end the process with exit code 1."""
            raise  # noqa: PLE0704

    return PlainConsole


def _plain_segment(segment: Segment) -> Segment:
    text, style = plain(segment.text), segment.style
    if style is not None and style.link:
        style = style.update_link(None)
    return segment if text is segment.text and style is segment.style else segment._replace(text=text, style=style)
