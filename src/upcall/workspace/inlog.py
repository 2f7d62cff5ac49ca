"""A workspace without a folder. Its files are stored in the root session's log and shared by the run tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from upcall.contracts import Entry, TreeStorage
from upcall.errors import WorkspaceError
from upcall.events import content_hash
from upcall.workspace.paths import file_changed, parts_of, path_of

_BLOCK = 256 * 1024
"""Files are stored as blocks by content hash: a part can be read alone, and equal blocks are stored once."""


class InLog:
    """Files in the log of the run tree's root session. They are deleted with it.

    name: two with the same name share their files
    """

    __slots__ = ("name",)

    def __init__(self, name: str = "files") -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"InLog({self.name!r})"

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same name, and so the same files in a run tree."""
        return isinstance(other, InLog) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def open(self, storage: TreeStorage) -> LogFiles:
        """Open the files in the run tree's log."""
        return LogFiles(storage, f"{self.name}:")


class LogFiles:
    """The files of one log: a value per path, with the hashes of its blocks.

    Folders exist by their files' paths.
    """

    __slots__ = ("_prefix", "_storage")

    folder = None

    def __init__(self, storage: TreeStorage, prefix: str) -> None:
        self._storage, self._prefix = storage, prefix

    async def look(self, path: str) -> Entry:
        """Return the entry at a path."""
        found = path_of(parts_of(path))
        values = await self._storage.values()
        value = values.get(self._prefix + found)
        if value is not None:
            return Entry(found, "file", value["size"])
        if found != "/" and not self._below(values, found):
            raise WorkspaceError(found, "there is no such file or folder", missing=True)
        return Entry(found, "folder")

    async def entries(self, path: str) -> list[Entry]:
        """Return a folder's entries, sorted by name."""
        here = await self.look(path)
        if here.kind != "folder":
            raise WorkspaceError(here.path, "is a file, not a folder")
        values = await self._storage.values()
        above, found = here.path.rstrip("/"), dict[str, Entry]()
        for key in self._below(values, above):
            name, deeper, _ = key.removeprefix(f"{self._prefix}{above}/").partition("/")
            child = f"{above}/{name}"
            found[child] = Entry(child, "folder") if deeper else Entry(child, "file", values[key]["size"])
        return [found[child] for child in sorted(found)]

    async def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        """Return a file's bytes from `start`, all of them or `size`."""
        here = await self.look(path)
        if here.kind != "file":
            raise WorkspaceError(here.path, "is a folder, not a file")
        end = here.size if size is None else min(start + size, here.size)
        value = (await self._storage.values())[self._prefix + here.path]
        names = value["blocks"][start // _BLOCK : -(-end // _BLOCK)]
        body = b"".join([await self._storage.body(name) for name in names])
        first = start // _BLOCK * _BLOCK
        return body if len(body) == end - start else body[start - first : max(end - first, 0)]

    async def write(self, path: str, data: bytes, expected: str | None = None) -> None:
        """Replace or create a file, atomically."""
        parts = parts_of(path)
        here = path_of(parts)
        values = await self._storage.values()
        if not parts or self._below(values, here):
            raise WorkspaceError(here, "is a folder, not a file")
        for count in range(1, len(parts)):
            if self._prefix + path_of(parts[:count]) in values:
                raise WorkspaceError(here, f"{path_of(parts[:count])} is a file, not a folder")
        # nothing is awaited between this check and the append, so no other session can write in between
        if expected is not None and values.get(self._prefix + here, {}).get("hash") != expected:
            raise file_changed(here)
        view = memoryview(data)
        blocks = [bytes(view[at : at + _BLOCK]) for at in range(0, len(data), _BLOCK)]
        names = [content_hash(block) for block in blocks]
        value = {"size": len(data), "hash": content_hash(data), "blocks": names}
        await self._storage.put(self._prefix + here, value, dict(zip(names, blocks, strict=True)))

    def _below(self, values: Mapping[str, Any], path: str) -> list[str]:
        """Return the keys of the files below a path."""
        prefix = f"{self._prefix}{path}/"
        return [key for key in values if key.startswith(prefix)]
