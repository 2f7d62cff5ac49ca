"""Bounds on JSON that comes from outside, checked before it is processed.

Values from a program may share parts: a list that holds one text of a megabyte 400 times is small in memory and 400
megabytes once it is written. So values are counted part by part, and counting stops at the bound.
"""

from __future__ import annotations

import math
import re
import reprlib
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

DEPTH = 100
"""Levels of nested lists and objects: every reader here can handle as many, at any depth of the stack."""

PARTS = 100_000
"""Values and keys in one JSON value."""

ARGUMENTS = 2_000_000
"""Bytes of JSON that the arguments of one tool call may have."""

STRUCTURE = 1_000_000
"""Bytes of JSON up to which a tool's result is kept as a value beside its text."""

RESULT = 4_000_000
"""Bytes of JSON that the value which a tool returns may have. Its text is cut to `Limits(result_chars)` later."""

RESULT_PARTS = 200_000
"""Values that such a value may consist of."""

KEPT = 4_000_000
"""Bytes of JSON that a session keeps as one value: in its context, or as what a `once` effect returned."""

TEXT = 4_000_000
"""Characters of text, thoughts and arguments that one response of a model may have."""

PROMPT = 4_000_000
"""Characters of text that a prompt may have, and a message that a hook or a tool adds."""

CALLS = 1000
"""Tool calls that one response may make."""

TOKENS = 10**12
"""Tokens that one model call may claim to have used; more counts as many."""

DATA = 1_000_000
"""Bytes of JSON that the data of a session may have: what its application gave it when it was started."""

TAGS, TAG_NAME, TAG_VALUE = 50, 100, 200
"""Tags of one session, and the characters of a tag's name and of its value."""

TITLE, PATH, ROOTS = 200, 4096, 50
"""Characters of a session's title and of one of its paths, and its further folders."""

SCHEMA, DESCRIPTION = 100_000, 20_000
"""Bytes of a tool's JSON schema, and characters of its description, where somebody else wrote them."""

TOOLS, TOOL_BYTES = 1000, 4_000_000
"""Tools that one toolset may offer, and bytes of JSON that describe all tools of a session with toolsets."""

_FEW, _SHORT, _LONG_NUMBER = 10, 1000, 1024
_type_of: Any = type  # pyright keeps nothing of the `Any` that it is given otherwise


def excess(value: Any, most: int, parts: int = PARTS, depth: int = DEPTH) -> str:
    """Return why a value is too large or nested too deeply, or "".

    `most` is in bytes; texts are counted by their characters. Objects of a class are not counted: the code that
    converts them to plain values counts again.
    """
    return "" if _is_small(value) else _scan(value, most, parts, depth).problem


class _Scan(NamedTuple):
    """What one walk over a value found."""

    problem: str = ""
    """Why it is too large or nested too deeply, or empty."""
    has_objects: bool = False
    """It holds objects of a class, which were not looked into."""
    is_finite: bool = True
    """It holds neither NaN nor an infinity."""


def _scan(value: Any, most: int, parts: int, depth: int) -> _Scan:
    level: list[Any] = [value]
    levels = size = count = 0
    has_objects, is_finite = False, True
    while level:
        below: list[Any] = []
        for one in level:
            kind = _type_of(one)
            if kind is str or kind is bytes:
                size += len(one)
            elif kind in _CONTAINERS:
                count += len(one)
                size += 2 * len(one)
                if levels >= depth or size > most or count > parts:  # before its parts are queued: they may be many
                    return _Scan(_problem(size, most, parts, is_too_deep=levels >= depth))
                below.extend(one)
                if kind is dict:
                    below.extend(one.values())
            elif kind in _SCALARS:
                is_finite = is_finite and (kind is not float or math.isfinite(one))
            elif kind is int:
                size += _digits_cost(one)
            elif isinstance(one, _LIKE_PLAIN):  # a subclass, which JSON writes like its base class
                below.append(_as_builtin(one))
            else:
                has_objects = True
        if size > most:
            return _Scan(_problem(size, most, parts))
        level, levels = below, levels + 1
    return _Scan("", has_objects, is_finite)


def _problem(size: int, most: int, parts: int, is_too_deep: bool = False) -> str:
    if is_too_deep:
        return "it is nested too deeply"
    return f"it has more than {f'{most} bytes' if size > most else f'{parts} values'}"


def _digits_cost(number: int) -> int:
    """Return the bytes that a number counts as: those of a long one by the time that writing its digits takes."""
    bits = number.bit_length()
    return bits >> 2 if bits <= _LONG_NUMBER else bits * bits >> 12


_SMALL = _Scan()
_CONTAINERS = frozenset({dict, list, tuple, set, frozenset})
_SCALARS = frozenset({bool, float, type(None)})
_LIKE_PLAIN: tuple[Any, ...] = (dict, list, tuple, set, frozenset, str, bytes)


def _as_builtin(one: Any) -> Any:
    return next(kind(one) for kind in _LIKE_PLAIN if isinstance(one, kind))


def _is_small(value: Any) -> bool:
    """Return whether a value is an object of few short values, as the arguments of most calls are."""
    if _type_of(value) is not dict or len(value) > _FEW:
        return False
    for key, one in value.items():
        kind = _type_of(one)
        if kind is str:
            if len(one) > _SHORT:
                return False
        elif kind is int:
            if one.bit_length() > 64:
                return False
        elif kind not in _SCALARS or (kind is float and not math.isfinite(one)):
            return False
        if _type_of(key) is not str or len(key) > _SHORT:
            return False
    return True


def brief(value: Any, most: int = 80) -> str:
    """Return a value for an error message in at most `most` characters, without reading all of it."""
    shape = reprlib.Repr()
    shape.maxstring = shape.maxlong = shape.maxother = most
    shape.maxlevel = 3
    shape.maxdict = shape.maxlist = shape.maxtuple = shape.maxset = shape.maxfrozenset = 8
    try:
        text = shape.repr(value)
    except Exception:  # a class may do anything in __repr__, and a number may have too many digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= most else f"{text[: most - 1]}…"


class TooLarge(ValueError):
    """A value exceeds a bound; the text says which."""


def plain(value: Any, most: int, depth: int = DEPTH) -> Any:
    """Convert a value to JSON and back, and return the result.

    TooLarge says which bound it exceeds (`most` is in bytes of JSON), any other ValueError why JSON can't hold it.
    """
    scan = _SMALL if _is_small(value) else _scan(value, most, PARTS, depth)
    if scan.problem:
        raise TooLarge(scan.problem)
    try:
        body = msgspec.json.encode(value)
        out = msgspec.json.decode(body) if len(body) <= most else None
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if len(body) > most:
        raise TooLarge(f"it has {len(body)} bytes")
    if scan.has_objects:  # now that they are known to be small enough, their fields
        scan = _scan(msgspec.to_builtins(value), most, PARTS, depth)
        if scan.problem:
            raise TooLarge(scan.problem)
    if not scan.is_finite:  # they would be written as null
        raise ValueError("NaN and infinity are not JSON values")
    return out


def token_count(claimed: object) -> int:
    """Return the tokens to count for a claimed number: 0 if it is negative or not a number.

    A number with a fraction is rounded down; one that is too large counts as the most there is.
    """
    if isinstance(claimed, float) and claimed == claimed:  # NaN is unequal to itself
        claimed = int(max(0.0, min(claimed, TOKENS)))
    return max(0, min(claimed, TOKENS)) if isinstance(claimed, int) else 0


def is_too_deep(body: str | bytes, depth: int = DEPTH) -> bool:
    """Return whether JSON text is nested too deeply. The text is not parsed for that."""
    if _count_brackets(body) <= depth:
        return False
    text = body if isinstance(body, bytes) else body.encode(errors="replace")
    brackets = _TEXTS.sub(b"", text).translate(None, _NOT_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > depth


_TEXTS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""A text that does not end reaches to the end: no parser reads on there, and no later quote is looked at."""

_STEPS = {ord(one): step for text, step in (("[{", 1), ("]}", -1)) for one in text}
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in _STEPS)


def _count_brackets(text: str | bytes) -> int:
    """Count the brackets that may open a list or an object; those in texts are counted too."""
    return text.count("{") + text.count("[") if isinstance(text, str) else text.count(b"{") + text.count(b"[")


def excess_in_text(text: str | bytes, most: int, parts: int = PARTS) -> str:
    """Return why a JSON text is too large to be parsed, or "". The text is not parsed for that."""
    if len(text) > most:
        return f"it has {len(text)} bytes"
    if len(text) <= _SHORT:
        return ""
    return f"it has more than {parts} values" if _has_more_values(text, parts) else ""


_CHUNK = 65_536


def _has_more_values(text: str | bytes, most: int) -> bool:
    """Return whether a JSON text holds more values than `most`, without parsing it."""
    body = text if isinstance(text, bytes) else text.encode(errors="replace")
    if _count_marks(body) <= most:
        return False
    count = ValueCount(most)
    return any(count.add(body[at : at + _CHUNK]) for at in range(0, len(body), _CHUNK))


class ValueCount:
    """Counts the values of a JSON text that comes in pieces, without parsing it.

    Each value but the first of a list or an object follows a comma, and each list or object has an opening bracket.
    What stands in texts does not count.
    """

    def __init__(self, most: int = PARTS) -> None:
        self._left, self._in_text, self._unread = most, False, b""

    def add(self, piece: bytes) -> bool:
        """Count the values of the next piece; returns whether there are more than `most` by now."""
        chunk = self._unread + piece
        self._unread = b"\\" if (len(chunk) - len(chunk.rstrip(b"\\"))) % 2 else b""  # it escapes what follows
        read = chunk[: len(chunk) - len(self._unread)]
        parts = read.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        self._left -= _count_marks(b"".join(parts[1 if self._in_text else 0 :: 2]))
        self._in_text ^= len(parts) % 2 == 0
        return self._left < 0


def _count_marks(body: bytes) -> int:
    return body.count(b"[") + body.count(b"{") + body.count(b",")


def read_bounded_json(text: str | bytes, most: int) -> Any:
    """Read JSON that somebody else wrote; TooLarge, or any other ValueError, says what is wrong with it."""
    if problem := excess_in_text(text, most):
        raise TooLarge(problem)
    try:
        value = msgspec.json.decode(text)
    except RecursionError:
        raise TooLarge("it is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8: {error}") from None
    if len(text) > 2 * DEPTH and (problem := excess(value, max(most, 6 * len(text)))):
        raise TooLarge(problem)
    return value


_WORD = 2_000
_BETWEEN_WORDS = (" \t\r\n", "\"'")


def head_of(text: str, most: int) -> str:
    """Return the beginning of a text, of at most `most` characters, that does not end inside a word.

    A secret of which only a part is left can't be recognised any more, and so would be shown. A text without spaces
    is cut at a quotation mark, and one word of thousands of characters anywhere.
    """
    if len(text) <= most or text[most].isspace():
        return text[:most]
    for characters in _BETWEEN_WORDS:
        at = max(text.rfind(one, max(0, most - min(_WORD, most // 2)), most) for one in characters)
        if at >= 0:
            return text[: at + 1]
    return text[:most]


def tail_of(text: str, most: int) -> str:
    """Return the end of a text, of at most `most` characters, that does not begin inside a word."""
    return head_of(text[-(most + 1) :][::-1], most)[::-1]
