"""A worker that fails does not lose the others: `go_on`, `stop` and still report, or `replan` twice at most."""

from __future__ import annotations

from typing import Any

import pytest

from callbacks.doubles import Desk, results
from teams.doubles import broken, entry, manages, plan, reviews, says, task_of, team_of, works
from upcall import Agent, Context, Hooks, Limits, Request, tool
from upcall.events import Planned, StepEnded, StepStarted, TurnStarted
from upcall.models import Script, call

TWO = plan(entry("developer", "a"), entry("developer", "b"), entry("tester", "t", 2))


async def steps(desk: Desk, team: Any) -> list[str]:
    return [e.step for e in await desk.log(team) if isinstance(e, StepStarted)]


def roles(*failing: str) -> dict[str, Agent]:
    return {"developer": broken(tasks=failing), "tester": works("tester")}


async def test_go_on_is_the_default_and_tells_the_reviewer_who_failed(desk: Desk) -> None:
    team = team_of(TWO, roles=roles("a"))

    reply = await desk.prompt(team)

    assert 'developer01 (developer): failed ("RuntimeError: boom")\nTask: a\nIt said nothing.' in reply.text
    assert "developer02 did it" in reply.text
    assert "tester01 did t" in reply.text
    assert await steps(desk, team) == ["plan1.1", "developer01", "developer02", "tester01", "reviewer"]


async def test_stop_lets_the_sequence_end_and_the_reviewer_report_what_was_not_started(desk: Desk) -> None:
    team = team_of(TWO, roles=roles("a"), on_failure="stop")

    reply = await desk.prompt(team)

    assert reply.status == "done"
    assert "developer02 did it" in reply.text
    assert reply.text.endswith("The work was stopped after a failure. Not started:\n- tester01, sequence 2: t")
    assert await steps(desk, team) == ["plan1.1", "developer01", "developer02", "reviewer"]


async def test_stop_without_a_reviewer_says_so_in_the_reply(desk: Desk) -> None:
    reply = await desk.prompt(team_of(TWO, roles=roles("a"), on_failure="stop", reviewer=None))

    assert reply.text.endswith("Stopped after a failure. Not started:\n- tester01, sequence 2: t")


async def test_replan_shows_the_same_manager_all_ends_and_replaces_what_has_not_started(desk: Desk) -> None:
    second = plan(entry("developer", "c"), entry("tester", "u", 2))
    team = team_of(TWO, second, roles=roles("a"), on_failure="replan")

    reply = await desk.prompt(team)

    assert await steps(desk, team) == [
        *("plan1.1", "developer01", "developer02"),
        *("plan2.1", "developer03", "tester02", "reviewer"),
    ]
    told = [e.message.text for e in await desk.log(team, "s~manager") if isinstance(e, TurnStarted)]
    assert len(told) == 2
    for words in (
        'developer01 (developer): failed ("RuntimeError: boom")',
        "developer02 did it",
        "- tester01, sequence 2: t",
    ):
        assert words in told[1]
    for worker in ("developer01", "developer02", "developer03", "tester02"):
        assert f"\n{worker} (" in reply.text
    assert "tester01" not in reply.text


async def test_replan_waits_until_its_whole_sequence_has_ended(place: Desk) -> None:
    @tool
    async def asks(ctx: Context) -> str:
        """Ask."""
        return await ctx.raise_callback("may I?", "blocker", kind="request_user_input")

    def work(request: Request) -> Any:
        if task_of(request) == "a":
            return RuntimeError("boom")
        said = results(request.messages)
        return said[0].text if said or task_of(request) == "c" else call("asks")

    def manage(request: Request) -> str:
        return TWO if len(request.messages) == 1 else "[]"

    team = team_of(
        manager=Agent("manager", model=Script(manage)),
        roles={"developer": Agent("developer", model=Script(work), tools=[asks]), "tester": works("tester")},
        on_failure="replan",
    )

    assert (await place.prompt(team)).status == "waiting"
    assert "plan2.1" not in await steps(place, team)
    await place.settle(team, "you may")
    reply = await place.resume(team)

    assert "you may" in reply.text
    assert await steps(place, team) == ["plan1.1", "developer01", "developer02", "plan2.1", "reviewer"]


async def test_a_team_is_replanned_twice_at_most_and_then_stops(desk: Desk) -> None:
    plans = [plan(entry("developer", f"try {n}"), entry("tester", "t", 2)) for n in range(4)]
    team = team_of(*plans, roles={"developer": broken(), "tester": works("tester")}, on_failure="replan")

    reply = await desk.prompt(team)

    planned = [e.step for e in await desk.log(team) if isinstance(e, Planned)]
    assert planned == ["plan1", "plan2", "plan3"]
    assert await steps(desk, team) == [
        *("plan1.1", "developer01", "plan2.1", "developer02", "plan3.1", "developer03", "reviewer"),
    ]
    assert "Not started:\n- tester03, sequence 2: t" in reply.text


async def test_the_manager_may_plan_nothing_more(desk: Desk) -> None:
    team = team_of(TWO, "[]", roles=roles("a"), on_failure="replan")

    reply = await desk.prompt(team)

    assert reply.status == "done"
    assert "tester" not in reply.text


async def test_a_bad_new_plan_goes_back_like_the_first(desk: Desk) -> None:
    team = team_of(TWO, plan(entry("boss", "x")), plan(entry("tester", "x")), roles=roles("a"), on_failure="replan")

    reply = await desk.prompt(team)

    assert "tester02 did x" in reply.text
    assert "plan2.2" in await steps(desk, team)


async def test_a_new_prompt_may_be_replanned_twice_again(desk: Desk) -> None:
    plans = [plan(entry("developer", "a")) for _ in range(6)]
    team = team_of(*plans, roles={"developer": broken()}, on_failure="replan")

    async with desk.runtime(team) as runtime:
        session = await runtime.start(team, "s")
        await session.prompt("one")
        reply = await session.prompt("two")

    assert [line.split()[0] for line in reply.text.splitlines() if ": failed" in line] == [
        *("developer04", "developer05", "developer06"),
    ]


def fails(*_: Any) -> None:
    raise ValueError("no")


ENDS: dict[str, tuple[Agent, str]] = {
    "its model fails": (broken(), 'failed ("RuntimeError: boom")'),
    "a hook fails": (
        says("developer", hooks=Hooks(pre_request=[fails])),
        'failed ("HookFailed: ',
    ),
    "begin_session fails": (
        says("developer", hooks=Hooks(begin_session=[fails])),
        'failed ("HookFailed: ',
    ),
    "a limit": (
        Agent("developer", model=Script(lambda _: call("nothing")), limits=Limits(model_calls=2)),
        'limit ("limit model_calls")',
    ),
    "the wrong output": (says("developer", output=int), 'failed ("OutputInvalid: '),
}


@pytest.mark.parametrize("name", ENDS)
async def test_whatever_ends_a_worker_badly_is_written_down_and_the_others_work_on(name: str, place: Desk) -> None:
    worker, said = ENDS[name]
    team = team_of(
        plan(entry("developer", "a"), entry("tester", "b")), roles={"developer": worker, "tester": works("tester")}
    )

    reply = await place.prompt(team)

    assert f"developer01 (developer): {said}" in reply.text
    assert "tester01 did b" in reply.text


async def test_a_worker_that_failed_never_runs_again(place: Desk) -> None:
    ran: list[str] = []

    def fail(request: Request) -> Any:
        ran.append(request.agent)
        return RuntimeError("boom")

    reviewer_fails = [RuntimeError("offline")]

    def review(request: Request) -> Any:
        return reviewer_fails.pop() if reviewer_fails else "REPORT " + task_of(request)

    team = team_of(
        plan(entry("developer", "a")),
        roles={"developer": Agent("developer", model=Script(fail))},
        reviewer=Agent("reviewer", model=Script(review)),
    )

    with pytest.raises(Exception, match="offline"):
        await place.prompt(team)
    reply = await place.resume(team)

    assert ran == ["developer01"]
    assert "developer01 (developer): failed" in reply.text
    ends = [e.step for e in await place.log(team) if isinstance(e, StepEnded)]
    assert ends == ["plan1.1", "developer01", "reviewer"]


async def test_a_manager_that_reaches_a_limit_fails_the_team_by_name(desk: Desk) -> None:
    manager = Agent("manager", model=Script(lambda _: call("nothing")), limits=Limits(model_calls=2))

    with pytest.raises(Exception, match=r"manager .* did not complete its step .limit model_calls"):
        await desk.prompt(team_of(manager=manager))


async def test_a_chain_may_review(desk: Desk) -> None:
    from upcall import chain

    team = team_of(plan(entry("developer", "a")), reviewer=chain(reviews(), says("editor", lambda t: t[:6])))

    assert (await desk.prompt(team)).text == "REPORT"


async def test_failing_in_an_inner_team_is_the_inner_teams_matter(desk: Desk) -> None:
    from upcall import Team

    inner = Team(
        manages(plan(entry("developer", "x", caller="lead")), name="lead"), {"developer": broken()}, name="inner"
    )
    team = team_of(plan(entry("builder", "a")), roles={"builder": inner}, on_failure="stop")

    reply = await desk.prompt(team)

    assert "builder01 (builder): done" in reply.text
    assert 'developer01 (developer): failed ("RuntimeError: boom")' in reply.text
