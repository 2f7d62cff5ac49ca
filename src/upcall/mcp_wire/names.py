"""Names of tools that every provider accepts, and texts of servers without what hides in them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container

LONGEST = 64
"""Characters that providers accept in the name of a tool."""

_PREFIX, _MARK = 24, 8
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]+")
_RUNS = re.compile(r"_{2,}")
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff\ud800-\udfff]"
)
"""Control characters, and characters that nobody sees: texts for models hide in them."""


def server_prefix(server: str) -> str:
    """Return the part of a tool's name that stands for its server.

    It follows from the server's name alone, contains no `__` and does not end with `_`. So no two servers can ever
    offer a tool of the same name.
    """
    made = _RUNS.sub("_", _FOREIGN.sub("_", server)).strip("_")
    if made == server and len(made) <= _PREFIX:
        return made
    return f"{made[: _PREFIX - _MARK - 1].rstrip('_')}_{_mark(server)}".lstrip("_")


def tool_name(server: str, tool: str, taken: Container[str] = ()) -> str:
    """Return the name of a server's tool for a model: `server__tool`.

    A name that no provider would accept, that is too long, or that is `taken` gets a mark that follows from both
    names.
    """
    prefix = f"{server_prefix(server)}__"
    made = _FOREIGN.sub("_", tool)
    if made == tool and made and len(prefix) + len(made) <= LONGEST and prefix + made not in taken:
        return prefix + made
    room = LONGEST - len(prefix) - _MARK - 1
    return f"{prefix}{made[:room]}_{_mark(server, tool)}"


def _mark(*names: str) -> str:
    return hashlib.sha256("\0".join(names).encode("utf-8", "replace")).hexdigest()[:_MARK]


def clean(text: str, most: int) -> str:
    """Return a server's text without hidden characters, cut after `most` characters. Line breaks and tabs stay."""
    text = text[: most + 1]
    shown = text if text.isascii() and text.isprintable() else _HIDDEN.sub("", text.replace("\r\n", "\n"))
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def clean_line(text: str, most: int) -> str:
    """Return a server's text on one line."""
    return clean(" ".join(clean(text, most * 4).split()), most)
