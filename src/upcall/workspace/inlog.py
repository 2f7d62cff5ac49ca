"""A workspace without a folder: its files are kept in the log of the run tree's root, whose sessions share them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from upcall.contracts import Entry, TreeStorage
from upcall.errors import WorkspaceError
from upcall.events import content_hash
from upcall.workspace.paths import changed, parts_of, path_of

_BLOCK = 256 * 1024
"""A file is kept in blocks, each once by its content: reading a part reads no more, equal parts cost nothing."""


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
        """The same files of a run tree's log."""
        return isinstance(other, InLog) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def open(self, storage: TreeStorage) -> LogFiles:
        """Its files, in that log."""
        return LogFiles(storage, f"{self.name}:")


class LogFiles:
    """The files of one log: a value per path, with the hashes of its blocks. Folders are what paths make them."""

    __slots__ = ("_prefix", "_storage")

    folder = None

    def __init__(self, storage: TreeStorage, prefix: str) -> None:
        self._storage, self._prefix = storage, prefix

    async def look(self, path: str) -> Entry:
        """What lies there."""
        found = path_of(parts_of(path))
        kept = await self._storage.values()
        value = kept.get(self._prefix + found)
        if value is not None:
            return Entry(found, "file", value["size"])
        if found != "/" and not self._below(kept, found):
            raise WorkspaceError(found, "there is no such file or folder", missing=True)
        return Entry(found, "folder")

    async def entries(self, path: str) -> list[Entry]:
        """What lies in a folder, by name."""
        here = await self.look(path)
        if here.kind != "folder":
            raise WorkspaceError(here.path, "is a file, not a folder")
        kept = await self._storage.values()
        above, found = here.path.rstrip("/"), dict[str, Entry]()
        for key in self._below(kept, above):
            name, deeper, _ = key.removeprefix(f"{self._prefix}{above}/").partition("/")
            child = f"{above}/{name}"
            found[child] = Entry(child, "folder") if deeper else Entry(child, "file", kept[key]["size"])
        return [found[child] for child in sorted(found)]

    async def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        """A file's bytes from `start` on, `size` of them or all."""
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
        """Replace a file, or make it: whole or not at all."""
        parts = parts_of(path)
        here = path_of(parts)
        kept = await self._storage.values()
        if not parts or self._below(kept, here):
            raise WorkspaceError(here, "is a folder, not a file")
        for count in range(1, len(parts)):
            if self._prefix + path_of(parts[:count]) in kept:
                raise WorkspaceError(here, f"goes through the file {path_of(parts[:count])}")
        # between this look and the append nothing is waited for, so no other session can come in between
        if expected is not None and kept.get(self._prefix + here, {}).get("hash") != expected:
            raise changed(here)
        view = memoryview(data)
        blocks = [bytes(view[at : at + _BLOCK]) for at in range(0, len(data), _BLOCK)]
        names = [content_hash(block) for block in blocks]
        value = {"size": len(data), "hash": content_hash(data), "blocks": names}
        await self._storage.put(self._prefix + here, value, dict(zip(names, blocks, strict=True)))

    def _below(self, kept: Mapping[str, Any], path: str) -> list[str]:
        """The keys of the files below a path."""
        begins = f"{self._prefix}{path}/"
        return [key for key in kept if key.startswith(begins)]
