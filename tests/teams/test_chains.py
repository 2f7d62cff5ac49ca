"""Chains: a → b → c, each once, each a child of the chain; what one says is what the next one is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from callbacks.doubles import Desk, Person, answers, asker, delegates, results
from teams.doubles import says, task_of
from upcall import Agent, Context, Hooks, Limits, Reply, Request, Team, chain, tool
from upcall.errors import BadAgent, ChildFailed, StepFailed
from upcall.events import Planned, SessionStarted, StepEnded, StepStarted
from upcall.models import Script, call
from upcall.teams import branch, bridge, fan_out


def noted(ran: list[str], *names: str, **options: Any) -> list[Agent]:
    """Agents that note that they ran, and wrap what they were told."""

    def one(name: str) -> Agent:
        def decide(request: Request) -> str:
            ran.append(name)
            return f"{name}({task_of(request)})"

        return Agent(name, model=Script(decide), **options)

    return [one(name) for name in names]


async def steps(desk: Desk, line: Agent) -> list[str]:
    return [e.step for e in await desk.log(line) if isinstance(e, StepStarted)]


# --- the order --------------------------------------------------------------------------


async def test_a_chain_runs_each_agent_once_in_the_order_written(place: Desk) -> None:
    ran: list[str] = []
    a, b, c = noted(ran, "a", "b", "c")
    line = chain(a, b, c)

    reply = await place.prompt(line, "x")

    assert (reply.text, ran) == ("c(b(a(x)))", ["a", "b", "c"])
    assert await steps(place, line) == ["1.a", "2.b", "3.c"]


@pytest.mark.parametrize("deep", [1, 2, 3])
async def test_a_chain_of_one_runs_whatever_that_one_is(deep: int, place: Desk) -> None:
    ran: list[str] = []
    (line,) = noted(ran, "a")
    for _ in range(deep):
        line = chain(line)

    reply = await place.prompt(line, "x")

    assert (reply.text, ran) == ("a(x)", ["a"])


def test_a_chains_own_name_is_none_of_an_agent_below_it() -> None:
    a, b, a_b = noted([], "a", "b", "a-b")
    assert chain(a, chain(b, a_b), name="line").name == "line"
    assert chain(chain(a, b)).name == "a-b-chain"
    assert (
        chain(Agent("lead", model="script:x", agents=[Agent("lead-b", model="script:x")]), b).name == "lead-b-chain"
    )


def test_a_chain_or_team_with_the_name_of_an_agent_below_it_is_refused_when_it_is_built() -> None:
    a, b = noted([], "a", "b")
    with pytest.raises(BadAgent, match="an agent below it is also called 'a'; choose another name="):
        chain(a, b, name="a")
    with pytest.raises(BadAgent, match="an agent below it is also called 'team'"):
        Team(a, {"worker": Agent("boss", model="script:x", agents=[Agent("team", model="script:x")])})


async def test_the_wrong_order_can_not_be_written_by_accident() -> None:
    """The document wires backwards, and its wrong version reads as well as its right one: both are a list of
    statements `callbacks_x = add(…, agent_y)`, where the direction is in what `add` means. Here the arguments *are*
    the order, there is no second thing to keep in step with it, and no list that two agents could share: giving the
    same three agents in another order is another chain, which says so in its name.
    """
    ran: list[str] = []
    a, b, c = noted(ran, "a", "b", "c")

    assert [chain(a, b, c).name, chain(c, b, a).name] == ["a-b-c", "c-b-a"]
    assert (await Desk().prompt(chain(a, b, c), "x")).text == "c(b(a(x)))"
    assert (await Desk().prompt(chain(c, b, a), "x")).text == "a(b(c(x)))"
    assert a.hooks.end_turn == b.hooks.end_turn == c.hooks.end_turn == ()


async def test_agents_reused_in_two_chains_run_once_in_each(desk: Desk) -> None:
    ran: list[str] = []
    a, b, c = noted(ran, "a", "b", "c")
    one, two = chain(a, b, c), chain(b, a, name="back")

    async with desk.runtime(one, two) as runtime:
        first = await (await runtime.start(one)).prompt("x")
        second = await (await runtime.start(two)).prompt("y")

    assert (first.text, second.text) == ("c(b(a(x)))", "a(b(y))")
    assert ran == ["a", "b", "c", "b", "a"]


async def test_agents_built_from_one_base_value_share_nothing(desk: Desk) -> None:
    ended: list[str] = []
    base = says("base", lambda t: f"<{t}>", hooks=Hooks(end_turn=[lambda session, _: ended.append(session.agent)]))
    a, b, c = (base.replace(name=name) for name in "abc")

    reply = await desk.prompt(chain(a, b, c), "x")

    assert (reply.text, ended) == ("<<<x>>>", ["a", "b", "c"])


async def test_hooks_derived_from_one_base_never_meet(desk: Desk) -> None:
    """The document's own chain appends to one list, so that c calls itself; here every `adding` is a new value."""
    ran: list[str] = []
    base = Hooks()
    a, b, c = noted(ran, "a", "b", "c")
    b = b.replace(hooks=base.adding(end_turn=[bridge(c)]))
    a = a.replace(hooks=base.adding(end_turn=[bridge(b)]))

    reply = await desk.prompt(a, "x")

    assert (reply.text, ran) == ("c(b(a(x)))", ["a", "b", "c"])
    assert base.end_turn == ()


async def test_hops_are_children_of_the_chain_and_not_of_each_other(desk: Desk) -> None:
    line = chain(says("a"), says("b"))

    await desk.prompt(line)

    headers = [e for e in await desk.log(line, None) if isinstance(e, SessionStarted)]
    assert [(h.agent, h.session, h.parent, h.kind) for h in headers] == [
        ("a-b", "s", "", "coordinator"),
        ("a", "s~1.a", "s", "agent"),
        ("b", "s~2.b", "s", "agent"),
    ]


# --- loop, branch, fan_out --------------------------------------------------------------


async def test_a_loop_runs_so_many_rounds_each_in_sessions_of_its_own(place: Desk) -> None:
    ran: list[str] = []
    line = chain(*noted(ran, "a", "b"), loop=3)

    reply = await place.prompt(line, "x")

    assert reply.text == "b(a(b(a(b(a(x))))))"
    assert await steps(place, line) == ["1.a", "2.b", "3.a", "4.b", "5.a", "6.b"]


@pytest.mark.parametrize(("word", "end"), [("yes", "good(yes)"), ("no", "bad(no)")])
async def test_a_branch_goes_the_way_that_was_picked_from_the_reply(word: str, end: str, desk: Desk) -> None:
    picked: list[Reply] = []

    def pick(reply: Reply) -> str:
        picked.append(reply)
        return reply.text

    line = chain(says("a", lambda _: word), branch(pick, {"yes": says("good"), "no": says("bad")}))

    reply = await desk.prompt(line)

    assert reply.text == end
    assert [(r.text, r.session_id) for r in picked] == [(word, "s~1.a")]


async def test_a_pick_may_be_awaited_and_is_made_once(place: Desk) -> None:
    picks: list[str] = []

    async def pick(reply: Reply) -> str:
        await asyncio.sleep(0)
        picks.append(reply.text)
        return "ask" if len(picks) == 1 else "other"

    way = asker("may I?", "blocker", name="ask", kind="request_user_input")
    line = chain(says("a"), branch(pick, {"ask": way, "other": says("other")}))

    assert (await place.prompt(line)).status == "waiting"
    await place.settle(line, "yes")
    reply = await place.resume(line)

    assert (reply.text, picks) == ("'yes'", ["a(go)"])


@pytest.mark.parametrize("picked", ["maybe", None, 3, ["yes"]])
async def test_a_pick_that_names_no_branch_is_an_error_with_the_branches(picked: Any, desk: Desk) -> None:
    line = chain(says("a"), branch(lambda _: picked, {"yes": says("b"), "no": says("c")}))

    with pytest.raises(StepFailed, match="the branches are 'yes', 'no'"):
        await desk.prompt(line)


async def test_a_pick_or_join_that_raises_is_named(desk: Desk) -> None:
    with pytest.raises(StepFailed, match="step 2: pick raised ZeroDivisionError"):
        await desk.prompt(chain(says("a"), branch(lambda _: 1 / 0, {"x": says("b")})), id="1")
    with pytest.raises(StepFailed, match="step 1: join raised IndexError"):
        await desk.prompt(chain(fan_out([says("a")], join=lambda _: ""[1]), name="f"), id="2")
    with pytest.raises(StepFailed, match="join returned int; it must return the text"):
        await desk.prompt(chain(fan_out([says("a")], join=len), name="g"), id="3")


async def test_a_pick_gets_the_typed_output_of_the_step_before(desk: Desk) -> None:
    number = says("number", lambda _: "7", output=int)
    ways = {"big": says("big"), "small": says("small")}
    line = chain(number, branch(lambda r: "big" if r.output > 5 else "small", ways))

    assert (await desk.prompt(line)).text == "big(7)"


async def test_a_fan_out_runs_side_by_side_and_joins_in_the_lists_order(desk: Desk) -> None:
    together = asyncio.Barrier(3)

    def meets(name: str) -> Agent:
        async def decide(request: Request) -> str:
            async with asyncio.timeout(10):
                await together.wait()
            return f"{name}({task_of(request)})"

        return Agent(name, model=Script(decide))

    def join(replies: list[Reply]) -> str:
        return " + ".join(r.text for r in replies)

    line = chain(says("a"), fan_out([meets("c"), meets("b"), meets("d")], join=join), says("e"))

    reply = await desk.prompt(line, "x")

    assert reply.text == "e(c(a(x)) + b(a(x)) + d(a(x)))"


async def test_without_a_join_the_texts_follow_each_other_under_their_names(desk: Desk) -> None:
    reply = await desk.prompt(chain(fan_out([says("b"), says("a")]), name="both"), "x")

    assert reply.text == "b:\nb(x)\n\na:\na(x)"


async def test_one_agent_may_stand_in_a_fan_out_twice(desk: Desk) -> None:
    a = says("a")

    reply = await desk.prompt(chain(fan_out([a, a], join=lambda rs: "+".join(r.text for r in rs)), name="two"), "x")

    assert reply.text == "a(x)+a(x)"


async def test_chains_nest_in_each_other(place: Desk) -> None:
    inner = chain(says("b"), says("c"), name="inner", loop=2)
    line = chain(says("a"), inner, says("d"))

    reply = await place.prompt(line, "x")

    assert reply.text == "d(c(b(c(b(a(x))))))"
    async with place.runtime(line) as runtime:
        assert (await runtime.load("s~2.inner~4.c")).get_messages()[-1].text == "c(b(c(b(a(x)))))"


# --- what is passed on ------------------------------------------------------------------


async def test_a_hop_that_was_compacted_passes_its_summary_on_and_the_reply_stays_what_was_said(desk: Desk) -> None:
    def decide(request: Request) -> Any:
        if request.purpose == "summary":
            return "the summary"
        return f"{request.agent} heard {task_of(request)!r}"

    async def compact(session: Any, _: Any) -> None:
        await session.trigger_compaction(keep_last=1)

    a, b = (Agent(n, model=Script(decide), hooks=Hooks(pre_request=[compact])) for n in "ab")

    reply = await desk.prompt(chain(a, b), "x")

    assert reply.text == "b heard \"the summary\\n\\na heard 'x'\""


async def test_a_second_prompt_continues_each_hops_conversation(place: Desk) -> None:
    def decide(request: Request) -> str:
        told = [m.text for m in request.messages if m.role == "user"]
        return f"{request.agent}[{', '.join(told)}]"

    line = chain(*(Agent(n, model=Script(decide)) for n in "ab"))

    async with place.runtime(line) as runtime:
        session = await runtime.start(line, "s")
        await session.prompt("x")
        reply = await session.prompt("y")

    assert reply.text == "b[a[x], a[x, y]]"


async def test_an_end_turn_hook_that_replaces_a_typed_reply_does_no_harm(desk: Desk) -> None:
    a = says("a", lambda _: "7", output=int, hooks=Hooks(end_turn=[lambda _, __: "seven"]))

    assert (await desk.prompt(chain(a, says("b")))).text == "b(seven)"


# --- failing, asking --------------------------------------------------------------------


async def test_a_hop_that_fails_fails_the_chain_and_resume_continues_there(place: Desk) -> None:
    ran: list[str] = []
    (a,) = noted(ran, "a")
    tries = iter([RuntimeError("offline"), "b is back"])
    line = chain(a, Agent("b", model=Script(lambda _: next(tries))), says("c"))

    with pytest.raises(ChildFailed, match="offline"):
        await place.prompt(line)
    reply = await place.resume(line)

    assert (reply.text, ran) == ("c(b is back)", ["a"])


async def test_a_hop_that_reached_a_limit_continues_where_it_stopped_once_the_limit_is_raised(place: Desk) -> None:
    ran: list[str] = []

    def line(calls: int) -> Agent:
        looks = Script(lambda r: "b saw it" if results(r.messages) else call("look"))
        return chain(
            *noted(ran, "a"), Agent("b", model=looks, tools=[look], limits=Limits(model_calls=calls)), says("c")
        )

    @tool
    def look() -> str:
        """Look."""
        ran.append("look")
        return "seen"

    with pytest.raises(ChildFailed, match="limit model_calls"):
        await place.prompt(line(1))
    with pytest.raises(ChildFailed, match="limit model_calls"):
        await place.resume(line(1))
    reply = await place.resume(line(5))

    assert (reply.text, ran) == ("c(b saw it)", ["a", "look"])


async def test_a_new_prompt_after_a_failure_begins_at_the_first_hop(place: Desk) -> None:
    tries = iter([RuntimeError("offline"), "b is back"])
    line = chain(says("a"), Agent("b", model=Script(lambda _: next(tries))))

    async with place.runtime(line) as runtime:
        session = await runtime.start(line, "s")
        with pytest.raises(ChildFailed):
            await session.prompt("x")
        assert (await session.prompt("y")).text == "b is back"
        b = await runtime.load("s~2.b")

    assert [m.text for m in b.get_messages()] == ["a(x)", "a(y)", "b is back"]


async def test_one_that_fails_in_a_fan_out_does_not_lose_the_others(place: Desk) -> None:
    ran: list[str] = []
    tries = iter([RuntimeError("offline"), "b is back"])
    bad = Agent("b", model=Script(lambda _: next(tries)))
    line = chain(fan_out([*noted(ran, "a"), bad, *noted(ran, "c")]), name="f")

    with pytest.raises(ChildFailed, match="offline"):
        await place.prompt(line, "x")
    reply = await place.resume(line)

    assert sorted(ran) == ["a", "c"]
    assert reply.text == "a:\na(x)\n\nb:\nb is back\n\nc:\nc(x)"


async def test_a_question_left_open_by_a_chain_that_failed_is_finished_before_the_next_prompt(place: Desk) -> None:
    tries = iter([RuntimeError("offline"), "fine"])
    bad = Agent("b", model=Script(lambda _: next(tries)))
    waits = asker("may I?", "blocker", name="waits", kind="request_user_input")

    def twice(request: Request) -> Any:
        said = results(request.messages)
        asked = sum(m.role == "user" for m in request.messages)
        return call("work") if not said else f"{said[0].text} in turn {asked}"

    line = chain(
        fan_out([waits.replace(model=Script(twice)), bad], join=lambda rs: " ".join(r.text for r in rs)), name="f"
    )
    with pytest.raises(ChildFailed):
        await place.prompt(line, "x")
    await place.settle(line, "yes")

    async with place.runtime(line) as runtime:
        reply = await (await runtime.load("s")).prompt("y")

    assert reply.text == "'yes' in turn 2 fine"


async def test_callbacks_raised_in_the_last_hop_climb_to_whoever_started_the_chain(desk: Desk) -> None:
    line = chain(says("a"), says("b"), asker("which?", "blocker", name="c"), name="line")

    reply = await desk.prompt(delegates("boss", line, answers("by boss")))

    assert reply.text == "'by boss'"
    assert [(step.agent, step.step) for step in reply.callbacks[0].path] == [("boss", "asked")]


async def test_with_nobody_above_a_chain_the_person_is_asked(desk: Desk) -> None:
    reply = await desk.prompt(chain(says("a"), asker("which?", name="c")), host=Person(lambda _: "this"))

    assert reply.text == "'this'"


async def test_a_chain_parked_in_a_hop_continues_there_and_runs_nothing_again(place: Desk) -> None:
    ran: list[str] = []
    a, c = noted(ran, "a", "c")
    line = chain(a, asker("which?", "blocker", name="b", kind="request_user_input"), c)

    assert (await place.prompt(line, "x")).status == "waiting"
    assert ran == ["a"]
    await place.settle(line, "this")
    reply = await place.resume(line)

    assert (reply.text, ran) == ("c('this')", ["a", "c"])
    ends = [e.step for e in await place.log(line) if isinstance(e, StepEnded)]
    assert ends == ["1.a", "2.b", "3.c"]


async def test_what_is_said_to_a_chain_meanwhile_reaches_the_next_hop(place: Desk) -> None:
    line = chain(asker("which?", "blocker", name="a", kind="request_user_input"), says("b"))
    await place.prompt(line)
    async with place.runtime(line) as runtime:
        await runtime.steer("s", "in French")
    await place.settle(line, "this")

    assert (await place.resume(line)).text == "b('this'\n\nin French)"


async def test_cancelling_a_chain_ends_its_hop(place: Desk) -> None:
    line = chain(says("a"), asker("which?", "blocker", name="b", kind="request_user_input"))
    await place.prompt(line)

    async with place.runtime(line) as runtime:
        await runtime.cancel("s")
        assert [await runtime.status(i) for i in ("s", "s~1.a", "s~2.b")] == ["cancelled", "done", "cancelled"]


async def test_a_join_is_made_once(place: Desk) -> None:
    joins: list[int] = []

    def join(replies: list[Reply]) -> str:
        joins.append(len(replies))
        return "joined"

    line = chain(fan_out([says("a"), says("b")], join=join), asker("which?", "blocker", kind="request_user_input"))

    await place.prompt(line)
    await place.settle(line, "this")
    await place.resume(line)

    assert joins == [2]
    assert [e.value for e in await place.log(line) if isinstance(e, Planned)] == ["joined"]


# --- building ---------------------------------------------------------------------------


A, B, C, D = (says(n) for n in "abcd")
CYCLES: dict[str, tuple[Callable[[], Any], str]] = {
    "twice": (lambda: chain(A, A), "a → a is a cycle"),
    "around": (lambda: chain(A, B, C, A), "a → b → c → a is a cycle"),
    "later": (lambda: chain(A, B, C, B), "b → c → b is a cycle"),
    "through an inner chain": (lambda: chain(A, chain(B, A)), "a → b → a is a cycle"),
    "through two": (lambda: chain(chain(A, B), chain(C, chain(D, B))), "b → c → d → b is a cycle"),
    "through a branch": (lambda: chain(A, branch(str, {"x": B, "y": C}), B), "b → b is a cycle"),
    "through a fan-out": (lambda: chain(A, fan_out([B, chain(C, A)])), "a → a is a cycle"),
}


@pytest.mark.parametrize("name", CYCLES)
def test_a_cycle_is_refused_when_it_is_built_with_its_path(name: str) -> None:
    build, path = CYCLES[name]

    with pytest.raises(BadAgent, match=path) as caught:
        build()

    assert "loop=3" in str(caught.value)


given_chain: Any = chain
given_branch: Any = branch
given_fan_out: Any = fan_out
given_bridge: Any = bridge
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "no steps": (chain, "a chain must have at least one step"),
    "a name instead of an agent": (lambda: given_chain("a"), "not 'a'"),
    "a list of agents": (lambda: given_chain([A, B]), "its steps must be agents"),
    "no rounds": (lambda: chain(A, loop=0), "loop=0 is not a valid number of rounds"),
    "half a round": (lambda: given_chain(A, loop=1.5), "loop=1.5"),
    "a bad name": (lambda: chain(A, name="a b"), "is not a valid agent name"),
    "a branch without ways": (lambda: branch(str, {}), "at least one agent"),
    "a branch without a function": (lambda: given_branch("x", {"x": A}), "takes a function"),
    "a branch by booleans": (lambda: given_branch(bool, {True: A, False: B}), "under a string key"),
    "a branch to no agent": (lambda: given_branch(str, {"x": "a"}), "not 'a'"),
    "a fan-out of nobody": (lambda: fan_out([]), "a list of at least one agent"),
    "a fan-out of one agent": (lambda: given_fan_out(A), "a list of at least one agent"),
    "a fan-out of names": (lambda: given_fan_out(["a"]), "not 'a'"),
    "a join that is no function": (lambda: given_fan_out([A], join="+"), "join=function"),
    "a bridge to nowhere": (lambda: given_bridge("b"), "takes the next agent"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_chain_that_can_not_be_is_refused_when_it_is_built(name: str) -> None:
    build, problem = WRONG[name]

    with pytest.raises(BadAgent, match=problem):
        build()


async def test_hops_inherit_hooks_from_whoever_started_the_chain(desk: Desk) -> None:
    from upcall.hooks import inherited

    seen: list[str] = []

    @inherited
    def watch(session: Any, _: Any) -> None:
        seen.append(session.agent)

    @tool
    async def work(ctx: Context) -> str:
        """Work."""
        return ctx.agent

    def decide(request: Request) -> Any:
        said = results(request.messages)
        return said[0].text if said else call("work")

    line = chain(Agent("a", model=Script(decide), tools=[work]), says("b"), name="line")
    boss = delegates("boss", line).replace(hooks=Hooks(before_tool=[watch]))

    assert (await desk.prompt(boss)).text == "b(a)"
    assert seen == ["boss", "a"]
