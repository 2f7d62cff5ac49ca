"""Read SKILL.md files: the front matter and Markdown of the open Agent Skills format, plus `triggers`."""

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
_MAX_NAME, _MAX_DESCRIPTION = 64, 1024
_MAX_FOLDERS = 2_000


class Skill(Value, frozen=True):
    """One skill: its triggers and its text. `allowed-tools` is ignored: a skill can't grant approvals."""

    name: str
    description: str
    triggers: tuple[str, ...]
    content: str
    path: Path


class SkillIndex:
    """The skills below some folders, cached until anything there changes."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._stamps: dict[str, _FileStamp] = {}
        self._skills: tuple[Skill, ...] = ()

    def cached(self) -> tuple[Skill, ...] | None:
        """Return the skills as they were last read, or None if a file has changed since."""
        return self._skills if self._stamps and _unchanged(self._stamps) else None

    def skills(self) -> tuple[Skill, ...]:
        """Return all skills, sorted by name. BadKit names the first wrong file.

        A skill of a later folder replaces one of the same name.
        """
        if (cached := self.cached()) is not None:
            return cached
        now, files, stamps = time.time_ns(), list[list[Path]](), dict[str, _FileStamp]()
        for folder in self._folders:
            if not folder.is_dir():
                raise BadKit("skills", f"{folder}: there is no such folder")
            files.append(list(_skill_files(folder, stamps)))
        found: dict[str, Skill] = {}
        for each in files:
            found |= _load_all(each)
        self._skills = tuple(found[name] for name in sorted(found))
        settled = all(stamp is not None and stamp[0] < now - _TICK for stamp in stamps.values())
        self._stamps = stamps if settled else {}  # a file written just now may change again within its time stamp
        return self._skills


_FileStamp = tuple[int, int, int] | None
_TICK = 50_000_000
"""Nanoseconds within which a file system may give two writes the same time stamp."""


def _stamp(path: str) -> _FileStamp:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _unchanged(stamps: Mapping[str, _FileStamp]) -> bool:
    """Return whether no file has changed. Inlined because it runs whenever a session begins."""
    try:
        for path, stamp in stamps.items():
            found = os.stat(path)  # noqa: PTH116
            if (found.st_mtime_ns, found.st_size, found.st_ino) != stamp:
                return False
    except OSError:
        return False
    return True


def _skill_files(folder: Path, stamps: dict[str, _FileStamp]) -> Iterator[Path]:
    """Yield every SKILL.md below a folder. Links to folders are followed, each folder once."""
    seen: set[str] = set()
    for parent, below, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen:
            below.clear()
            continue
        seen.add(real)
        if len(seen) > _MAX_FOLDERS:
            raise BadKit("skills", f"{folder}: it has more than {_MAX_FOLDERS} folders; give a folder of skills")
        below.sort()
        stamps[parent] = _stamp(parent)
        if FILE in files:
            path = Path(parent) / FILE
            stamps[str(path)] = _stamp(str(path))
            yield path


def _load_all(files: Sequence[Path]) -> dict[str, Skill]:
    by_name: dict[str, Skill] = {}
    for path in files:
        skill = load_skill(path)
        if skill.name in by_name:
            raise BadKit("skills", f"{path}: the skill in {by_name[skill.name].path} has the same name")
        by_name[skill.name] = skill
    return by_name


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
    if problem := _text_problem(name, _MAX_NAME):
        yield f"name: {problem}"
    elif not _NAME.fullmatch(name.strip()):
        yield f"name: {name!r} may have only lower-case letters a-z, digits, and single hyphens between them"
    elif name.strip() != folder:
        yield f"name: {name!r} must be its folder's name, {folder!r}"
    given = head.get("triggers", [])
    if not isinstance(given, list) or any(_text_problem(one) for one in cast("list[Any]", given)):
        yield f"triggers: {brief(given, 200)} is not a list of texts, such as [pdf, fill a form]"
    if "description" not in head and not given:
        yield "description: it is missing, and so are triggers, so nobody could find this skill; add one of them"
    elif "description" in head and (problem := _text_problem(head["description"], _MAX_DESCRIPTION)):
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
    """Return why a value is not a text of at most `most` characters, or ""."""
    if not isinstance(value, str) or not value.strip():
        return "it is missing" if value is None else f"{brief(value, 200)} is not text"
    return f"it has {len(value)} characters; {most} are allowed" if most is not None and len(value) > most else ""
