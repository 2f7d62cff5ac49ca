"""Check that the files of a store are the user's own: nobody else may write what a runtime believes.

A log says which approvals were given and which modules to import. Whoever can write it can make an agent do
anything. So its files must belong to the user, must not be links, and must not be writable by others.
"""

from __future__ import annotations

import logging
import os
import shlex
import stat
from collections.abc import Callable
from pathlib import Path

from upcall.errors import StoreUnavailable

log = logging.getLogger("upcall")

_FILES = ("", "-wal", "-shm", "-journal")
_FOLDER = "-wake"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_READ = stat.S_IRGRP | stat.S_IROTH
_ACCEPT = "or accept it with UPCALL_TRUST_STORE=1 where the file system keeps no owners or modes"


def has_owners() -> bool:
    """Return whether the system knows who owns a file."""
    return hasattr(os, "geteuid")


def resolve_path(path: str) -> str:
    """Follow the links in a path that the user named, once, so that nobody can redirect it later."""
    return os.path.realpath(path)


def check_store_files(path: str) -> None:
    """Raise StoreUnavailable unless the log and the files beside it are the user's own. Nothing is changed."""
    if not has_owners():
        return
    for suffix in _FILES:
        check_own(f"{path}{suffix}", path, folder=False)
    check_own(f"{path}{_FOLDER}", path, folder=True)


def close_to_others(path: str) -> None:
    """Make a log and the files beside it unreadable for other users, and print one line about it.

    The log itself comes last, so that the files beside it are never more open than the log.
    """
    if not has_owners():
        return
    _close(f"{path}{_FOLDER}", stat.S_ISDIR, 0o700)
    for suffix in reversed(_FILES):
        _close(f"{path}{suffix}", stat.S_ISREG, 0o600)


def check_own(path: str, store: str, *, folder: bool) -> None:
    """Raise StoreUnavailable unless a file or folder is missing, or the user's own and not writable by others."""
    found = _stat(path)
    if found is not None and has_owners() and (problem := _problem(path, found, folder, is_log=path == store)):
        raise StoreUnavailable(store, problem)


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:  # it is missing, or opening it will report the error
        return None


def _close(path: str, is_expected: Callable[[int], bool], mode: int) -> None:
    found = _stat(path)
    if found is None or not is_expected(found.st_mode) or not found.st_mode & _OTHERS_READ:
        return
    _set_mode(path, mode)
    log.warning("%s could be read by other users; it now has mode %o", path, mode)


def _set_mode(path: str, mode: int) -> None:
    """Change the mode of a file that is not a link.

    This process may have the log open. It would lose SQLite's locks if it closed another descriptor of the file, as
    POSIX has it, so no such descriptor is opened: one of O_PATH has no locks.
    """
    if os.chmod in os.supports_follow_symlinks:
        Path(path).chmod(mode, follow_symlinks=False)
        return
    found = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISLNK(os.fstat(found).st_mode):
            Path(f"/proc/self/fd/{found}").chmod(mode)
    finally:
        os.close(found)


def _problem(path: str, found: os.stat_result, folder: bool, *, is_log: bool) -> str:
    """Return what is wrong with a file and how to repair it, or ""."""
    typed = shlex.quote(path)
    if stat.S_ISLNK(found.st_mode):
        return f"{path} is a symbolic link; remove it: rm {typed}"
    if not is_log and not folder and not stat.S_ISREG(found.st_mode):  # opening the log itself reports this
        return f"{path} is not a regular file; remove it, if nothing else needs it"
    if found.st_uid != os.geteuid():
        return f"{path} belongs to another user; copy the log to a folder of your own, {_ACCEPT}"
    if found.st_mode & _OTHERS_WRITE:
        mode = "700" if folder else "600"
        return f"other users can write to {path}; if you trust what is in it: chmod {mode} {typed} ({_ACCEPT})"
    return ""


def refuse_planted(path: str) -> None:
    """Raise StoreUnavailable if a file beside the log is more open than the log.

    SQLite gives these files the mode of the log. So another program put it there, such as a checkout of a
    repository that holds a file of this name; and SQLite would take the pages in it for the log's own.
    """
    found = _stat(path)
    if found is None or found.st_mode & _OTHERS_READ or not found.st_size or not has_owners():
        return
    for suffix in _FILES[1:]:
        beside = _stat(f"{path}{suffix}")
        if beside is not None and beside.st_size and beside.st_mode & _OTHERS_READ:
            typed = shlex.quote(f"{path}{suffix}")
            why = f"{path}{suffix} was not created by upcall: other users can read it, but they can't read the log"
            raise StoreUnavailable(path, f"{why}. Remove it: rm {typed}; or, if it is yours: chmod 600 {typed}")
