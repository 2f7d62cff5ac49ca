"""A plan that can't be run: every mistake goes back to the manager, nothing runs, and in the end it is an error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callbacks.doubles import Desk
from teams.doubles import entry, manages, plan, team_of, turns, works
from upcall import Agent, Request, Team
from upcall.errors import PlanRefused
from upcall.events import Planned, StepStarted, TurnStarted
from upcall.models import Script

GOOD = plan(entry("developer", "build it"))


def bad(**changes: Any) -> str:
    return plan(entry("developer", "build it") | changes)


def without(key: str) -> str:
    made = entry("developer", "build it")
    del made[key]
    return plan(made)


BAD: dict[str, tuple[str, str]] = {
    "no JSON": ("I will think about it.", "no JSON array was found in the reply"),
    "broken JSON": (GOOD[:-2], "no JSON array was found in the reply"),
    "an object": (json.dumps(entry("developer", "x")), "no JSON array was found in the reply"),
    "two arrays": (f"{GOOD}\n{GOOD}", "2 JSON arrays were found; reply with exactly one"),
    "empty array": ("[]", "the array is empty: give at least one task"),
    "no objects": ('["build it"]', 'entry 1 must be an object with role, task, sequence, caller, not "build it"'),
    "unknown role": (bad(role="boss"), 'entry 1: role must be one of developer, tester, not "boss"'),
    "role of a wrong type": (bad(role=7), "entry 1: role must be one of developer, tester, not 7"),
    "role that is a list": (bad(role=["developer"]), "role must be one of developer, tester, not an array"),
    "no role": (without("role"), "entry 1: role must be one of developer, tester, not nothing"),
    "task of a wrong type": (bad(task={"do": "it"}), "entry 1: task must say what to do, not an object"),
    "blank task": (bad(task="  "), 'entry 1: task must say what to do, not "  "'),
    "no task": (without("task"), "entry 1: task must say what to do, not nothing"),
    "negative sequence": (bad(sequence=-1), "sequence must be a whole number from 0 to 1000000000, not -1"),
    "missing sequence": (without("sequence"), "must be a whole number from 0 to 1000000000, not nothing"),
    "sequence as text": (bad(sequence="1"), 'must be a whole number from 0 to 1000000000, not "1"'),
    "half a sequence": (bad(sequence=1.5), "must be a whole number from 0 to 1000000000, not 1.5"),
    "a true sequence": (bad(sequence=True), "must be a whole number from 0 to 1000000000, not true"),
    "huge sequence": (bad(sequence=10**30), "must be a whole number from 0 to 1000000000, not 1000"),
    "no planner": (bad(caller="developer"), "caller must be 'manager', who made the plan, or be left out"),
    "empty caller": (bad(caller=""), "caller must be 'manager', who made the plan, or be left out; not \"\""),
    "null caller": (bad(caller=None), "caller must be 'manager', who made the plan, or be left out; not nothing"),
    "extra keys": (
        bad(priority="high"),
        'entry 1: unknown key "priority"; the valid keys are role, task, sequence, caller',
    ),
    "strange key": (bad(**{"\ud800": 1}), "entry 1: unknown key"),
    "a task of 1 MB": (bad(task="x" * 1_000_000), "task has 1000000 characters; at most 20000 are accepted"),
    "10,000 entries": (plan(*[entry("developer", "x")] * 10_000), "it has 10000 entries; at most 50 are run"),
    "deep nesting": (
        f'[{{"role": {"[" * 500}{"]" * 500}}}]',
        "role must be one of developer, tester, not an array",
    ),
    "1 MB of brackets": ("[" * 1_000_000, "no JSON array was found in the reply"),
    "too long a text": ("x" * 2_000_001, "the reply has 2000001 characters; a plan is a short JSON array"),
}


async def steps(desk: Desk, team: Team) -> list[str]:
    return [e.step for e in await desk.log(team) if isinstance(e, StepStarted)]


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_plan_is_refused_with_its_error_and_nothing_runs(name: str, desk: Desk) -> None:
    text, problem = BAD[name]
    team = team_of(text, tries=1)

    with pytest.raises(PlanRefused) as caught:
        await desk.prompt(team)

    assert problem in str(caught.value)
    assert await steps(desk, team) == ["plan1.1"]
    async with desk.runtime(team) as runtime:
        assert [row.agent for row in await runtime.rows(parent="s")] == ["manager"]
        assert await runtime.status("s") == "failed"


async def test_the_manager_is_told_of_all_mistakes_and_its_next_plan_is_run(desk: Desk) -> None:
    wrong = plan(entry("boss", "rule", -1), entry("developer", "", 1, caller="tester"))
    team = team_of(wrong, GOOD)

    reply = await desk.prompt(team)

    told = [e.message.text for e in await desk.log(team, "s~manager") if isinstance(e, TurnStarted)][1]
    assert told.splitlines() == [
        "This plan can't be run:",
        '- entry 1: role must be one of developer, tester, not "boss"',
        "- entry 1: sequence must be a whole number from 0 to 1000000000, not -1",
        '- entry 2: task must say what to do, not ""',
        "- entry 2: caller must be 'manager', who made the plan, or be left out; not \"tester\"",
        "Reply with the whole plan again, as nothing but one JSON array.",
    ]
    assert "developer01 did build it" in reply.text
    assert await steps(desk, team) == ["plan1.1", "plan1.2", "developer01", "reviewer"]


async def test_of_very_many_mistakes_the_first_are_told_and_the_rest_counted(desk: Desk) -> None:
    team = team_of(plan(*[entry("boss", "rule")] * 50), tries=1)

    with pytest.raises(PlanRefused) as caught:
        await desk.prompt(team)

    assert len(caught.value.problems) == 21
    assert caught.value.problems[-1] == "and 30 more mistakes"


async def test_after_its_tries_the_team_fails_with_the_last_mistakes(desk: Desk) -> None:
    team = team_of(bad(role="a"), bad(role="b"), bad(role="c"), GOOD)

    with pytest.raises(PlanRefused) as caught:
        await desk.prompt(team)

    assert (caught.value.manager, caught.value.tries) == ("manager", 3)
    assert caught.value.problems == ('entry 1: role must be one of developer, tester, not "c"',)
    assert await steps(desk, team) == ["plan1.1", "plan1.2", "plan1.3"]


async def test_resume_asks_the_manager_again_with_the_last_mistakes(place: Desk) -> None:
    wrong = [bad(role=role) for role in "abcd"]
    team = team_of(*wrong, GOOD)
    with pytest.raises(PlanRefused):
        await place.prompt(team)

    reply = await place.resume(team)

    assert "developer01 did build it" in reply.text
    assert await steps(place, team) == [*(f"plan1.{n}" for n in range(1, 6)), "developer01", "reviewer"]
    told = [e.message.text for e in await place.log(team, "s~manager") if isinstance(e, TurnStarted)]
    assert 'not "c"' in told[3]


async def test_a_new_prompt_after_a_refused_plan_begins_anew(desk: Desk) -> None:
    team = team_of(bad(role="a"), GOOD, tries=1)

    async with desk.runtime(team) as runtime:
        session = await runtime.start(team, "s")
        with pytest.raises(PlanRefused):
            await session.prompt("first")
        reply = await session.prompt("second")

    assert "The task was:\nsecond" in reply.text
    assert "developer01 did build it" in reply.text


async def test_tries_entries_and_task_size_are_what_the_team_says(desk: Desk) -> None:
    long, many = bad(task="x" * 101), plan(*[entry("developer", "x")] * 3)
    team = team_of(long, many, entries=2, task_chars=100, tries=2)

    with pytest.raises(PlanRefused) as caught:
        await desk.prompt(team)

    assert caught.value.problems == ("it has 3 entries; at most 2 are run. Join tasks that belong together",)
    told = [e.message.text for e in await desk.log(team, "s~manager") if isinstance(e, TurnStarted)]
    assert "task has 101 characters; at most 100 are accepted" in told[1]


@pytest.mark.parametrize(
    "around", ["{}", "Here is the plan:\n```json\n{}\n```\nGood luck!", "As in [1] and [2]: {}", "a [draft]: {}"]
)
async def test_prose_and_fences_around_the_only_array_are_read_past(around: str, desk: Desk) -> None:
    reply = await desk.prompt(team_of(around.format(GOOD)))

    assert "developer01 did build it" in reply.text


async def test_half_a_character_in_a_task_does_no_harm(desk: Desk) -> None:
    reply = await desk.prompt(team_of(plan(entry("developer", "build \ud83d it"))))

    assert "developer01 did build \ufffd it" in reply.text


async def test_a_manager_that_fails_fails_the_team_and_resume_asks_it_again(place: Desk) -> None:
    models = iter([RuntimeError("offline"), GOOD])
    team = team_of(manager=Agent("manager", model=Script(lambda _: next(models))))

    with pytest.raises(Exception, match="offline"):
        await place.prompt(team)
    reply = await place.resume(team)

    assert "developer01 did build it" in reply.text
    assert await steps(place, team) == ["plan1.1", "developer01", "reviewer"]


async def test_an_accepted_plan_is_written_down_once_with_its_workers(place: Desk) -> None:
    asked: list[int] = []

    def decide(request: Request) -> str:
        asked.append(turns(request))
        return GOOD

    team = team_of(manager=Agent("manager", model=Script(decide)), roles={"developer": works()})
    await place.prompt(team)
    await place.resume(team)

    (planned,) = [e for e in await place.log(team) if isinstance(e, Planned)]
    assert planned.value[0]["worker"] == "developer01"
    assert asked == [0]


async def test_the_planner_is_named_as_its_agent_is(desk: Desk) -> None:
    lead = manages(GOOD, plan(entry("developer", "build it", caller="lead")), name="lead")

    reply = await desk.prompt(team_of(manager=lead))

    told = [
        e.message.text for e in await desk.log(team_of(manager=lead), "s~manager") if isinstance(e, TurnStarted)
    ]
    assert "caller must be 'lead'" in told[1]
    assert "developer01 did build it" in reply.text
