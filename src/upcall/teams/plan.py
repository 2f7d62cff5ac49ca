"""A team's plan: read from what its manager said, and checked whole before anything runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from typing import Any, cast

from upcall.messages import Value, replace_surrogates
from upcall.safety.json_text import LONGEST, json_values

KEYS = ("role", "task", "sequence", "caller")
_LAST = 1_000_000_000
_SHOWN = 20


class Assignment(Value, frozen=True):
    """One entry of a plan; `worker` is named when the plan is accepted, and `asks` if it may ask the planner."""

    worker: str
    role: str
    task: str
    sequence: int
    asks: bool = False


class Rules(Value, frozen=True):
    """What a plan is held to."""

    planner: str
    roles: tuple[str, ...]
    entries: int
    task_chars: int
    empty: bool = False


def read_plan(text: str, rules: Rules) -> tuple[list[dict[str, Any]], list[str]]:
    """The entries of the one JSON array in a reply, or every mistake in it."""
    found, problem = _array(text)
    if problem:
        return [], [problem]
    if not found and not rules.empty:
        return [], ["the array is empty: give at least one task"]
    if len(found) > rules.entries:
        return [], [
            f"it has {len(found)} entries; at most {rules.entries} are run. Join tasks that belong together"
        ]
    problems = [p for number, entry in enumerate(found, 1) for p in _mistakes(number, entry, rules)]
    if len(problems) > _SHOWN:
        problems[_SHOWN:] = [f"and {len(problems) - _SHOWN} more mistakes"]
    return ([] if problems else cast("list[dict[str, Any]]", found)), problems


def named(entries: Sequence[dict[str, Any]], counts: dict[str, int]) -> list[Assignment]:
    """The assignments with their workers' names, going on from `counts`, which is changed."""
    made: list[Assignment] = []
    for entry in entries:
        role = entry["role"]
        counts[role] = counts.get(role, 0) + 1
        worker = f"{role}{counts[role]:02}"
        made.append(
            Assignment(worker, role, replace_surrogates(entry["task"]), entry["sequence"], "caller" in entry)
        )
    return made


def next_sequence(plan: Sequence[Assignment]) -> tuple[list[Assignment], list[Assignment]]:
    """What is to be done first, side by side, and what is left for later."""
    first = min(a.sequence for a in plan)
    return [a for a in plan if a.sequence == first], [a for a in plan if a.sequence > first]


def _array(text: str) -> tuple[list[Any], str]:
    if len(text) > LONGEST:
        return [], f"the reply has {len(text)} characters; a plan is a short JSON array"
    arrays: list[list[Any]] = json_values(text, "[")
    plans = [a for a in arrays if not a or any(isinstance(e, dict) for e in a)]
    if len(plans) > 1:
        return [], f"{len(plans)} JSON arrays were found; reply with exactly one"
    if plans or len(arrays) == 1:
        return (plans or arrays)[0], ""
    return [], "no JSON array was found in the reply"


def _mistakes(number: int, entry: Any, rules: Rules) -> list[str]:
    where = f"entry {number}"
    if not isinstance(entry, dict):
        return [f"{where} must be an object with {', '.join(KEYS)}, not {_shown(entry)}"]
    given = cast("dict[str, Any]", entry)
    unknown = islice((key for key in given if key not in KEYS), _SHOWN)
    found = [f"{where}: unknown key {_shown(key)}; there are {', '.join(KEYS)}" for key in unknown]
    role, task, sequence = given.get("role"), given.get("task"), given.get("sequence")
    if role not in rules.roles or not isinstance(role, str):
        found.append(f"{where}: role must be one of {', '.join(rules.roles)}, not {_shown(role)}")
    if not isinstance(task, str) or not task.strip():
        found.append(f"{where}: task must say what to do, not {_shown(task)}")
    elif len(task) > rules.task_chars:
        found.append(f"{where}: task has {len(task)} characters; at most {rules.task_chars} are taken")
    if type(sequence) is not int or not 0 <= sequence <= _LAST:
        found.append(f"{where}: sequence must be a whole number from 0 to {_LAST}, not {_shown(sequence)}")
    if "caller" in given and given["caller"] != rules.planner:
        said = _shown(given["caller"])
        found.append(f"{where}: caller must be {rules.planner!r}, who made the plan, or be left out; not {said}")
    return found


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list | dict):  # however deep
        return "an array" if isinstance(value, list) else "an object"
    text = replace_surrogates(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= 60 else text[:59] + "…"
