"""A folder on this machine as a workspace: every path is walked name by name, so that nothing leads out of it.

Each step opens one name relative to the folder opened before and follows no link by itself; a link's target is
walked the same way. What somebody puts there between two steps is met by the next step, never by the system.
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
from upcall.workspace.paths import MOST_ENTRIES, TOO_MANY, changed, look_alike, parts_of, path_of

UNFINISHED = ".upcall-unfinished-"
"""Begins the name of a file that is being written. A killed process may leave one; no tool shows it."""

_MOST_LINKS = 40
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SMALL, _MOST_KNOWN = 64 * 1024, 16
_TICK = 50_000_000
"""Nanoseconds within which a file system may give two writes the same time."""

_NOT_A_FOLDER = (errno.ENOTDIR, errno.ELOOP)


class Folder:
    """Files in a folder of this machine. No path leads outside.

    path: the folder, which has to exist; a relative path starts at the current folder
    """

    __slots__ = ("_hidden", "_known", "_private", "_views", "_writing", "path")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if os.open not in os.supports_dir_fd:
            raise SetupError("Folder needs a system that opens files relative to folders: Linux or macOS")
        self.path: str = os.path.abspath(os.fspath(path))  # noqa: PTH100 - Path.absolute keeps `..`
        self._writing = threading.Lock()
        self._known: dict[str, tuple[tuple[int, ...], bytes]] = {}  # small files that were read, by path
        self._private, self._hidden = PrivateFiles(), frozenset[tuple[str, ...]]()
        self._views: dict[tuple[object, ...], Folder] = {}  # this folder without what a session must not use

    def __repr__(self) -> str:
        return f"Folder({self.path!r})"

    def __eq__(self, other: object) -> bool:
        """The same folder."""
        return isinstance(other, Folder) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    def open(self, storage: TreeStorage) -> Folder:
        """Its files without the store's. The folder keeps nothing in the log."""
        paths: tuple[str, ...] = getattr(storage, "private_paths", ())
        return self if paths == self._private.paths else self._view(paths, self._hidden)

    def hiding(self, paths: Collection[tuple[str, ...]]) -> Folder:
        """The same files without those below some paths, where other workspaces are mounted."""
        hidden = self._hidden.union(tuple(map(look_alike, parts)) for parts in paths)
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
        """Where it is."""
        return self.path

    async def look(self, path: str) -> Entry:
        """What lies there, links followed."""
        return await asyncio.to_thread(self._look, path)

    async def entries(self, path: str) -> list[Entry]:
        """What lies in a folder, by name."""
        return await asyncio.to_thread(self._entries, path)

    async def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        """A file's bytes from `start` on, `size` of them or all."""
        known = self.known(path)
        if known is not None:
            return known[start : None if size is None else start + size]
        return await asyncio.to_thread(self._read, path, start, size)

    def known(self, path: str) -> bytes | None:
        """A whole file that was read lately and has not changed: to see that takes one look, and no thread."""
        known = self._known.get(path)
        if known is None:
            return None
        try:
            return known[1] if _mark(os.lstat(f"{self.path}/{path}")) == known[0] else None
        except (OSError, ValueError):  # why, the reader will say
            return None

    async def write(self, path: str, data: bytes, expected: str | None = None) -> None:
        """Replace a file, or make it and the folders above it: whole or not at all."""
        await asyncio.to_thread(self._write, path, data, expected)

    async def write_outside_git(self, path: str, data: bytes, expected: str | None = None) -> None:
        """Write as `write` does; WorkspaceError where the path leads into a git directory."""
        await asyncio.to_thread(self._write, path, data, expected, outside_git=True)

    # --- in a thread ----------------------------------------------------------------------

    def _look(self, path: str) -> Entry:
        with self._place(path) as place:
            found = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
            place.guard.check_found(found)
            return _entry(path_of(place.parts), found)

    def _entries(self, path: str) -> list[Entry]:
        with self._place(path) as place, _opened(place, _FOLDER) as folder, os.scandir(folder) as found:
            place.guard.check_folder(folder, place.parts)
            entries: list[Entry] = []
            for number, one in enumerate(found):
                if number >= MOST_ENTRIES:
                    raise WorkspaceError(path_of(place.parts), TOO_MANY)
                stat = one.stat(follow_symlinks=False)
                if not one.name.startswith(UNFINISHED) and not place.guard.is_private(folder, one.name, stat):
                    entries.append(self._listed((*place.parts, _text(one.name)), stat))
        return sorted(entries, key=lambda entry: entry.path)

    def _listed(self, parts: tuple[str, ...], found: os.stat_result) -> Entry:
        is_mount = bool(self._hidden) and tuple(map(look_alike, parts)) in self._hidden
        return Entry(path_of(parts), "folder") if is_mount else _entry(path_of(parts), found)

    def _read(self, path: str, start: int, size: int | None) -> bytes:
        with self._place(path) as place, _opened_file(place, os.O_RDONLY) as (file, found):
            left = max(found.st_size - start, 0) if size is None else size
            blocks: list[bytes] = []
            while left > 0 and (block := os.pread(file, left, start)):
                blocks.append(block)
                start, left = start + len(block), left - len(block)
            data = blocks[0] if len(blocks) == 1 else b"".join(blocks)
            if place.parts == (path.lstrip("/"),) and len(data) == found.st_size <= _SMALL:
                self._remember(path, _mark(found), data)
            return data

    def _remember(self, path: str, mark: tuple[int, ...], data: bytes) -> None:
        """Keep a whole file of the root folder; not one written just now, which may be again at the same time."""
        if max(mark[:2]) < time.time_ns() - _TICK:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[path] = (mark, data)

    def _write(self, path: str, data: bytes, expected: str | None, *, outside_git: bool = False) -> None:
        with self._place(path, make=True, outside_git=outside_git) as place:
            place.guard.check_new(place.parts)
            temporary = UNFINISHED + secrets.token_hex(8)
            before = _writable(place)
            file, is_named = _begun(place.folder, temporary)
            try:
                try:
                    _fill(file, data, before)
                    if not is_named:
                        os.link(f"/proc/self/fd/{file}", temporary, dst_dir_fd=place.folder)
                finally:
                    os.close(file)
                with self._writing:  # sessions that share this folder look and replace one after the other
                    _replace(place, temporary, expected)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=place.folder)
                raise

    # --- from a path to an open folder and a name in it -----------------------------------

    @contextmanager
    def _place(self, path: str, *, make: bool = False, outside_git: bool = False) -> Generator[_Place]:
        """Where a path leads, its folder open; whatever the system refuses is said of that path."""
        parts = parts_of(path)
        guard = Guard(path_of(parts), self._private.look(), self._hidden, outside_git)
        walk = _Walk(self.path, guard)
        try:
            yield walk.to(parts, make)
        except OSError as error:
            raise _refused(self.path, path_of(parts), error) from None
        finally:
            walk.close()


class _Place(NamedTuple):
    """An open folder, a name in it that was no link when it was looked at, and the names that led there."""

    folder: int
    name: str
    parts: tuple[str, ...]
    guard: Guard


class _Walk:
    """One walk from the root of a folder; `close` gives back all it opened."""

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

    def to(self, parts: tuple[str, ...], make: bool) -> _Place:
        self.guard.check_folder(self.open[0], ())
        todo = list(reversed(parts))
        while todo:
            part = todo.pop()
            if part == "..":  # of a link: parts_of leaves none
                if not self.names:
                    raise self._outside()
                self._back_to(len(self.names))
                continue
            name = _twin(self.open[-1], part)
            self.guard.check_name(self.open[-1], (*self.names, name))
            target = self._target(name)
            if target is not None:
                todo.extend(reversed(self._followed(target)))
            elif todo:
                if not self._enter(name, make):
                    todo.append(part)  # it became a link since it was looked at
            else:
                return _Place(self.open[-1], name, (*self.names, name), self.guard)
        return _Place(self.open[-1], ".", tuple(self.names), self.guard)

    def _target(self, name: str) -> str | None:
        try:
            return os.readlink(name, dir_fd=self.open[-1])
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return None
            raise

    def _followed(self, target: str) -> list[str]:
        """The names that a link stands for; an absolute one goes back to the root it must lie below."""
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
            self.open.append(self._opened(name, make))
        except OSError as error:
            if error.errno not in _NOT_A_FOLDER or self._target(name) is None:
                raise
            self._count_link()
            return False
        self.names.append(name)
        self.guard.check_folder(self.open[-1], self.names)
        return True

    def _opened(self, name: str, make: bool) -> int:
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
        """Keep that many open folders, the root being the first."""
        while len(self.open) > count:
            os.close(self.open.pop())
        del self.names[max(count - 1, 0) :]

    def _count_link(self) -> None:
        self.links += 1
        if self.links > _MOST_LINKS:
            raise WorkspaceError(self.path, "goes through too many links, or they go in a circle")

    def _outside(self) -> WorkspaceError:
        return WorkspaceError(self.path, "is a link, or goes through one, that leads out of the workspace")


def _twin(folder: int, name: str) -> str:
    """The name as the folder spells it: some systems store what people type in another Unicode form."""
    if name.isascii():
        return name
    try:
        os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        same = [one for one in os.listdir(folder) if unicodedata.normalize("NFC", one) == name]
        return min(same, default=name)
    return name


@contextmanager
def _opened(place: _Place, flags: int) -> Generator[int]:
    opened = os.open(place.name, flags, dir_fd=place.folder)
    try:
        yield opened
    finally:
        os.close(opened)


@contextmanager
def _opened_file(place: _Place, flags: int) -> Generator[tuple[int, os.stat_result]]:
    """A regular file: a pipe or a device is looked at before it is opened, because opening one can do things."""
    _check_file(place, os.stat(place.name, dir_fd=place.folder, follow_symlinks=False))
    with _opened(place, flags | _FILE) as file:
        found = os.fstat(file)
        _check_file(place, found)
        yield file, found


def _mark(found: os.stat_result) -> tuple[int, ...]:
    """What tells a file and its content from all others; who sets its times back changes the second one."""
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev


def _check_file(place: _Place, found: os.stat_result) -> None:
    place.guard.check_found(found)
    if stat.S_ISDIR(found.st_mode):
        raise WorkspaceError(path_of(place.parts), "is a folder, not a file")
    if not stat.S_ISREG(found.st_mode):
        raise WorkspaceError(path_of(place.parts), "is not a regular file")


def _writable(place: _Place) -> os.stat_result | None:
    """What is about to be replaced; a file that we may not write stays, though its folder would let us."""
    try:
        with _opened_file(place, os.O_WRONLY) as (_, found):
            return found
    except FileNotFoundError:
        return None


def _begun(folder: int, temporary: str) -> tuple[int, bool]:
    """A new file, and whether it has its name already: without one, nothing of it is left if we are killed."""
    if hasattr(os, "O_TMPFILE") and os.access("/proc/self/fd", os.X_OK):
        with suppress(OSError):  # not every disk can do that
            return os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o666, dir_fd=folder), False
    return os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o666, dir_fd=folder), True


def _replace(place: _Place, temporary: str, expected: str | None) -> None:
    if expected is not None and _hash(place) != expected:
        raise changed(path_of(place.parts))
    os.rename(temporary, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)


def _hash(place: _Place) -> str | None:
    """The content hash of what lies there now."""
    try:
        with _opened_file(place, os.O_RDONLY) as (file, found):
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
    """A name as text; bytes that are none can be seen, not typed."""
    return name if name.isascii() else name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _refused(root: str, path: str, error: OSError) -> WorkspaceError:
    match error.errno:
        case errno.ENOENT:
            meant = ""
            if f"{path}/".startswith(f"{root}/"):
                meant = f"; paths begin at the workspace's root: do you mean {path[len(root) :] or '/'}?"
            return WorkspaceError(path, f"there is no such file or folder{meant}", missing=True)
        case errno.ENOTDIR:
            return WorkspaceError(path, "is not a folder, or goes through a file")
        case errno.ENOSPC | errno.EDQUOT:
            return WorkspaceError(path, "the disk is full; nothing was changed")
        case errno.ELOOP:
            return WorkspaceError(path, "became a link while it was used; look again")
        case _:
            return WorkspaceError(path, (error.strerror or str(error)).lower())
