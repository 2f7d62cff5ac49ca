"""Find the values of fields that are named like secrets, in JSON that stands in a text: all of it, or a part.

A value may be a text, a number, or an array or an object with any of them inside. JSON inside a text inside JSON
has a backslash before each quote, then three of them, then seven. Every text is read once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

Span = tuple[int, int]

_FIELD = re.compile(
    r"(?<![A-Za-z0-9_.-])([A-Za-z_][A-Za-z0-9_.-]{1,100})(\\{0,7})[\"'][ \t]{0,8}:[ \t]{0,8}"
    r"(?:\r?\n[ \t]{0,80})?([\[{]|-?\d[\d.eE+-]*|\\{0,7}[\"'])"
)
_PART = re.compile(r"(?<!\\)(\\*+)([\"'])|[\[\]{}\n]|(?<![\w.+-])-?\d[\w.+-]*")
_COLON = re.compile(r"\s{0,80}:")


class Fields(NamedTuple):
    """What was found in a text.

    spans: the values, without quotes
    opened: where a value begins that has not ended; -1 if there is none
    unfinished: that value
    """

    spans: list[Span]
    opened: int = -1
    unfinished: Value | None = None


class Value:
    """A value that is read up to its end, in one piece or in several.

    length: the characters that were read of it by `take_piece`
    """

    def __init__(self, slashes: int, depth: int) -> None:
        self._slashes, self._depth = slashes, depth
        self._quote = self._tail = ""
        self.spans: list[Span] = []
        self.length: int = 0

    def read(self, text: str, at: int) -> int:
        """Read on from a place in the text; return where the value ends, -1 if it does not end here."""
        begun = at
        for part in _PART.finditer(text, at):
            here = part.group()
            if part[2]:
                change = self._at_quote(len(part[1]), part[2])
                if change == "outside":
                    return part.start()
                if change == "begins":
                    begun = part.end()
                elif change == "ends":
                    self._ends(text, begun, part)
            elif here == "\n" and self._quote:  # no JSON text goes beyond its line
                self._quote = ""
                self._hide(begun, part.start())
            elif not self._quote:
                self._at_mark(here, part)
            if self._depth == 0 and not self._quote:
                return part.end()
        if self._quote:
            self._hide(begun, len(text))
        return -1

    def take(self, text: str) -> str | None:
        """Take the next piece; return what follows the value in it, None if it has not ended."""
        text = self._tail + text
        kept = len(text.rstrip("\\"))  # the quote after a backslash may be in the next piece
        end = self.read(text[:kept], 0)
        self.spans.clear()
        self._tail = text[kept:] if end < 0 else ""
        self.length += end if end >= 0 else kept
        return text[end:] if end >= 0 else None

    def _at_quote(self, slashes: int, quote: str) -> str:
        if slashes < self._slashes:
            return "outside"  # the text that holds this JSON ends
        if slashes % (2 * self._slashes + 2) != self._slashes or (self._quote and quote != self._quote):
            return ""
        self._quote, before = "" if self._quote else quote, self._quote
        return "ends" if before else "begins"

    def _at_mark(self, mark: str, part: re.Match[str]) -> None:
        if mark in "[{":
            self._depth += 1
        elif mark in "]}":
            self._depth -= 1
        elif mark != "\n":
            self._hide(*part.span())

    def _ends(self, text: str, begun: int, part: re.Match[str]) -> None:
        if self._depth == 0 or not _COLON.match(text, part.end()):  # not the name of a field
            self._hide(begun, part.start())

    def _hide(self, start: int, end: int) -> None:
        if end > start:
            self.spans.append((start, end))


def secret_fields(text: str, tells: Callable[[str], bool], lines: Iterable[Span] | None = None) -> Fields:
    """Return the values of fields in a text whose names tell of a secret.

    lines: where those names are, in order; anywhere unless given
    """
    spans: list[Span] = []
    at = 0
    if ":" not in text or ('"' not in text and "'" not in text):
        return Fields(spans)
    for start, end in ((0, len(text)),) if lines is None else lines:
        at = max(at, start)
        while found := _FIELD.search(text, at, end):
            at = found.end()
            if not tells(found[1]):
                at = found.start(3)
                continue
            begins = found[3]
            if begins[-1] not in "[{\"'":
                spans.append(found.span(3))
                continue
            opens = begins in "[{"
            value = Value(len(found[2]), 1 if opens else 0)
            at = value.read(text, found.end() if opens else found.start(3))
            spans += value.spans
            if at < 0:
                return Fields(spans, found.start(3), value)
            at = max(at, found.start(3) + 1)
    return Fields(spans)
