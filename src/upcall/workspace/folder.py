"""A folder on this machine as a workspace. Every path is walked name by name, so that none leads outside.

Each step opens one name relative to the folder opened before, without following links; a link's target is walked
the same way. If somebody changes the folder between two steps, the next step sees and checks the change.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import stat
import threading
import time
import unicodedata
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from upcall.contracts import Entry, TreeStorage
from upcall.errors import SetupError, WorkspaceError
from upcall.events import content_hash
from upcall.safety.private_files import PrivateFiles
from upcall.workspace.guard import Guard
from upcall.workspace.paths import MAX_ENTRIES, TOO_MANY, file_changed, lookalike_key, parts_of, path_of

UNFINISHED = ".upcall-unfinished-"
"""Prefix of the name of a file that is being written. A killed process may leave one; no tool shows it."""

_MAX_LINKS = 40
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_CACHED_SIZE, _MAX_CACHED = 64 * 1024, 16
_TICK = 50_000_000
"""Nanoseconds within which a file system may give two writes the same time stamp."""

_NOT_A_FOLDER = (errno.ENOTDIR, errno.ELOOP)


class Folder:
    """Files in a folder of this machine. No path leads outside.

    path: the folder, which has to exist; a relative path starts at the current folder
    """

    __slots__ = ("_cache", "_hidden", "_private", "_views", "_writing", "path")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if os.open not in os.supports_dir_fd:
            raise SetupError("Folder needs a system that can open files relative to a folder: Linux or macOS")
        self.path: str = os.path.abspath(os.fspath(path))  # noqa: PTH100 - Path.absolute keeps `..`
        self._writing = threading.Lock()
        self._cache: dict[str, tuple[tuple[int, ...], bytes]] = {}  # small files by path, each with its stamp
        self._private, self._hidden = PrivateFiles(), frozenset[tuple[str, ...]]()
        self._views: dict[tuple[object, ...], Folder] = {}  # this folder without private and hidden paths

    def __repr__(self) -> str:
        return f"Folder({self.path!r})"

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same folder."""
        return isinstance(other, Folder) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    def open(self, storage: TreeStorage) -> Folder:
        """Return the folder's files without those of the store. Nothing of them is kept in the log."""
        paths: tuple[str, ...] = getattr(storage, "private_paths", ())
        return self if paths == self._private.paths else self._view(paths, self._hidden)

    def hiding(self, paths: Collection[tuple[str, ...]]) -> Folder:
        """Return the same files without those below some paths, where other workspaces are mounted."""
        hidden = self._hidden.union(tuple(map(lookalike_key, parts)) for parts in paths)
        return self if hidden == self._hidden else self._view(self._private.paths, hidden)

    def _view(self, private: tuple[str, ...], hidden: frozenset[tuple[str, ...]]) -> Folder:
        view = self._views.get((private, hidden))
        if view is None:
            view = self._views[private, hidden] = Folder(self.path)
            view._writing = self._writing
            view._private, view._hidden = PrivateFiles(private), hidden
        return view

    @property
    def folder(self) -> str:
        """The folder's path."""
        return self.path

    async def look(self, path: str) -> Entry:
        """Return the entry at a path; links are followed."""
        return await asyncio.to_thread(self._look, path)

    async def entries(self, path: str) -> list[Entry]:
        """Return a folder's entries, sorted by name."""
        return await asyncio.to_thread(self._entries, path)

    async def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        """Return a file's bytes from `start`, all of them or `size`."""
        known = self.known(path)
        if known is not None:
            return known[start : None if size is None else start + size]
        return await asyncio.to_thread(self._read, path, start, size)

    def known(self, path: str) -> bytes | None:
        """Return a whole file from the cache if it has not changed, else None. Needs one `lstat` and no thread."""
        known = self._cache.get(path)
        if known is None:
            return None
        try:
            return known[1] if _stamp(os.lstat(f"{self.path}/{path}")) == known[0] else None
        except (OSError, ValueError):  # `read` reports it
            return None

    async def write(self, path: str, data: bytes, expected: str | None = None) -> None:
        """Replace a file, or create it and its parent folders, atomically."""
        await asyncio.to_thread(self._write, path, data, expected)

    async def write_outside_git(self, path: str, data: bytes, expected: str | None = None) -> None:
        """Write as `write` does; raise WorkspaceError if the path leads into a git directory."""
        await asyncio.to_thread(self._write, path, data, expected, outside_git=True)

    # --- in a thread ----------------------------------------------------------------------

    def _look(self, path: str) -> Entry:
        with self._locate(path) as location:
            found = os.stat(location.name, dir_fd=location.folder, follow_symlinks=False)
            location.guard.check_found(found)
            return _entry(path_of(location.parts), found)

    def _entries(self, path: str) -> list[Entry]:
        with self._locate(path) as location, _open(location, _FOLDER) as folder, os.scandir(folder) as found:
            location.guard.check_folder(folder, location.parts)
            entries: list[Entry] = []
            for number, one in enumerate(found):
                if number >= MAX_ENTRIES:
                    raise WorkspaceError(path_of(location.parts), TOO_MANY)
                stat = one.stat(follow_symlinks=False)
                if not one.name.startswith(UNFINISHED) and not location.guard.is_private(folder, one.name, stat):
                    entries.append(self._listed_entry((*location.parts, _text(one.name)), stat))
        return sorted(entries, key=lambda entry: entry.path)

    def _listed_entry(self, parts: tuple[str, ...], found: os.stat_result) -> Entry:
        is_mount = bool(self._hidden) and tuple(map(lookalike_key, parts)) in self._hidden
        return Entry(path_of(parts), "folder") if is_mount else _entry(path_of(parts), found)

    def _read(self, path: str, start: int, size: int | None) -> bytes:
        with self._locate(path) as location, _open_file(location, os.O_RDONLY) as (file, found):
            left = max(found.st_size - start, 0) if size is None else size
            blocks: list[bytes] = []
            while left > 0 and (block := os.pread(file, left, start)):
                blocks.append(block)
                start, left = start + len(block), left - len(block)
            data = blocks[0] if len(blocks) == 1 else b"".join(blocks)
            if location.parts == (path.lstrip("/"),) and len(data) == found.st_size <= _MAX_CACHED_SIZE:
                self._remember(path, _stamp(found), data)
            return data

    def _remember(self, path: str, stamp: tuple[int, ...], data: bytes) -> None:
        """Cache a whole file, unless it was written just now and may change again within its time stamp."""
        if max(stamp[:2]) < time.time_ns() - _TICK:
            if len(self._cache) >= _MAX_CACHED:
                self._cache.clear()
            self._cache[path] = (stamp, data)

    def _write(self, path: str, data: bytes, expected: str | None, *, outside_git: bool = False) -> None:
        with self._locate(path, make=True, outside_git=outside_git) as location:
            location.guard.check_new(location.parts)
            temporary = UNFINISHED + secrets.token_hex(8)
            before = _check_writable(location)
            file, is_named = _create_temporary(location.folder, temporary)
            try:
                try:
                    _fill(file, data, before)
                    if not is_named:
                        os.link(f"/proc/self/fd/{file}", temporary, dst_dir_fd=location.folder)
                finally:
                    os.close(file)
                with self._writing:  # sessions that share this folder check and replace one at a time
                    _replace(location, temporary, expected)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=location.folder)
                raise

    # --- from a path to an open folder and a name in it -----------------------------------

    @contextmanager
    def _locate(self, path: str, *, make: bool = False, outside_git: bool = False) -> Generator[_Location]:
        """Yield the location of a path, its folder open. An OSError becomes a WorkspaceError about that path."""
        parts = parts_of(path)
        guard = Guard(path_of(parts), self._private.look(), self._hidden, outside_git)
        walk = _Walk(self.path, guard)
        try:
            yield walk.walk_to(parts, make)
        except OSError as error:
            raise _workspace_error(self.path, path_of(parts), error) from None
        finally:
            walk.close()


class _Location(NamedTuple):
    """An open folder, a name in it that was not a link when it was checked, and the names from the root."""

    folder: int
    name: str
    parts: tuple[str, ...]
    guard: Guard


class _Walk:
    """One walk from the root of a folder; `close` closes all folders that it opened."""

    def __init__(self, root: str, guard: Guard) -> None:
        self.root, self.path, self.guard = root, guard.path, guard
        try:
            self.open = [os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
        except OSError as error:
            why = f"the workspace's folder {root} can't be used: {error.strerror}"
            raise WorkspaceError("/", why) from None
        self.names: list[str] = []
        self.links = 0

    def close(self) -> None:
        self._back_to(0)

    def walk_to(self, parts: tuple[str, ...], make: bool) -> _Location:
        self.guard.check_folder(self.open[0], ())
        todo = list(reversed(parts))
        while todo:
            part = todo.pop()
            if part == "..":  # from a link's target; parts_of removes the others
                if not self.names:
                    raise self._outside()
                self._back_to(len(self.names))
                continue
            name = _stored_name(self.open[-1], part)
            self.guard.check_name(self.open[-1], (*self.names, name))
            target = self._target(name)
            if target is not None:
                todo.extend(reversed(self._link_names(target)))
            elif todo:
                if not self._enter(name, make):
                    todo.append(part)  # it became a link after it was checked
            else:
                return _Location(self.open[-1], name, (*self.names, name), self.guard)
        return _Location(self.open[-1], ".", tuple(self.names), self.guard)

    def _target(self, name: str) -> str | None:
        try:
            return os.readlink(name, dir_fd=self.open[-1])
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return None
            raise

    def _link_names(self, target: str) -> list[str]:
        """Return the names in a link's target.

        An absolute target must lie below the root, and is walked from there.
        """
        self._count_link()
        if target.startswith("/"):
            roots = dict.fromkeys((self.root, os.path.realpath(self.root)))
            inside = [target[len(root) :] for root in roots if f"{target}/".startswith(f"{root.rstrip('/')}/")]
            if not inside:
                raise self._outside()
            self._back_to(1)
            target = inside[0]
        return [part for part in target.split("/") if part not in ("", ".")]

    def _enter(self, name: str, make: bool) -> bool:
        try:
            self.open.append(self._open_folder(name, make))
        except OSError as error:
            if error.errno not in _NOT_A_FOLDER or self._target(name) is None:
                raise
            self._count_link()
            return False
        self.names.append(name)
        self.guard.check_folder(self.open[-1], self.names)
        return True

    def _open_folder(self, name: str, make: bool) -> int:
        here = self.open[-1]
        try:
            return os.open(name, _FOLDER, dir_fd=here)
        except FileNotFoundError:
            if not make:
                raise
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=here)
        return os.open(name, _FOLDER, dir_fd=here)

    def _back_to(self, count: int) -> None:
        """Close open folders until `count` are left; the root is the first."""
        while len(self.open) > count:
            os.close(self.open.pop())
        del self.names[max(count - 1, 0) :]

    def _count_link(self) -> None:
        self.links += 1
        if self.links > _MAX_LINKS:
            raise WorkspaceError(self.path, "goes through too many links, or the links form a loop")

    def _outside(self) -> WorkspaceError:
        return WorkspaceError(self.path, "is, or goes through, a link that leads out of the workspace")


def _stored_name(folder: int, name: str) -> str:
    """Return the name as the folder spells it: some systems store names in another Unicode form."""
    if name.isascii():
        return name
    try:
        os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        equal = [one for one in os.listdir(folder) if unicodedata.normalize("NFC", one) == name]
        return min(equal, default=name)
    return name


@contextmanager
def _open(location: _Location, flags: int) -> Generator[int]:
    opened = os.open(location.name, flags, dir_fd=location.folder)
    try:
        yield opened
    finally:
        os.close(opened)


@contextmanager
def _open_file(location: _Location, flags: int) -> Generator[tuple[int, os.stat_result]]:
    """Open a regular file. Its type is checked first, because opening a pipe or a device can have effects."""
    _check_file(location, os.stat(location.name, dir_fd=location.folder, follow_symlinks=False))
    with _open(location, flags | _FILE) as file:
        found = os.fstat(file)
        _check_file(location, found)
        yield file, found


def _stamp(found: os.stat_result) -> tuple[int, ...]:
    """Return values that change with a file's content. Setting its times back changes its ctime, the second one."""
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev


def _check_file(location: _Location, found: os.stat_result) -> None:
    location.guard.check_found(found)
    if stat.S_ISDIR(found.st_mode):
        raise WorkspaceError(path_of(location.parts), "is a folder, not a file")
    if not stat.S_ISREG(found.st_mode):
        raise WorkspaceError(path_of(location.parts), "is not a regular file")


def _check_writable(location: _Location) -> os.stat_result | None:
    """Return the file to be replaced, if there is one.

    A read-only file is refused, though its folder is writable.
    """
    try:
        with _open_file(location, os.O_WRONLY) as (_, found):
            return found
    except FileNotFoundError:
        return None


def _create_temporary(folder: int, temporary: str) -> tuple[int, bool]:
    """Create a file; return it and whether it has its name.

    A file without one disappears if the process is killed.
    """
    if hasattr(os, "O_TMPFILE") and os.access("/proc/self/fd", os.X_OK):
        with suppress(OSError):  # not every file system supports it
            return os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o666, dir_fd=folder), False
    return os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o666, dir_fd=folder), True


def _replace(location: _Location, temporary: str, expected: str | None) -> None:
    if expected is not None and _hash(location) != expected:
        raise file_changed(path_of(location.parts))
    os.rename(temporary, location.name, src_dir_fd=location.folder, dst_dir_fd=location.folder)


def _hash(location: _Location) -> str | None:
    """Return the content hash of the file as it is now; None if there is none."""
    try:
        with _open_file(location, os.O_RDONLY) as (file, found):
            return content_hash(os.pread(file, found.st_size + 1, 0))
    except FileNotFoundError:
        return None


def _fill(file: int, data: bytes, before: os.stat_result | None) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    if before is not None:
        with suppress(PermissionError):
            os.fchown(file, before.st_uid, before.st_gid)
        os.fchmod(file, stat.S_IMODE(before.st_mode))
    os.fsync(file)


def _entry(path: str, found: os.stat_result) -> Entry:
    mode = found.st_mode
    if stat.S_ISREG(mode):
        return Entry(path, "file", found.st_size)
    if stat.S_ISDIR(mode):
        return Entry(path, "folder")
    return Entry(path, "link" if stat.S_ISLNK(mode) else "other")


def _text(name: str) -> str:
    """Return a name as text. Bytes that are not UTF-8 become replacement characters."""
    return name if name.isascii() else name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _workspace_error(root: str, path: str, error: OSError) -> WorkspaceError:
    match error.errno:
        case errno.ENOENT:
            hint = ""
            if f"{path}/".startswith(f"{root}/"):
                hint = f"; paths begin at the workspace's root: do you mean {path[len(root) :] or '/'}?"
            return WorkspaceError(path, f"there is no such file or folder{hint}", missing=True)
        case errno.ENOTDIR:
            return WorkspaceError(path, "is not a folder, or its path goes through a file")
        case errno.ENOSPC | errno.EDQUOT:
            return WorkspaceError(path, "the disk is full; nothing was changed")
        case errno.ELOOP:
            return WorkspaceError(path, "became a link while it was being used; try again")
        case _:
            return WorkspaceError(path, (error.strerror or str(error)).lower())
