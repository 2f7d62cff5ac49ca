"""The tools that find files: `glob` by name, `grep` by content. Both leave out what git would ignore."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice

from upcall.contracts import Context, Entry, Files
from upcall.errors import UpcallError, WorkspaceError
from upcall.safety.patterns import WINDOW, BadPattern, Pattern, TooSlow
from upcall.tools import tool
from upcall.workspace.files import BLOCK, blocks, files_of, is_binary
from upcall.workspace.ignore import Glob, Rule, is_ignored, rules_in
from upcall.workspace.paths import TOO_MANY

_MOST_FOUND, _MOST_LINES, _LONGEST_LINE = 1000, 200, 400
_LONGEST_GLOB, _MOST_GLOBS = 1_000, 100
_MOST_ENTRIES = 200_000
_MOST_BYTES, _MOST_RULES = 100_000, 5_000
"""Of one .gitignore, and of all that hold for one folder."""

_FEW = 2_000
"""Names, each tried with a rule, that take no longer than handing them to a thread."""

_SECONDS = 30.0
_SEES_MORE_THAN_A_LINE = re.compile(r"\\[AZz]|\(\?")


@tool(read_only=True, repeatable=True)
async def glob(pattern: str, ctx: Context, path: str = "/", ignored: bool = False) -> str:
    """Find files by name, such as *.md in one folder or **/*.{ts,tsx} at any depth. Leaves out what git ignores.

    pattern: * and ? stay within a name, ** is any number of folders, {a,b} is either; relative to path
    path: the folder to look in; / is the workspace's root
    ignored: find what git ignores too
    """
    only = _Only(pattern)
    files = files_of(ctx)
    above = len(_names((await files.look(path)).path))
    found: list[str] = []
    found_all = Walk(files, path, ignored=ignored)
    async for entries in found_all.folders():
        for entry in await only.among(entries, above):
            if len(found) == _MOST_FOUND:
                return "\n".join([*found, f"… there are more than {_MOST_FOUND}; give a narrower pattern"])
            found.append(entry.path)
    return "\n".join([*(found or ["(no file has such a name)"]), *found_all.notes])


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
    files, lines = files_of(ctx), await asyncio.to_thread(Lines, pattern, ignore_case)
    only = _Only(glob if "/" in glob else f"**/{glob}") if glob else None
    above = len(_names((await files.look(path)).path))
    found: list[str] = []
    unread = 0
    walked = Walk(files, path, ignored=ignored)
    async for entries in walked.folders():
        for entry in entries if only is None else await only.among(entries, above):
            try:
                if entry.kind == "file":
                    await lines.search(files, entry.path, found)
            except WorkspaceError:
                unread += 1
            if len(found) >= _MOST_LINES:
                found[_MOST_LINES:] = [f"… stopped at {_MOST_LINES} lines; give a narrower pattern, path or glob"]
                return "\n".join(found)
    note = [f"({unread} file{'s' if unread != 1 else ''} could not be read)"] if unread else []
    return "\n".join([*(found or ["(no line matches)"]), *note, *walked.notes])


class _Only:
    """Files of some names: a pattern and what its {a,b} stand for."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > _LONGEST_GLOB:
            raise UpcallError(f"the glob has {len(pattern)} characters; at most {_LONGEST_GLOB} are allowed")
        self._globs = [Glob(one) for one in _either(pattern.removeprefix("/"))]
        self._seconds = _SECONDS

    async def among(self, entries: Sequence[Entry], above: int) -> list[Entry]:
        """Those of the entries whose path, without its first `above` names, one of the patterns means."""
        if len(entries) * len(self._globs) <= _FEW and all(len(entry.path) < 500 for entry in entries):
            return self._among(entries, above)
        return await asyncio.to_thread(self._among, entries, above)

    def _among(self, entries: Sequence[Entry], above: int) -> list[Entry]:
        began, found = time.monotonic(), list[Entry]()
        for entry in entries:
            names = _names(entry.path)[above:]
            if any(one.matches(names) for one in self._globs):
                found.append(entry)
            if time.monotonic() - began > self._seconds:
                raise UpcallError(f"the glob takes longer than {_SECONDS:g} s; make it simpler, or look in less")
        self._seconds -= time.monotonic() - began
        return found


async def walk(files: Files, path: str, *, ignored: bool = False) -> AsyncIterator[Entry]:
    """A file, or all files and links below a folder, in order; without what git ignores, unless `ignored`."""
    async for entries in Walk(files, path, ignored=ignored).folders():
        for entry in entries:
            yield entry


class Walk:
    """All files and links below a folder, or one file; without what git ignores, unless `ignored`.

    What is asked for by its path is looked into, though git may ignore it. `notes` says what was left out.
    """

    def __init__(self, files: Files, path: str, *, ignored: bool = False) -> None:
        self._files, self._path, self._ignored = files, path, ignored
        self._seen = 0
        self.notes: list[str] = []

    async def folders(self) -> AsyncIterator[list[Entry]]:
        """The files and links of each folder, in order."""
        start = await self._files.look(self._path)
        if start.kind != "folder":
            yield [start]
            return
        todo = [(start.path, await self._rules_above(start.path))]
        while todo:
            folder, rules = todo.pop()
            try:
                entries = await self._files.entries(folder)
            except WorkspaceError as error:
                if folder == start.path:
                    raise
                if error.problem == TOO_MANY:
                    self.notes.append(f"({error})")
                continue  # it may not be read, is gone, or holds too much
            self._seen += len(entries)
            if self._seen > _MOST_ENTRIES:
                self.notes.append(f"(stopped at {folder} after {_MOST_ENTRIES} entries; look in less)")
                return
            if not self._ignored and any(entry.path.endswith("/.gitignore") for entry in entries):
                rules = [*rules, *await self._rules(rules, _names(folder))]
            kept = await self._kept(entries, rules)
            todo += [(entry.path, rules) for entry in reversed(kept) if entry.kind == "folder"]
            yield [entry for entry in kept if entry.kind != "folder"]

    async def _kept(self, entries: list[Entry], rules: list[Rule]) -> list[Entry]:
        if self._ignored:
            return entries
        if len(entries) * (len(rules) + 1) <= _FEW:
            return [entry for entry in entries if not _left_out(entry, rules)]
        return await asyncio.to_thread(lambda: [entry for entry in entries if not _left_out(entry, rules)])

    async def _rules_above(self, path: str) -> list[Rule]:
        if self._ignored:
            return []
        above = _names(path)
        rules = await self._rules([], (), "/.git/info/exclude")
        for depth in range(len(above)):
            rules += await self._rules(rules, above[:depth])
        return rules

    async def _rules(self, known: list[Rule], folder: tuple[str, ...], name: str = ".gitignore") -> list[Rule]:
        """The rules of a folder, none where there is no such file, where it is no file to read, or too large."""
        path = "/".join(("", *folder, name.removeprefix("/")))
        try:
            text = await self._files.read(path, 0, _MOST_BYTES + 1)
        except WorkspaceError:
            return []
        if len(text) > _MOST_BYTES or len(known) + text.count(b"\n") >= _MOST_RULES:
            most = f"more than {_MOST_BYTES} bytes, or {_MOST_RULES} lines with those above it"
            self.notes.append(f"({path} is not applied: it has {most})")
            return []
        if len(text) <= _FEW:
            return rules_in(text.decode("utf-8", "replace"), folder)
        return await asyncio.to_thread(rules_in, text.decode("utf-8", "replace"), folder)


def _names(path: str) -> tuple[str, ...]:
    """The names of a path that a workspace gave us."""
    return tuple(name for name in path.split("/") if name)


def _left_out(entry: Entry, rules: list[Rule]) -> bool:
    names = _names(entry.path)
    return names[-1] == ".git" or is_ignored(rules, names, entry.kind == "folder")


def _either(pattern: str) -> list[str]:
    """The patterns that one with {a,b} stands for."""
    done, todo = list[str](), [pattern]
    while todo:
        one = todo.pop()
        found = _BRACES.search(one)
        if found is None:
            done.append(one)
        else:
            todo += [one[: found.start()] + part + one[found.end() :] for part in reversed(found[1].split(","))]
        if len(done) + len(todo) > _MOST_GLOBS:
            raise UpcallError(f"{pattern[:80]}: stands for more than {_MOST_GLOBS} patterns")
    return done


_BRACES = re.compile(r"\{((?>[^{},]*)(?:,[^{},]*+)++)\}")


class Lines:
    """Lines that match a pattern, looked for in a thread, a block at a time.

    Matching takes at most `seconds` in all: a pattern can be written so that it never ends.
    """

    def __init__(self, pattern: str, ignore_case: bool, seconds: float = _SECONDS) -> None:
        try:
            self.pattern = Pattern(pattern, seconds, ignore_case=ignore_case)
        except BadPattern as error:
            raise UpcallError(str(error)) from None
        self.line_by_line = bool(_SEES_MORE_THAN_A_LINE.search(pattern))

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
        found: list[str] = []
        counted = 0
        try:
            for start, end, at in islice(self._matches(text), _MOST_LINES):
                number, counted = number + text.count("\n", counted, start), start
                line = text[start:end].removesuffix("\r")
                found.append(f"{path}:{number}:{_around(line, at - start)}")
        except TooSlow:
            slow = f"the pattern takes longer than {self.pattern.seconds:g} s; make it simpler, or search less"
            raise UpcallError(f"{path}: {slow}") from None
        return found

    def _matches(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Where each matching line begins and ends, and where in it the match does.

        A match anywhere among some lines is a hint: whether its line alone matches is what counts. Of a line longer
        than a window only what is around the hint is looked at.
        """
        at = 0
        while at <= len(text):
            whole = text.rfind("\n", at, at + WINDOW) if len(text) - at > WINDOW else len(text)
            until = whole if whole >= at else at + WINDOW
            hint = at
            if not self.line_by_line:
                found = self.pattern.search(text, at, until)
                if found is None:
                    at = until + (whole >= at)
                    continue
                hint = found.start()
            start, end = max(text.rfind("\n", 0, hint) + 1, hint - WINDOW // 2), text.find("\n", hint)
            end = len(text) if end < 0 else end
            cut = min(end, start + WINDOW)
            match = self.pattern.search(text[start:cut])
            if match is not None:
                yield start, cut, start + match.start()
            at = end + 1 if match is not None or cut == end else cut


def _around(line: str, at: int) -> str:
    """A line, or of a long one what is around the match."""
    if len(line) <= _LONGEST_LINE:
        return line
    start = max(0, min(at - _LONGEST_LINE // 4, len(line) - _LONGEST_LINE))
    end = start + _LONGEST_LINE
    return f"{'…' if start else ''}{line[start:end]}{'…' if end < len(line) else ''}"
