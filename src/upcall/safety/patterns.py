"""Regular expressions from outside: parsed strictly, and matched within a time limit.

The engine is `regex`, because its searches can be stopped. A time limit alone is not enough: recursion such as
`(?R)`, repeated repetitions such as `((ab){2}){2}` and hundreds of groups fill the memory first. So a pattern is
read here, token by token, and rewritten without what is not allowed before the engine sees it.
"""

from __future__ import annotations

import re
import time
from typing import Any

LONGEST = 1_000
"""Characters that a pattern may have."""

WINDOW = 16_000
"""Characters that are searched at once."""

_MAX_REPEATS, _MOST_SIZE, _MOST_LEVELS, _MAX_GROUPS = 1_000, 10_000, 30, 10
_QUANTIFIER = re.compile(r"\{(\d{1,6})?(,)?(\d{1,6})?\}")
_GROUP = re.compile(r"\(\?(?::|=|!|<=|<!|>|[imsau]+\)|[imsau]*(?:-[ims]+)?:)")
_NAMED = re.compile(r"\(\?P?<([A-Za-z_]\w{0,60})>")
_NAMED_BEFORE = re.compile(r"\(\?P=\w{1,60}\)")
_COMMENT = re.compile(r"\(\?#[^)]*\)")
_BACK = re.compile(r"\\(?:[1-9]|[gk]<)|\(\?P=")
_POSIX = re.compile(
    r"\[:\^?(?:alnum|alpha|ascii|blank|cntrl|digit|graph|lower|print|punct|space|upper|word|xdigit):\]"
)
_ESCAPE = re.compile(r"\\(?:[pPN]\{[\w .:=^-]{1,80}\}|[gk]<\w{1,60}>|[^L])", re.DOTALL)


class BadPattern(ValueError):
    """A pattern can't be used; the text says why."""


class TooSlow(Exception):
    """Matching took longer than its time limit."""


class Pattern:
    """A compiled pattern that may search for `seconds` in total.

    `whole`: `$` matches only the very end of a text.
    """

    def __init__(self, text: str, seconds: float, *, ignore_case: bool = False, whole: bool = False) -> None:
        import regex  # slow to import; the only engine with a time limit

        flags = regex.V0 | (0 if whole else regex.MULTILINE) | (regex.IGNORECASE if ignore_case else 0)
        try:
            self._compiled: Any = regex.compile(_Reader(text, whole).read(), flags)
        except (regex.error, RecursionError, OverflowError) as error:
            raise BadPattern(f"the pattern {_brief(text)} is not a valid regular expression: {error}") from None
        self.seconds = self.left = seconds

    def search(self, text: str, start: int = 0, end: int | None = None) -> Any:
        """Return the first match, or None; raise TooSlow when the time is used up. Other threads run meanwhile."""
        end = len(text) if end is None else end
        began = time.monotonic()
        try:
            return self._compiled.search(
                text, start, end, timeout=max(self.left, 0.001), concurrent=end - start > 100
            )
        except TimeoutError:
            raise TooSlow from None
        finally:
            self.left -= time.monotonic() - began


def _brief(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:79] + "…")


class _Reader:
    """Parses a pattern once, from left to right, and writes the pattern for the engine."""

    def __init__(self, text: str, whole: bool) -> None:
        if len(text) > LONGEST:
            raise BadPattern(f"the pattern has {len(text)} characters; at most {LONGEST} are allowed")
        self._text, self._whole = text, whole
        self._keeps_groups = bool(_BACK.search(text))
        self._out: list[str] = []
        self._sizes = [0]  # for each open group: its minimum length, with repetitions
        self._last = 0  # the size of the item that a quantifier would repeat
        self._groups = 0

    def read(self) -> str:
        """Return the pattern for the engine; raise BadPattern if it contains something that is not allowed."""
        at = 0
        while at < len(self._text):
            character = self._text[at]
            if character == "\\":
                at = self._atom(self._matched(_ESCAPE, at), at)
            elif character == "[":
                at = self._set(at)
            elif character == "(":
                at = self._open(at)
            elif character == ")":
                at = self._close(at)
            elif character in "*?":
                at = self._copy(character, at)
            elif character == "+":
                at = self._times(2, character, at)
            elif character == "{":
                at = self._repeat(at)
            elif character == "$" and self._whole:
                self._out.append(r"\Z")
                at += 1
            else:
                at = self._atom(character, at)
        if len(self._sizes) > 1:
            raise self._wrong("a ( is not closed")
        return "".join(self._out)

    def _matched(self, expression: re.Pattern[str], at: int) -> str:
        found = expression.match(self._text, at)
        if found is None:
            raise self._wrong(f"{self._text[at : at + 10]!r} is not supported")
        return found[0]

    def _wrong(self, why: str) -> BadPattern:
        return BadPattern(f"the pattern {_brief(self._text)} can't be used: {why}")

    def _copy(self, token: str, at: int) -> int:
        self._out.append(token)
        return at + len(token)

    def _atom(self, token: str, at: int) -> int:
        self._grow(1)
        return self._copy(token, at)

    def _grow(self, size: int) -> None:
        self._last = size
        self._sizes[-1] += size
        if self._sizes[-1] > _MOST_SIZE:
            raise self._wrong(f"with its repetitions it has more than {_MOST_SIZE} characters")

    def _set(self, at: int) -> int:
        """Copy [...]; characters that could begin a set inside a set are escaped."""
        text, out = self._text, "["
        at += 1
        if text[at : at + 1] == "^":
            out, at = out + "^", at + 1
        first = True
        while at < len(text) and (first or text[at] != "]"):
            if text[at] == "\\":
                token = part = self._matched(_ESCAPE, at)
            elif text[at] == "[":
                posix = _POSIX.match(text, at)
                token, part = (posix[0], posix[0]) if posix else ("[", r"\[")
            else:
                token, doubled = text[at], text[at] in "-&|~" and text[at + 1 : at + 2] == text[at]
                part = f"\\{token}" if doubled or token == "]" else token
            out, at, first = out + part, at + len(token), False
        if at >= len(text):
            raise self._wrong("a [ is not closed")
        self._grow(1)
        self._out.append(f"{out}]")
        return at + 1

    def _open(self, at: int) -> int:
        if comment := _COMMENT.match(self._text, at):
            return comment.end()
        if earlier := _NAMED_BEFORE.match(self._text, at):
            return self._atom(earlier[0], at)
        if self._text.startswith("(*", at):
            raise self._wrong("'(*' is not supported")
        token = opens = "("
        if named := _NAMED.match(self._text, at):
            token, opens = named[0], f"(?P<{named[1]}>"
        elif self._text.startswith("(?", at):
            token = opens = self._matched(_GROUP, at)
        if token.endswith(")"):  # flags for the whole pattern
            return self._copy(token, at)
        if named or token == "(":
            self._groups += 1
            opens = opens if self._keeps_groups else "(?:"
            if self._keeps_groups and self._groups > _MAX_GROUPS:
                raise self._wrong(f"a pattern with backreferences may have at most {_MAX_GROUPS} groups")
        if len(self._sizes) > _MOST_LEVELS:
            raise self._wrong(f"its groups are nested more than {_MOST_LEVELS} levels deep")
        self._sizes.append(0)
        self._out.append(opens)
        return at + len(token)

    def _close(self, at: int) -> int:
        if len(self._sizes) == 1:
            raise self._wrong("a ) closes nothing")
        inside = max(self._sizes.pop(), 1)
        self._grow(inside)
        return self._copy(")", at)

    def _repeat(self, at: int) -> int:
        found = _QUANTIFIER.match(self._text, at)
        if found is None or not (found[1] or found[3]):
            self._grow(1)
            self._out.append(r"\{")
            return at + 1
        least = int(found[1] or 0)
        if max(least, int(found[3] or 0)) > _MAX_REPEATS:
            raise self._wrong(f"{found[0]} repeats more than {_MAX_REPEATS} times")
        return self._times(least + 1, found[0], at)

    def _times(self, count: int, token: str, at: int) -> int:
        """Count a repeated item as often as the engine compiles it: once more than its minimum."""
        before = self._last
        self._grow(before * (count - 1))
        self._last = before * count
        return self._copy(token, at)
