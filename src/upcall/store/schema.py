"""The SQLite file: its tables, its marks, and plain words for what SQLite says when it can't.

May import: errors.
"""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

import apsw

from upcall.errors import NotAStore, StoreDamaged, StoreError, StoreTooNew, StoreUnavailable

APPLICATION_ID = 0x75704361  # "upCa"
VERSION = 1
BUSY_MS = 5000
SEQ_BITS = 32
"""An event's key is its session's number and its sequence number packed into one integer: a session's events lie
side by side on disk, and no second index is needed to find them."""

TABLES = """
CREATE TABLE sessions (
    n INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    agent TEXT NOT NULL,
    parent INTEGER,
    root INTEGER NOT NULL,
    kind TEXT NOT NULL,
    status TEXT NOT NULL,
    created REAL NOT NULL,
    updated REAL NOT NULL,
    base INTEGER NOT NULL DEFAULT 0,
    epoch INTEGER NOT NULL DEFAULT 0,
    owner TEXT NOT NULL DEFAULT ''
);
CREATE INDEX sessions_by_parent ON sessions (parent) WHERE parent IS NOT NULL;
CREATE INDEX sessions_by_root ON sessions (root) WHERE parent IS NOT NULL;
CREATE TABLE events (key INTEGER PRIMARY KEY, pos INTEGER NOT NULL, time REAL NOT NULL, body BLOB NOT NULL);
CREATE UNIQUE INDEX events_by_pos ON events (pos);
CREATE TABLE blobs (hash TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE processes (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, machine TEXT NOT NULL, pid INTEGER NOT NULL, born TEXT NOT NULL,
    beat REAL NOT NULL
);
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
INSERT INTO counters VALUES ('pos', 0);  -- positions up to here were given, whatever was deleted since
"""


@contextlib.contextmanager
def explained(path: str) -> Generator[None]:
    """Turn what SQLite raises into an error that says what, where and what to do."""
    try:
        yield
    except apsw.Error as error:
        raise explain(path, error) from error


def explain(path: str, error: apsw.Error) -> StoreError:
    """SQLite's error as one of ours."""
    match error:
        case apsw.NotADBError():
            return NotAStore(path, "this is no SQLite database; it was not touched. Choose another --store path")
        case apsw.CorruptError():
            return StoreDamaged(path, f"the database is damaged ({error}); restore it from a backup")
        case apsw.FullError():
            return StoreUnavailable(path, "the disk is full; nothing acknowledged is lost. Make room and resume")
        case apsw.BusyError() | apsw.LockedError():
            return StoreUnavailable(path, f"another program kept it locked for {BUSY_MS // 1000} s; try again")
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return StoreUnavailable(path, "it is read-only here; check the permissions of the file and its folder")
        case apsw.CantOpenError():
            return StoreUnavailable(path, f"it can't be opened ({error}); does the folder exist, may you write?")
        case _:
            return StoreUnavailable(path, f"SQLite says: {error}")


def open_database(path: str) -> apsw.Connection:
    """A connection to a store that is there and ours; makes a new one where there is nothing.

    What is not ours is refused unchanged: it is looked at read-only before anything is written.
    """
    with explained(path):
        if not _create_file(path):
            _refuse_foreign(path)
        db = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
        db.set_busy_timeout(BUSY_MS)
        try:
            _prepare(db, path)
        except BaseException:
            db.close()
            raise
        return db


def open_reader(path: str) -> apsw.Connection:
    """One more connection to a store that is open already."""
    with explained(path):
        db = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
        db.set_busy_timeout(BUSY_MS)
        return db


def _create_file(path: str) -> bool:
    """Make the file with mode 600, so that no other user can read it even for a moment."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return Path(path).stat().st_size == 0
    except OSError as error:
        raise StoreUnavailable(path, f"it can't be created: {error.strerror}") from error
    return True


def _refuse_foreign(path: str) -> None:
    try:
        with Path(path).open("rb") as file:
            head = file.read(100)
            size = file.seek(0, os.SEEK_END)
    except OSError as error:
        raise StoreUnavailable(path, f"it can't be read: {error.strerror}") from error
    if head[:16] != b"SQLite format 3\0":
        raise NotAStore(path, "this is no SQLite database; it was not touched. Choose another --store path")
    page = int.from_bytes(head[16:18]) or 65536
    in_header = head[24:28] == head[92:96]  # the size field counts only while the change counters agree
    if in_header and size < int.from_bytes(head[28:32]) * (65536 if page == 1 else page):
        raise StoreDamaged(path, "the file is shorter than it says: it was cut off. Restore it from a backup")
    if int.from_bytes(head[68:72]) == APPLICATION_ID:
        return
    db = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        mark, tables = db.pragma("application_id"), db.execute("SELECT count(*) FROM sqlite_schema").get
    finally:
        db.close()
    if mark != APPLICATION_ID and (mark or tables):
        raise NotAStore(path, "this database belongs to another program; it was not touched. Choose another path")


def _prepare(db: apsw.Connection, path: str) -> None:
    version = db.pragma("user_version")
    if version > VERSION:
        raise StoreTooNew(path, f"it has format {version}, this version reads up to {VERSION}; upgrade upcall")
    if not version:
        _make_tables(db)
    db.pragma("synchronous", 2)  # FULL: an acknowledged append survives a power cut


def _make_tables(db: apsw.Connection) -> None:
    db.pragma("auto_vacuum", 2)
    db.pragma("journal_mode", "wal")
    db.execute("BEGIN IMMEDIATE")  # two processes may come here at once: the second finds the tables made
    try:
        if not db.pragma("user_version"):
            db.execute(TABLES)
            db.pragma("application_id", APPLICATION_ID)
            db.pragma("user_version", VERSION)
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise
