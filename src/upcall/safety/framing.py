"""Put untrusted text into a prompt, between two marks that no text inside can close or imitate.

A mark is only words to a model. So not just `</question-…>` is made harmless inside a frame, but also what a model
could take for it: other cases, blanks and invisible characters in between, characters that look like `<` and `/`.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

_OPENING = "<\u00ab\u02c2\u1438\u2039\u226a\u227a\u2329\u276c\u276e\u2770\u27e8\u27ea\u29fc\u3008\u300a\ufe64\uff1c"
_SLASH = "/\u2044\u2215\u2571\u27cb\u29f8\u3033\u31d3\u30ce\u4e3f\uff0f"
_UNSEEN = (
    r"\s\x00-\x1f\x7f-\xa0\xad\u0300-\u036f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202f"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff"
)
_WORDS = "(?:question|reason|result)-"
"""Prefixes of the names of our marks. No mark can be opened inside another one."""

# `*+` gives nothing back: else a long run of unseen characters is divided between two of them in every possible way
_MARK = re.compile(f"([{_OPENING}])(?=[{_UNSEEN}]*+(?:[{_SLASH}]|(?i:{_WORDS})))")
_MEMORY = re.compile(f"([{_OPENING}])(?=[{_UNSEEN}]*+(?:[{_SLASH}][{_UNSEEN}]*+)?(?i:memory))")
_FILE = re.compile(f"([{_OPENING}])(?=[{_UNSEEN}]*+(?:[{_SLASH}][{_UNSEEN}]*+)?(?i:file)\\b)")
_BRACKET = re.compile(f"[{_OPENING}]")
_PART = 50_000
"""Characters that are searched at once."""


def framed(mark: str, *texts: str) -> str:
    """Return the texts between `<mark>` and `</mark>`, each on its own lines."""
    return "\n".join([f"<{mark}>", *map(harmless, texts), f"</{mark}>"])


def harmless(text: str) -> str:
    r"""Return the text with a backslash in everything that could pass for a mark: `<\/question-…>`."""
    if text.isascii() and "<" not in text:
        return text
    return _escaped(_MARK, text)


def harmless_memory(text: str) -> str:
    r"""Return a file's text with a backslash in whatever could pass for the mark of files; other tags stay."""
    return _escaped(_MEMORY, text)


def harmless_file(text: str) -> str:
    r"""Return the text of a file that a person attached, with a backslash in whatever could pass for its mark."""
    return _escaped(_FILE, text)


def _escaped(mark: re.Pattern[str], text: str) -> str:
    """Return the text with a backslash after each bracket that the pattern finds.

    A long text is searched in parts, so that other threads can run in between. No match goes beyond the next
    bracket.
    """
    done, at = list[str](), 0
    while at < len(text):
        found = _BRACKET.search(text, at + _PART)
        end = found.start() if found else len(text)
        pieces = mark.split(text[at:end])  # several times as fast as a replacement
        done += [piece + "\\" if number % 2 else piece for number, piece in enumerate(pieces)]
        at = end
    return "".join(done)


def json_line(value: Any) -> str:
    """Return JSON on one line, without any character that a reader may take for a line break."""
    text = msgspec.json.encode(value).decode()
    return text if text.isascii() else _LINE_ENDS.sub(lambda end: f"\\u{ord(end[0]):04x}", text)


_LINE_ENDS = re.compile("[\x85\u2028\u2029]")


def is_one_word(text: str) -> bool:
    """Return whether a text may be used outside a frame: at most 40 letters, digits, `_` and `-`."""
    return _ONE_WORD.fullmatch(text) is not None


_ONE_WORD = re.compile(r"[A-Za-z0-9_-]{1,40}")
