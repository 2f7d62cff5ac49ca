"""The input history of `chat`, stored in `.upcall/history`. The file is never opened through a link."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit.history import History

from upcall.store.home import open_own_file

_MOST_BYTES = 2_000_000
"""The most bytes to read: the newest part of the file."""


class InputHistory(History):
    """The history in a file, in the format of prompt_toolkit's `FileHistory`."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        os.close(open_own_file(self._path, os.O_RDWR | os.O_CREAT))
        super().__init__()

    def load_history_strings(self) -> Iterable[str]:
        """Return the inputs, newest first."""
        with open(open_own_file(self._path, os.O_RDONLY), "rb") as file:  # noqa: PTH123
            file.seek(max(0, os.fstat(file.fileno()).st_size - _MOST_BYTES))
            lines = file.read(_MOST_BYTES).decode("utf-8", "replace").split("\n")
        texts: list[str] = []
        rows: list[str] = []
        for line in [*lines, ""]:
            if line.startswith("+"):
                rows.append(line[1:])
            elif rows:
                texts.append("\n".join(rows))
                rows = []
        return reversed(texts)

    def store_string(self, string: str) -> None:
        """Append one input."""
        rows = "".join(f"+{row}\n" for row in string.split("\n"))
        with open(open_own_file(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:  # noqa: PTH123
            file.write(f"\n# {time.ctime()}\n{rows}".encode("utf-8", "replace"))
