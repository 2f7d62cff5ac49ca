"""The text that is shown in place of a hidden value: `⟦hidden 48 #1⟧`."""

from __future__ import annotations

import re

MASK = re.compile("⟦hidden (\\d{1,15}) #(\\d{1,15})⟧")
"""A mask; its groups are the length of the hidden value, and its number in the document."""

BEGUN_MASK = re.compile(r"⟦[hiden 0-9#]*\Z")
"""The beginning of a mask at the end of a text."""

LONGEST_MASK = 50
"""Characters that a mask has at most."""


def mask(length: int, number: int) -> str:
    """Return what is shown in place of a hidden value; without its number where that is 0."""
    return f"⟦hidden {length} #{number}⟧" if number else f"⟦hidden {length}⟧"
