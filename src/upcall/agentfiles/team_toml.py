"""Read `team.toml`, which says which agents of a folder are a team. Every mistake is found at once."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import msgspec

from upcall.agentfiles.sidecar import Problem
from upcall.core.error_texts import did_you_mean, shown
from upcall.core.routing.policy import name_problem
from upcall.messages import Value
from upcall.safety.small_files import read_small
from upcall.safety.toml_text import read_toml
from upcall.teams.team import OnFailure

NAME = "team.toml"
MAX_BYTES, _MAX_VALUE_LINES, _MAX_VALUE_CHARS = 150_000, 50, 5_000
"""The most bytes of a team.toml, and the longest value after which keys still get their lines."""


class TeamFile(Value, frozen=True):
    """The content of a team.toml without name and description. `options` are further arguments of Team."""

    manager: str
    roles: dict[str, str]
    reviewer: str = ""
    options: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


class TeamReading(NamedTuple):
    """The valid keys of a team.toml, the line of each key (dotted), and the problems of the others."""

    keys: dict[str, Any]
    lines: dict[str, int]
    problems: list[Problem]


def read_team(path: Path) -> TeamReading:
    """Read a team.toml as far as it is valid."""
    text = ""
    try:
        text = read_small(path, MAX_BYTES).decode("utf-8-sig").replace("\r\n", "\n")
        document = read_toml(text)
    except OSError as error:
        return _unreadable(path, 0, f"can't be read: {error.strerror}")
    except UnicodeDecodeError as error:
        return _unreadable(path, error.object.count(b"\n", 0, error.start) + 1, "this is not UTF-8 text")
    except tomllib.TOMLDecodeError as error:
        return _unreadable(path, *_syntax(str(error), text))
    except (ValueError, RecursionError) as error:
        return _unreadable(path, 1, f"this TOML can't be read: {error}")
    lines = _key_lines(text)
    wrong = dict(_mistakes(document))
    problems = [Problem(str(path), lines.get(key, 0), key, text) for key, text in wrong.items()]
    keys = {key: value for key, value in document.items() if key in KEYS and key not in wrong}
    if "roles" in keys:
        keys["roles"] = {role: agent for role, agent in keys["roles"].items() if f"roles.{role}" not in wrong}
    return TeamReading(keys, lines, problems)


def team_of(keys: Mapping[str, Any]) -> TeamFile:
    """Return a team from the valid keys. Missing keys were reported as mistakes."""
    options = {key: value for key, value in keys.items() if key in _OPTIONS}
    return TeamFile(keys.get("manager", ""), keys.get("roles", {}), keys.get("reviewer", ""), options)


# --- allowed values ---------------------------------------------------------------------


class _Rule(NamedTuple):
    allowed: str
    accepts: Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_on_failure(value: Any) -> bool:
    return value in _ON_FAILURE


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and bool(cast("dict[str, Any]", value))


_ON_FAILURE = get_args(OnFailure)
_AGENT = _Rule('the name of an agent in this folder, such as "developer"', _is_text)
_COUNT = _Rule("a whole number of 1 or more", _is_count)
_RULES: dict[str, _Rule] = {
    "name": _Rule("text", _is_text),
    "description": _Rule("text", _is_text),
    "manager": _AGENT,
    "reviewer": _AGENT,
    "on_failure": _Rule(f"one of {', '.join(map(json.dumps, _ON_FAILURE))}", _is_on_failure),
    "entries": _COUNT,
    "task_chars": _COUNT,
    "tries": _COUNT,
    "roles": _Rule('a line [roles] with at least one role below it, such as developer = "developer"', _is_table),
}
_REQUIRED = ("manager", "roles")
_OPTIONS = ("on_failure", "entries", "task_chars", "tries")
KEYS = tuple(_RULES)
"""Every key of a team.toml; those below `roles` are the roles."""


def _mistakes(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in document.items():
        rule = _RULES.get(key)
        if rule is None:
            role = " Put roles below the line [roles]." if isinstance(value, str) else ""
            yield key, f"unknown key; allowed are {', '.join(KEYS)}.{did_you_mean(key, KEYS) or role}"
        elif not rule.accepts(value):
            near_miss = key == "on_failure" and isinstance(value, str)
            suggestion = did_you_mean(value, _ON_FAILURE) if near_miss else ""
            yield key, f"must be {rule.allowed}, not {shown(value)}{f'.{suggestion}' if suggestion else ''}"
        elif key == "name" and (problem := name_problem(value)):
            yield key, problem
    for key in _REQUIRED:
        if key not in document:
            yield key, f"is missing; it must be {_RULES[key].allowed}"
    roles = document.get("roles")
    for role, agent in cast("dict[str, Any]", roles).items() if isinstance(roles, dict) else ():
        if problem := _role_problem(role, agent):
            yield f"roles.{role}", problem


def _role_problem(role: str, agent: Any) -> str:
    if not _AGENT.accepts(agent):
        return f"must be {_AGENT.allowed}, not {shown(agent)}{misplaced_key_hint(role)}"
    return name_problem(role, "role")


def misplaced_key_hint(role: str) -> str:
    """Return a hint if a role has the name of a key: TOML takes all lines below `[roles]` as roles."""
    return f". If you mean the key {role}, put it above the line [roles]" if role in KEYS else ""


# --- lines ------------------------------------------------------------------------------


def _unreadable(path: Path, line: int, text: str) -> TeamReading:
    return TeamReading({}, {}, [Problem(str(path), line, "", text)])


def _syntax(message: str, text: str) -> tuple[int, str]:
    """Return the line and the text of a TOML error, which has both in one sentence."""
    problem, _, where = message.rpartition(" (at ")
    line = re.search(r"line (\d+)", where)
    hint = " (a key is written twice)" if "overwrite" in problem else ""
    return int(line[1]) if line else text.count("\n") + 1, f"this is not TOML: {problem or message}{hint}"


def _key_lines(text: str) -> dict[str, int]:
    """Return the line of every key, dotted, of a valid TOML text. Lines are joined until they parse."""
    lines: dict[str, int] = {}
    table, piece, first = "", "", 1
    for number, line in enumerate(text.split("\n"), 1):
        piece += f"{line}\n"
        if number - first > _MAX_VALUE_LINES or len(piece) > _MAX_VALUE_CHARS:  # too long: the rest gets no lines
            break
        table = "" if piece.lstrip().startswith("[") else table
        try:
            found = tomllib.loads(table + piece)
        except tomllib.TOMLDecodeError:
            continue
        for key in _dotted(found):
            lines.setdefault(key, first)
        table = piece if piece.lstrip().startswith("[") else table
        piece, first = "", number + 1
    return lines


def _dotted(keys: Mapping[str, Any]) -> Iterator[str]:
    for key, value in keys.items():
        yield key
        if isinstance(value, dict):
            yield from (f"{key}.{below}" for below in cast("dict[str, Any]", value))
