"""Whom a team's workers ask: the manager named by `caller`, then whoever is above the team; without it nobody."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from callbacks.doubles import Desk, Person, answers, passes, results
from teams.doubles import entry, manages, plan, reviews, says, team_of, turns, works
from upcall import (
    Agent,
    Answer,
    Approve,
    Call,
    Callback,
    Context,
    Hooks,
    Reject,
    Request,
    Result,
    Runtime,
    Team,
    chain,
    tool,
)
from upcall.events import MessageAdded, SessionStarted
from upcall.hooks import inherited
from upcall.models import Script, call
from upcall.tools import Tool

SHOWN = "While you were at work"


def asking(message: str = "which way?", intent: str = "query", **options: Any) -> Tool:
    @tool
    async def asks(ctx: Context) -> str:
        """Ask."""
        return repr(await ctx.raise_callback(message, intent, **options))

    return asks


def path(callback: Callback) -> list[tuple[str, str]]:
    return [(step.agent, step.step) for step in callback.path]


ALONE = plan(entry("developer", "a", caller=None))
ONE = plan(entry("developer", "a"))


# --- with a caller ----------------------------------------------------------------------


async def test_a_manager_that_has_finished_answers_from_a_side_turn(desk: Desk) -> None:
    team = team_of(ONE, aside=answers("left"), roles={"developer": works("developer", asking())}, reviewer=None)

    reply = await desk.prompt(team)

    assert "'left'" in reply.text
    assert path(reply.callbacks[0]) == [("manager", "asked")]


async def test_what_the_manager_passes_up_reaches_the_agent_that_called_the_team(desk: Desk) -> None:
    team = team_of(ONE, aside=passes(), roles={"developer": works("developer", asking())}, reviewer=None)

    def decide(request: Request) -> Any:
        if request.purpose == "side_turn":
            return call("answer_callback", value="right")
        said = results(request.messages)
        return said[0].text if said else call("task", agent="team", prompt="go")

    boss = Agent("boss", model=Script(decide), agents=[team])

    reply = await desk.prompt(boss)

    assert "'right'" in reply.text
    assert path(reply.callbacks[0]) == [("manager", "asked"), ("manager", "passed"), ("boss", "asked")]


async def test_nobody_ever_asks_the_team_itself(desk: Desk) -> None:
    person = Person(lambda _: "by person")
    team = team_of(ONE, aside=passes(), roles={"developer": works("developer", asking())}, reviewer=None)

    reply = await desk.prompt(team, host=person)

    assert "'by person'" in reply.text
    assert [name for name, _ in path(reply.callbacks[0])] == ["manager", "manager", "user"]


async def test_the_managers_hooks_are_asked_before_its_model(desk: Desk) -> None:
    def faq(_: Any, callback: Callback) -> Answer | None:
        return Answer("by hook") if "which" in callback.message else None

    manager = manages(ONE, hooks=Hooks(on_callback=[faq]))
    team = team_of(manager=manager, roles={"developer": works("developer", asking())}, reviewer=None)

    reply = await desk.prompt(team)

    assert "'by hook'" in reply.text


@pytest.mark.parametrize("below", [(), (says("helper"),)], ids=["alone", "with agents of its own"])
async def test_the_managers_side_turn_has_the_same_bytes_before_the_question(
    below: tuple[Agent, ...], desk: Desk
) -> None:
    seen: list[Request] = []

    def decide(request: Request) -> Any:
        seen.append(request)
        return call("answer_callback", value="x") if request.purpose == "side_turn" else ONE

    @tool
    async def look(ctx: Context) -> str:
        """Look."""
        return ctx.agent

    manager = Agent("manager", model=Script(decide), tools=[look], agents=below, instructions="Plan well.")
    await desk.prompt(team_of(manager=manager, roles={"developer": works("developer", asking())}))

    main, aside = seen
    assert (aside.instructions, aside.tools) == (main.instructions, main.tools)
    assert aside.messages[:1] == main.messages
    assert [m.role for m in aside.messages] == ["user", "assistant", "user"]
    assert {"answer_callback", "pass_up_callback", "reword_callback"} <= {t.name for t in main.tools}


async def test_side_turns_of_several_workers_come_one_after_the_other_and_know_of_each_other(desk: Desk) -> None:
    known: list[int] = []

    def aside(request: Request) -> Call:
        known.append(sum(SHOWN in m.text for m in request.messages))
        return call("answer_callback", value=len(known))

    tasks = plan(*[entry("developer", str(n)) for n in range(4)])
    team = team_of(tasks, aside=aside, roles={"developer": works("developer", asking())})

    await desk.prompt(team)

    assert known == [0, 1, 2, 3]


async def test_the_manager_is_shown_the_exchange_before_its_next_model_call(desk: Desk) -> None:
    @tool
    async def fails(ctx: Context) -> str:
        """Ask, then let its turn fail."""
        await ctx.raise_callback("which way?", "blocker")
        return "asked"

    def work(request: Request) -> Any:
        return RuntimeError("boom") if results(request.messages) else call("fails")

    seen: list[Request] = []

    def manage(request: Request) -> Any:
        seen.append(request)
        if request.purpose == "side_turn":
            return call("answer_callback", value="left")
        return [ONE, "[]"][turns(request)]

    team = team_of(
        manager=Agent("manager", model=Script(manage)),
        roles={"developer": Agent("developer", model=Script(work), tools=[fails])},
        on_failure="replan",
    )
    await desk.prompt(team)

    assert [r.purpose for r in seen] == ["turn", "side_turn", "turn"]
    texts = [m.text for m in seen[2].messages]
    assert [text.startswith(SHOWN) for text in texts] == [False, False, True, False]
    assert 'You answered: "left".' in texts[2]
    added = [e for e in await desk.log(team, "s~manager") if isinstance(e, MessageAdded)]
    assert len(added) == 1


async def test_questions_wait_for_the_person_and_other_processes_answer_them_in_any_order(place: Desk) -> None:
    tasks = plan(*[entry("developer", str(n)) for n in range(3)], entry("tester", "t", 2))

    @tool
    async def asks(ctx: Context) -> str:
        """Ask a question of its own."""
        return await ctx.raise_callback(f"{ctx.agent}?", "blocker", kind="request_user_input")

    team = team_of(tasks, roles={"developer": works("developer", asks), "tester": works("tester")})

    assert (await place.prompt(team)).status == "waiting"
    for number in (3, 1, 2):
        await place.settle(team, f"answer {number}", f"developer0{number}?")
        reply = await place.resume(team)

    assert reply.status == "done"
    for number in (1, 2, 3):
        assert f"<result-developer0{number}>\nanswer {number}\n" in reply.text
    assert "tester01 did t" in reply.text


# --- without a caller -------------------------------------------------------------------


async def test_without_a_caller_a_query_is_none_with_a_warning(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    team = team_of(ALONE, roles={"developer": works("developer", asking())}, reviewer=None)

    with caplog.at_level(logging.WARNING, "upcall"):
        reply = await desk.prompt(team, host=Person(lambda _: "never asked"))

    assert "None" in reply.text
    assert path(reply.callbacks[0]) == []
    assert "which way?" in caplog.text


async def test_without_a_caller_a_blocker_raises_and_says_what_is_missing(desk: Desk) -> None:
    person = Person(lambda _: "never asked")
    tools = asking("stuck", "blocker"), asking("name?", kind="request_user_input").replace(name="other")
    team = team_of(ALONE, roles={"developer": works("developer", *tools)}, reviewer=None)

    reply = await desk.prompt(team, host=person)

    assert "nobody may answer the blocker 'stuck' from developer01" in reply.text
    assert "Nobody is above developer01." in reply.text
    assert "there is no plan entry with a caller for developer01" in reply.text
    assert "a `caller` in the plan's entry for developer01" in reply.text
    assert "can_use_host_interaction: true in" not in reply.text
    assert person.seen == []


async def test_without_a_caller_the_tool_ask_is_not_offered(desk: Desk) -> None:
    offered: dict[str, set[str]] = {}

    def decide(request: Request) -> str:
        offered[request.agent] = {t.name for t in request.tools}
        return "ok"

    two = plan(entry("developer", "a", caller=None), entry("developer", "b"))
    await desk.prompt(team_of(two, roles={"developer": Agent("developer", model=Script(decide))}))

    assert offered == {"developer01": set(), "developer02": {"ask"}}


async def test_without_a_caller_approvals_still_reach_the_person(desk: Desk) -> None:
    @tool(needs_approval=True)
    async def deploy() -> str:
        """Deploy."""
        return "deployed"

    person = Person(lambda _: Approve())
    team = team_of(ALONE, roles={"developer": works("developer", deploy)}, reviewer=None)

    reply = await desk.prompt(team, host=person)

    assert "deployed" in reply.text
    assert [c.intent for c in person.seen] == ["approval"]


async def test_no_hint_and_no_sidecar_gives_a_worker_without_a_caller_somebody_to_ask(desk: Desk) -> None:
    person = Person(lambda _: "never asked")
    architect = Agent("architect", model=Script(lambda _: call("answer_callback", value="never asked")))
    hinted = asking("stuck", "blocker", fallback_target="architect")
    written = works("tester", asking("stuck", "blocker"), callback_policy={"fallback_target": "architect"})
    both = plan(entry("developer", "a", caller=None), entry("tester", "b", caller=None))
    team = team_of(both, roles={"developer": works("developer", hinted), "tester": written}, reviewer=None)

    async with desk.runtime(team, architect, host=person) as runtime:
        reply = await (await runtime.start(team)).prompt("go")

    assert reply.text.count("nobody may answer the blocker 'stuck'") == 2
    assert "never asked" not in reply.text


@pytest.mark.parametrize("kind", ["chain", "team", "agent with agents"])
async def test_what_works_below_a_worker_without_a_caller_has_no_more_rights_than_it(kind: str, desk: Desk) -> None:
    person = Person(lambda _: "never asked")
    asker = works("asker", asking("stuck", "blocker"))
    inner: dict[str, Agent] = {
        "chain": chain(says("first"), asker),
        "team": Team(
            manages(plan(entry("helper", "x", caller="inner")), name="inner", aside=passes()),
            {"helper": asker},
            name="inside",
        ),
        "agent with agents": Agent(
            "lead",
            model=Script(
                lambda r: (
                    call("pass_up_callback", reason="no")
                    if r.purpose == "side_turn"
                    else "; ".join(x.text for x in results(r.messages)) or call("task", agent="asker", prompt="x")
                )
            ),
            agents=[asker],
        ),
    }
    team = team_of(ALONE, roles={"developer": inner[kind]}, reviewer=None)

    reply = await desk.prompt(team, host=person)

    assert "nobody may answer the blocker 'stuck'" in reply.text
    assert "there is no plan entry with a caller for developer01" in reply.text
    assert person.seen == []


async def test_with_a_caller_what_works_below_a_worker_climbs_to_the_manager(desk: Desk) -> None:
    line = chain(says("first"), works("asker", asking("stuck", "blocker")))
    team = team_of(ONE, aside=answers("by manager"), roles={"developer": line}, reviewer=None)

    reply = await desk.prompt(team)

    assert "'by manager'" in reply.text
    assert path(reply.callbacks[0]) == [("manager", "asked")]


# --- approvals and hooks that are passed on ---------------------------------------------


async def test_inherited_hooks_reach_every_member_of_a_team(desk: Desk) -> None:
    seen: list[str] = []

    @inherited
    def guard(session: Any, call: Call) -> Result | None:
        seen.append(f"{session.agent} {call.name}")
        return Result(call.id, "guarded") if call.name == "asks" else None

    team = team_of(ONE, roles={"developer": works("developer", asking())}, reviewer=None)

    def decide(request: Request) -> Any:
        said = results(request.messages)
        return said[0].text if said else call("task", agent="team", prompt="go")

    boss = Agent("boss", model=Script(decide), agents=[team], hooks=Hooks(before_tool=[guard]))

    reply = await desk.prompt(boss)

    assert "guarded" in reply.text
    assert seen == ["boss task", "developer01 asks"]


async def test_an_inherited_hook_still_holds_when_the_work_continues_in_another_process(place: Desk) -> None:
    seen: list[str] = []

    @inherited
    def guard(session: Any, call: Call) -> None:
        seen.append(f"{session.agent} {call.name}")

    @tool
    async def late() -> str:
        """Come after the answer."""
        return "late"

    def work(request: Request) -> Any:
        said = results(request.messages)
        return ["asks", "late", "done"][len(said)] if len(said) == 2 else call(["asks", "late"][len(said)])

    ask = asking("may I?", "blocker", kind="request_user_input")
    team = team_of(ONE, roles={"developer": Agent("developer", model=Script(work), tools=[ask, late])})

    def decide(request: Request) -> Any:
        said = results(request.messages)
        return said[0].text if said else call("task", agent="team", prompt="go")

    boss = Agent("boss", model=Script(decide), agents=[team], hooks=Hooks(before_tool=[guard]))

    assert (await place.prompt(boss)).status == "waiting"
    await place.settle(boss, "yes")
    assert (await place.resume(boss)).status == "done"

    assert seen == ["boss task", "developer01 asks", "developer01 late"]


async def test_the_manager_may_approve_what_its_sidecar_names_and_it_can_do_itself(desk: Desk) -> None:
    def outside(where: str) -> bool:
        return where != "staging"

    @tool(needs_approval=outside)
    async def deploy(where: str) -> str:
        """Deploy.

        where: to what
        """
        return f"deployed to {where}"

    def work(request: Request) -> Any:
        said = results(request.messages)
        return "; ".join(r.text for r in said) or call("deploy", where="production")

    def aside(_: Request) -> Call:
        return call("answer_callback", value={"args": {"where": "staging"}})

    manager = manages(ONE, aside=aside, tools=[deploy], callback_policy={"may_approve": ["deploy"]})
    roles = {"developer": Agent("developer", model=Script(work), tools=[deploy])}

    reply = await desk.prompt(team_of(manager=manager, roles=roles, reviewer=None))

    assert "deployed to staging" in reply.text
    assert reply.callbacks[0].answer is not None
    assert reply.callbacks[0].answer.by == "manager"


async def test_the_hooks_and_tools_of_a_managers_kit_stay_its_own(desk: Desk) -> None:
    from upcall import Kit

    seen: list[str] = []

    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    kit = Kit(Hooks(pre_request=[lambda session, _: seen.append(session.agent)]), [look])

    def decide(request: Request) -> Any:
        return ONE if results(request.messages) else call("look")

    await desk.prompt(team_of(manager=Agent("manager", model=Script(decide), kit=[kit])))

    assert seen == ["manager"]


async def test_the_reviewer_may_ask_whoever_called_the_team(desk: Desk) -> None:
    reviewer = works("reviewer", asking("is it good enough?", "blocker"))
    person = Person(lambda _: "ship it")

    reply = await desk.prompt(team_of(ONE, reviewer=reviewer), host=person)

    assert reply.text == "'ship it'"
    assert path(reply.callbacks[0]) == [("user", "asked")]


async def test_the_manager_may_ask_before_it_plans(place: Desk) -> None:
    def decide(request: Request) -> Any:
        said = results(request.messages)
        return plan(entry("developer", said[0].text)) if said else call("asks")

    manager = Agent("manager", model=Script(decide), tools=[asking("for whom?", "blocker")])
    team = team_of(manager=manager)

    assert (await place.prompt(team)).status == "waiting"
    await place.settle(team, "everybody")
    reply = await place.resume(team)

    assert "developer01 did 'everybody'" in reply.text
    assert 'manager, blocker: "for whom?"; answered by ops: "everybody"' in reply.text


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Approve(), "approved by ops"),
        (Approve(args={"env": "test"}), 'approved by ops with {"env":"test"}'),
        (Reject(), "rejected by ops"),
        (Reject("too risky"), 'rejected by ops: "too risky"'),
    ],
)
async def test_the_reviewer_reads_whether_a_call_was_approved_or_rejected(
    answer: Approve | Reject, told: str, place: Desk
) -> None:
    @tool(needs_approval=True)
    def deploy(env: str) -> str:
        """Deploy."""
        return env

    def work(request: Request) -> Any:
        return "done" if results(request.messages) else call("deploy", env="live")

    seen: list[str] = []

    def review(request: Request) -> str:
        seen.append(request.messages[-1].text)
        return "fine"

    developer = Agent("developer", model=Script(work), tools=[deploy])
    team = team_of(ONE, roles={"developer": developer}, reviewer=Agent("reviewer", model=Script(review)))

    assert (await place.prompt(team)).status == "waiting"
    await place.settle(team, answer)
    await place.resume(team)

    (line,) = [line for line in seen[0].splitlines() if line.startswith("- developer01, approval")]
    assert line.endswith(f"; {told}")


async def test_equal_questions_of_several_workers_are_one_entry_each(desk: Desk) -> None:
    tasks = plan(*[entry("developer", str(n)) for n in range(3)])
    ask = asking("which licence?", "blocker", kind="request_user_input")
    team = team_of(tasks, roles={"developer": works("developer", ask)}, reviewer=None)

    await desk.prompt(team)
    inbox = await desk.inbox(team)
    assert [(c.agent, len(c.group)) for c in inbox] == [(f"developer0{n}", 1) for n in (1, 2, 3)]
    async with desk.runtime(team) as runtime:
        for callback in inbox:
            await runtime.answer(callback.id, "MIT")
    reply = await desk.resume(team)

    assert reply.text.count("'MIT'") == 3


async def test_members_live_below_the_team_and_not_below_each_other(desk: Desk) -> None:
    team = team_of(plan(entry("developer", "a"), entry("tester", "b", 2)))

    await desk.prompt(team)

    headers = [e for e in await desk.log(team, None) if isinstance(e, SessionStarted)]
    assert [(h.session, h.parent, h.depth) for h in headers] == [
        ("s", "", 0),
        ("s~manager", "s", 1),
        ("s~developer01", "s", 1),
        ("s~tester01", "s", 1),
        ("s~reviewer", "s", 1),
    ]


async def test_two_workers_that_hold_open_questions_do_not_keep_a_third_from_working(desk: Desk) -> None:
    ended = asyncio.Event()

    @tool
    async def work(ctx: Context) -> str:
        """Ask, but for the last."""
        if ctx.agent == "developer03":
            ended.set()
            return "worked"
        return await ctx.raise_callback(f"{ctx.agent}?", "blocker", kind="request_user_input")

    async def patient(_: Callback) -> str:
        await ended.wait()
        return "yes"

    tasks = plan(*[entry("developer", str(n)) for n in range(3)])
    team = team_of(tasks, roles={"developer": works("developer", work)}, reviewer=reviews())
    async with Runtime(agents=[team], host=Person(patient)) as runtime:
        reply = await (await runtime.start(team)).prompt("go")

    assert reply.status == "done"
    assert "worked" in reply.text
