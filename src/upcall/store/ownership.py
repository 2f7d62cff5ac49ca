"""Whether the files of a store are the user's own: nobody else may write what a runtime believes.

A log says which approvals were given and which modules to import. Who can write it can make an agent do anything.
So its files must belong to the user, must not be links, and must not be writable by others.
"""

from __future__ import annotations

import logging
import os
import shlex
import stat

from upcall.errors import StoreUnavailable

log = logging.getLogger("upcall")

_BESIDE = ("", "-wal", "-shm", "-journal", "-wake")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_READ = stat.S_IRGRP | stat.S_IROTH
_ACCEPT = "or accept it with UPCALL_TRUST_STORE=1 where the file system keeps no owners or modes"


def resolve_path(path: str) -> str:
    """Follow the links in a path that the user named, once: later nobody can send it elsewhere."""
    return os.path.realpath(path)


def check_store_files(path: str) -> None:
    """Raise StoreUnavailable unless the log and what lies beside it are the user's own.

    What others can only read is closed to them, and one line says so.
    """
    if not hasattr(os, "geteuid"):  # a system without owners
        return
    for suffix in _BESIDE:
        check_own(f"{path}{suffix}", path, folder=suffix == "-wake")


def check_own(path: str, store: str, *, folder: bool) -> None:
    """Raise StoreUnavailable unless a file or folder is missing, or the user's own and not writable by others."""
    try:
        found = os.lstat(path)
    except OSError:  # it is missing, or what opens it next says what is wrong
        return
    if problem := _problem(path, found, folder):
        raise StoreUnavailable(store, problem)
    expected = stat.S_ISDIR if folder else stat.S_ISREG
    if expected(found.st_mode) and found.st_mode & _OTHERS_READ:
        _close_to_others(path, 0o700 if folder else 0o600)


def _close_to_others(path: str, mode: int) -> None:
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(file, mode)
    finally:
        os.close(file)
    log.warning("%s could be read by other users; it now has mode %o", path, mode)


def _problem(path: str, found: os.stat_result, folder: bool) -> str:
    """What is wrong with a file, and how to mend it; "" if nothing is."""
    typed = shlex.quote(path)
    if stat.S_ISLNK(found.st_mode):
        return f"{path} is a symbolic link; remove it: rm {typed}"
    if found.st_uid != os.geteuid():
        return f"{path} belongs to another user; copy the log to a folder of your own, {_ACCEPT}"
    if found.st_mode & _OTHERS_WRITE:
        mode = "700" if folder else "600"
        return f"other users can write {path}; if you trust what is in it: chmod {mode} {typed} ({_ACCEPT})"
    return ""
