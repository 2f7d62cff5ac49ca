"""Read a team's plan from its manager's reply, and check all of it before anything runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from typing import Any, cast

from upcall.messages import Value, replace_surrogates
from upcall.safety.bounds import excess_in_text
from upcall.safety.json_text import LONGEST, json_values

KEYS = ("role", "task", "sequence", "caller")
_MAX_SEQUENCE = 1_000_000_000
_MAX_PROBLEMS = 20


class Assignment(Value, frozen=True):
    """One entry of a plan. `worker`: named when the plan is accepted. `asks`: whether it may ask the planner."""

    worker: str
    role: str
    task: str
    sequence: int
    asks: bool = False


class Rules(Value, frozen=True):
    """The rules that a plan must follow."""

    planner: str
    roles: tuple[str, ...]
    entries: int
    task_chars: int
    empty: bool = False


def read_plan(text: str, rules: Rules) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the entries of the one JSON array in a reply, or every mistake in it."""
    entries, problem = _array(text)
    if problem:
        return [], [problem]
    if not entries and not rules.empty:
        return [], ["the array is empty: give at least one task"]
    if len(entries) > rules.entries:
        return [], [
            f"it has {len(entries)} entries; at most {rules.entries} are run. Join tasks that belong together"
        ]
    problems = [p for number, entry in enumerate(entries, 1) for p in _mistakes(number, entry, rules)]
    if len(problems) > _MAX_PROBLEMS:
        problems[_MAX_PROBLEMS:] = [f"and {len(problems) - _MAX_PROBLEMS} more mistakes"]
    return ([] if problems else cast("list[dict[str, Any]]", entries)), problems


def name_workers(entries: Sequence[dict[str, Any]], counts: dict[str, int]) -> list[Assignment]:
    """Return the assignments with numbered workers; `counts` has the last number by role, and is updated."""
    assignments: list[Assignment] = []
    for entry in entries:
        role = entry["role"]
        counts[role] = counts.get(role, 0) + 1
        worker = f"{role}{counts[role]:02}"
        assignments.append(
            Assignment(worker, role, replace_surrogates(entry["task"]), entry["sequence"], "caller" in entry)
        )
    return assignments


def next_sequence(plan: Sequence[Assignment]) -> tuple[list[Assignment], list[Assignment]]:
    """Split a plan into its first sequence, to be run at the same time, and the rest."""
    first = min(a.sequence for a in plan)
    return [a for a in plan if a.sequence == first], [a for a in plan if a.sequence > first]


def _array(text: str) -> tuple[list[Any], str]:
    if len(text) > LONGEST:
        return [], f"the reply has {len(text)} characters; a plan is a short JSON array"
    arrays: list[list[Any]] = [] if excess_in_text(text, LONGEST) else json_values(text, "[")
    plans = [a for a in arrays if not a or any(isinstance(e, dict) for e in a)]
    if len(plans) > 1:
        return [], f"{len(plans)} JSON arrays were found; reply with exactly one"
    if plans or len(arrays) == 1:
        return (plans or arrays)[0], ""
    return [], "no JSON array was found in the reply"


def _mistakes(number: int, entry: Any, rules: Rules) -> list[str]:
    label = f"entry {number}"
    if not isinstance(entry, dict):
        return [f"{label} must be an object with {', '.join(KEYS)}, not {_describe(entry)}"]
    fields = cast("dict[str, Any]", entry)
    unknown = islice((key for key in fields if key not in KEYS), _MAX_PROBLEMS)
    problems = [f"{label}: unknown key {_describe(key)}; the valid keys are {', '.join(KEYS)}" for key in unknown]
    role, task, sequence = fields.get("role"), fields.get("task"), fields.get("sequence")
    if role not in rules.roles or not isinstance(role, str):
        problems.append(f"{label}: role must be one of {', '.join(rules.roles)}, not {_describe(role)}")
    if not isinstance(task, str) or not task.strip():
        problems.append(f"{label}: task must say what to do, not {_describe(task)}")
    elif len(task) > rules.task_chars:
        problems.append(f"{label}: task has {len(task)} characters; at most {rules.task_chars} are accepted")
    if type(sequence) is not int or not 0 <= sequence <= _MAX_SEQUENCE:
        problems.append(
            f"{label}: sequence must be a whole number from 0 to {_MAX_SEQUENCE}, not {_describe(sequence)}"
        )
    if "caller" in fields and fields["caller"] != rules.planner:
        caller = _describe(fields["caller"])
        problems.append(
            f"{label}: caller must be {rules.planner!r}, who made the plan, or be left out; not {caller}"
        )
    return problems


def _describe(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list | dict):  # of any depth
        return "an array" if isinstance(value, list) else "an object"
    text = replace_surrogates(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= 60 else text[:59] + "…"
