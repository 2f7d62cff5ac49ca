"""A text as the eye reads it, without escape sequences and invisible characters, and where each part of it stood.

Whoever reads `sk-abc<colour>def` on a screen sees one key. So secrets are looked for in this copy, too.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable

from upcall.observe.plain import ERASED

_MARK = re.compile("[\u034f-\U0010ffff]")
_MARKS = tuple(map(re.compile, ("\u034f", "[\u17b4-\u180f]", "[\ufe00-\ufe0f]", "[\U000e0080-\U000e0fff]")))
"""What is erased although Python calls it printable, and some more: one range each, which is looked for fast."""

_BEGUN_SEQUENCE = re.compile(
    r"(?:\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\x9c\n]*\x1b?|[ -/]*)|\x9b[0-?]*[ -/]*)\Z"
)
_LONGEST_SEQUENCE = 4_096


class BareText:
    """A text without what is erased from it.

    text: what is left
    """

    def __init__(self, whole: str) -> None:
        self._kept_from = array("q", (0,))  # the places in `text` after each erased part
        self._erased = array("q", (0,))  # the characters that were erased before each of them
        erased = 0
        for found in ERASED.finditer(whole):
            kept = found.start() - erased
            erased += found.end() - found.start()
            if kept == self._kept_from[-1]:
                self._erased[-1] = erased
            else:
                self._kept_from.append(kept)
                self._erased.append(erased)
        self.text: str = ERASED.sub("", whole)

    def start(self, at: int) -> int:
        """Return where a character of `text` stands in the whole text."""
        return at + self._erased[bisect_right(self._kept_from, at) - 1]

    def end(self, at: int) -> int:
        """Return where in the whole text the part of `text` ends that ends here."""
        return self.start(at - 1) + 1 if at else 0

    def spans(self, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return where parts of `text` stand in the whole text."""
        return [(self.start(start), self.end(end)) for start, end in spans]


def bare_text(whole: str) -> BareText | None:
    """Return the text without what is not seen of it; None if all of it is seen, as in almost every text."""
    seen = (
        whole.isprintable()
        or (rows := whole.replace("\n", "")).isprintable()
        or rows.replace("\t", "").isprintable()
    )
    if seen and (whole.isascii() or not _MARK.search(whole) or not any(mark.search(whole) for mark in _MARKS)):
        return None
    return BareText(whole) if ERASED.search(whole) else None


def begun_sequence(whole: str) -> int:
    """Return where an escape sequence begins that has not ended at the end; the text's length if none does."""
    if "\x1b" not in whole and "\x9b" not in whole:
        return len(whole)
    found = _BEGUN_SEQUENCE.search(whole, max(len(whole) - _LONGEST_SEQUENCE, 0))
    return found.start() if found else len(whole)
