"""Text files that are rotated: several processes may write to one of them."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Sequence
from pathlib import Path

LARGEST = 10_000_000
"""Bytes after which a file is rotated."""

KEPT = 3
"""Older files that are kept of each: `NAME.log.1` is the newest of them."""

_MOST_OPEN = 64


class LogFiles:
    """Files `NAME.log` in a folder, which only their owner can read."""

    def __init__(self, folder: str | os.PathLike[str], largest: int = LARGEST) -> None:
        self._folder, self._largest = Path(folder), largest
        self._open: dict[str, int] = {}  # file descriptors, the one that was used last at the end
        self._folder.mkdir(0o700, parents=True, exist_ok=True)

    def write(self, name: str, lines: Sequence[str]) -> None:
        """Append lines to a file, at once and whole."""
        body = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
        file = self._file(name)
        if os.fstat(file).st_size + len(body) > self._largest:
            self._rotate(name, len(body))
            file = self._file(name)
        left = memoryview(body)
        while left:
            left = left[os.write(file, left) :]

    def close(self) -> None:
        """Close all files."""
        for file in self._open.values():
            os.close(file)
        self._open.clear()

    def _path(self, name: str, number: int = 0) -> Path:
        return self._folder / (f"{name}.log.{number}" if number else f"{name}.log")

    def _file(self, name: str) -> int:
        """Return the descriptor of a file; another process may have rotated it meanwhile."""
        file = self._open.pop(name, None)
        if file is not None and not _is_at(file, self._path(name)):
            os.close(file)
            file = None
        if file is None:
            file = _open_own(self._path(name))
        self._open[name] = file
        if len(self._open) > _MOST_OPEN:
            oldest = next(iter(self._open))
            os.close(self._open.pop(oldest))
        return file

    def _rotate(self, name: str, more: int) -> None:
        """Move a file that is full out of the way; one process does it, and the others find a new one.

        Nobody waits for the lock: any program may hold it, and for as long as it likes. Then the file grows.
        """
        lock = _open_own(self._folder / ".lock")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path = self._path(name)
            size = path.stat().st_size if path.exists() else 0
            if size and size + more > self._largest:
                for number in range(KEPT, 0, -1):
                    older = self._path(name, number - 1)
                    if older.exists():
                        older.replace(self._path(name, number))
        except BlockingIOError:
            pass
        finally:
            os.close(lock)


def _open_own(path: Path) -> int:
    """Open a file to append to it, or create it. Opening never waits, as it would for the reader of a pipe.

    OSError says that it is not a regular file, belongs to somebody else, or has a second name: then it may be a
    file that is not meant to be written to.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    file = os.open(path, flags, 0o600)
    found = os.fstat(file)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink == 1:
        return file
    os.close(file)
    raise OSError(errno.EPERM, "not a regular file of this user with one name", str(path))


def _is_at(file: int, path: Path) -> bool:
    try:
        there, ours = path.lstat(), os.fstat(file)
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)
