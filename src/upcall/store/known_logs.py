"""The ids of the logs that a user made or adopted, in the user's own state folder.

A log that is found in the current folder may have come with a repository. It is the user's own if one of its ids
is recorded here. An id is random and contains no machine or path, so a log that is moved or copied stays known.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from upcall.errors import StoreUnavailable
from upcall.store.file_checks import has_owners

_FILE = "logs"
_LINE = 33
"""Bytes of an id and its line break."""

_INSTEAD = "set XDG_STATE_HOME to a folder of your own, or name the log: --store .upcall/log.db, or UPCALL_STORE"


def state_folder(environment: Mapping[str, str]) -> str:
    """Return the folder for the state of programs, by the XDG rules: `upcall` in XDG_STATE_HOME or ~/.local/state.

    Returns "" if the user has no home folder.
    """
    base = environment.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):  # noqa: PTH117 - the rules say to ignore such a value
        home = environment.get("HOME") if "HOME" in environment else os.path.expanduser("~")  # noqa: PTH111
        base = f"{home}/.local/state" if home and os.path.isabs(home) else ""  # noqa: PTH117
    return f"{base}/upcall" if base else ""


class KnownLogs:
    """The recorded ids. `trusted` accepts a folder on a file system without owners or modes."""

    def __init__(self, folder: str, *, trusted: bool = False) -> None:
        self._folder, self._trusted = folder, trusted

    @property
    def path(self) -> str:
        """The file with the ids; "" if the user has no home folder."""
        return f"{self._folder}/{_FILE}" if self._folder else ""

    def any_of(self, ids: Iterable[str]) -> bool:
        """Return whether one of these ids is recorded; raise StoreUnavailable if that can't be read."""
        wanted = set(ids)
        if not wanted:
            return False
        try:
            folder = self._open_folder()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._unavailable(error.strerror or str(error)) from error
        try:
            return self._read(folder, wanted)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._unavailable(error.strerror or str(error)) from error
        finally:
            os.close(folder)

    def prepare(self) -> None:
        """Create the folder; raise StoreUnavailable, with advice, if ids can't be recorded in it."""
        try:
            os.close(self._open_file())
        except OSError as error:
            raise self._unavailable(error.strerror or str(error)) from error

    def note(self, log_id: str) -> None:
        """Record an id; it is on disk when this returns. If that fails, StoreUnavailable says what to do."""
        try:
            file = self._open_file()
            try:
                torn = "\n" if os.fstat(file).st_size % _LINE else ""
                os.write(file, f"{torn}{log_id}\n".encode())
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise self._unavailable(error.strerror or str(error)) from error

    def _read(self, folder: int, wanted: set[str]) -> bool:
        file = os.open(_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        with open(file, encoding="ascii", errors="replace") as lines:  # noqa: PTH123
            self._check(os.fstat(file), stat.S_ISREG, f"{self._folder}/{_FILE}")
            return any(line.rstrip("\n") in wanted for line in lines)

    def _open_file(self) -> int:
        self._make_folder()
        folder = self._open_folder()
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = os.open(_FILE, flags, 0o600, dir_fd=folder)
        finally:
            os.close(folder)
        try:
            self._check(os.fstat(file), stat.S_ISREG, f"{self._folder}/{_FILE}")
        except StoreUnavailable:
            os.close(file)
            raise
        return file

    def _make_folder(self) -> None:
        folder = Path(self._needed())
        if folder.is_dir():
            return
        above = next(one for one in folder.parents if one.exists())
        if has_owners() and os.geteuid() == 0 and above.stat().st_uid != 0:  # sudo kept the caller's HOME
            raise self._unavailable(f"{above} belongs to another user, and new files in it would belong to root")
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)

    def _open_folder(self) -> int:
        folder = os.open(os.path.realpath(self._needed()), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._check(os.fstat(folder), stat.S_ISDIR, self._folder)
        except StoreUnavailable:
            os.close(folder)
            raise
        return folder

    def _needed(self) -> str:
        if not self._folder:
            raise self._unavailable("there is no home folder")
        return self._folder

    def _check(self, found: os.stat_result, is_expected: Callable[[int], bool], path: str) -> None:
        if not is_expected(found.st_mode):
            kind = "a folder" if is_expected is stat.S_ISDIR else "a regular file"
            raise self._unavailable(f"{path} is not {kind}")
        if self._trusted or not has_owners():
            return
        if found.st_uid != os.geteuid():
            raise self._unavailable(f"{path} belongs to another user")
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            mode = "700" if stat.S_ISDIR(found.st_mode) else "600"
            raise self._unavailable(f"other users can write to {path}; fix this with chmod {mode}")

    def _unavailable(self, why: str) -> StoreUnavailable:
        where = self._folder or "~/.local/state/upcall"
        return StoreUnavailable(where, f"the ids of your logs can't be kept here: {why}; {_INSTEAD}")
