"""Files that no agent reads or writes: the store, everything beside it, and folders called `.upcall`.

A log says which approvals were given, so an agent that writes it approves its own calls. Names alone don't
protect it: a hard link, a renamed folder or a second mount reaches the same file by another name. So files are
compared by device and inode too.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

Identity = tuple[int, int]
"""A file's device and inode."""

_HOME = ".upcall"
_BESIDE = ("", "-wal", "-shm", "-journal", "-wake", "-token", "-mcp-key", "-index")


def private_paths(store: object) -> tuple[str, ...]:
    """Return the files of a store that agents must not use; none for a store in memory or on a server."""
    return tuple(getattr(store, "private_paths", ()))


def identity(found: os.stat_result) -> Identity:
    """Return the device and inode of a file."""
    return found.st_dev, found.st_ino


def plain_name(name: str) -> str:
    """Return a name without what some disks ignore: case, invisible characters, dots and blanks at the end."""
    if name.isascii():
        return name.casefold().rstrip(". ")
    visible = "".join(one for one in name if unicodedata.category(one) != "Cf")
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", visible).casefold()).rstrip(". ")


class PrivateSnapshot(NamedTuple):
    """The private files as they are at one moment."""

    identities: frozenset[Identity]
    places: tuple[tuple[Identity, str], ...] = ()
    """Folders, each with a name in it: that name, and names that continue it with `-`, are private."""

    def hides(self, found: os.stat_result) -> bool:
        """Return whether a file or folder is private, whatever its name."""
        return identity(found) in self.identities

    def hides_name(self, folder: int, name: str) -> bool:
        """Return whether a name in an open folder is private, even if there is no such file yet."""
        plain = plain_name(name)
        if plain == _HOME:
            return True
        if not self.identities and not self.places:
            return False
        here = identity(os.fstat(folder))
        if any(at == here and (plain == base or plain.startswith(f"{base}-")) for at, base in self.places):
            return True
        return self._is_beside(folder, name)

    def _is_beside(self, folder: int, name: str) -> bool:
        """Return whether a name continues that of a private file in the same folder, even a renamed one."""
        for suffix in _BESIDE[1:]:
            if name.endswith(suffix):
                with suppress(OSError):
                    return self.hides(os.stat(name[: -len(suffix)], dir_fd=folder, follow_symlinks=False))
        return False

    def hides_path(self, path: Path, root: Path) -> bool:
        """Return whether a path below a root is private, by one of its names or by the file itself."""
        if any(plain_name(name) == _HOME for name in path.relative_to(root).parts):
            return True
        with suppress(OSError):
            return self.hides(path.stat())
        return False


class PrivateFiles:
    """The private files of a runtime: stores, and the files beside each."""

    __slots__ = ("_known", "paths")

    def __init__(self, paths: Sequence[str] = ()) -> None:
        self.paths = tuple(paths)
        self._known: dict[Path, Identity] = {}  # seen earlier; they may have been moved since

    def look(self) -> PrivateSnapshot:
        """Return the private files as they are now. They may be created or moved at any time."""
        from pathlib import Path  # slow to import, and only workspaces look

        places: list[tuple[Identity, str]] = []
        known = {path: mark for path, mark in self._known.items() if self._stays_private(path)}
        for store in map(Path, self.paths):
            for path in _files_of(store):
                with suppress(OSError):
                    known[path] = identity(path.stat())
            places += _folder_and_name(store)
        self._known = known
        return PrivateSnapshot(frozenset(known.values()), tuple(places))

    def _stays_private(self, path: Path) -> bool:
        """Return whether a path stays private after a move: a log and its folder.

        Inodes of other files are reused.
        """
        return str(path) in self.paths or plain_name(path.name) == _HOME


def _folder_and_name(path: Path) -> list[tuple[Identity, str]]:
    """Return the folder of a path and the name in it; if the folder is missing, the nearest existing one."""
    for name, folder in ((one.name, one.parent) for one in (path, *path.parents)):
        with suppress(OSError):
            return [(identity(folder.stat()), plain_name(name))]
    return []


def _files_of(store: Path) -> list[Path]:
    """Return a store's files; if it has its own folder, the folder and all files in it."""
    if plain_name(store.parent.name) == _HOME:
        with suppress(OSError):
            return [store.parent, *store.parent.iterdir()]
    return [store.with_name(f"{store.name}{suffix}") for suffix in _BESIDE]
