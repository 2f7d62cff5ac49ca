"""File patterns as in git: for `.gitignore` files, and for the tool `glob`.

A pattern is matched name by name, and within a name only the last star backtracks. So a comparison takes at most as
many steps as the pattern has names, for each name of the path.
"""

from __future__ import annotations

import re
import string
import time
from collections.abc import Sequence
from typing import NamedTuple

Names = Sequence[str]

_CLASSES = {
    "alnum": "a-zA-Z0-9", "alpha": "a-zA-Z", "blank": r" \t", "cntrl": r"\x00-\x1f\x7f", "digit": "0-9",
    "graph": r"\x21-\x7e", "lower": "a-z", "print": r"\x20-\x7e", "punct": re.escape(string.punctuation),
    "space": r" \t\n\r\f\v", "upper": "A-Z", "xdigit": "0-9A-Fa-f",
}  # fmt: skip


class Glob:
    """A pattern of paths: `*` and `?` stay within a name, `**` between slashes is any number of names."""

    __slots__ = ("_steps",)

    def __init__(self, pattern: str) -> None:
        names = _split(pattern)
        steps = [None if len(name) > 1 and not name.strip("*") else _name_pattern(name) for name in names]
        if steps[-1] is None:  # the last ** is at least one name
            steps.append(_ANY)
        self._steps = steps

    @property
    def steps(self) -> int:
        """How many steps each name of a path may take at most."""
        return len(self._steps) if None in self._steps else 1

    def matches(self, names: Names) -> bool:
        """Return whether the pattern matches a path, given as its names."""
        steps, at, step, star, star_end = self._steps, 0, 0, -1, 0
        last = steps[-1]
        if last is not None and names and not last.match(names[-1]):
            return False
        while at < len(names):
            if step < len(steps) and steps[step] is None:
                star, star_end, step = step, at, step + 1
            elif step < len(steps) and (name_pattern := steps[step]) is not None and name_pattern.match(names[at]):
                at, step = at + 1, step + 1
            elif star >= 0:  # let the last ** have one name more
                star_end += 1
                at, step = star_end, star + 1
            else:
                return False
        return all(step_left is None for step_left in steps[step:])


class Rule(NamedTuple):
    """One line of a `.gitignore`: the folder it applies to, its pattern, and whether it re-includes paths."""

    folder: tuple[str, ...]
    glob: Glob
    anchored: bool
    only_folders: bool
    negated: bool


_MAX_RULE = 1_000
"""Characters of a rule; a longer one is ignored."""


def rules_in(text: str, folder: tuple[str, ...]) -> list[Rule]:
    """Parse the rules of a folder's `.gitignore`."""
    lines = text.removeprefix("\ufeff").split("\n")
    return [rule for line in lines if (rule := _rule(line.removesuffix("\r"), folder))]


def is_ignored(rules: Sequence[Rule], path: tuple[str, ...], is_folder: bool, until: float) -> bool:
    """Return whether a path is ignored, given that its folder is not. The last rule that matches decides.

    Raise TimeoutError at the time `until` of the monotonic clock.
    """
    for rule in reversed(rules):
        if time.monotonic() > until:
            raise TimeoutError
        if rule.only_folders and not is_folder:
            continue
        below = path[len(rule.folder) :]
        if rule.glob.matches(below if rule.anchored else below[-1:]):
            return not rule.negated
    return False


def _rule(line: str, folder: tuple[str, ...]) -> Rule | None:
    if len(line) > _MAX_RULE:
        return None
    while line.endswith(" ") and not line.endswith("\\ "):
        line = line[:-1]
    if not line or line.startswith("#"):
        return None
    negated = line.startswith("!")
    pattern = line[1:] if negated else line
    only_folders = pattern.endswith("/")
    if only_folders:
        pattern = pattern[:-1]
    if not pattern:
        return None
    return Rule(folder, Glob(pattern.removeprefix("/")), "/" in pattern, only_folders, negated)


def _split(pattern: str) -> list[str]:
    """Split a pattern at slashes, escaped or not, except within brackets."""
    names, at = [""], 0
    while at < len(pattern):
        end = at + 1
        if pattern[at] == "[":
            end = _bracket(pattern, end)[1]
        elif pattern[at] == "\\" and end < len(pattern):
            at, end = (end, end + 1) if pattern[end] == "/" else (at, end + 1)
        if pattern[at] == "/":
            names.append("")
        else:
            names[-1] += pattern[at:end]
        at = end
    return names


def _name_pattern(name: str) -> re.Pattern[str]:
    """Compile the pattern of one name.

    Every star but the last matches as little as possible and never backtracks.
    """
    chunks, at = [""], 0
    while at < len(name):
        found = name[at]
        at += 1
        if found == "*":
            chunks += [] if len(chunks) > 1 and not chunks[-1] else [""]
        elif found == "?":
            chunks[-1] += "."
        elif found == "[":
            bracket, at = _bracket(name, at)
            chunks[-1] += bracket
        elif found == "\\":
            chunks[-1] += re.escape(name[at]) if at < len(name) else _NEVER
            at += 1
        else:
            chunks[-1] += re.escape(found)
    first, *middle = chunks
    last = f".*{middle.pop()}" if middle else ""
    return re.compile("".join([first, *(f"(?>.*?{chunk})" for chunk in middle), last, r"\Z"]), re.DOTALL)


def _bracket(name: str, at: int) -> tuple[str, int]:
    """Return a bracket as a regular expression, and where it ends. An open bracket matches nothing, as in git."""
    negated = name[at : at + 1] in ("!", "^") and name[at : at + 1] != ""
    at += negated
    body, first = "", True
    while at < len(name) and (first or name[at] != "]"):
        first = False
        if name.startswith("[:", at) and (end := name.find("]", at + 2)) > 0 and name[end - 1] == ":":
            named = _CLASSES.get(name[at + 2 : end - 1])
            if named is None:
                return _NEVER, len(name)
            body, at = body + named, end + 1
            continue
        low, at = _character(name, at)
        if name[at : at + 1] == "-" and name[at + 1 : at + 2] not in ("", "]"):
            high, at = _character(name, at + 1)
            body += re.escape(low) + (f"{re.escape(low)}-{re.escape(high)}" if low <= high else "")
        else:
            body += re.escape(low)
    if at >= len(name):
        return _NEVER, at
    if not body:
        return ("." if negated else _NEVER), at + 1
    return f"[{'^' if negated else ''}{body}]", at + 1


def _character(name: str, at: int) -> tuple[str, int]:
    at += name[at] == "\\" and at + 1 < len(name)
    return name[at], at + 1


_NEVER = r"(?!)"
_ANY = re.compile("")
