"""What agents wrote in a question, as text for editors and MCP clients.

Each line of it is quoted and stands under a heading of the runtime, so that none of it passes for what the runtime
knows. Where something is cut, a note outside of the quote says so.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import islice
from typing import Any

import msgspec

from upcall.callbacks import Callback
from upcall.observe.hidden_question import is_approval
from upcall.observe.plain import plain, shortened, visible

QUOTE = "> "
"""Before each line that an agent wrote. Editors show it as a quotation."""

_LONGEST = 100_000
"""Characters that are shown of a message, and of all choices or facts of the asker together."""

_MOST = 200
"""Choices or facts of the asker that are shown."""


def quoted(text: str) -> str:
    """Return a text with a mark before each of its lines; a note after them says how much is left out."""
    lines = plain(text[:_LONGEST]).strip("\n").split("\n")
    left = len(text) - _LONGEST
    return "\n".join([*(f"{QUOTE}{line}" for line in lines), *_left_out(left, "characters")])


def asked_parts(callback: Callback) -> list[str]:
    """Return how a question is worded now, its whole original if it was reworded, and what the asker gave to know.

    callback: without its secrets. The message of an approval is left out, unless the approval was reworded: its
    call says more.
    """
    parts: list[str] = []
    if callback.reworded:
        parts = [f"reworded:\n{quoted(callback.reworded)}", f"asked as:\n{quoted(callback.message)}"]
    elif not is_approval(callback):
        parts = [quoted(callback.message)]
    return [*parts, *_context(callback)]


def listed_choices(choices: Sequence[str]) -> str:
    """Return the choices with their numbers, one on each line. `choices` are without their secrets."""
    rows = "\n".join(f"{number}. {visible(one)}" for number, one in enumerate(choices[:_MOST], 1))
    return "\n".join(["choices:", quoted(rows), *_left_out(len(choices) - _MOST, "choices")])


def choice_names(choices: Sequence[str], most: int, beside: Sequence[str] = ()) -> list[str]:
    """Return the choices as names of options, on one line of at most `most` characters each.

    They are numbered where one of them is not shown as it is, or where two of them look alike. They may not look
    like the options `beside` them either. `choices` are without their secrets.
    """
    names = [shortened(visible(one), most) for one in choices]
    looks = {_look(one) for one in (*names, *beside)}
    if names == list(choices) and len(looks) == len(names) + len(beside):
        return names
    return [f"{number}. {one}" for number, one in enumerate(names, 1)]


def _look(text: str) -> str:
    """Return what is equal for texts that differ only in spaces, capitals, or forms of the same letters."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _context(callback: Callback) -> list[str]:
    """Return the asker's own facts. They share one heading, because the asker chooses their names."""
    given = callback.given
    if not given:
        return []
    facts = "\n".join(f"{visible(str(name))}: {_fact(value)}" for name, value in islice(given.items(), _MOST))
    return ["\n".join(["context:", quoted(facts), *_left_out(len(given) - _MOST, "facts")])]


def _fact(value: Any) -> str:
    return value if isinstance(value, str) else visible(msgspec.json.encode(value).decode("utf-8", "replace"))


def _left_out(count: int, what: str) -> list[str]:
    return ["", f"({count:,} more {what}; `upcall inbox --json` shows everything)"] if count > 0 else []
