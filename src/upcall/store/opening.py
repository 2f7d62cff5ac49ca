"""Open a log: check its folder and files, and whether it is the user's own.

A log that the user named is used if its files are the user's own. The default log was found, not named: it must be
one that the user made or adopted. Any other log is *foreign*: it can only be read, in a private copy.
"""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import apsw

from upcall.errors import ForeignLog, StoreError, StoreUnavailable
from upcall.store.file_checks import check_store_files, close_to_others, refuse_planted, resolve_path
from upcall.store.home import NAME, check_home, ignore_home, make_home
from upcall.store.known_logs import KnownLogs
from upcall.store.sqlite.private_copy import PrivateCopy, read_ids
from upcall.store.sqlite.tables import open_database


class LogFile(NamedTuple):
    """A log's path and how to open it.

    path: where it is
    trusted: take its files as they are: the file system keeps no owners or modes
    found: it is the default log, which nobody named
    view: only look at it; then it may be foreign
    known: the logs of this user
    """

    path: str
    trusted: bool = False
    found: bool = False
    view: bool = False
    known: KnownLogs | None = None


class Opened(NamedTuple):
    """An open log: its path after following links, its connection, and the copy if it is foreign."""

    path: str
    db: apsw.Connection
    copy: PrivateCopy | None = None


def open_log(file: LogFile, busy: float) -> Opened:
    """Open or create a log; raise ForeignLog if it was found, is not the user's own, and is not only viewed."""
    path = file.path if file.found and not file.trusted else resolve_path(file.path)
    home = Path(path).parent
    if file.found and home.name == NAME and not file.trusted:
        check_home(home, path)
    if not file.trusted:
        check_store_files(path)
        if file.found:
            refuse_planted(path)
    if file.found and (problem := _origin_problem(file, path)):
        if not file.view:
            raise problem
        return _open_copy(path, busy)
    if file.found and not file.view:
        make_home(home)
        ignore_home(home)
    close = None if file.trusted else close_to_others
    return Opened(path, open_database(path, busy, _recorder(file), close))


def _origin_problem(file: LogFile, path: str) -> StoreError | None:
    """Return why a default log is not the user's own; None if it is, or if there is none yet."""
    known = file.known or KnownLogs("")
    ids = read_ids(path) if _has_content(path) else None
    if ids is None:
        known.prepare()
        return None
    try:
        return None if known.any_of(ids) else ForeignLog(path)
    except StoreUnavailable as error:  # they can't be looked up
        return error


def _has_content(path: str) -> bool:
    return any(_size(f"{path}{suffix}") for suffix in ("", "-wal"))


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _open_copy(path: str, busy: float) -> Opened:
    copy = PrivateCopy(path)
    try:
        db = open_database(copy.path, busy)
        db.execute("PRAGMA query_only = ON")
    except StoreError as error:
        copy.close()
        raise type(error)(path, error.problem) from error
    except BaseException:
        copy.close()
        raise
    return Opened(path, db, copy)


def _recorder(file: LogFile) -> Callable[[str], None] | None:
    """Return a function that records the id of a new log. For a named log it may fail."""
    known = file.known
    if known is None:
        return None

    def note(log_id: str) -> None:
        with contextlib.suppress(*([] if file.found else [StoreUnavailable])):
            known.note(log_id)

    return note
