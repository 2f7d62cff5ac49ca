"""Markdown at a terminal: rendered with Rich, in parts that a thread renders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.segment import Segment


def markdown(text: str) -> RenderableType:
    """Build Markdown to print. Links show their targets, because a model wrote them."""
    return _markdown_class()(text, hyperlinks=False, code_theme="ansi_dark")


@cache
def _markdown_class() -> Any:
    """Return Rich's Markdown class, changed: headings are left-aligned, and HTML is shown as text."""
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


Rows = list[list["Segment"]]


class PrintedRows:
    """Rows to print as they are."""

    def __init__(self, rows: Sequence[Sequence[Segment]]) -> None:
        self._rows = rows

    def __rich_console__(self, console: Console, options: Any) -> Iterable[Any]:
        from rich.segment import Segment

        for row in self._rows:
            yield from [*row, Segment.line()]


class PrintedText:
    """Text to print as it is. The terminal breaks its rows; a text with a bar before each row is broken here."""

    def __init__(self, text: str, width: int, *, bar: str = "") -> None:
        self._text = _with_bar(text, width, bar) if bar else text

    def __rich_console__(self, console: Console, options: Any) -> Iterable[Any]:
        from rich.segment import Segment

        yield Segment(f"{self._text}\n")


def _with_bar(text: str, width: int, bar: str) -> str:
    return "\n".join(f"{bar}{row}".rstrip() for row in _broken(text, max(width - len(bar), 20)))


def plain_rows(text: str, width: int, most: int) -> Rows:
    """Return the last rows of a text, as it is."""
    from rich.segment import Segment

    return [[Segment(row)] for row in _broken(text, width)[-most:]]


def _broken(text: str, room: int) -> list[str]:
    """Break a text into rows of at most `room` columns."""
    rows: list[str] = []
    for row in text.expandtabs(4).split("\n"):
        columns = room if row.isascii() else room // 2  # a letter may be two columns wide
        rows += [row[at : at + columns] for at in range(0, max(len(row), 1), columns)]
    return rows


def render_rows(console: Console, text: str, width: int, *, bar: str = "", most: int = 0) -> Rows:
    """Render Markdown as rows without blank rows around them; with `most`, only the last ones.

    It takes long for some texts: call it in a thread, with a text of a bounded length.
    """
    from rich.segment import Segment
    from rich.style import Style

    narrow = console.options.update(width=max(width - len(bar), 20), height=None)
    rows = console.render_lines(markdown(text), narrow, pad=False)
    while rows and _is_blank(rows[0]):
        rows = rows[1:]
    while rows and _is_blank(rows[-1]):
        rows = rows[:-1]
    return [[Segment(bar, Style(dim=True)), *_trim(row)] for row in rows[-most:]]


def _trim(row: Sequence[Segment]) -> list[Segment]:
    """Remove trailing spaces, so that text can be copied from the screen. Spaces with a colour stay."""
    segments = list(row)
    while segments and not (segments[-1].style and segments[-1].style.bgcolor):
        last = segments.pop()
        if bare := last.text.rstrip():
            return [*segments, last._replace(text=bare)]
    return segments


def _is_blank(row: Iterable[Segment]) -> bool:
    return not "".join(segment.text for segment in row).strip()
