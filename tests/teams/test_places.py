"""A team is accepted wherever an agent is; it can be cancelled, steered, limited and taken over like one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from callbacks.doubles import Desk, delegates, results
from teams.doubles import entry, manages, plan, reviews, says, team_of, works
from upcall import Agent, Context, Hooks, Limits, Request, Runtime, Team, chain, tool
from upcall.errors import BadAgent, ChildFailed, SessionTakenOver, SessionWaiting, UnknownAgent
from upcall.events import SessionStarted, StepEnded, StepStarted, TurnEnded
from upcall.hooks import inherited
from upcall.models import Script, call

ONE = plan(entry("developer", "a"))


def asks_person() -> Any:
    @tool
    async def asks(ctx: Context) -> str:
        """Ask."""
        return await ctx.raise_callback(f"{ctx.agent}?", "blocker", kind="request_user_input")

    return asks


# --- where a team stands ----------------------------------------------------------------


async def test_an_agent_delegates_to_a_team(place: Desk) -> None:
    def decide(request: Request) -> Any:
        said = results(request.messages)
        return said[0].text if said else call("task", agent="team", prompt="build")

    boss = Agent("boss", model=Script(decide), agents=[team_of(ONE)])

    reply = await place.prompt(boss)

    assert "The task was:\nbuild" in reply.text
    headers = [e for e in await place.log(boss, None) if isinstance(e, SessionStarted)]
    assert [(h.agent, h.kind, h.depth) for h in headers] == [
        ("boss", "agent", 0),
        ("team", "coordinator", 1),
        ("manager", "agent", 2),
        ("developer01", "agent", 2),
        ("reviewer", "agent", 2),
    ]


async def test_a_team_is_a_step_of_a_chain_and_a_chain_is_a_role_of_a_team(place: Desk) -> None:
    line = chain(says("draft"), says("polish"), name="line")
    team = Team(manages(plan(entry("writer", "a poem"))), {"writer": line})
    whole = chain(says("before"), team, says("after", lambda t: t.upper()))

    reply = await place.prompt(whole, "go")

    assert "WRITER01 (WRITER): DONE\nTASK: A POEM\n<RESULT-WRITER01>\nPOLISH(DRAFT(A POEM))" in reply.text
    async with place.runtime(whole) as runtime:
        assert (await runtime.load("s~2.team~manager")).get_messages()[0].text == "before(go)"
        assert (await runtime.load("s~2.team~writer01")).agent == "writer01"


async def test_a_team_is_a_role_of_a_team_and_each_has_its_own_numbers(place: Desk) -> None:
    inner = Team(
        manages(plan(entry("developer", "i", caller="lead"), entry("developer", "j", caller="lead")), name="lead"),
        {"developer": works("coder")},
        name="inner",
    )
    team = team_of(plan(entry("group", "a"), entry("group", "b")), roles={"group": inner}, reviewer=None)

    reply = await place.prompt(team)

    assert reply.text.count("developer01 did i") == reply.text.count("developer02 did j") == 2
    async with place.runtime(team) as runtime:
        ids = {row.id for row in await runtime.rows()}
    assert {"s~group01~developer01", "s~group02~developer02", "s~group01~manager"} <= ids


async def test_parked_deep_inside_other_teams_and_chains_it_continues(place: Desk) -> None:
    inner = Team(
        manages(plan(entry("developer", "i", caller="lead")), name="lead"),
        {"developer": works("coder", asks_person())},
        name="inner",
    )
    line = chain(says("first"), inner, name="line")
    outer = team_of(plan(entry("group", "a")), roles={"group": line}, reviewer=None)

    assert (await place.prompt(outer)).status == "waiting"
    await place.settle(outer, "yes", "developer01?")
    reply = await place.resume(outer)

    assert reply.status == "done"
    assert "\nyes\n" in reply.text


async def test_a_team_is_found_by_its_name_and_runs_through_the_sync_door() -> None:
    from upcall import run

    reply = await asyncio.to_thread(run, team_of(ONE), "go")

    assert "developer01 did a" in reply.text


async def test_two_teams_of_one_name_are_refused(desk: Desk) -> None:
    with pytest.raises(BadAgent, match="two different agents have this name"):
        desk.runtime(team_of(ONE), team_of(ONE))


async def test_a_person_may_talk_on_with_a_member_by_its_session(desk: Desk) -> None:
    team = team_of(ONE)
    await desk.prompt(team)

    async with desk.runtime(team) as runtime:
        worker, reviewer = await runtime.load("s~developer01"), await runtime.load("s~reviewer")
        said = [(await member.prompt("and now?")).text for member in (worker, reviewer)]

    assert said == ["developer01 did and now?", "REPORT\nand now?"]


# --- cancel, steer, limits, take over ---------------------------------------------------


async def test_cancelling_a_team_ends_its_workers_and_withdraws_their_questions(place: Desk) -> None:
    tasks = plan(*[entry("developer", str(n)) for n in range(3)])
    team = team_of(tasks, roles={"developer": works("developer", asks_person())})

    waiting = await place.prompt(team)
    async with place.runtime(team) as runtime:
        await runtime.cancel("s", "no longer needed")
        rows = {row.id: row.status for row in await runtime.rows() if row.id.count("~") < 2}
        assert await runtime.inbox() == []
        callbacks = await runtime.store.callbacks(root="s")

    assert waiting.status == "waiting"
    assert rows == {
        "s": "cancelled",
        "s~manager": "done",
        **{f"s~developer0{n}": "cancelled" for n in (1, 2, 3)},
    }
    assert {held.status for held in callbacks} == {"withdrawn"}
    assert (await place.resume(team)).status == "cancelled"


async def test_cancelling_a_running_team_stops_its_workers_where_they_are(place: Desk) -> None:
    working, done = asyncio.Event(), list[str]()

    @tool
    async def long(ctx: Context) -> str:
        """Work without end."""
        working.set()
        await asyncio.Event().wait()
        done.append(ctx.agent)
        return "never"

    team = team_of(ONE, roles={"developer": works("developer", long)})
    async with place.runtime(team) as runtime:
        session = await runtime.start(team, "s")
        turn = asyncio.ensure_future(session.prompt("go"))
        await working.wait()
        await session.cancel()
        reply = await turn

    assert (reply.status, done) == ("cancelled", [])
    ended = [e.status for e in await place.log(team, "s~developer01") if isinstance(e, TurnEnded)]
    assert ended == ["cancelled"]


async def test_cancelling_one_worker_is_its_end_and_not_the_teams(desk: Desk) -> None:
    team = team_of(
        plan(entry("developer", "a"), entry("tester", "b", 2)),
        roles={"developer": works("developer", asks_person()), "tester": works("tester")},
    )
    await desk.prompt(team)
    async with desk.runtime(team) as runtime:
        await runtime.cancel("s~developer01")

    reply = await desk.resume(team)

    assert "developer01 (developer): cancelled" in reply.text
    assert "tester01 did b" in reply.text


async def test_a_new_prompt_after_a_cancel_begins_a_new_plan(desk: Desk) -> None:
    team = team_of(
        ONE, plan(entry("tester", "b")), roles={"developer": works("d", asks_person()), "tester": works("t")}
    )
    await desk.prompt(team)
    async with desk.runtime(team) as runtime:
        await runtime.cancel("s")
        reply = await (await runtime.load("s")).prompt("again")

    assert reply.status == "done"
    assert "tester01 did b" in reply.text


async def test_prompting_a_waiting_team_names_what_it_waits_for(desk: Desk) -> None:
    team = team_of(ONE, roles={"developer": works("developer", asks_person())})
    waiting = await desk.prompt(team)

    async with desk.runtime(team) as runtime:
        with pytest.raises(SessionWaiting) as caught:
            await (await runtime.load("s")).prompt("more")

    assert list(caught.value.callbacks) == [c.id for c in waiting.callbacks]


async def test_what_is_said_to_a_team_meanwhile_reaches_everybody_who_begins_next(place: Desk) -> None:
    team = team_of(
        plan(entry("developer", "a"), entry("tester", "b", 2), entry("tester", "c", 2), entry("tester", "d", 3)),
        roles={"developer": works("developer", asks_person()), "tester": works("tester")},
    )
    await place.prompt(team)
    async with place.runtime(team) as runtime:
        await runtime.steer("s", "use French", by="ops")
        await runtime.steer("s", "and be brief", by="ops")
    await place.settle(team, "yes")

    reply = await place.resume(team)

    heard = "\n\nuse French\n\nand be brief"
    for worker, task, more in (("tester01", "b", heard), ("tester02", "c", heard), ("tester03", "d", "")):
        assert f"<result-{worker}>\n{worker} did {task}{more}\n</result-{worker}>" in reply.text


async def test_what_is_said_after_the_last_step_began_is_heard_with_the_next_prompt(desk: Desk) -> None:
    team = team_of(ONE, plan(entry("tester", "b")), reviewer=works("reviewer", asks_person()))
    await desk.prompt(team)
    async with desk.runtime(team) as runtime:
        await runtime.steer("s", "use French")
    await desk.settle(team, "yes")
    await desk.resume(team)

    async with desk.runtime(team) as runtime:
        await (await runtime.load("s")).prompt("go on")
        manager = await runtime.load("s~manager")

    assert [m.text for m in manager.get_messages() if m.role == "user"] == ["go", "go on\n\nuse French"]


async def test_a_role_that_is_gone_when_the_work_continues_is_named(place: Desk) -> None:
    roles = {"developer": works("developer", asks_person()), "tester": works("tester")}
    tasks = plan(entry("developer", "a"), entry("tester", "b", 2))
    before, after = team_of(tasks, roles=roles), team_of(tasks, roles={"developer": roles["developer"]})
    await place.prompt(before)
    await place.settle(before, "yes")

    with pytest.raises(UnknownAgent, match="tester"):
        await place.resume(after)
    reply = await place.resume(before)

    assert "tester01 did b" in reply.text


async def test_a_teams_own_time_and_children_are_not_limited_but_each_members_are(desk: Desk) -> None:
    many = plan(*[entry("developer", str(n), n) for n in range(120)])
    limited = says("developer", limits=Limits(model_calls=1))

    reply = await desk.prompt(team_of(many, roles={"developer": limited}, entries=200))

    assert "developer120 (developer): done" in reply.text


async def test_depth_counts_teams_too(desk: Desk) -> None:
    team: Agent = says("deepest")
    for number in range(7):
        team = chain(team, name=f"level{number}")

    with pytest.raises(ChildFailed, match=r"it did not complete its step \(limit depth"):
        await desk.prompt(team)


@pytest.mark.slow
async def test_who_lost_a_team_starts_nothing_more_and_the_other_continues(place: Desk) -> None:
    working, ran = asyncio.Event(), list[str]()
    first = True

    @tool(repeatable=True)
    async def work(ctx: Context) -> str:
        """Hang in the first process."""
        nonlocal first
        if first:
            first = False
            working.set()
            await asyncio.Event().wait()
        ran.append(ctx.agent)
        return "worked"

    roles = {"developer": works("developer", work), "tester": works("tester")}
    team = team_of(plan(entry("developer", "a"), entry("tester", "b", 2)), roles=roles)
    async with place.runtime(team) as loser, place.runtime(team) as winner:
        turn = asyncio.ensure_future((await loser.start(team, "s")).prompt("go"))
        await working.wait()
        reply = await winner.resume("s", take_over=True)
        with pytest.raises(SessionTakenOver):
            await turn

    assert ran == ["developer01"]
    assert "tester01 did b" in reply.text
    steps = [e.step for e in await place.log(team) if isinstance(e, StepStarted | StepEnded)]
    assert steps == [name for name in ("plan1.1", "developer01", "tester01", "reviewer") for _ in range(2)]


async def test_stopping_the_runtime_in_the_middle_loses_nothing(place: Desk) -> None:
    working, done = asyncio.Event(), list[str]()

    @tool(repeatable=True)
    async def work(ctx: Context) -> str:
        """The second hangs until the runtime is closed."""
        if ctx.agent == "developer02" and not working.is_set():
            working.set()
            await asyncio.Event().wait()
        done.append(ctx.agent)
        return "worked"

    team = team_of(
        plan(entry("developer", "a"), entry("developer", "b")), roles={"developer": works("developer", work)}
    )
    async with place.runtime(team) as runtime:
        turn = asyncio.ensure_future((await runtime.start(team, "s")).prompt("go"))
        await working.wait()
    await asyncio.gather(turn, return_exceptions=True)

    reply = await place.resume(team)

    assert sorted(done) == ["developer01", "developer02"]
    assert reply.text.count("worked") == 2


async def test_a_stream_shows_what_every_member_does(desk: Desk) -> None:
    team = team_of(ONE)
    async with desk.runtime(team) as runtime:
        session = await runtime.start(team, "s")
        sessions = {item.session async for item in session.stream("go")}

    assert sessions == {"s", "s~manager", "s~developer01", "s~reviewer"}


async def test_the_usage_of_a_team_is_that_of_all_its_steps(desk: Desk) -> None:
    from upcall import Response
    from upcall.messages import Usage

    def counted(text: str) -> Script:
        return Script(lambda _: Response(text, usage=Usage(10, 1)))

    team = Team(
        Agent("manager", model=counted(ONE)),
        {"developer": Agent("developer", model=counted("x"))},
        Agent("reviewer", model=counted("y")),
    )

    reply = await desk.prompt(team)

    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (30, 3)


async def test_a_team_with_one_role_and_the_same_agent_everywhere_works(desk: Desk) -> None:
    def decide(request: Request) -> str:
        return json.dumps([entry("solo", "x", caller="one")]) if "You plan" in request.instructions else "ok"

    one = Agent("one", model=Script(decide))

    reply = await desk.prompt(Team(one, {"solo": one}, one))

    assert reply.text == "ok"


async def test_members_are_told_nothing_of_each_others_conversations(desk: Desk) -> None:
    seen: dict[str, list[str]] = {}

    def decide(request: Request) -> str:
        seen[request.agent] = [m.text for m in request.messages]
        return "secret of " + request.agent

    worker = Agent("developer", model=Script(decide))
    team = team_of(plan(entry("developer", "a"), entry("developer", "b", 2)), roles={"developer": worker})

    await desk.prompt(team)

    assert seen == {"developer01": ["a"], "developer02": ["b"]}


async def test_a_worker_with_agents_of_its_own_delegates_and_answers_them(desk: Desk) -> None:
    helper = works("helper", _asking())

    def decide(request: Request) -> Any:
        if request.purpose == "side_turn":
            return call("answer_callback", value="by worker")
        said = results(request.messages)
        return said[0].text if said else call("task", agent="helper", prompt="x")

    worker = Agent("developer", model=Script(decide), agents=[helper])
    team = team_of(ONE, roles={"developer": worker}, reviewer=reviews())

    reply = await desk.prompt(team)

    assert "by worker" in reply.text
    assert [step.agent for step in reply.callbacks[0].path] == ["developer01"]


def _asking() -> Any:
    @tool
    async def wonder(ctx: Context) -> str:
        """Ask the one above."""
        return await ctx.raise_callback("how?", "blocker")

    return wonder


async def test_an_in_memory_team_needs_no_host_where_the_manager_answers() -> None:
    team = team_of(
        ONE, aside=lambda _: call("answer_callback", value="so"), roles={"developer": works("d", _asking())}
    )

    async with Runtime(agents=[team]) as runtime:
        reply = await (await runtime.start(team)).prompt("go")

    assert "\nso\n" in reply.text


async def test_an_inherited_hook_at_a_chains_own_end_may_wait_and_no_step_runs_again(place: Desk) -> None:
    ran: list[str] = []

    def note(told: str) -> str:
        ran.append(told)
        return "written"

    @inherited
    async def sign(session: Any, reply: Any) -> str | None:
        if session.agent != "line":
            return None
        return f"{reply.text}, signed {await session.raise_callback('Who signs?', 'blocker')}"

    line = chain(says("a", note), name="line")
    boss = delegates("boss", line, lambda _: call("pass_up_callback", reason="no")).replace(
        hooks=Hooks(end_turn=[sign])
    )

    assert (await place.prompt(boss)).status == "waiting"
    await place.settle(boss, "Otto")
    reply = await place.resume(boss)

    assert (reply.text, ran) == ("written, signed Otto", ["do it"])


async def test_a_hook_can_not_make_a_chain_think(desk: Desk) -> None:
    @inherited
    async def wonder(session: Any, _: Any) -> None:
        if session.agent == "line":
            await session.prompt("what do you think?")

    boss = delegates("boss", chain(says("a"), name="line")).replace(hooks=Hooks(pre_request=[wonder]))

    reply = await desk.prompt(boss)

    assert "line is a team or a chain and has no model" in reply.text


async def test_the_way_to_ask_in_a_program_is_taught_to_those_who_write_some(desk: Desk) -> None:
    told: list[str] = []

    def decide(request: Request) -> str:
        told.append(request.instructions)
        return "ok"

    @tool
    async def run_python(code: str) -> str:
        """Stands for the tool of that name."""
        return code

    worker = Agent("developer", model=Script(decide), tools=[run_python])
    await desk.prompt(team_of(ONE, roles={"developer": worker}))

    assert "the tool ask(message, type) or raise_callback(message, type) in the Python you write" in told[0]
