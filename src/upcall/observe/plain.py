"""Text that models, tools and users wrote, made safe and short for a screen."""

from __future__ import annotations

import re

_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor movements
    r"|\x1b[\]PX^_][^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"  # titles, links, clipboard, device strings
    r"|\x9b[0-?]*[ -/]*[@-~]"
    r"|\x1b[ -/]*[0-~]",
)
_HIDDEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and line feed
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f"  # direction, invisible
)
_CONTROL = re.compile(f"[{_HIDDEN}]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_RAW = re.compile("[\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def plain(text: str) -> str:
    """The text without anything that steers a terminal or hides in it; line breaks and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    text = _SEQUENCE.sub("", text.replace("\r\n", "\n"))
    return _SURROGATE.sub("\ufffd", _CONTROL.sub("", text))


def one_line(text: str, most: int = 80) -> str:
    """The text on one line, cut with an ellipsis where it is longer than `most` characters."""
    # a page of text is cleaned only as far as it could be shown
    joined = " ".join(plain(text[: most * 8 + 400]).split())
    return joined if len(joined) <= most else joined[: max(most - 1, 0)].rstrip() + "…"


def escaped(json: str) -> str:
    """JSON with the same value in which nothing but plain text reaches a terminal."""
    return _RAW.sub(lambda hit: f"\\u{ord(hit[0]):04x}", json)
