"""Divide a text into steps that are printed one at a time: Markdown in small parts, anything longer as it is.

Rendering Markdown takes time, and some texts take a thousand times longer than others. So a step of Markdown is
short, and so is all Markdown of one text. A block that is longer than a step, and the rest of a very long text, is
printed as plain text. Nothing is left out.
"""

from __future__ import annotations

from typing import NamedTuple

LONGEST_STEP = 8_000
"""Characters that are rendered or printed at once."""

_MOST_ROWS = 500
"""Rows that are rendered or printed at once."""

_MOST_MARKDOWN = 60_000
"""Characters of one text that are rendered as Markdown."""


class Step(NamedTuple):
    """A part of a text to print.

    given: the part as it is in the text
    is_markdown: whether to render it
    continues: whether it continues the block of the step before it, so that no blank row comes between
    ends: whether its block ends with it
    """

    given: str
    is_markdown: bool
    continues: bool = False
    ends: bool = False

    @property
    def text(self) -> str:
        """The text to print, without the line breaks around it that printing adds itself."""
        text = self.given if self.continues else self.given.lstrip("\n")
        return text.rstrip("\n") if self.ends else text.removesuffix("\n")


class TextSteps:
    """The steps of a text that may still grow. `feed` each piece of it, then `take` steps until there is none.

    Each call takes a short time, however long the text is.
    """

    def __init__(self) -> None:
        self._fed: list[str] = []  # not yet in `_text`
        self._text = ""
        self._begin = 0  # up to here it was taken
        self._seen = 0  # up to here its rows were looked at
        self._rows = 0  # that were looked at since `_begin`
        self._stable = 0  # up to here later text can't change its rendering
        self._fence = ""  # the code fence that is open
        self._fence_before = ""  # the one that was open at `_begin`
        self._in_long_block = False
        self._continues = False
        self._markdown_left = _MOST_MARKDOWN

    @property
    def is_plain(self) -> bool:
        """True if the rest of the text belongs to a block that is printed as plain text."""
        return self._in_long_block

    def tail(self, most: int) -> str:
        """Return the last characters of what was not taken yet."""
        self._join()
        return self._text[max(self._begin, len(self._text) - most) :]

    def feed(self, text: str) -> None:
        """Add text at the end."""
        self._fed.append(text)

    def _join(self) -> None:
        if self._fed:
            begin, self._text = self._begin, self._text[self._begin :] + "".join(self._fed)
            self._begin, self._seen, self._stable = 0, self._seen - begin, self._stable - begin
            self._fed.clear()

    def end_with(self, rest: str) -> None:
        """Replace what was not taken yet: the text ends with `rest`."""
        self._fed.clear()
        self._text, self._fence = rest, self._fence_before
        self._begin = self._seen = self._stable = self._rows = 0

    def take(self, *, ended: bool = False) -> Step | None:
        """Return the next step; None if more text is needed for one. `ended` says that no more text comes."""
        self._join()
        is_full = self._look()
        end, is_stable = len(self._text), self._stable > self._begin
        if self._in_long_block:
            if is_stable and self._markdown_left > 0:
                self._in_long_block = False
                return self._cut(self._stable, ends=True)
            if is_full:
                return self._cut(self._seen if self._seen > self._begin else self._place_in_row())
            return self._cut(end, ends=True) if ended and self._begin < end else None
        if ended and not is_full:
            return self._cut_markdown(end) if self._begin < end else None
        if is_stable:
            return self._cut_markdown(self._stable)
        if is_full:
            self._in_long_block = True
            return self._cut(self._seen if self._seen > self._begin else self._place_in_row())
        return None

    def _look(self) -> bool:
        """Look at the rows that fit into a step; returns whether it is full."""
        limit = self._begin + LONGEST_STEP
        while self._rows < _MOST_ROWS:
            newline = self._text.find("\n", self._seen, limit)
            if newline < 0:
                return len(self._text) > limit
            row, self._seen = self._text[self._seen : newline].strip(), newline + 1
            self._rows += 1
            if self._fence:
                if row.startswith(self._fence) and not row.strip(self._fence[0]):
                    self._fence = ""
            elif row.startswith(("```", "~~~")):
                self._fence = row[0] * (len(row) - len(row.lstrip(row[0])))
            elif not row:
                self._stable = self._seen
                if self._in_long_block and self._markdown_left > 0:
                    return False
        return True

    def _place_in_row(self) -> int:
        """Return where to cut a row that is too long for a step: at a blank, if there is one."""
        limit = self._begin + LONGEST_STEP
        blank = self._text.rfind(" ", limit - LONGEST_STEP // 8, limit)
        return limit if blank < 0 else blank + 1

    def _cut_markdown(self, end: int) -> Step:
        self._markdown_left -= end - self._begin
        self._in_long_block = self._markdown_left <= 0
        return self._cut(end, is_markdown=True, ends=True)

    def _cut(self, end: int, *, is_markdown: bool = False, ends: bool = False) -> Step:
        step = Step(self._text[self._begin : end], is_markdown, self._continues, ends)
        if end < self._seen:  # rows behind a blank row, which is in no fence, are looked at again
            self._fence = ""
        self._fence_before = self._fence
        self._begin = self._seen = self._stable = end
        self._rows, self._continues = 0, not ends
        return step
