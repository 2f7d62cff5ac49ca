"""Make a private copy of a log, to read an untrusted one.

To open a file, SQLite may roll back a journal that lies beside it, delete a file that the journal names, and write
to the log and its index. None of that may happen to a log that came with a repository. So the log and its `-wal`
are copied into a new folder, and the copy is read.
"""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import apsw

from upcall.errors import NotAStore, StoreUnavailable
from upcall.store.sqlite.tables import check_schema, harden, ids_in, refuse_journal

LARGEST = 2**30
"""Bytes of the largest log that is copied."""

_TRIES = 20
_CHUNK = 2**20
_Stamp = tuple[tuple[int, int, int], ...]


class PrivateCopy:
    """A copy of a log in a folder that only this user can enter. `close` removes it."""

    def __init__(self, path: str) -> None:
        self._folder = tempfile.mkdtemp(prefix="upcall-view-")
        self.path = f"{self._folder}/log.db"
        try:
            _copy(path, self.path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the copy."""
        shutil.rmtree(self._folder, ignore_errors=True)


def read_ids(path: str) -> list[str] | None:
    """Return the ids of a log, read without changing anything; None if it is not an Upcall log.

    None where nothing is in it yet: somebody has just begun to make it. Another process may write while this reads,
    so that nothing was found counts only if it is so twice and nothing was written in between.
    """
    last: tuple[_Stamp, bool] | None = None
    for attempt in range(_TRIES):
        stamp, found = _stamp(path), _read_once(path)
        if found or last == (stamp, found is None):
            return found
        last = (stamp, found is None)
        time.sleep(0.01 * (attempt + 1))
    return []


def _read_once(path: str) -> list[str] | None:
    """Return the ids in the file itself. For a log that was just created they may still be in its `-wal`."""
    with contextlib.suppress(apsw.Error, NotAStore):
        found = _ids(path)
        if found or (found is None and not _size(f"{path}-wal")):
            return found
    if not _size(f"{path}-wal"):
        return []
    with contextlib.closing(PrivateCopy(path)) as copy, contextlib.suppress(apsw.Error, NotAStore):
        return _ids(copy.path, immutable=False)
    return []


def _ids(path: str, *, immutable: bool = True) -> list[str] | None:
    """Return the ids in a file. An immutable file is read without locks, and files beside it are not touched."""
    how = "?immutable=1" if immutable else ""
    flags = apsw.SQLITE_OPEN_URI | (apsw.SQLITE_OPEN_READONLY if immutable else apsw.SQLITE_OPEN_READWRITE)
    db = apsw.Connection(f"file:{quote(path)}{how}", flags=flags)
    try:
        harden(db)
        return ids_in(db) if check_schema(db, path) else None
    finally:
        db.close()


def _copy(path: str, to: str) -> None:
    """Copy a log and its `-wal` as of one moment. If they changed meanwhile, copy again."""
    refuse_journal(path)
    for attempt in range(_TRIES):
        before = _stamp(path)
        if sum(size for _, size, _ in before) > LARGEST:
            raise StoreUnavailable(path, f"it is larger than {LARGEST >> 20} MB, so it can't be copied for reading")
        for suffix in ("", "-wal"):
            _copy_file(f"{path}{suffix}", f"{to}{suffix}")
        if _stamp(path) == before:
            return
        time.sleep(0.005 * attempt)
    raise StoreUnavailable(path, "another program keeps writing to it; try again when that program has finished")


def _stamp(path: str) -> _Stamp:
    """Return values that change when a log is written: inode, size and time of the file and its `-wal`."""
    stats: list[tuple[int, int, int]] = []
    for suffix in ("", "-wal"):
        try:
            one = os.lstat(f"{path}{suffix}")
            stats.append((one.st_ino, one.st_size, one.st_mtime_ns))
        except OSError:
            stats.append((0, 0, 0))
    return tuple(stats)


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _copy_file(path: str, to: str) -> None:
    Path(to).unlink(missing_ok=True)
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    remaining = LARGEST
    with open(file, "rb") as source, open(to, "xb", opener=_private) as target:  # noqa: PTH123
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise StoreUnavailable(path, "it is not a file")
        while remaining > 0 and (part := source.read(min(_CHUNK, remaining))):
            target.write(part)
            remaining -= len(part)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
