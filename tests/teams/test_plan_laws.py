"""What a plan may be: `read_plan` never raises, and takes exactly what the rules say."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from upcall.teams.plan import Rules, name_workers, read_plan

RULES = Rules("manager", ("developer", "tester"), entries=5, task_chars=40)

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=50),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
fields: dict[str, st.SearchStrategy[Any]] = {
    "role": st.sampled_from(["developer", "tester", "boss"]) | anything,
    "task": st.text(max_size=50) | anything,
    "sequence": st.integers(-2, 5) | anything,
}
entries = st.fixed_dictionaries(
    fields, optional={"caller": st.sampled_from(["manager", "", None, "developer"]) | anything, "more": anything}
)
good = st.fixed_dictionaries(
    {
        "role": st.sampled_from(RULES.roles),
        "task": st.text(min_size=1, max_size=40).filter(str.strip),
        "sequence": st.integers(0, 9),
    },
    optional={"caller": st.just("manager")},
)


def fits(given_entry: Any) -> bool:
    """The rules, said once more."""
    if not isinstance(given_entry, dict):
        return False
    entry = cast("dict[str, Any]", given_entry)
    task, sequence = entry.get("task"), entry.get("sequence")
    return (
        set(entry) <= {"role", "task", "sequence", "caller"}
        and entry.get("role") in ("developer", "tester")
        and isinstance(task, str)
        and bool(task.strip())
        and len(task) <= 40
        and type(sequence) is int
        and 0 <= sequence <= 1_000_000_000
        and ("caller" not in entry or entry["caller"] == "manager")
    )


@given(st.text() | st.text(alphabet='[]{},:"1\\u '))
@example("[0]")
def test_no_text_makes_reading_a_plan_raise(text: str) -> None:
    found, problems = read_plan(text, RULES)

    assert bool(found) != bool(problems)


@pytest.mark.slow
@given(st.lists(entries | anything, max_size=7))
def test_a_plan_is_taken_if_and_only_if_every_entry_keeps_every_rule(given_plan: list[Any]) -> None:
    _, problems = read_plan(json.dumps(given_plan), RULES)

    assert (not problems) == (1 <= len(given_plan) <= 5 and all(fits(entry) for entry in given_plan))


@given(
    st.lists(good, min_size=1, max_size=5),
    st.text(alphabet="abc \n`.,:-", max_size=30),
    st.text(alphabet="abc \n`.,:-", max_size=30),
)
def test_prose_and_fences_around_a_plan_change_nothing(
    given_plan: list[dict[str, Any]], before: str, after: str
) -> None:
    text = json.dumps(given_plan)

    assert read_plan(f"{before}{text}{after}", RULES) == read_plan(text, RULES) == (given_plan, [])


@given(st.lists(good, min_size=1, max_size=5), st.lists(good, max_size=5))
def test_two_arrays_are_never_a_plan(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    _, problems = read_plan(f"{json.dumps(one)} or {json.dumps(other)}", RULES)

    assert problems == ["2 JSON arrays were found; reply with exactly one"]


@given(st.lists(st.lists(good, max_size=5), max_size=4))
def test_no_two_workers_have_one_name_and_each_role_counts_on(plans: list[list[dict[str, Any]]]) -> None:
    counts: dict[str, int] = {}

    made = [assignment for each in plans for assignment in name_workers(each, counts)]

    for role in RULES.roles:
        names = [a.worker for a in made if a.role == role]
        assert names == [f"{role}{number:02}" for number in range(1, len(names) + 1)]


@pytest.mark.parametrize(
    "text", ["[" * 1_000_000, '[{"role":' * 100_000, "[" * 900 + "1," * 100_000, "[" * 100_000 + "]" * 100_000]
)
def test_a_flood_of_brackets_is_not_a_plan_and_does_not_crash(text: str) -> None:
    _, problems = read_plan(text, RULES)

    assert problems == ["no JSON array was found in the reply"]
