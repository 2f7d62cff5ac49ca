"""The file of the index: its tables, and opening it or making it anew."""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import contextlib
import functools
import os
import time
from pathlib import Path
from typing import Any

import apsw

from upcall.events import content_hash
from upcall.store.file_checks import check_own, has_owners
from upcall.store.home import NAME

VERSION = 2
_MARK = 0x75704978
BUSY_MS = 5000
_JOURNAL_SECONDS = 10
"""A server that makes the index has a journal for a moment. SQLite would delete a file that an older one names."""

_PASSING = (apsw.BusyError, apsw.LockedError, apsw.FullError, apsw.NoMemError)
"""Failures that say nothing about the file: to make it anew would take it from a server that uses it."""

_SUFFIXES = ("", "-wal", "-shm", "-journal")

TABLES = """
CREATE TABLE state (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE trees (n INTEGER PRIMARY KEY, root TEXT NOT NULL UNIQUE, status TEXT NOT NULL, facts BLOB NOT NULL);
CREATE INDEX trees_by_status ON trees (status);
-- What lists are filtered by. All of it is read to find a text, so it is kept apart from the facts.
CREATE TABLE names (
    n INTEGER PRIMARY KEY, status TEXT NOT NULL, agent TEXT NOT NULL, tags TEXT NOT NULL,
    folded_agent TEXT NOT NULL, folded_name TEXT NOT NULL
);
CREATE TABLE settled (callback TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX settled_by_time ON settled (at);
CREATE TABLE texts (
    n INTEGER PRIMARY KEY, session TEXT NOT NULL, seq INTEGER NOT NULL, kind TEXT NOT NULL, node TEXT NOT NULL,
    time REAL NOT NULL
);
CREATE VIRTUAL TABLE words USING fts5 (body, content = '', tokenize = 'trigram');
"""


def index_path(store: str) -> Path:
    """The path of a log's index: beside the log's file, or in `.upcall` for a log on a server."""
    return Path(NAME, f"index-{content_hash(store.encode())}") if "://" in store else Path(f"{store}-index")


def open_index(path: Path) -> apsw.Connection:
    """A connection to the index; one that can't be used is made anew. The file has mode 600.

    One that is only locked, because another server writes it, is left as it is: that raises apsw.BusyError.
    """
    for suffix in _SUFFIXES:
        check_own(f"{path}{suffix}", str(path), folder=False)
    if _is_planted(path):
        remove_index(path)
    try:
        return _open(path)
    except _PASSING:
        raise
    except (apsw.Error, _Unusable):
        remove_index(path)
        return _open(path)


def _is_planted(path: Path) -> bool:
    """Tell whether another program made the file or one beside it: ours have mode 600, and no journal for long."""
    for suffix in _SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            found = Path(f"{path}{suffix}").lstat()
            is_left = suffix == "-journal" and time.time() - found.st_mtime > _JOURNAL_SECONDS
            if is_left or (has_owners() and found.st_mode & 0o077):
                return True
    return False


def remove_index(path: Path) -> None:
    """Remove the file and what SQLite has put beside it."""
    for suffix in _SUFFIXES:
        Path(f"{path}{suffix}").unlink(missing_ok=True)


class _Unusable(Exception):
    """The file is not an index of this version."""


def _open(path: Path) -> apsw.Connection:
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW
    db = apsw.Connection(str(path), flags=flags)
    try:
        db.set_busy_timeout(BUSY_MS)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = OFF")  # it can be made again
        _prepare(db)
    except BaseException:
        db.close()
        raise
    return db


def _prepare(db: apsw.Connection) -> None:
    db.execute("BEGIN IMMEDIATE")
    try:
        _create_tables(db)
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _create_tables(db: apsw.Connection) -> None:
    mark, version = _pragma(db, "application_id"), _pragma(db, "user_version")
    if not mark and not version:
        if _schema(db):
            raise _Unusable
        db.execute(TABLES)
        db.execute(f"PRAGMA application_id = {_MARK}")
        db.execute(f"PRAGMA user_version = {VERSION}")
    elif (mark, version) != (_MARK, VERSION) or _schema(db) != _own_schema():
        raise _Unusable


def _schema(db: apsw.Connection) -> list[Any]:
    """Everything that the file declares. A trigger or view of somebody else's would run in this process."""
    return sorted(db.execute("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_schema"))


@functools.cache
def _own_schema() -> list[Any]:
    db = apsw.Connection(":memory:")
    try:
        db.execute(TABLES)
        return _schema(db)
    finally:
        db.close()


def _pragma(db: apsw.Connection, name: str) -> Any:
    return db.execute(f"PRAGMA {name}").get


def position(db: apsw.Connection) -> int:
    """The position up to which the log is indexed."""
    found: Any = db.execute("SELECT value FROM state WHERE name = 'position'").get
    return int(found or 0)


def first_event(db: apsw.Connection) -> str:
    """The first event of the log when the index was begun. It differs in every log."""
    found: Any = db.execute("SELECT value FROM state WHERE name = 'first'").get
    return str(found or "")
