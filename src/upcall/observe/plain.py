"""Make untrusted text safe and short for a screen.

Prose loses what steers a terminal or hides in it (`plain`). Nothing may get lost of what a person approves or
types, so there it is written as an escape (`visible`, `shell_word`, `escaped`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor movements
    r"|\x1b[\]PX^_][^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"  # titles, links, clipboard, device strings
    r"|\x9b[0-?]*[ -/]*[@-~]"
    r"|\x1b[ -/]*[0-~]",
)
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and line feed
    "\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # direction, invisible
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f]"
)
ERASED = re.compile(
    f"{_SEQUENCE.pattern}|{_CONTROL.pattern[:-1]}"
    "\u034f\u17b4\u17b5\u180b-\u180f\u200c\u200d\ufe00-\ufe0f\U000e0080-\U000e0fff]+"
)
"""What is not seen of a text: all that `plain` removes, and what stays there but draws nothing of its own."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\U00016fe4\U0001d159")
"""Characters that Unicode counts as letters, marks or symbols although nothing is drawn for them."""

_SELECTORS = ((0x180B, 0x180F), (0xFE00, 0xFE0F), (0xE0000, 0xE0FFF))
"""Ranges of variation selectors and tags, which draw nothing of their own."""


def plain(text: str) -> str:
    """Return the text without characters that control a terminal or are invisible; line breaks and tabs stay."""
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    text = _SEQUENCE.sub("", text.replace("\r\n", "\n"))
    return _SURROGATE.sub("\ufffd", _CONTROL.sub("", text))


def one_line(text: str, most: int = 80) -> str:
    """Return the text on one line, cut with an ellipsis after `most` characters."""
    # only the part that could be shown is cleaned
    joined = " ".join(plain(text[: most * 8 + 400]).split())
    return joined if len(joined) <= most else joined[: max(most - 1, 0)].rstrip() + "…"


def shortened(text: str, most: int) -> str:
    """Return the text, cut after `most` characters, with a note of how many are left out."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters)"


def visible(text: str, *, lines: bool = False) -> str:
    r"""Return the text with every invisible or blank-looking character written as its escape (`\u200b`).

    Nothing is left out: who approves a call sees every character of it. With `lines`, line breaks and tabs stay as
    they are.
    """
    if text.isascii() and text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return _replace_invisible(text, lambda letter: letter if letter in kept else _escape(letter))


def is_visible(text: str) -> bool:
    """Return whether every character of the text is visible; ordinary spaces count as visible."""
    return visible(text) == text


def shell_word(text: str) -> str:
    """Return the text as one word of a command that a person pastes into a shell, quoted if necessary.

    What can't be seen is written in the form `$'\\u200b'`, which bash, zsh and ksh read.
    """
    if is_visible(text):
        return shlex.quote(text)
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{visible(quoted)}'"


def escaped(json: str) -> str:
    """Return JSON with the same value in which every character is visible; line breaks between values stay."""
    return _replace_invisible(json, lambda letter: letter if letter == "\n" else _json_escape(letter))


def _replace_invisible(text: str, escape: Callable[[str], str]) -> str:
    """Return the text with its invisible characters replaced."""
    hidden = {letter for letter in set(text) if not _is_visible(letter)}
    return text.translate({ord(letter): escape(letter) for letter in hidden}) if hidden else text


def _is_visible(letter: str) -> bool:
    if not letter.isprintable() or letter in _BLANK:
        return False
    code = ord(letter)
    return not any(first <= code <= last for first, last in _SELECTORS)


def _escape(letter: str) -> str:
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(letter)
    code = ord(letter)
    return named or (f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def _json_escape(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
