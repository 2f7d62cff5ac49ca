"""The name of a tool on a screen, and the argument that is shown beside it.

There are three sources, and the first that has the tool counts: a mapping, which users extend; the tool's own
label; a readable form of its name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, cast

from upcall.errors import SetupError
from upcall.messages import Value
from upcall.observe.option_files import read_mapping
from upcall.observe.plain import one_line


class Label(Value, frozen=True):
    """The label of a tool.

    text: what it is called
    shows: the name of the argument that is shown beside it; empty for the one that tells most
    """

    text: str
    shows: str = ""


KNOWN_LABELS: Final[Mapping[str, Label]] = MappingProxyType(
    {
        "aws_list_resources": Label("List"),
        "aws_describe_resource": Label("Describe"),
        "aws_find_account": Label("Find Account"),
        "create_task": Label("Task", "task_description"),
        "search_logs": Label("Search Logs"),
    }
)

_NO_LABEL = "Tool"
_LONGEST = 60
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+|[^\W_]+")


class Labels:
    """The labels of tools by name. It never changes; `adding` returns a larger one."""

    def __init__(self, known: Mapping[str, Label | str] = KNOWN_LABELS) -> None:
        self._known = {name: Label(one) if isinstance(one, str) else one for name, one in known.items()}

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Labels:
        """Add those of a JSON or TOML file: `{"fetch": "Fetch", "read": {"text": "Read", "shows": "path"}}`."""
        found: dict[str, Label | str] = {}
        for name, one in read_mapping(path, "a file of labels").items():
            match one:
                case str():
                    found[name] = one
                case {"text": str(text), **rest} if rest.keys() <= {"shows"} and isinstance(
                    rest.get("shows", ""), str
                ):
                    found[name] = Label(text, cast("str", rest.get("shows", "")))
                case _:
                    raise SetupError(f'{path}: {name!r}: expected a string, or {{"text": …, "shows": "argument"}}')
        return cls().adding(found)

    def adding(self, more: Mapping[str, Label | str]) -> Labels:
        """Return labels with these in place of those of the same names."""
        return Labels({**self._known, **more})

    def of(self, name: str, own: str = "") -> str:
        """Return what a tool is called. `own` is the label that it was declared with."""
        known = self._known.get(name)
        return one_line(known.text if known is not None else own or readable_name(name), _LONGEST)

    def shown_argument(self, name: str, args: Mapping[str, Any]) -> str:
        """Return the name of the argument that tells most about a call; "" where none does."""
        known = self._known.get(name)
        if known is not None and known.shows in args:
            return known.shows
        texts = [key for key, value in args.items() if isinstance(value, str) and value.strip()]
        return next((key for key in _TELLING if key in texts), texts[0] if len(texts) == 1 else "")


_TELLING = (
    *("task_description", "path", "file", "file_path", "folder", "url", "query", "pattern", "command", "code"),
    *("prompt", "message", "question", "agent", "name", "title", "text"),
)
"""Names of arguments that tell most about a call, the best first."""


def readable_name(name: str) -> str:
    """Return a tool's name in words: `search_logs` is "Search logs", `readFile` is "Read file"."""
    words = _WORDS.findall(name)
    if not words:
        return _NO_LABEL
    rest = [word if word.isupper() and len(word) > 1 else word.lower() for word in words[1:]]
    return " ".join((words[0][:1].upper() + words[0][1:], *rest))
