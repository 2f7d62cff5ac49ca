"""Texts that steer a terminal or hide in it, and what of them may never be shown raw."""

from __future__ import annotations

import re

HOSTILE = (
    "\x1b[35;44;5mBLINK\x1b[0m",
    "\x1b]52;c;cHduZWQ=\x07",
    "\x1b]0;a title\x1b\\",
    "\x1b]8;;http://evil.example\x1b\\a link\x1b]8;;\x1b\\",
    "\x1bP+q544e\x1b\\",
    "\x1b_apc\x1b\\\x1b^pm\x1b\\\x1bXsos\x1b\\",
    "\x1bc\x1b[99;99H\x1b[6n\x1b[?1049h",
    "\x9b35;44;5m\x9d0;c1 title\x9c\x90dcs\x9c",
    "over\rwritten\x08\x08\x00\x07\x0e\x0f",
    "\u202eesrever\u202c\u2066iso\u2069\u200fmark\u061c",
    "zero\u200bwidth\u2060\ufeff\xad",
    "\U000e0001\U000e0041tags\U000e007f",
    "half \\ud800 pair",
    "\x1b[",
    "\x1b]52;c;without an end",
)
"""Each with ways of its own; the lone surrogate is written as JSON's escape, so that it can stand in any file."""

ALL = " ".join(HOSTILE)

_OWN = re.compile(
    "\x1b\\[(?:[0-9;]*m"  # colours
    "|[0-9]*[ABCDGJK]"  # cursor and erase
    "|\\?(?:25|12|7|2004|1)[hl])"
    "|\x1b[=>]"
)
"""What the screen's own writers send. None of it is part of a hostile text, but colours in another order."""

_RAW = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\U000e0000-\U000e007f\ud800-\udfff]"
)


def raw_in(shown: str) -> list[str]:
    """Everything in what a terminal was sent that steers it or hides, with what stands around it."""
    left = _OWN.sub("", shown.replace("\x1b[35;44;5m", "\x00").replace("written\x08", "\x00"))
    left = left.replace("\x08", "")  # the editor of a line moves back by it
    return [left[max(hit.start() - 30, 0) : hit.end() + 30] for hit in _RAW.finditer(left)]
