"""The tools that find files: `glob` by name, `grep` by content. Both leave out what git would ignore."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from upcall.contracts import Context, Entry, Files
from upcall.errors import UpcallError, WorkspaceError
from upcall.tools import tool
from upcall.workspace.files import BLOCK, blocks, files_of, is_binary
from upcall.workspace.ignore import Glob, Rule, is_ignored, rules_in

_MOST_FOUND, _MOST_LINES, _LONGEST_LINE = 1000, 200, 400
_MOST_RULES = 1_000_000
_SEES_MORE_THAN_A_LINE = re.compile(r"\\[AZz]|\(\?")


@tool(read_only=True, repeatable=True)
async def glob(pattern: str, ctx: Context, path: str = "/", ignored: bool = False) -> str:
    """Find files by name, such as *.md in one folder or **/*.{ts,tsx} at any depth. Leaves out what git ignores.

    pattern: * and ? stay within a name, ** is any number of folders, {a,b} is either; relative to path
    path: the folder to look in; / is the workspace's root
    ignored: find what git ignores too
    """
    wanted = [Glob(one) for one in _either(pattern.removeprefix("/"))]
    files = files_of(ctx)
    above = len(_names((await files.look(path)).path))
    found: list[str] = []
    async for entry in walk(files, path, ignored=ignored):
        if any(one.matches(_names(entry.path)[above:]) for one in wanted):
            if len(found) == _MOST_FOUND:
                found.append(f"… there are more than {_MOST_FOUND}; give a narrower pattern")
                break
            found.append(entry.path)
    return "\n".join(found) or "(no file has such a name)"


@tool(read_only=True, repeatable=True)
async def grep(
    pattern: str, ctx: Context, path: str = "/", glob: str = "", ignore_case: bool = False, ignored: bool = False
) -> str:
    """Find lines in text files by a regular expression; shows path:line:text. Leaves out what git ignores.

    pattern: a regular expression, matched line by line
    path: a file, or the folder to look in; / is the workspace's root
    glob: only files of such a name, such as *.py; with a / in it, of such a path below the folder
    ignore_case: take upper and lower case as the same
    ignored: look into what git ignores too
    """
    files, lines = files_of(ctx), Lines(pattern, ignore_case)
    only = [Glob(one if "/" in one else f"**/{one}") for one in _either(glob.removeprefix("/"))] if glob else []
    above = len(_names((await files.look(path)).path))
    found: list[str] = []
    unread = 0
    async for entry in walk(files, path, ignored=ignored):
        if entry.kind != "file" or (only and not any(o.matches(_names(entry.path)[above:]) for o in only)):
            continue
        try:
            await lines.search(files, entry.path, found)
        except WorkspaceError:
            unread += 1
        if len(found) >= _MOST_LINES:
            found[_MOST_LINES:] = [f"… stopped at {_MOST_LINES} lines; give a narrower pattern, path or glob"]
            break
    note = [f"({unread} file{'s' if unread != 1 else ''} could not be read)"] if unread else []
    return "\n".join([*(found or ["(no line matches)"]), *note])


async def walk(files: Files, path: str, *, ignored: bool = False) -> AsyncIterator[Entry]:
    """A file, or all files and links below a folder, in order; without what git ignores, unless `ignored`.

    What is asked for by its path is looked into, though git may ignore it.
    """
    start = await files.look(path)
    if start.kind != "folder":
        yield start
        return
    above = _names(start.path)
    rules: list[Rule] = []
    if not ignored:
        rules = await _rules(files, (), "/.git/info/exclude")
        for depth in range(len(above)):
            rules += await _rules(files, above[:depth])
    todo = [(start.path, rules)]
    while todo:
        folder, rules = todo.pop()
        try:
            entries = await files.entries(folder)
        except WorkspaceError:
            if folder == start.path:
                raise
            continue  # it may not be read, or is gone
        if not ignored and any(entry.path.endswith("/.gitignore") for entry in entries):
            rules = [*rules, *await _rules(files, _names(folder))]
        below: list[tuple[str, list[Rule]]] = []
        for entry in entries:
            if not ignored and _left_out(entry, rules):
                continue
            if entry.kind == "folder":
                below.append((entry.path, rules))
            else:
                yield entry
        todo += reversed(below)


def _names(path: str) -> tuple[str, ...]:
    """The names of a path that a workspace gave us."""
    return tuple(name for name in path.split("/") if name)


def _left_out(entry: Entry, rules: list[Rule]) -> bool:
    names = _names(entry.path)
    return names[-1] == ".git" or is_ignored(rules, names, entry.kind == "folder")


async def _rules(files: Files, folder: tuple[str, ...], name: str = ".gitignore") -> list[Rule]:
    """The rules of a folder, none where there is no such file or where it is no file to read."""
    try:
        text = await files.read("/".join(("", *folder, name)), 0, _MOST_RULES)
    except WorkspaceError:
        return []
    return rules_in(text.decode("utf-8", "replace"), folder)


def _either(pattern: str) -> list[str]:
    """The patterns that one with {a,b} stands for."""
    found = re.search(r"\{([^{}]*,[^{}]*)\}", pattern)
    if found is None:
        return [pattern]
    made = [pattern[: found.start()] + one + pattern[found.end() :] for one in found[1].split(",")]
    if len(made) * pattern.count("{") > 100:
        raise UpcallError(f"{pattern}: stands for too many patterns")
    return [one for each in made for one in _either(each)]


class Lines:
    """Lines that match a pattern, looked for in a thread, a block at a time.

    Matching takes at most `seconds` in all: a pattern can be written so that it never ends.
    """

    def __init__(self, pattern: str, ignore_case: bool, seconds: float = 30.0) -> None:
        import regex  # slow to import, and the only one of its kind that can be stopped

        flags = regex.MULTILINE | (regex.IGNORECASE if ignore_case else 0)
        try:
            self.pattern: Any = regex.compile(pattern, flags)
        except regex.error as error:
            raise UpcallError(f"the pattern {pattern!r} is no regular expression: {error}") from None
        self.line_by_line = bool(_SEES_MORE_THAN_A_LINE.search(pattern))
        self.seconds = self.left = seconds

    async def search(self, files: Files, path: str, found: list[str]) -> None:
        """Add what one text file has, until there is enough."""
        first = await files.read(path, 0, BLOCK)
        if is_binary(first):
            return
        number, rest = 1, b""
        async for block in blocks(files, path, first):
            whole, newline, rest = (rest + block).rpartition(b"\n")
            if not newline and len(rest) > BLOCK:  # a line without end is looked at in pieces
                whole, rest = rest, b""
            if whole or newline:
                found += await asyncio.to_thread(self._in_block, path, whole, number)
                number += whole.count(b"\n") + bool(newline)
            if len(found) >= _MOST_LINES:
                return
        if rest:
            found += await asyncio.to_thread(self._in_block, path, rest, number)

    def _in_block(self, path: str, block: bytes, number: int) -> list[str]:
        text = block.decode("utf-8", "replace")
        begun = time.monotonic()
        found: list[str] = []
        try:
            for start, end, at in self._matches(text, begun):
                line = text[start:end].removesuffix("\r")
                found.append(f"{path}:{number + text.count(chr(10), 0, start)}:{_around(line, at - start)}")
                if len(found) >= _MOST_LINES:
                    break
        except TimeoutError:
            problem = f"the pattern takes longer than {self.seconds:g} s; make it simpler, or search less"
            raise UpcallError(f"{path}: {problem}") from None
        self.left -= time.monotonic() - begun
        return found

    def _matches(self, text: str, begun: float) -> Iterator[tuple[int, int, int]]:
        """Where each matching line begins and ends, and where in it the match does.

        A match anywhere in the block is a hint: whether its line alone matches is what counts.
        """
        at = 0
        while at <= len(text):
            if not self.line_by_line:
                hint = self._look(text, at, len(text), begun)
                if hint is None:
                    return
                at = hint.start()
            start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
            end = len(text) if end < 0 else end
            match = self._look(text[start:end], 0, end - start, begun)
            if match is not None:
                yield start, end, start + match.start()
            at = end + 1

    def _look(self, text: str, start: int, end: int, begun: float) -> Any:
        left = self.left - (time.monotonic() - begun)
        return self.pattern.search(text, start, end, timeout=max(left, 0.001))


def _around(line: str, at: int) -> str:
    """A line, or of a long one what is around the match."""
    if len(line) <= _LONGEST_LINE:
        return line
    start = max(0, min(at - _LONGEST_LINE // 4, len(line) - _LONGEST_LINE))
    end = start + _LONGEST_LINE
    return f"{'…' if start else ''}{line[start:end]}{'…' if end < len(line) else ''}"
