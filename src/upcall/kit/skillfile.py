"""SKILL.md: front matter and Markdown, as the open Agent Skills format has it, with `triggers` besides."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from upcall.errors import BadKit
from upcall.messages import Value
from upcall.safety.bounds import brief
from upcall.safety.front_matter import construct
from upcall.safety.small_files import read_small

FILE = "SKILL.md"
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_MOST_NAME, _MOST_DESCRIPTION = 64, 1024
_MOST_FOLDERS = 2_000


class Skill(Value, frozen=True):
    """One skill: when it is shown, and what it says. `allowed-tools` is not in it: approvals are not a skill's."""

    name: str
    description: str
    triggers: tuple[str, ...]
    content: str
    path: Path


class SkillIndex:
    """The skills below some folders. They are read again once anything there has changed."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._marks: dict[str, _Mark] = {}
        self._found: tuple[Skill, ...] = ()

    def known(self) -> tuple[Skill, ...] | None:
        """All skills as they were read last; None where something there has changed since."""
        return self._found if self._marks and _unchanged(self._marks) else None

    def skills(self) -> tuple[Skill, ...]:
        """All skills, by name; of two with one name the later folder's. BadKit names the first wrong file."""
        if (known := self.known()) is not None:
            return known
        now, files, marks = time.time_ns(), list[list[Path]](), dict[str, _Mark]()
        for folder in self._folders:
            if not folder.is_dir():
                raise BadKit("skills", f"{folder}: there is no such folder")
            files.append(list(_walked(folder, marks)))
        found: dict[str, Skill] = {}
        for each in files:
            found |= _loaded(each)
        self._found = tuple(found[name] for name in sorted(found))
        settled = all(mark is not None and mark[0] < now - _TICK for mark in marks.values())
        self._marks = marks if settled else {}  # what was written just now may be once more, at the same time
        return self._found


_Mark = tuple[int, int, int] | None
_TICK = 50_000_000
"""Nanoseconds within which a file system may give two writes the same time."""


def _mark(path: str) -> _Mark:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _unchanged(marks: Mapping[str, _Mark]) -> bool:
    """Whether all is as it was; every session that begins wants to know."""
    try:
        for path, mark in marks.items():
            found = os.stat(path)  # noqa: PTH116
            if (found.st_mtime_ns, found.st_size, found.st_ino) != mark:
                return False
    except OSError:
        return False
    return True


def _walked(folder: Path, marks: dict[str, _Mark]) -> Iterator[Path]:
    """Every SKILL.md below; links to folders are followed, in circles only once."""
    seen: set[str] = set()
    for where, below, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(where)
        if real in seen:
            below.clear()
            continue
        seen.add(real)
        if len(seen) > _MOST_FOLDERS:
            raise BadKit("skills", f"{folder}: it has more than {_MOST_FOLDERS} folders; a skill is one of few")
        below.sort()
        marks[where] = _mark(where)
        if FILE in files:
            path = Path(where) / FILE
            marks[str(path)] = _mark(str(path))
            yield path


def _loaded(files: Sequence[Path]) -> dict[str, Skill]:
    here: dict[str, Skill] = {}
    for path in files:
        skill = load_skill(path)
        if skill.name in here:
            raise BadKit("skills", f"{path}: {here[skill.name].path} has the same name")
        here[skill.name] = skill
    return here


def load_skill(path: Path) -> Skill:
    """Read one SKILL.md and check it."""
    try:
        text = read_small(path).decode().replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise BadKit("skills", f"{path}: it is not text") from None
    except OSError as error:
        raise BadKit("skills", f"{path}: it can't be read: {error.strerror}") from None
    head, content = _parts(path, text)
    if problems := list(_problems(head, path.parent.name)):
        raise BadKit("skills", f"{path}: {'; '.join(problems)}")
    triggers = tuple(text.strip() for text in head.get("triggers", []))
    return Skill(head["name"].strip(), head.get("description", "").strip(), triggers, content.strip(), path)


def _problems(head: Mapping[str, Any], folder: str) -> Iterator[str]:
    """Everything that is wrong with the keys of a skill, each with its key."""
    name: Any = head.get("name")
    if problem := _text_problem(name, _MOST_NAME):
        yield f"name: {problem}"
    elif not _NAME.fullmatch(name.strip()):
        yield f"name: {name!r} may have only lower-case letters a-z, digits, and single hyphens between them"
    elif name.strip() != folder:
        yield f"name: {name!r} must be its folder's name, {folder!r}"
    given = head.get("triggers", [])
    if not isinstance(given, list) or any(_text_problem(one) for one in cast("list[Any]", given)):
        yield f"triggers: {brief(given, 200)} is not a list of texts, such as [pdf, fill a form]"
    if "description" not in head and not given:
        yield "description: it is missing, and so are triggers; nobody could find it"
    elif "description" in head and (problem := _text_problem(head["description"], _MOST_DESCRIPTION)):
        yield f"description: {problem}"


def _parts(path: Path, text: str) -> tuple[dict[str, Any], str]:
    import yaml

    found = re.match(r"\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise BadKit("skills", f"{path}: it does not begin with front matter between two lines of ---")
    try:
        head = construct(found[1])
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f"{path}:{mark.line + 2}" if mark is not None else str(path)
        raise BadKit(
            "skills", f"{line}: its front matter is not valid YAML: {getattr(error, 'problem', error)}"
        ) from None
    if not isinstance(head, dict):
        raise BadKit("skills", f"{path}: its front matter has no keys; it needs at least name and description")
    return cast("dict[str, Any]", head), text[found.end() :]


def _text_problem(value: Any, most: int | None = None) -> str:
    """Why a value is not a text of at most so many characters, or ""."""
    if not isinstance(value, str) or not value.strip():
        return "it is missing" if value is None else f"{brief(value, 200)} is not text"
    return f"it has {len(value)} characters; {most} are allowed" if most is not None and len(value) > most else ""
