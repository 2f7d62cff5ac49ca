"""The folder `.upcall`, which contains the default log and the input history.

It may have come with somebody's repository. So it is checked before it is used, and nothing in it is written
through a link.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from upcall.store.file_checks import check_own

NAME = ".upcall"
IGNORE, HISTORY = ".gitignore", "history"


def check_home(folder: Path, store: str) -> None:
    """Raise StoreUnavailable unless the folder, and the files in it that are not the log's, are the user's own."""
    check_own(str(folder), store, folder=True)
    for name in (IGNORE, HISTORY):
        check_own(str(folder / name), store, folder=False)


def make_home(folder: Path) -> None:
    """Make a folder for logs that nobody else can enter."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def ignore_home(folder: Path) -> None:
    """Keep a folder for logs out of repositories: it ignores itself."""
    if folder.name == NAME:
        with contextlib.suppress(OSError):  # it exists, or can't be created; the log does not need it
            file = os.open(
                folder / IGNORE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
            with open(file, "w", encoding="utf-8") as ignore:  # noqa: PTH123
                ignore.write("*\n")


def open_own_file(path: Path, flags: int) -> int:
    """Open a file of the folder without following a link; StoreUnavailable or OSError if it is not a file."""
    check_own(str(path), str(path), folder=False)
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(f"{path} is not a file")
    return file
