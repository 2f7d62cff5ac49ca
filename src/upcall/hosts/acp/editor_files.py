"""The files of an editor's session: its folder, with text files read and written through the editor.

So an agent sees what is not saved yet, and its changes appear in open buffers. A file goes through the editor once
somebody has named it; a search through many files reads the disk. Everything else is local, and every path is
checked by the folder first, so that the editor is asked for nothing that the folder refuses.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from upcall.contracts import Entry, Files, TreeStorage, Workspace
from upcall.events import content_hash
from upcall.hosts.acp.connection import Connection
from upcall.jsonrpc.errors import RpcError
from upcall.workspace import Folder, Mounts
from upcall.workspace.mounts import outside_git
from upcall.workspace.paths import file_changed

ADDITIONAL = "additional"
"""The folder in the workspace below which further folders of the session are mounted."""

_LOOKED_AT = 8000
_MOST_NAMED = 1000
_MOST_TEXT = 16_000_000


def mounted_folders(roots: Sequence[str]) -> dict[str, str]:
    """Return the paths in the workspace at which further folders appear, each with its folder."""
    found: dict[str, str] = {}
    for root in roots:
        name = base = os.path.basename(root.rstrip("/")) or "root"  # noqa: PTH119
        number = 1
        while f"/{ADDITIONAL}/{name}" in found:
            number += 1
            name = f"{base}-{number}"
        found[f"/{ADDITIONAL}/{name}"] = root
    return found


def folder_workspace(folder: str, roots: Sequence[str]) -> Workspace:
    """Return the workspace of a session: its folder, with further folders mounted in it."""
    mounts = {path: Folder(root) for path, root in mounted_folders(roots).items()}
    return Mounts(Folder(folder), mounts) if mounts else Folder(folder)


class EditorWorkspace:
    """A workspace whose text files are those of the editor."""

    def __init__(self, connection: Connection, folder: str, roots: Sequence[str]) -> None:
        self._connection, self._folder, self._mounts = connection, folder, mounted_folders(roots)
        self._base = folder_workspace(folder, roots)
        self.session_id = ""
        """The session's id in the editor, once it is known."""

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same files."""
        return isinstance(other, EditorWorkspace) and self._base == other._base

    def __hash__(self) -> int:
        return hash(self._folder)

    def open(self, storage: TreeStorage) -> EditorFiles:
        """Return the files for one session."""
        return EditorFiles(self, self._base.open(storage))

    def place(self, path: str) -> str:
        """Return the path of a file on this machine."""
        return real_place(path, self._folder, self._mounts)

    @property
    def reads(self) -> bool:
        """True if the editor reads text files."""
        return self._connection.client.reads

    @property
    def writes(self) -> bool:
        """True if the editor writes text files."""
        return self._connection.client.writes

    async def read_text(self, path: str) -> bytes | None:
        """Return the text of a file as the editor has it; None if it has none."""
        try:
            params = {"sessionId": self.session_id, "path": self.place(path)}
            answer = await self._connection.call("fs/read_text_file", params)
        except RpcError:
            return None
        match answer:
            case {"content": str(text)} if len(text) <= _MOST_TEXT:
                return text.encode("utf-8", "replace")
            case _:
                return None

    async def write_text(self, path: str, text: str) -> None:
        """Give the editor the new text of a file that was written."""
        try:
            params = {"sessionId": self.session_id, "path": self.place(path), "content": text}
            await self._connection.call("fs/write_text_file", params)
        except RpcError:
            return  # it is on disk, and the editor will find it there


def real_place(path: str, folder: str, mounts: Mapping[str, str]) -> str:
    """Return the path on this machine of a path in a workspace with mounts."""
    inner = os.path.normpath(f"/{path.lstrip('/')}")
    for mount, root in mounts.items():
        if inner == mount or inner.startswith(f"{mount}/"):
            return os.path.normpath(root + inner[len(mount) :])
    return os.path.normpath(folder + inner)


class EditorFiles:
    """Files of a folder, of which the editor has newer texts."""

    def __init__(self, workspace: EditorWorkspace, base: Files) -> None:
        self._workspace, self._base = workspace, base
        self._named: dict[str, None] = {}

    @property
    def folder(self) -> str | None:
        """The folder in which programs run; they see what is saved."""
        return self._base.folder

    async def look(self, path: str) -> Entry:
        """Return the entry at a path; from now on it is read through the editor."""
        entry = await self._base.look(path)
        if entry.kind == "file":
            self._named[entry.path] = None
            if len(self._named) > _MOST_NAMED:
                del self._named[next(iter(self._named))]
        return entry

    async def entries(self, path: str) -> list[Entry]:
        """Return a folder's entries."""
        return await self._base.entries(path)

    async def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        """Return a file's bytes: of a text that was named, as the editor has it."""
        if self._workspace.reads and path in self._named and await self._is_text(path):
            text = await self._workspace.read_text(path)
            if text is not None:
                return text[start : None if size is None else start + size]
        return await self._base.read(path, start, size)

    async def _is_text(self, path: str) -> bool:
        return b"\0" not in await self._base.read(path, 0, _LOOKED_AT)

    async def write(self, path: str, data: bytes, expected: str | None = None) -> None:
        """Replace a file on disk and in the editor."""
        await self._write(self._base.write, path, data, expected)

    async def write_outside_git(self, path: str, data: bytes, expected: str | None = None) -> None:
        """Write as `write` does; refuse git directories."""
        await self._write(outside_git(self._base), path, data, expected)

    async def _write(self, write: Any, path: str, data: bytes, expected: str | None) -> None:
        text = _text(data) if self._workspace.writes else None
        if text is None:
            await write(path, data, expected)
            return
        if expected is not None:  # the text in the editor counts, not the one on disk
            if content_hash(await self.read(path)) != expected:
                raise file_changed(path)
            expected = None
        await write(path, data, expected)
        await self._workspace.write_text(path, text)


def _text(data: bytes) -> str | None:
    """Return the text in a file's bytes; None if they are not text."""
    try:
        return None if b"\0" in data[:_LOOKED_AT] else data.decode()
    except UnicodeDecodeError:
        return None
