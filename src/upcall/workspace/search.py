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

_MAX_FILES, _MAX_LINES, _MAX_LINE = 1000, 200, 400
_MAX_GLOB, _MAX_ALTERNATIVES = 1_000, 100
_MAX_ENTRIES = 200_000
_MAX_IGNORE_BYTES, _MAX_RULES = 100_000, 5_000
"""Limits for one .gitignore, and for all that apply to one folder."""

_INLINE_MATCHES = 2_000
"""Comparisons of a name with a step of a pattern that take no longer than starting a thread."""

_SECONDS = 30.0
_MAY_SPAN_LINES = re.compile(r"\\[AZz]|\(\?")


@tool(read_only=True, repeatable=True)
async def glob(pattern: str, ctx: Context, path: str = "/", ignored: bool = False) -> str:
    """Find files by name, such as *.md in one folder or **/*.{ts,tsx} at any depth. Leaves out what git ignores.

    pattern: * and ? stay within a name, ** is any number of folders, {a,b} is either; relative to path
    path: the folder to look in; / is the workspace's root
    ignored: find what git ignores too
    """
    name_filter = _NameFilter(pattern)
    files = files_of(ctx)
    depth = len(_names((await files.look(path)).path))
    paths: list[str] = []
    walk = Walk(files, path, ignored=ignored)
    async for entries in walk.folders():
        for entry in await name_filter.select(entries, depth):
            if len(paths) == _MAX_FILES:
                return "\n".join([*paths, f"… there are more than {_MAX_FILES}; give a narrower pattern"])
            paths.append(entry.path)
    return "\n".join([*(paths or ["(no file has such a name)"]), *walk.notes])


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
    files, lines = files_of(ctx), await asyncio.to_thread(LineSearch, pattern, ignore_case)
    name_filter = _NameFilter(glob if "/" in glob else f"**/{glob}") if glob else None
    depth = len(_names((await files.look(path)).path))
    matches: list[str] = []
    unreadable = 0
    walk = Walk(files, path, ignored=ignored)
    async for entries in walk.folders():
        for entry in entries if name_filter is None else await name_filter.select(entries, depth):
            try:
                if entry.kind == "file":
                    await lines.search(files, entry.path, matches)
            except WorkspaceError:
                unreadable += 1
            if len(matches) >= _MAX_LINES:
                matches[_MAX_LINES:] = [f"… stopped at {_MAX_LINES} lines; give a narrower pattern, path or glob"]
                return "\n".join(matches)
    note = [f"({unreadable} file{'s' if unreadable != 1 else ''} could not be read)"] if unreadable else []
    return "\n".join([*(matches or ["(no line matches)"]), *note, *walk.notes])


class _NameFilter:
    """Selects files by a glob pattern, with its {a,b} expanded."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > _MAX_GLOB:
            raise UpcallError(f"the glob has {len(pattern)} characters; at most {_MAX_GLOB} are allowed")
        self._globs = [Glob(one) for one in _expand_braces(pattern.removeprefix("/"))]
        self._steps = sum(one.steps for one in self._globs)
        self._seconds = _SECONDS

    async def select(self, entries: Sequence[Entry], depth: int) -> list[Entry]:
        """Return the entries whose path, without its first `depth` names, matches."""
        if _comparisons(entries, self._steps) <= _INLINE_MATCHES:
            return self._select(entries, depth)
        return await asyncio.to_thread(self._select, entries, depth)

    def _select(self, entries: Sequence[Entry], depth: int) -> list[Entry]:
        began, found = time.monotonic(), list[Entry]()
        for entry in entries:
            names = _names(entry.path)[depth:]
            for one in self._globs:
                if time.monotonic() - began > self._seconds:
                    raise UpcallError(
                        f"the glob takes longer than {_SECONDS:g} s; make it simpler, or search a smaller folder"
                    )
                if one.matches(names):
                    found.append(entry)
                    break
        self._seconds -= time.monotonic() - began
        return found


async def walk(files: Files, path: str, *, ignored: bool = False) -> AsyncIterator[Entry]:
    """Yield a file, or all files and links below a folder, in order; `ignored` includes files that git ignores."""
    async for entries in Walk(files, path, ignored=ignored).folders():
        for entry in entries:
            yield entry


class Walk:
    """Walks all files and links below a folder, or one file. `ignored` includes files that git ignores.

    The start of the walk is visited even if git ignores it. `notes` says what was left out.
    """

    def __init__(self, files: Files, path: str, *, ignored: bool = False) -> None:
        self._files, self._path, self._ignored = files, path, ignored
        self._seen = 0
        self._seconds = _SECONDS
        self.notes: list[str] = []

    async def folders(self) -> AsyncIterator[list[Entry]]:
        """Yield the files and links of each folder, in order."""
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
                continue  # unreadable, deleted meanwhile, or too large
            self._seen += len(entries)
            if self._seen > _MAX_ENTRIES:
                self.notes.append(f"(stopped at {folder} after {_MAX_ENTRIES} entries; search a smaller folder)")
                return
            if not self._ignored and any(entry.path.endswith("/.gitignore") for entry in entries):
                rules = [*rules, *await self._rules(rules, _names(folder))]
            visible = await self._without_ignored(entries, rules)
            todo += [(entry.path, rules) for entry in reversed(visible) if entry.kind == "folder"]
            yield [entry for entry in visible if entry.kind != "folder"]

    async def _without_ignored(self, entries: list[Entry], rules: list[Rule]) -> list[Entry]:
        if self._ignored:
            return entries
        few = len(entries) * (len(rules) + 1) <= _INLINE_MATCHES
        if few and _comparisons(entries, sum(rule.glob.steps for rule in rules)) <= _INLINE_MATCHES:
            return self._select(entries, rules)
        return await asyncio.to_thread(self._select, entries, rules)

    def _select(self, entries: list[Entry], rules: list[Rule]) -> list[Entry]:
        began = time.monotonic()
        until = began + self._seconds
        try:
            found = [entry for entry in entries if not _is_left_out(entry, rules, until)]
        except TimeoutError:
            message = f"to compare paths with the .gitignore files takes longer than {_SECONDS:g} s"
            raise UpcallError(f"{message}; search a smaller folder, or pass ignored=true") from None
        self._seconds -= time.monotonic() - began
        return found

    async def _rules_above(self, path: str) -> list[Rule]:
        if self._ignored:
            return []
        above = _names(path)
        rules = await self._rules([], (), "/.git/info/exclude")
        for depth in range(len(above)):
            rules += await self._rules(rules, above[:depth])
        return rules

    async def _rules(self, known: list[Rule], folder: tuple[str, ...], name: str = ".gitignore") -> list[Rule]:
        """Return the rules of a folder's ignore file; none if it is missing, unreadable or too large."""
        path = "/".join(("", *folder, name.removeprefix("/")))
        try:
            text = await self._files.read(path, 0, _MAX_IGNORE_BYTES + 1)
        except WorkspaceError:
            return []
        if len(text) > _MAX_IGNORE_BYTES or len(known) + text.count(b"\n") >= _MAX_RULES:
            most = f"more than {_MAX_IGNORE_BYTES} bytes, or {_MAX_RULES} lines together with the files above it"
            self.notes.append(f"({path} is not applied: it has {most})")
            return []
        if len(text) <= _INLINE_MATCHES:
            return rules_in(text.decode("utf-8", "replace"), folder)
        return await asyncio.to_thread(rules_in, text.decode("utf-8", "replace"), folder)


def _names(path: str) -> tuple[str, ...]:
    """Split a path that a workspace returned into its names."""
    return tuple(name for name in path.split("/") if name)


def _comparisons(entries: Sequence[Entry], steps: int) -> int:
    """Return how many comparisons the names of all paths take at most, if each takes so many steps."""
    return steps * sum(entry.path.count("/") for entry in entries)


def _is_left_out(entry: Entry, rules: list[Rule], until: float) -> bool:
    names = _names(entry.path)
    return names[-1] == ".git" or is_ignored(rules, names, entry.kind == "folder", until)


def _expand_braces(pattern: str) -> list[str]:
    """Return the patterns that a pattern with {a,b} stands for."""
    done, todo = list[str](), [pattern]
    while todo:
        one = todo.pop()
        braces = _BRACES.search(one)
        if braces is None:
            done.append(one)
        else:
            todo += [one[: braces.start()] + part + one[braces.end() :] for part in reversed(braces[1].split(","))]
        if len(done) + len(todo) > _MAX_ALTERNATIVES:
            raise UpcallError(f"{pattern[:80]}: expands to more than {_MAX_ALTERNATIVES} patterns")
    return done


_BRACES = re.compile(r"\{((?>[^{},]*)(?:,[^{},]*+)++)\}")


class LineSearch:
    """Finds the lines that match a pattern. Blocks are searched in a thread.

    Matching takes at most `seconds` in total, because some patterns would never end.
    """

    def __init__(self, pattern: str, ignore_case: bool, seconds: float = _SECONDS) -> None:
        try:
            self.pattern = Pattern(pattern, seconds, ignore_case=ignore_case)
        except BadPattern as error:
            raise UpcallError(str(error)) from None
        self.line_by_line = bool(_MAY_SPAN_LINES.search(pattern))

    async def search(self, files: Files, path: str, found: list[str]) -> None:
        """Add the matching lines of a text file to `found`, up to the limit."""
        first = await files.read(path, 0, BLOCK)
        if is_binary(first):
            return
        number, rest = 1, b""
        async for block in blocks(files, path, first):
            whole, newline, rest = (rest + block).rpartition(b"\n")
            if not newline and len(rest) > BLOCK:  # a very long line is searched in pieces
                whole, rest = rest, b""
            if whole or newline:
                found += await asyncio.to_thread(self._in_block, path, whole, number)
                number += whole.count(b"\n") + bool(newline)
            if len(found) >= _MAX_LINES:
                return
        if rest:
            found += await asyncio.to_thread(self._in_block, path, rest, number)

    def _in_block(self, path: str, block: bytes, number: int) -> list[str]:
        text = block.decode("utf-8", "replace")
        found: list[str] = []
        counted = 0
        try:
            for start, end, at in islice(self._matches(text), _MAX_LINES):
                number, counted = number + text.count("\n", counted, start), start
                line = text[start:end].removesuffix("\r")
                found.append(f"{path}:{number}:{_around(line, at - start)}")
        except TooSlow:
            slow = f"the pattern takes longer than {self.pattern.seconds:g} s; make it simpler, or search less"
            raise UpcallError(f"{path}: {slow}") from None
        return found

    def _matches(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Yield the start and end of each matching line, and where in it the match begins.

        A match in several lines is only a hint: then its line is matched alone. Of a line longer than a window,
        only the part around the hint is searched.
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
    """Return a line, or the part of a long line around the match."""
    if len(line) <= _MAX_LINE:
        return line
    start = max(0, min(at - _MAX_LINE // 4, len(line) - _MAX_LINE))
    end = start + _MAX_LINE
    return f"{'…' if start else ''}{line[start:end]}{'…' if end < len(line) else ''}"
