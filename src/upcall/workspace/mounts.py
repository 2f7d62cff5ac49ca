"""Mount workspaces at paths inside another workspace."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager

from upcall.contracts import Entry, Files, TreeStorage, Workspace
from upcall.errors import SetupError, WorkspaceError
from upcall.workspace.paths import lookalike_key, parts_of, path_of

Parts = tuple[str, ...]


class Mounts:
    """A base workspace with others mounted at its paths: `Mounts(Folder("."), {"/memories/": Folder("notes")})`.

    base: the workspace for all other paths; its own files below a mounted path can't be reached
    others: workspaces by path; where mounts are nested, the longest path wins
    """

    __slots__ = ("base", "others")

    def __init__(self, base: Workspace, others: Mapping[str, Workspace]) -> None:
        for one in (base, *others.values()):
            if not hasattr(one, "open"):
                raise SetupError(f"Mounts takes workspaces, such as Folder('work'), not {one!r}")
        self.base = base
        self.others = {parts_of(path): other for path, other in others.items()}
        if () in self.others:
            raise SetupError(
                "Mounts: / belongs to the base; mount other workspaces below a name, such as /memories/"
            )
        if len({tuple(map(lookalike_key, parts)) for parts in self.others}) < len(others):
            raise SetupError(f"Mounts: two of these paths are the same: {', '.join(others)}")

    def __repr__(self) -> str:
        others = {path_of(parts): other for parts, other in self.others.items()}
        return f"Mounts({self.base!r}, {others!r})"

    def __eq__(self, other: object) -> bool:
        """Return whether the same workspaces are mounted at the same paths."""
        return isinstance(other, Mounts) and (self.base, self.others) == (other.base, other.others)

    def __hash__(self) -> int:
        return hash(self.base)

    def open(self, storage: TreeStorage) -> MountedFiles:
        """Open the files of all workspaces."""
        opened = {parts: other.open(storage) for parts, other in self.others.items()}
        return MountedFiles(self.base.open(storage), opened)


class MountedFiles:
    """Files of several workspaces, each below its path."""

    __slots__ = ("_base", "_others")

    def __init__(self, base: Files, others: Mapping[Parts, Files]) -> None:
        self._base = _hide(base, others)
        below = {mount: _hide(files, _inside(others, mount)) for mount, files in others.items()}
        self._others = dict(sorted(below.items(), key=lambda item: -len(item[0])))

    def hiding(self, paths: Collection[Parts]) -> MountedFiles:
        """Return the same files without those below some paths, where other workspaces are mounted."""
        below = {mount: _hide(files, _inside(paths, mount)) for mount, files in self._others.items()}
        return MountedFiles(_hide(self._base, paths), below)

    @property
    def folder(self) -> str | None:
        """The base's folder. Programs that run in it don't see the mounted files."""
        return self._base.folder

    async def look(self, path: str) -> Entry:
        """Return the entry at a path; links are followed."""
        parts = parts_of(path)
        above, files, inner = self._files_at(parts)
        try:
            with _with_whole_paths(above):
                return _with_mount_path(above, await files.look(inner))
        except WorkspaceError as error:
            if not error.missing or not any(mount[: len(parts)] == parts for mount in self._others):
                raise
            return Entry(path_of(parts), "folder")  # it exists only as the parent of a mount

    async def entries(self, path: str) -> list[Entry]:
        """Return a folder's entries, sorted by name."""
        parts = parts_of(path)
        above, files, inner = self._files_at(parts)
        mounts = {path_of(m[: len(parts) + 1]) for m in self._others if m[: len(parts)] == parts != m}
        try:
            with _with_whole_paths(above):
                found = [_with_mount_path(above, entry) for entry in await files.entries(inner)]
        except WorkspaceError as error:
            if not (error.missing and mounts):
                raise
            found = []
        found = [entry for entry in found if entry.path not in mounts]
        return sorted([*found, *(Entry(mount, "folder") for mount in mounts)], key=lambda entry: entry.path)

    async def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        """Return a file's bytes from `start`, all of them or `size`."""
        above, files, inner = self._files_at(parts_of(path))
        with _with_whole_paths(above):
            return await files.read(inner, start, size)

    async def write(self, path: str, data: bytes, expected: str | None = None) -> None:
        """Replace a file, or create it and its parent folders, atomically."""
        above, files, inner = self._files_at(self._new_file(path))
        with _with_whole_paths(above):
            await files.write(inner, data, expected)

    async def write_outside_git(self, path: str, data: bytes, expected: str | None = None) -> None:
        """Write as `write` does; WorkspaceError where the path leads into a git directory."""
        above, files, inner = self._files_at(self._new_file(path))
        with _with_whole_paths(above):
            await outside_git(files)(inner, data, expected)

    def _new_file(self, path: str) -> Parts:
        """Return the names of a path that may be written: there is no mount at or below it."""
        parts = parts_of(path)
        if any(mount[: len(parts)] == parts for mount in self._others):
            raise WorkspaceError(path_of(parts), "is a folder, not a file")
        return parts

    def _files_at(self, parts: Parts) -> tuple[Parts, Files, str]:
        """Return the mount that a path belongs to: its path, its files, and the path within them."""
        for mount, files in self._others.items():
            begins = parts[: len(mount)]
            if begins == mount:
                return mount, files, path_of(parts[len(mount) :])
            if tuple(map(lookalike_key, begins)) == tuple(map(lookalike_key, mount)):
                raise WorkspaceError(
                    path_of(parts),
                    f"looks like {path_of(mount)} but is spelled differently; write {path_of(mount)}",
                )
        return (), self._base, path_of(parts)


def outside_git(files: Files) -> Callable[[str, bytes, str | None], Awaitable[None]]:
    """Return a write function that refuses git directories; the plain one if the files have no links."""
    return getattr(files, "write_outside_git", files.write)


def _hide(files: Files, paths: Collection[Parts]) -> Files:
    """Return files that links can't reach below some paths. Files without links are returned unchanged."""
    hide: Callable[[Collection[Parts]], Files] | None = getattr(files, "hiding", None)
    return files if hide is None or not paths else hide(paths)


def _inside(paths: Iterable[Parts], mount: Parts) -> list[Parts]:
    """Return the paths below a mount, relative to it."""
    return [parts[len(mount) :] for parts in paths if parts[: len(mount)] == mount != parts]


@contextmanager
def _with_whole_paths(above: Parts) -> Generator[None]:
    """Make errors name the whole path instead of the path within a mount."""
    try:
        yield
    except WorkspaceError as error:
        if not above:
            raise
        raise WorkspaceError(_joined_path(above, error.path), error.problem, missing=error.missing) from None


def _with_mount_path(above: Parts, entry: Entry) -> Entry:
    return entry.replace(path=_joined_path(above, entry.path)) if above else entry


def _joined_path(above: Parts, path: str) -> str:
    return path_of(above) + path.rstrip("/")
