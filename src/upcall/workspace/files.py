"""The tools that read and write files: `ls`, `read_file`, `write_file`, `edit_file`.

A session remembers the content hash of each file it has read, so that an edit applies to what the model has seen.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any

from upcall.contracts import Context, Entry, Files, SessionAccess
from upcall.errors import UpcallError, WorkspaceError
from upcall.events import content_hash
from upcall.messages import Image, replace_surrogates
from upcall.tools import tool
from upcall.workspace.guard import names_git
from upcall.workspace.mounts import outside_git
from upcall.workspace.paths import file_changed, parts_of, path_of

BLOCK = 1024 * 1024
_MAX_ENTRIES = 1000
_MAX_CHARS, _MAX_LINE = 60_000, 2000
_MAX_READ, _MAX_EDIT, _MAX_IMAGE = 500_000_000, 4_000_000, 5_000_000
_IMAGES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}


def files_of(ctx: SessionAccess) -> Files:
    """Return the session's files; raise an error that says what to do if it has none."""
    files = ctx.workspace
    if files is None:
        raise UpcallError(f"agent {ctx.agent!r} has no workspace; give one: Agent(..., workspace=Folder('work'))")
    return files


@tool(read_only=True, repeatable=True)
async def ls(ctx: Context, path: str = "/") -> str:
    """List a folder. A name that ends in / is a folder, one that ends in @ a link.

    path: the folder; / is the workspace's root
    """
    entries = await files_of(ctx).entries(path)
    lines = [_line(entry) for entry in entries[:_MAX_ENTRIES]]
    if len(entries) > len(lines):
        lines.append(f"… and {len(entries) - len(lines)} more; use glob to find some of them")
    return "\n".join(lines) or "(empty)"


def _line(entry: Entry) -> str:
    name = entry.path.rpartition("/")[2]
    match entry.kind:
        case "file":
            return f"{name}  {entry.size} bytes"
        case "folder":
            return f"{name}/"
        case "link":
            return f"{name}@"
        case _:
            return f"{name}  (not a regular file)"


@tool(read_only=True, repeatable=True)
async def read_file(path: str, ctx: Context, offset: int = 0, limit: int = 2000) -> Any:
    """Read a text file, its lines numbered, or look at an image (PNG, JPEG, GIF, WebP).

    path: where it is; / is the workspace's root
    offset: how many lines to leave out at the beginning
    limit: how many lines to show at most
    """
    files = files_of(ctx)
    entry = await files.look(path)
    if entry.size > _MAX_READ:
        problem = f"has {entry.size} bytes; at most {_MAX_READ} can be read"
        raise WorkspaceError(entry.path, f"{problem}. Find what you need with grep")
    first = await files.read(entry.path, 0, BLOCK)
    if media_type := _media_type(first):
        return await _image(files, entry, media_type)
    if is_binary(first):
        raise WorkspaceError(entry.path, f"is not text: a binary file of {entry.size} bytes")
    window, seen = Window(max(offset, 0), max(limit, 1)), hashlib.sha256()
    async for block in blocks(files, entry.path, first):
        seen.update(block)
        window.feed(block)
    ctx.set_context(_key(entry.path), seen.hexdigest()[:32])  # as content_hash makes it
    return window.text()


async def blocks(files: Files, path: str, first: bytes) -> AsyncIterator[bytes]:
    """Yield a file's bytes block by block; the first block is already read."""
    block, start = first, 0
    while block:
        yield block
        start += len(block)
        block = await files.read(path, start, BLOCK) if len(block) == BLOCK else b""


def is_binary(first: bytes) -> bool:
    """Return whether a file is not text, decided as git does: by a NUL near its beginning."""
    return b"\0" in first[:8000]


async def _image(files: Files, entry: Entry, media_type: str) -> list[Any]:
    if entry.size > _MAX_IMAGE:
        most = f"at most {_MAX_IMAGE} can be shown"
        raise WorkspaceError(entry.path, f"is an image of {entry.size} bytes; {most}")
    data = base64.b64encode(await files.read(entry.path)).decode()
    return [f"{entry.path}: {media_type}, {entry.size} bytes", Image(data, media_type)]


def _media_type(first: bytes) -> str:
    if first[:4] == b"RIFF" and first[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _IMAGES.items() if first.startswith(magic)), "")


class Window:
    """Collects some lines of a file that is fed in blocks; the lines before and after them are only counted."""

    def __init__(self, offset: int, limit: int) -> None:
        self.offset, self.end = offset, offset + limit
        self.lines: list[bytes] = []
        self.line, self.chars = 0, 0  # the number of the next line, and the characters collected
        self.open = False  # whether the next line has begun

    def feed(self, block: bytes) -> None:
        """Process the next block of the file."""
        at = 0
        while at < len(block):
            if self.line < self.offset:
                at = self._skip(block, at)
            elif self.line < self.end and self.chars < _MAX_CHARS:
                at = self._collect(block, at)
            else:
                self.end = min(self.end, max(self.line, self.offset))
                self.line += block.count(b"\n", at)
                self.open = not block.endswith(b"\n")
                return

    def _skip(self, block: bytes, at: int) -> int:
        count = block.count(b"\n", at)
        if self.line + count < self.offset:
            self.line, self.open = self.line + count, not block.endswith(b"\n")
            return len(block)
        at = _after_newlines(block, at, self.offset - self.line)
        self.line, self.open = self.offset, False
        return at

    def _collect(self, block: bytes, at: int) -> int:
        found = block.find(b"\n", at)
        end = len(block) if found < 0 else found
        if not self.open:
            self.lines.append(b"")
        room = 4 * _MAX_LINE - len(self.lines[-1])
        self.lines[-1] += block[at : min(end, at + room)]
        self.open = found < 0
        if not self.open:
            self.line += 1
            self.chars += min(len(self.lines[-1]), _MAX_LINE) + 8
        return end + 1

    def text(self) -> str:
        """Return the lines with their numbers, and how to read more."""
        total = self.line + self.open
        shown = "\n".join(f"{number:>6}\t{_cut(line)}" for number, line in enumerate(self.lines, self.offset + 1))
        if not total:
            return "(empty)"
        if not self.lines:
            return f"(it has {total} lines; nothing is left after offset={self.offset})"
        last = self.offset + len(self.lines)
        if last < total:
            shown += f"\n… lines {self.offset + 1} to {last} of {total}; continue with offset={last}"
        return shown


def _after_newlines(block: bytes, at: int, count: int) -> int:
    """Return the position after the next `count` newlines. Bisects, because there may be a million."""
    end = len(block)
    while end - at > 1:
        middle = (at + end) // 2
        newlines = block.count(b"\n", at, middle)
        if newlines < count:
            at, count = middle, count - newlines
        else:
            end = middle
    return end


def _cut(line: bytes) -> str:
    text = line.decode("utf-8", "replace").removesuffix("\r")
    return text if len(text) <= _MAX_LINE else f"{text[:_MAX_LINE]}… (cut)"


class Writing:
    """The tools that change files.

    A session's calls for one file run one at a time: a response may hold many edits.
    """

    def __init__(self) -> None:
        self._busy: dict[tuple[str, str], asyncio.Event] = {}

    @asynccontextmanager
    async def _exclusive(self, ctx: Context, path: str) -> AsyncGenerator[None]:
        key = (ctx.id, path)
        while key in self._busy:
            await self._busy[key].wait()
        done = self._busy[key] = asyncio.Event()
        try:
            yield
        finally:
            del self._busy[key]
            done.set()

    async def write_file(self, path: str, content: str, ctx: Context) -> str:
        """Write a whole file, in place of what it held; folders above it are made.

        path: where it is; / is the workspace's root
        content: the whole text
        """
        files, data = files_of(ctx), replace_surrogates(content).encode()
        async with self._exclusive(ctx, path_of(parts_of(path))):
            await _write_function(files, path)(path, data, None)
            entry = await files.look(path)
            ctx.set_context(_key(entry.path), content_hash(data))
        return f"wrote {entry.path}, {len(data)} bytes"

    async def edit_file(
        self, path: str, old_string: str, new_string: str, ctx: Context, replace_all: bool = False
    ) -> str:
        """Replace text in a file that you have read. It must be there exactly as given, and only once.

        path: where it is; / is the workspace's root
        old_string: the text to replace, with enough around it to be unique, without line numbers
        new_string: the text in its place
        replace_all: replace it wherever it is
        """
        files = files_of(ctx)
        entry = await files.look(path)
        if entry.size > _MAX_EDIT:
            raise WorkspaceError(entry.path, f"has {entry.size} bytes; at most {_MAX_EDIT} can be edited")
        async with self._exclusive(ctx, entry.path):
            known = ctx.get_context(_key(entry.path))
            if known is None:
                raise WorkspaceError(
                    entry.path, "has not been read in this conversation; read it before you edit it"
                )
            body = await files.read(entry.path, 0, _MAX_EDIT + 1)
            if content_hash(body) != known:
                raise file_changed(entry.path)
            body, count = await asyncio.to_thread(
                replace_text, entry.path, body, old_string, new_string, replace_all
            )
            await _write_function(files, path)(entry.path, body, known)
            ctx.set_context(_key(entry.path), content_hash(body))
        return f"edited {entry.path}: replaced {count} occurrence{'s' if count != 1 else ''}"


def _write_function(files: Files, path: str) -> Callable[[str, bytes, str | None], Awaitable[None]]:
    """Return how a call may write.

    Only a path that names a git directory, and so was approved, may lead into one.
    """
    return files.write if names_git(path) else outside_git(files)


def replace_text(path: str, body: bytes, old: str, new: str, everywhere: bool) -> tuple[bytes, int]:
    """Return the file with the text replaced, and how often. Windows line ends are kept."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise WorkspaceError(path, "is not UTF-8 text, so it can't be edited") from None
    if "\r\n" in text and "\n" not in text.replace("\r\n", ""):
        old, new = (one.replace("\r\n", "\n").replace("\n", "\r\n") for one in (old, new))
    if not old:
        raise WorkspaceError(path, "old_string is empty; use write_file for a whole file")
    if old == new:
        raise WorkspaceError(path, "old_string and new_string are the same")
    count = text.count(old)
    if not count:
        raise WorkspaceError(
            path, "old_string is not in the file; it must match exactly, including spaces and line ends"
        )
    if count > 1 and not everywhere:
        lines = [text.count("\n", 0, at) + 1 for at in islice(_occurrences(text, old), 10)]
        where = f"{count} times, on lines {', '.join(map(str, lines))}"
        raise WorkspaceError(
            path, f"old_string occurs in the file {where}; give more of the text around it, or set replace_all"
        )
    new = replace_surrogates(new)
    size = len(body) + count * (len(new.encode()) - len(old.encode()))
    if size > _MAX_EDIT:
        raise WorkspaceError(path, f"would have {size} bytes; an edited file may have at most {_MAX_EDIT}")
    return text.replace(old, new).encode(), count


def _occurrences(text: str, text_to_find: str) -> Iterator[int]:
    at = text.find(text_to_find)
    while at >= 0:
        yield at
        at = text.find(text_to_find, at + len(text_to_find))


def _key(path: str) -> str:
    return f"upcall.read:{path}"  # differs from the keys of InLog("read")
