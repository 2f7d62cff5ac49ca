"""Workspaces inside a workspace: below some paths another one is used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager

from upcall.contracts import Entry, Files, TreeStorage, Workspace
from upcall.errors import SetupError, WorkspaceError
from upcall.workspace.paths import look_alike, parts_of, path_of

Parts = tuple[str, ...]


class Mounts:
    """A base workspace and others below paths of it: `Mounts(Folder("."), {"/memories/": Folder("notes")})`.

    base: the workspace for all other paths; what it has below a mounted path can't be reached
    others: workspaces by path; of two that contain each other the longer path counts
    """

    __slots__ = ("base", "others")

    def __init__(self, base: Workspace, others: Mapping[str, Workspace]) -> None:
        for one in (base, *others.values()):
            if not hasattr(one, "open"):
                raise SetupError(f"Mounts takes workspaces, such as Folder('work'), not {one!r}")
        self.base = base
        self.others = {parts_of(path): other for path, other in others.items()}
        if () in self.others:
            raise SetupError("Mounts: / is the base's; mount below a name, such as /memories/")
        if len({tuple(map(look_alike, parts)) for parts in self.others}) < len(others):
            raise SetupError(f"Mounts: two of these paths are the same: {', '.join(others)}")

    def __repr__(self) -> str:
        others = {path_of(parts): other for parts, other in self.others.items()}
        return f"Mounts({self.base!r}, {others!r})"

    def __eq__(self, other: object) -> bool:
        """The same workspaces at the same paths."""
        return isinstance(other, Mounts) and (self.base, self.others) == (other.base, other.others)

    def __hash__(self) -> int:
        return hash(self.base)

    def open(self, storage: TreeStorage) -> MountedFiles:
        """All of their files."""
        opened = {parts: other.open(storage) for parts, other in self.others.items()}
        return MountedFiles(self.base.open(storage), opened)


class MountedFiles:
    """Files of several workspaces, each below its path."""

    __slots__ = ("_base", "_others")

    def __init__(self, base: Files, others: Mapping[Parts, Files]) -> None:
        self._base = _hiding(base, others)
        below = {mount: _hiding(files, _inside(others, mount)) for mount, files in others.items()}
        self._others = dict(sorted(below.items(), key=lambda item: -len(item[0])))

    def hiding(self, paths: Collection[Parts]) -> MountedFiles:
        """The same files without those below some paths, where other workspaces are mounted."""
        below = {mount: _hiding(files, _inside(paths, mount)) for mount, files in self._others.items()}
        return MountedFiles(_hiding(self._base, paths), below)

    @property
    def folder(self) -> str | None:
        """Where the base is: a program sees nothing of what is mounted."""
        return self._base.folder

    async def look(self, path: str) -> Entry:
        """What lies there, links followed."""
        parts = parts_of(path)
        above, files, inner = self._files_at(parts)
        try:
            with _said_from(above):
                return _moved(above, await files.look(inner))
        except WorkspaceError as error:
            if not error.missing or not any(mount[: len(parts)] == parts for mount in self._others):
                raise
            return Entry(path_of(parts), "folder")  # only a mount lies below

    async def entries(self, path: str) -> list[Entry]:
        """What lies in a folder, by name."""
        parts = parts_of(path)
        above, files, inner = self._files_at(parts)
        mounts = {path_of(m[: len(parts) + 1]) for m in self._others if m[: len(parts)] == parts != m}
        try:
            with _said_from(above):
                found = [_moved(above, entry) for entry in await files.entries(inner)]
        except WorkspaceError as error:
            if not (error.missing and mounts):
                raise
            found = []
        found = [entry for entry in found if entry.path not in mounts]
        return sorted([*found, *(Entry(mount, "folder") for mount in mounts)], key=lambda entry: entry.path)

    async def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        """A file's bytes from `start` on, `size` of them or all."""
        above, files, inner = self._files_at(parts_of(path))
        with _said_from(above):
            return await files.read(inner, start, size)

    async def write(self, path: str, data: bytes, expected: str | None = None) -> None:
        """Replace a file, or make it and the folders above it: whole or not at all."""
        above, files, inner = self._files_at(self._new_file(path))
        with _said_from(above):
            await files.write(inner, data, expected)

    async def write_outside_git(self, path: str, data: bytes, expected: str | None = None) -> None:
        """Write as `write` does; WorkspaceError where the path leads into a git directory."""
        above, files, inner = self._files_at(self._new_file(path))
        with _said_from(above):
            await outside_git(files)(inner, data, expected)

    def _new_file(self, path: str) -> Parts:
        """The names on the way to a file that may be written; no mount lies at or below it."""
        parts = parts_of(path)
        if any(mount[: len(parts)] == parts for mount in self._others):
            raise WorkspaceError(path_of(parts), "is a folder, not a file")
        return parts

    def _files_at(self, parts: Parts) -> tuple[Parts, Files, str]:
        """Whose files they are: the path above them, the files, the path in them."""
        for mount, files in self._others.items():
            begins = parts[: len(mount)]
            if begins == mount:
                return mount, files, path_of(parts[len(mount) :])
            if tuple(map(look_alike, begins)) == tuple(map(look_alike, mount)):
                raise WorkspaceError(path_of(parts), f"looks like {path_of(mount)} and is not; write it like that")
        return (), self._base, path_of(parts)


def outside_git(files: Files) -> Callable[[str, bytes, str | None], Awaitable[None]]:
    """The way to write files that leads into no git directory; where links are never followed, the plain one."""
    return getattr(files, "write_outside_git", files.write)


def _hiding(files: Files, paths: Collection[Parts]) -> Files:
    """Files that are not reached below some paths by links either; those without links stay as they are."""
    hide: Callable[[Collection[Parts]], Files] | None = getattr(files, "hiding", None)
    return files if hide is None or not paths else hide(paths)


def _inside(paths: Iterable[Parts], mount: Parts) -> list[Parts]:
    """The paths that lie below a mount, as they are named there."""
    return [parts[len(mount) :] for parts in paths if parts[: len(mount)] == mount != parts]


@contextmanager
def _said_from(above: Parts) -> Generator[None]:
    """Errors name the whole path."""
    try:
        yield
    except WorkspaceError as error:
        if not above:
            raise
        raise WorkspaceError(_below(above, error.path), error.problem, missing=error.missing) from None


def _moved(above: Parts, entry: Entry) -> Entry:
    return entry.replace(path=_below(above, entry.path)) if above else entry


def _below(above: Parts, path: str) -> str:
    return path_of(above) + path.rstrip("/")
