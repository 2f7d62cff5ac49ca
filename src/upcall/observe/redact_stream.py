"""Hide secrets in text that comes in pieces, such as a reply while the model writes it.

A secret may be split between two pieces. So the newest word is held back until it is complete, and so is everything
from the beginning of a secret that has not ended yet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from upcall.observe.bare_text import bare_text, begun_sequence
from upcall.observe.masks import BEGUN_MASK, LONGEST_MASK, mask
from upcall.observe.secret_fields import Span, Value, secret_fields
from upcall.observe.secret_patterns import KEY_ENDS, merged, open_private_key

_MOST_HELD = 16_384
"""Characters that are held back; of a longer word the beginning is shown, of a longer secret nothing."""

_OVERLAP = 4_096
"""Characters of a very long word that are held back when its beginning is shown, and of a line that are known."""

_DECIDED_LATER = 2
"""Characters at the end that can still change whether the text before them is a secret."""

_SECRET_ENDS = re.compile(r"[\s\"']")

_JOINED = ("\\\n", "\\\r\n", ",\n", ",\r\n", "[\n", "[\r\n")
"""The ends of lines whose next line belongs to them."""

_LONG = 512
"""Characters of a word; a longer one is looked at again only when it has grown by an eighth, or has ended."""


class Looks(NamedTuple):
    """How secrets are found.

    spans: return where they are in a text
    tells: tell whether a field of this name holds one
    values: texts that are hidden anywhere
    words: texts that are hidden where they stand alone
    """

    spans: Callable[[str], list[Span]]
    tells: Callable[[str], bool]
    values: Sequence[str]
    words: Collection[str]


class RedactedStream:
    """Text that comes in pieces, shown without its secrets. `feed` each piece, then `close`.

    What `feed` and `close` return, joined, is the whole text as `Redactor.text` shows it. Of a line with more than
    4,096 characters, and of a word with more than 16,384, more may be hidden.
    """

    def __init__(
        self,
        looks: Looks,
        *,
        by_line: bool,
        numbered: bool = True,
    ) -> None:
        self._numbered = numbered
        self._spans, self._tells, self._values, self._words = looks
        self._by_line = by_line
        self._line = ""  # of what was shown: the last two lines, which may tell what comes next
        self._held = ""
        self._hidden = 0
        self._swallowing: _LongSecret | Value | None = None
        self._is_first = True
        self._look_at = 0  # characters that are held when the next look is due, unless a word ends before
        self._ends = re.compile("\n" if by_line else r"\s")

    def feed(self, text: str) -> str:
        """Take the next piece and return what can be shown by now."""
        shown = ""
        if self._swallowing is not None:
            rest = self._swallowing.take(text)
            if rest is None:
                return ""
            shown, text = self._end_swallowing(), rest
        self._held += text
        if len(self._held) < self._look_at and self._ends.search(text) is None:
            return shown
        whole = self._line + self._held
        shown += self._show(whole, *self._look(whole[: begun_sequence(whole)]))
        if len(self._held) > _MOST_HELD:
            shown += self._make_room()
        held = len(self._held)
        self._look_at = held + held // 8 if held > _LONG else 0
        return shown

    def close(self) -> str:
        """Return the rest."""
        if self._swallowing is not None:
            return self._end_swallowing()
        whole = self._line + self._held
        spans = [(0, len(whole))] if self._is_first and self._is_word(whole) else self._look(whole)[0]
        return self._show(whole, spans, len(whole))

    def _is_word(self, whole: str) -> bool:
        bare = bare_text(whole)
        return whole in self._words or (bare is not None and bare.text in self._words)

    def _look(self, whole: str) -> tuple[list[Span], int]:
        """Return what is hidden in a text, and up to where nothing that comes can change what is shown."""
        spans = self._spans(whole)
        decided = self._decided(whole, spans)
        if (bare := bare_text(whole)) is not None:
            inside = self._spans(bare.text)
            decided = min(decided, bare.end(self._decided(bare.text, inside)))
            spans = merged([*spans, *bare.spans(inside)])
            decided = next((start for start, end in spans if start < decided < end), decided)
        return spans, max(decided, len(self._line))

    def _decided(self, whole: str, spans: Sequence[Span]) -> int:
        """Return up to where nothing that comes can change what is hidden in this text."""
        found = _last_line(whole) if self._by_line else _last_word(whole)
        if self._is_first and any(word.startswith(whole) for word in self._words):
            found = 0
        for start, end in spans:
            if end >= len(whole) - _DECIDED_LATER:
                found = min(found, start)
        if (key := open_private_key(whole)) >= 0:
            found = min(found, key)
        if (opened := secret_fields(whole, self._tells).opened) >= 0:
            found = min(found, opened)
        if (begun := BEGUN_MASK.search(whole, max(len(whole) - LONGEST_MASK, 0))) is not None:
            found = min(found, begun.start())
        for value in self._values:
            found = min(found, len(whole) - _begun(whole, value))
        return next((start for start, end in spans if start < found < end), found)

    def _show(self, whole: str, spans: Sequence[Span], cut: int) -> str:
        """Return the text from what was shown up to `cut`, and remember its last two lines."""
        at, out = len(self._line), list[str]()
        for start, end in spans:
            if end <= at or start >= cut:
                continue
            start = max(start, at)
            out += (whole[at:start], self._mask(end - start))
            at = end
        cut = max(cut, at)
        out.append(whole[at:cut])
        self._held = whole[cut:]
        self._line = whole[_last_two_lines(whole, cut) : cut]
        self._is_first = self._is_first and not cut
        return "".join(out)

    def _make_room(self) -> str:
        """Show the beginning of a word that is too long to be held back, or hide the secret that is."""
        whole = self._line + self._held
        spans = [span for span in self._look(whole)[0] if span[1] > len(self._line)]
        fields = secret_fields(whole, self._tells)
        if fields.unfinished is not None and fields.opened >= len(self._line):
            shown = self._show(whole, spans, fields.opened)
            self._swallowing, self._held, self._line = fields.unfinished, "", ""
            fields.unfinished.length = len(whole) - fields.opened
            return shown
        cut = len(whole) - _OVERLAP
        last = next((span for span in spans if span[0] < cut and span[1] >= len(whole) - _DECIDED_LATER), None)
        if last is None:
            inside = next((start for start, end in spans if start < cut < end), cut)
            return self._show(whole, spans, max(inside, len(self._line)))
        in_key = open_private_key(whole) >= 0
        shown = self._show(whole, spans, last[0])
        self._swallowing = _LongSecret(KEY_ENDS if in_key else "")
        self._swallowing.take(self._held)
        self._held = self._line = ""
        return shown

    def _end_swallowing(self) -> str:
        assert self._swallowing is not None
        length, self._swallowing = self._swallowing.length, None
        return self._mask(length)

    def _mask(self, length: int) -> str:
        self._hidden += 1
        return mask(length, self._hidden if self._numbered else 0)


class _LongSecret:
    """A secret that is too long to be held: only its length is kept."""

    def __init__(self, ends: str) -> None:
        self._ends: str = ends  # the text at which it ends; empty: at a blank or a quote
        self._tail: str = ""  # the end may be split between two pieces
        self.length: int = 0

    def take(self, text: str) -> str | None:
        """Take the next piece; return what follows the secret in it, None where it has not ended."""
        if not self._ends:
            found = _SECRET_ENDS.search(text)
            self.length += found.start() if found else len(text)
            return text[found.start() :] if found else None
        text = self._tail + text
        self.length -= len(self._tail)
        end = text.find(self._ends)
        self._tail = text[-(len(self._ends) - 1) :]
        self.length += len(text) if end < 0 else end
        return text[end:] if end >= 0 else None


def _last_two_lines(whole: str, cut: int) -> int:
    """Return where the last two lines before a place begin.

    Lines that a backslash joins are one, and so are the lines of a list with an item on each.
    """
    line = whole.rfind("\n", 0, cut)
    at, least = whole.rfind("\n", 0, max(line, 0)) + 1, max(cut - _OVERLAP, 0)
    while at > least and whole.endswith(_JOINED, least, at):
        at = whole.rfind("\n", 0, at - 1) + 1
    return max(at, least)


def _last_line(whole: str) -> int:
    return whole.rfind("\n") + 1


def _last_word(whole: str) -> int:
    """Return where the last word begins."""
    at = len(whole)
    while at > 0 and not whole[at - 1].isspace():
        at -= 1
    return at


def _begun(whole: str, value: str) -> int:
    """Return how many characters at the end of the text are the beginning of the value."""
    tail = whole[-(len(value) - 1) :]
    at = tail.find(value[0])
    while at >= 0:
        if value.startswith(tail[at:]):
            return len(tail) - at
        at = tail.find(value[0], at + 1)
    return 0
