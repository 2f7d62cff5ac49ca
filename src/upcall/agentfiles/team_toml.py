"""`team.toml`: which agents of a folder are a team, read strictly, with every mistake found at once."""

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
from upcall.teams.team import OnFailure

NAME = "team.toml"
MOST, _MOST_LINES, _MOST_CHARS = 200_000, 50, 5_000
"""Bytes of a team.toml, and how long a value may be for the lines behind it to be told."""


class TeamFile(Value, frozen=True):
    """What a team.toml says beside name and description; `options` are arguments of Team that were written."""

    manager: str
    roles: dict[str, str]
    reviewer: str = ""
    options: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


class Read(NamedTuple):
    """The keys of a team.toml that are right, the line of each (dotted), and what is wrong with the others."""

    keys: dict[str, Any]
    lines: dict[str, int]
    problems: list[Problem]


def read_team(path: Path) -> Read:
    """What can be read of a team.toml."""
    text = ""
    try:
        text = read_small(path, MOST).decode("utf-8-sig").replace("\r\n", "\n")
        given = tomllib.loads(text)
    except OSError as error:
        return _unreadable(path, 0, f"can't be read: {error.strerror}")
    except UnicodeDecodeError as error:
        return _unreadable(path, error.object.count(b"\n", 0, error.start) + 1, "this is not UTF-8 text")
    except tomllib.TOMLDecodeError as error:
        return _unreadable(path, *_syntax(str(error), text))
    except (ValueError, RecursionError) as error:
        return _unreadable(path, 1, f"this is not TOML that can be read: {error}")
    lines = _key_lines(text)
    wrong = dict(_mistakes(given))
    problems = [Problem(str(path), lines.get(key, 0), key, said) for key, said in wrong.items()]
    keys = {key: value for key, value in given.items() if key in KEYS and key not in wrong}
    if "roles" in keys:
        keys["roles"] = {role: agent for role, agent in keys["roles"].items() if f"roles.{role}" not in wrong}
    return Read(keys, lines, problems)


def team_of(keys: Mapping[str, Any]) -> TeamFile:
    """A team's value from the keys that are right; those that are missing were told as mistakes."""
    options = {key: value for key, value in keys.items() if key in _OPTIONS}
    return TeamFile(keys.get("manager", ""), keys.get("roles", {}), keys.get("reviewer", ""), options)


# --- what each key may hold -------------------------------------------------------------


class _Rule(NamedTuple):
    allowed: str
    accepts: Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_way(value: Any) -> bool:
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
    "on_failure": _Rule(f"one of {', '.join(map(json.dumps, _ON_FAILURE))}", _is_way),
    "entries": _COUNT,
    "task_chars": _COUNT,
    "tries": _COUNT,
    "roles": _Rule('a line [roles] and below it at least one such as developer = "developer"', _is_table),
}
_NEEDED = ("manager", "roles")
_OPTIONS = ("on_failure", "entries", "task_chars", "tries")
KEYS = tuple(_RULES)
"""Every key of a team.toml; those below `roles` are the roles."""


def _mistakes(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in given.items():
        rule = _RULES.get(key)
        if rule is None:
            role = " A role stands below the line [roles]." if isinstance(value, str) else ""
            yield key, f"unknown key; allowed are {', '.join(KEYS)}.{did_you_mean(key, KEYS) or role}"
        elif not rule.accepts(value):
            way = key == "on_failure" and isinstance(value, str)
            meant = did_you_mean(value, _ON_FAILURE) if way else ""
            yield key, f"must be {rule.allowed}, not {shown(value)}{f'.{meant}' if meant else ''}"
        elif key == "name" and (problem := name_problem(value)):
            yield key, problem
    for key in _NEEDED:
        if key not in given:
            yield key, f"is missing; it must be {_RULES[key].allowed}"
    roles = given.get("roles")
    for role, agent in cast("dict[str, Any]", roles).items() if isinstance(roles, dict) else ():
        if problem := _role_problem(role, agent):
            yield f"roles.{role}", problem


def _role_problem(role: str, agent: Any) -> str:
    if not _AGENT.accepts(agent):
        return f"must be {_AGENT.allowed}, not {shown(agent)}{elsewhere(role)}"
    return name_problem(role).replace("no agent's name", "no role's name").replace("no agent may", "no role may")


def elsewhere(role: str) -> str:
    """What to add where a role can't be meant: TOML takes what stands below a table's line for part of it."""
    return f". If the key {role} is meant, it stands above the line [roles]" if role in KEYS else ""


# --- lines ------------------------------------------------------------------------------


def _unreadable(path: Path, line: int, text: str) -> Read:
    return Read({}, {}, [Problem(str(path), line, "", text)])


def _syntax(message: str, text: str) -> tuple[int, str]:
    """The line and the words of a TOML error, which has both in one sentence."""
    said, _, where = message.rpartition(" (at ")
    line = re.search(r"line (\d+)", where)
    twice = " (a key is written twice)" if "overwrite" in said else ""
    return int(line[1]) if line else text.count("\n") + 1, f"this is not TOML: {said or message}{twice}"


def _key_lines(text: str) -> dict[str, int]:
    """The line of every key, dotted, of a text that is known to be TOML: a piece that parses by itself is whole."""
    lines: dict[str, int] = {}
    table, piece, first = "", "", 1
    for number, line in enumerate(text.split("\n"), 1):
        piece += f"{line}\n"
        if (
            number - first > _MOST_LINES or len(piece) > _MOST_CHARS
        ):  # which no value here has: where the rest stands is not told
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
