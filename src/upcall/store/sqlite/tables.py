"""The SQLite file: its tables, how it is opened and checked, and plain texts for SQLite's errors."""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
import stat
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import apsw

from upcall.errors import NotAStore, StoreDamaged, StoreError, StoreTooNew, StoreUnavailable

_MARK = b"upCa"
APPLICATION_ID = int.from_bytes(_MARK)
VERSION = 6
BUSY = 5.0
"""Seconds to wait for another program that has the file locked."""

FULL, NORMAL = 2, 1
"""SQLite's `synchronous`: with FULL a commit survives a power cut; with NORMAL together with the next FULL one,
because both are written to the same log in order."""

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
    base INTEGER NOT NULL DEFAULT 0,
    epoch INTEGER NOT NULL DEFAULT 0,
    owner TEXT NOT NULL DEFAULT ''
);
CREATE INDEX sessions_by_parent ON sessions (parent) WHERE parent IS NOT NULL;
CREATE INDEX sessions_by_root ON sessions (root) WHERE parent IS NOT NULL;
CREATE INDEX sessions_running ON sessions (n) WHERE parent IS NULL AND status = 'running';
CREATE TABLE events (key INTEGER PRIMARY KEY, pos INTEGER NOT NULL, time REAL NOT NULL, body BLOB NOT NULL);
CREATE UNIQUE INDEX events_by_pos ON events (pos);
CREATE TABLE callbacks (
    id TEXT PRIMARY KEY,
    root INTEGER NOT NULL,
    raised INTEGER NOT NULL,
    status TEXT NOT NULL,
    target TEXT NOT NULL,
    message TEXT,
    path TEXT NOT NULL,
    rank INTEGER NOT NULL,
    created REAL NOT NULL,
    expires REAL,
    settled INTEGER,
    delivered INTEGER NOT NULL DEFAULT 0,
    awaited INTEGER NOT NULL DEFAULT 0 -- its session is parked and waits for it
);
CREATE INDEX callbacks_waiting ON callbacks (rank, created, raised) WHERE status = 'open' AND target = 'user';
CREATE INDEX callbacks_by_root ON callbacks (root);
CREATE INDEX callbacks_due ON callbacks
    (CASE WHEN status = 'open' AND target = 'user' THEN expires ELSE 0 END, root) WHERE awaited;
CREATE TABLE tags (
    name TEXT NOT NULL, value TEXT NOT NULL, root INTEGER NOT NULL, PRIMARY KEY (name, value, root)
) WITHOUT ROWID;
CREATE INDEX tags_by_root ON tags (root);
CREATE TABLE places (
    root INTEGER PRIMARY KEY, title TEXT NOT NULL, folder TEXT NOT NULL, roots TEXT NOT NULL
);
CREATE INDEX places_by_folder ON places (folder, root);
CREATE TABLE queue (
    root INTEGER PRIMARY KEY, agent TEXT NOT NULL, tenant TEXT NOT NULL, rank INTEGER NOT NULL,
    turn INTEGER NOT NULL, queued INTEGER NOT NULL, due REAL NOT NULL, ready INTEGER NOT NULL,
    taken INTEGER NOT NULL
);
CREATE INDEX queue_ready ON queue (rank, tenant, agent, root) WHERE ready AND due = 0;
CREATE INDEX queue_due ON queue (due) WHERE ready AND due > 0;
CREATE INDEX queue_taken ON queue (agent, tenant, root) WHERE taken;
CREATE TABLE takes (at REAL NOT NULL, agent TEXT NOT NULL, tenant TEXT NOT NULL);
CREATE INDEX takes_by_time ON takes (at, agent, tenant);
CREATE TABLE pauses (name TEXT PRIMARY KEY, until REAL NOT NULL);
CREATE TABLE tokens (
    n INTEGER PRIMARY KEY, name TEXT NOT NULL, role TEXT NOT NULL, digest TEXT NOT NULL UNIQUE,
    created REAL NOT NULL, revoked REAL
);
CREATE UNIQUE INDEX tokens_valid ON tokens (name) WHERE revoked IS NULL;
CREATE TABLE refusals (
    n INTEGER PRIMARY KEY, time REAL NOT NULL, principal TEXT NOT NULL, action TEXT NOT NULL,
    target TEXT NOT NULL, reason TEXT NOT NULL, address TEXT NOT NULL
);
CREATE TABLE blobs (hash TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE processes (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, machine TEXT NOT NULL, pid INTEGER NOT NULL, born TEXT NOT NULL,
    beat REAL NOT NULL
);
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
-- What was given up to here is never given again, whatever was deleted since: positions, sessions' numbers, epochs.
-- A row called 'origin:ID' is an id of the log: whose user has noted one of its ids made or adopted it.
INSERT INTO counters VALUES ('pos', 0), ('n', 0), ('epoch', 0);
"""

READY_QUEUE = """
CREATE TABLE ready_queue (id INTEGER PRIMARY KEY, root TEXT NOT NULL, reason TEXT NOT NULL, due REAL NOT NULL)
"""
"""Made when `ready_queue.add` is first called; a log without a job queue does not have it."""

UPGRADES = {
    1: """
ALTER TABLE callbacks ADD COLUMN awaited INTEGER NOT NULL DEFAULT 0;
-- Rather too many than too few: a run tree that continues for nothing parks again, and then it is exact.
UPDATE callbacks SET awaited = 1 WHERE (status = 'open' OR NOT delivered)
    AND EXISTS (SELECT 1 FROM sessions s WHERE s.n = callbacks.raised >> 32 AND s.status = 'waiting');
CREATE INDEX sessions_running ON sessions (n) WHERE parent IS NULL AND status = 'running';
CREATE INDEX callbacks_due ON callbacks
    (CASE WHEN status = 'open' AND target = 'user' THEN expires ELSE 0 END, root) WHERE awaited;
""",
    2: """
CREATE TABLE tags (
    name TEXT NOT NULL, value TEXT NOT NULL, root INTEGER NOT NULL, PRIMARY KEY (name, value, root)
) WITHOUT ROWID;
CREATE INDEX tags_by_root ON tags (root);
""",
    3: """
CREATE TABLE places (
    root INTEGER PRIMARY KEY, title TEXT NOT NULL, folder TEXT NOT NULL, roots TEXT NOT NULL
);
CREATE INDEX places_by_folder ON places (folder, root);
""",
    4: """
CREATE TABLE queue (
    root INTEGER PRIMARY KEY, agent TEXT NOT NULL, tenant TEXT NOT NULL, rank INTEGER NOT NULL,
    turn INTEGER NOT NULL, queued INTEGER NOT NULL, due REAL NOT NULL, ready INTEGER NOT NULL,
    taken INTEGER NOT NULL
);
CREATE INDEX queue_ready ON queue (rank, tenant, agent, root) WHERE ready AND due = 0;
CREATE INDEX queue_due ON queue (due) WHERE ready AND due > 0;
CREATE INDEX queue_taken ON queue (agent, tenant, root) WHERE taken;
CREATE TABLE takes (at REAL NOT NULL, agent TEXT NOT NULL, tenant TEXT NOT NULL);
CREATE INDEX takes_by_time ON takes (at, agent, tenant);
CREATE TABLE pauses (name TEXT PRIMARY KEY, until REAL NOT NULL);
""",
    5: """
CREATE TABLE tokens (
    n INTEGER PRIMARY KEY, name TEXT NOT NULL, role TEXT NOT NULL, digest TEXT NOT NULL UNIQUE,
    created REAL NOT NULL, revoked REAL
);
CREATE UNIQUE INDEX tokens_valid ON tokens (name) WHERE revoked IS NULL;
CREATE TABLE refusals (
    n INTEGER PRIMARY KEY, time REAL NOT NULL, principal TEXT NOT NULL, action TEXT NOT NULL,
    target TEXT NOT NULL, reason TEXT NOT NULL, address TEXT NOT NULL
);
""",
}
"""Statements that upgrade a file of each older format to the next, when it is opened."""

_MAGIC = b"SQLite format 3\0"
_HEAD = 105
_LEAF = 13
_NO_DATABASE = "this is not an SQLite database; it was not changed. Choose another --store path"
_ANOTHERS = "this database belongs to another program; it was not changed. Choose another --store path"
_DRAFT = "-new"
"""Ends the name of a log that is not complete yet."""

_READ_ONLY = "it is read-only here; check the permissions of the file and its folder"
_FULL = "the disk is full; nothing acknowledged is lost. Make room and resume"


def explain(path: str, error: Exception) -> StoreError:
    """Return SQLite's error as one of our errors, with advice."""
    match error:
        case StoreError():
            return error
        case apsw.NotADBError():
            return NotAStore(path, _NO_DATABASE)
        case apsw.CorruptError():
            return StoreDamaged(path, f"the database is damaged ({error}); restore it from a backup")
        case apsw.FullError():
            return StoreUnavailable(path, _FULL)
        case apsw.BusyError() | apsw.LockedError():
            return StoreUnavailable(
                path, "another program keeps it locked; try again when that program has finished"
            )
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return StoreUnavailable(path, _READ_ONLY)
        case apsw.CantOpenError():
            check = "check that the folder exists and that you may write to it"
            return StoreUnavailable(path, f"it can't be opened ({error}); {check}")
        case apsw.Error():
            return StoreUnavailable(path, _FULL if _is_full(path) else f"SQLite says: {error}")
        case _:
            return StoreError(path, f"this could not be stored: {type(error).__name__}: {error}")


def _is_full(path: str) -> bool:
    """Return whether the disk is full: SQLite then reports some failures as plain input/output errors."""
    try:
        disk = os.statvfs(Path(path).parent)
    except (OSError, AttributeError):
        return False
    return not disk.f_bavail


def open_database(
    path: str,
    busy: float,
    note: Callable[[str], None] | None = None,
    close: Callable[[str], None] | None = None,
) -> apsw.Connection:
    """Return a connection to an existing Upcall store; create a new one if there is no file.

    What is not ours is refused unchanged: it is looked at without a lock before anything is written.

    note: given the random id of a new log before anything is committed
    close: given the path of a log of ours before it is used, to close its files to others
    """
    try:
        if not _size(path):
            _create(path, busy, note)
    except apsw.Error as error:
        raise explain(path, error) from error
    except OSError as error:
        raise StoreUnavailable(path, f"it can't be created: {error.strerror}") from error
    db = connect(path, busy)  # takes no lock and reads only the header
    try:
        _refuse_foreign(db, path, busy)
        if close is not None:
            close(path)
        _prepare(db, path, busy, note)
    except BaseException as error:
        db.close()
        if isinstance(error, apsw.Error):
            raise explain(path, error) from error
        raise
    return db


def connect(path: str, busy: float, flags: int = apsw.SQLITE_OPEN_READWRITE) -> apsw.Connection:
    """Return one more connection to a store that was already checked."""
    try:
        db = apsw.Connection(path, flags=flags | apsw.SQLITE_OPEN_NOFOLLOW)
    except apsw.Error as error:
        raise explain(path, error) from error
    db.set_busy_timeout(int(busy * 1000))
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # else most statements are planned again at each use
    harden(db)
    return db


def harden(db: apsw.Connection) -> None:
    """Configure a connection so that nothing in a file can run code, or change how the file is read."""
    db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    for option in _OFF:
        db.config(option, 0)
    db.execute("PRAGMA cell_size_check = ON")


_OFF = (
    apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA,
    apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER,
    apsw.SQLITE_DBCONFIG_ENABLE_VIEW,
    apsw.SQLITE_DBCONFIG_DQS_DDL,
    apsw.SQLITE_DBCONFIG_DQS_DML,
)
"""SQLite features that our connections never need."""


# --- checking the schema ----------------------------------------------------------------


def check_schema(db: apsw.Connection, path: str) -> bool:
    """Raise NotAStore if the file holds anything but our own tables and indexes; False if it holds nothing."""
    rows = db.execute("SELECT type, name, sql FROM sqlite_schema LIMIT 100").fetchall()
    for kind, name, sql in rows:
        if sql is None and kind == "index" and str(name).startswith("sqlite_autoindex_"):
            continue
        if not isinstance(sql, str) or _plain_sql(sql) not in _known_sql():
            what = f"its {kind} {name!r} was not created by upcall"
            raise NotAStore(path, f"{what}; it was not changed. Choose another --store path")
    return bool(rows)


@cache
def _known_sql() -> frozenset[str]:
    """Return the statements that create our tables and indexes, of every format."""
    ours = {_plain_sql(one) for one in TABLES.split(";")}
    ours |= {one.replace(_AWAITED, ")") for one in ours}  # format 1
    return frozenset({*ours, *_STATISTICS, _plain_sql(READY_QUEUE)})


def _plain_sql(sql: str) -> str:
    """Return a statement without its line breaks, and without the one comment that our tables have."""
    return re.sub(r"\s*([(),])\s*", r"\1", re.sub(r"\s+", " ", sql.replace(_COMMENT, ""))).strip()


_COMMENT = " -- its session is parked and waits for it"
_AWAITED = ",awaited INTEGER NOT NULL DEFAULT 0)"
_STATISTICS = ("CREATE TABLE sqlite_stat1(tbl,idx,stat)", "CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)")
"""The tables that ANALYZE creates."""


# --- opening ----------------------------------------------------------------------------


def new_id() -> str:
    """Return a random id for a log. It contains nothing about the machine, the user or the path."""
    return os.urandom(16).hex()


def ids_in(db: apsw.Connection) -> list[str]:
    """Return the ids of a log: one from its creation, and one from each adoption."""
    sql = "SELECT substr(name, 8) FROM counters WHERE name > 'origin:' AND name < 'origin;' LIMIT 1000"
    return [str(row[0]) for row in db.execute(sql).fetchall()]


ADD_ID = "INSERT OR IGNORE INTO counters VALUES ('origin:' || ?, 0)"


def _create(path: str, busy: float, note: Callable[[str], None] | None) -> None:
    """Create a log if there is no file or an empty one.

    The log is built beside its place and moved there whole. So a process that is killed meanwhile leaves an empty
    file at most, and of several processes that create the same log, one does and the others wait for it.
    """
    try:
        file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if Path(path).exists() and not Path(path).is_file():
            raise StoreUnavailable(path, "this is not a file; choose another --store path") from None
        first = "" if Path(path).parent.is_dir() else "; make its folder first"
        raise StoreUnavailable(path, f"it can't be created: {error.strerror}{first}") from error
    try:
        _lock(file, path, busy)
        if _is_empty(file, path):
            _build(f"{path}{_DRAFT}", path, busy, note)
    finally:
        os.close(file)


def _lock(file: int, path: str, busy: float) -> None:
    """Lock an empty file, whose log another process may be creating."""
    until = time.monotonic() + busy
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise StoreUnavailable(path, "another process started to create it and has not finished") from None
            time.sleep(0.01)
        else:
            return


def _is_empty(file: int, path: str) -> bool:
    """Return whether an open file is still the one at its path, and empty."""
    found, there = os.fstat(file), os.lstat(path)
    if not stat.S_ISREG(found.st_mode):
        raise StoreUnavailable(path, "this is not a file; choose another --store path")
    return (found.st_dev, found.st_ino) == (there.st_dev, there.st_ino) and not found.st_size


def _build(draft: str, path: str, busy: float, note: Callable[[str], None] | None) -> None:
    """Build a new log and move it to its path. One that a killed process left unfinished is removed first."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{draft}{suffix}")  # noqa: PTH108
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    db = connect(draft, busy)
    try:
        db.pragma("synchronous", 0)  # it is synced once, when it is complete
        _prepare(db, path, busy, note)
    finally:
        db.close()
    _sync(draft)
    os.replace(draft, path)  # noqa: PTH105
    _sync(os.path.dirname(path) or ".")  # noqa: PTH120


def _sync(path: str) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _refuse_foreign(db: apsw.Connection, path: str, busy: float) -> None:
    """Check the file itself instead of the database, because SQLite would first clean up after another program.

    Another process may bring its log into the file meanwhile, and then take the log away: so all that is asked of
    the file is in its first page, and before anything is refused, whether there is a log is asked first.
    """
    head, short = _look(db, path)
    refuse_journal(path)
    logged = False
    if short or head[68:72] != _MARK:
        logged = _has_log(path)
        head, short = _look(db, path)
    if short and not logged and not _has_log(path):  # after an interrupted checkpoint the rest is in the log
        raise StoreDamaged(
            path, "the file is truncated: it is shorter than its header says. Restore it from a backup"
        )
    version = int.from_bytes(head[60:64])
    tables = head[100] != _LEAF or any(head[103:105])  # the list of tables begins on the first page
    if head[68:72] == _MARK:
        _refuse_newer(path, version)
    elif any(head[68:72]) or version or tables or (logged and _has_tables_in_log(path, busy)):
        raise NotAStore(path, _ANOTHERS)


def _look(db: apsw.Connection, path: str) -> tuple[bytes, bool]:
    """Return the first bytes of the file, and whether the file is shorter than they say."""
    whole, head = db.read("main", 0, 0, _HEAD)
    if head[:16] != _MAGIC or not whole:
        raise NotAStore(path, _NO_DATABASE)
    page, pages = int.from_bytes(head[16:18]), int.from_bytes(head[28:32])
    in_header = head[24:28] == head[92:96]  # the size field counts only while the change counters agree
    return head, in_header and _size(path) < pages * (65536 if page == 1 else page)


def refuse_journal(path: str) -> None:
    """Raise StoreUnavailable if there is a rollback journal beside a log: we never have one.

    SQLite would write its pages into the log, and delete a file that it names.
    """
    journal = f"{path}-journal"
    if _size(journal) and _size(path):
        why = "SQLite would use it to change the log, and upcall never leaves such a file behind"
        raise StoreUnavailable(path, f"{journal} exists; {why}. Remove that file: rm {shlex.quote(journal)}")


def _has_log(path: str) -> bool:
    return _size(f"{path}-wal") > 0


def _size(path: str) -> int:
    """Return the size of a file; 0 if there is no regular file."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except FileNotFoundError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _has_tables_in_log(path: str, busy: float) -> bool:
    """Return whether a database without our marks has tables. A new one of ours has them only in its log."""
    db = connect(path, busy, apsw.SQLITE_OPEN_READONLY)
    try:
        return (
            bool(db.execute("SELECT count(*) FROM sqlite_schema").get)
            and db.pragma("application_id") != APPLICATION_ID
        )
    except apsw.Error as error:
        raise explain(path, error) from error
    finally:
        db.close()


def _refuse_newer(path: str, version: int) -> None:
    if version > VERSION:
        raise StoreTooNew(
            path, f"it has format {version}, but this version reads only formats up to {VERSION}; upgrade upcall"
        )


def _prepare(db: apsw.Connection, path: str, busy: float, note: Callable[[str], None] | None) -> None:
    if db.readonly("main"):
        raise StoreUnavailable(path, _READ_ONLY)
    version: int = db.execute("PRAGMA user_version").get
    _refuse_newer(path, version)
    if version:
        check_schema(db, path)
    else:
        db.pragma("auto_vacuum", 2)
        _use_log(db, busy)
    if version < VERSION:
        _make_tables(db, path, note)


def _use_log(db: apsw.Connection, busy: float) -> None:
    """Switch to a write-ahead log. SQLite does not wait by itself if another process is doing just that."""
    until = time.monotonic() + busy
    while True:
        try:
            db.pragma("journal_mode", "wal")
        except apsw.BusyError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.01)
        else:
            return


def _refuse_tables(db: apsw.Connection, path: str) -> None:
    if db.execute("SELECT count(*) FROM sqlite_schema").get:
        raise NotAStore(path, _ANOTHERS)


def _make_tables(db: apsw.Connection, path: str, note: Callable[[str], None] | None) -> None:
    """Make the tables of a new file, or bring those of an older format up to date."""
    db.execute("BEGIN IMMEDIATE")  # of two processes at the same time, the second finds the tables
    try:
        version: int = db.execute("PRAGMA user_version").get
        if not version:
            _refuse_tables(db, path)
            db.execute(TABLES)
            db.pragma("application_id", APPLICATION_ID)
            log_id = new_id()
            if note is not None:
                note(log_id)
            db.execute(ADD_ID, (log_id,))
        for older in range(version or VERSION, VERSION):
            db.execute(UPGRADES[older])
        if version < VERSION:
            db.pragma("user_version", VERSION)
        db.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(apsw.Error):
            db.execute("ROLLBACK")
        raise
