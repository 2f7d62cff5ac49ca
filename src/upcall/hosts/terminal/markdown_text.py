"""Markdown at a terminal: rendered with Rich, and printed block by block while it is written."""

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


def stable_length(text: str) -> int:
    """Return how much Markdown later text can't change: up to the last blank line outside a code fence."""
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


class RenderedRows:
    """Rendered rows without blank rows around them; with `most`, only the last ones."""

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
            yield from [bar, *_trim(row), Segment.line()]


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
