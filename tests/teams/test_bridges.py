"""Bridges: an `end_turn` hook for wiring by hand. Above b lies what lies above a; what b says becomes the reply."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from callbacks.doubles import Desk, Person, answers, asker, delegates
from core.doubles import Place as CorePlace
from teams.doubles import says, task_of
from upcall import Agent, Context, Hooks, Limits, Request, Runtime, StoreError, UnknownSession, chain, tool
from upcall.errors import HookFailed
from upcall.events import HooksPassed, SessionStarted, TurnStarted
from upcall.models import Script, call
from upcall.teams import bridge


def bridged(ran: list[str], b: Agent) -> Agent:
    def decide(request: Request) -> str:
        ran.append("a")
        return f"a({task_of(request)})"

    return Agent("a", model=Script(decide), hooks=Hooks(end_turn=[bridge(b)]))


async def test_what_the_next_agent_says_becomes_the_reply(place: Desk) -> None:
    a = bridged([], says("b"))

    reply = await place.prompt(a, "x")

    assert reply.text == "b(a(x))"
    assert (await place.messages(a))[-1].text == "a(x)"


async def test_the_next_agent_is_a_child_in_the_tree(desk: Desk) -> None:
    a = bridged([], says("b"))

    await desk.prompt(a)

    started = [e for e in await desk.log(a, None) if isinstance(e, SessionStarted)]
    assert [(e.agent, e.parent) for e in started] == [("a", ""), ("b", "s")]
    assert started[1].session == "s~bridge.b"


async def test_above_the_next_agent_lies_what_lies_above_this_one(desk: Desk) -> None:
    a = bridged([], asker("which?", "blocker", name="b"))

    reply = await desk.prompt(delegates("boss", a, answers("by boss")))

    assert reply.text == "'by boss'"
    assert [step.agent for step in reply.callbacks[0].path] == ["boss"]


async def test_with_nobody_above_the_person_is_asked_and_never_the_one_who_has_ended(desk: Desk) -> None:
    a = bridged([], asker("which?", "blocker", name="b"))

    reply = await desk.prompt(a, host=Person(lambda _: "this"))

    assert reply.text == "'this'"
    assert [step.agent for step in reply.callbacks[0].path] == ["user"]


async def test_bridges_in_a_row_all_have_above_them_what_the_first_has(desk: Desk) -> None:
    b = says("b", hooks=Hooks(end_turn=[bridge(asker("which?", "blocker", name="c"))]))
    a = bridged([], b)

    reply = await desk.prompt(delegates("boss", a, answers("by boss")))

    assert reply.text == "'by boss'"
    assert [step.agent for step in reply.callbacks[0].path] == ["boss"]


async def test_a_bridge_that_waits_continues_and_the_first_agent_does_not_run_again(place: Desk) -> None:
    ran: list[str] = []
    a = bridged(ran, asker("which?", "blocker", name="b", kind="request_user_input"))

    assert (await place.prompt(a)).status == "waiting"
    await place.settle(a, "this")
    reply = await place.resume(a)

    assert (reply.text, ran) == ("'this'", ["a"])
    assert len([e for e in await place.log(a, None) if isinstance(e, SessionStarted)]) == 2


async def test_a_next_agent_that_failed_fails_the_turn_and_is_resumed(place: Desk) -> None:
    ran: list[str] = []
    tries = iter([RuntimeError("offline"), "b is back"])
    a = bridged(ran, Agent("b", model=Script(lambda _: next(tries))))

    with pytest.raises(HookFailed, match="offline"):
        await place.prompt(a)
    reply = await place.resume(a)

    assert (reply.text, ran) == ("b is back", ["a"])


async def test_a_next_agent_that_reaches_a_limit_fails_the_turn_by_its_name(desk: Desk) -> None:
    b = Agent("b", model=Script(lambda _: call("nothing")), limits=Limits(model_calls=1))

    with pytest.raises(HookFailed, match=r"it did not complete its turn \(model_calls\)"):
        await desk.prompt(bridged([], b))


# --- one session of the next agent ------------------------------------------------------


def remembers(name: str = "b", **options: Any) -> Agent:
    """An agent that says all it was ever told."""

    def decide(request: Request) -> str:
        return "+".join(m.text for m in request.messages if m.role == "user")

    return Agent(name, model=Script(decide), **options)


async def prompts(place: Desk, a: Agent, *texts: str) -> list[str]:
    """What a's session replies to one text after the other, each in a runtime of its own."""
    said: list[str] = []
    for text in texts:
        async with place.runtime(a) as runtime:
            try:
                session = await runtime.load("s")
            except UnknownSession:
                session = await runtime.start(a, "s")
            said.append((await session.prompt(text)).text)
    return said


async def told(place: Desk, a: Agent, id: str = "s~bridge.b") -> list[str]:
    """The prompts of the next agent's session, as its log has them."""
    return [e.message.text for e in await place.log(a, id) if isinstance(e, TurnStarted)]


async def test_the_next_turn_continues_the_next_agents_session(place: Desk) -> None:
    a = bridged([], remembers())

    assert await prompts(place, a, "x", "y", "z") == ["a(x)", "a(x)+a(y)", "a(x)+a(y)+a(z)"]

    started = [e.session for e in await place.log(a, None) if isinstance(e, SessionStarted)]
    assert started == ["s", "s~bridge.b"]
    assert await told(place, a) == ["a(x)", "a(y)", "a(z)"]


async def test_each_session_has_its_own_session_of_the_next_agent(desk: Desk) -> None:
    a = bridged([], remembers())
    async with desk.runtime(a) as runtime:
        one, two = await runtime.start(a, "one"), await runtime.start(a, "two")
        replies = [(await session.prompt(text)).text for session in (one, two) for text in "xy"]

    assert replies == ["a(x)", "a(x)+a(y)"] * 2


async def test_bridges_in_a_row_each_continue_their_own_session(place: Desk) -> None:
    a = bridged([], remembers(hooks=Hooks(end_turn=[bridge(remembers("c"))])))

    assert await prompts(place, a, "x", "y") == ["a(x)", "a(x)+a(x)+a(y)"]

    assert await told(place, a, "s~bridge.b~bridge.c") == ["a(x)", "a(x)+a(y)"]


async def test_two_bridges_to_one_agent_are_two_turns_of_its_session(place: Desk) -> None:
    b = remembers()
    a = says("a", hooks=Hooks(end_turn=[bridge(b), bridge(b)]))

    assert await prompts(place, a, "x", "y") == ["a(x)+a(x)", "a(x)+a(x)+a(y)+a(x)+a(x)+a(y)"]

    assert await told(place, a) == ["a(x)", "a(x)", "a(y)", "a(x)+a(x)+a(y)"]


async def test_a_second_turn_that_waits_in_the_next_agent_is_resumed_there(place: Desk) -> None:
    ran: list[str] = []

    @tool
    async def work(ctx: Context) -> str:
        """Ask."""
        return str(await ctx.raise_callback(f"which {len(ctx.get_messages())}?", kind="request_user_input"))

    def decide(request: Request) -> Any:
        last = request.messages[-1]
        return f"b has {last.results[0].text}" if last.results else call("work")

    a = bridged(ran, Agent("b", model=Script(decide), tools=[work]))
    assert (await place.prompt(a, "x")).status == "waiting"
    await place.settle(a, "this")
    assert (await place.resume(a)).text == "b has this"
    async with place.runtime(a) as runtime:
        assert (await (await runtime.load("s")).prompt("y")).status == "waiting"
    await place.settle(a, "that")
    reply = await place.resume(a)

    assert (reply.text, ran) == ("b has that", ["a", "a"])
    assert await told(place, a) == ["a(x)", "a(y)"]


async def test_a_new_prompt_after_the_next_agent_failed_is_its_next_turn(place: Desk) -> None:
    tries = iter(["fine", RuntimeError("offline"), "b is back"])
    a = bridged([], Agent("b", model=Script(lambda _: next(tries))))

    assert await prompts(place, a, "x") == ["fine"]
    with pytest.raises(HookFailed, match="offline"):
        await prompts(place, a, "y")
    assert await prompts(place, a, "z") == ["b is back"]

    assert await told(place, a) == ["a(x)", "a(y)", "a(z)"]


@pytest.mark.parametrize("durable", [False, True])
async def test_a_process_that_dies_anywhere_in_the_second_turn_hands_over_once(
    tmp_path: Path, durable: bool
) -> None:
    appends, ended = 0, False
    while not ended:
        where = CorePlace(tmp_path / f"{appends}.db" if durable else None)
        a = bridged([], remembers())
        async with Runtime(where.store(), agents=[a]) as runtime:
            await (await runtime.start(a, "s")).prompt("x")
        ended = await dies(where, a, appends)
        async with Runtime(where.store(), agents=[a]) as runtime:
            status = await runtime.status("s")
            reply = await runtime.resume("s")
            if status == "done" and reply.text == "a(x)":  # nothing of the second turn was stored
                reply = await (await runtime.load("s")).prompt("y")
            turns = [e async for e in runtime.events("s~bridge.b") if isinstance(e, TurnStarted)]
            rows = await runtime.rows()
        assert (reply.text, [e.message.text for e in turns]) == ("a(x)+a(y)", ["a(x)", "a(y)"])
        assert sorted(row.id for row in rows) == ["s", "s~bridge.b"]
        appends += 1
    assert appends > 5


async def dies(where: CorePlace, a: Agent, appends: int) -> bool:
    """Prompt a second time in a process that dies after so many appends; whether it came to the end before."""
    runtime = Runtime(where.dying(appends), agents=[a])
    try:
        await (await runtime.load("s")).prompt("y")
    except StoreError:
        return False
    finally:
        await runtime.close()
    return True


async def test_hooks_after_a_bridge_see_what_the_next_agent_said(desk: Desk) -> None:
    seen: list[str] = []
    a = says("a", hooks=Hooks(end_turn=[bridge(says("b")), lambda _, reply: seen.append(reply.text)]))

    await desk.prompt(a, "x")

    assert seen == ["b(a(x))"]
    passed = [e for e in await desk.log(a) if isinstance(e, HooksPassed)]
    assert [(e.point, e.text) for e in passed if e.point == "end_turn"] == [
        ("end_turn", "b(a(x))"),
        ("end_turn", None),
    ]


async def test_a_bridge_may_lead_to_a_chain_and_stand_in_one(desk: Desk) -> None:
    a = bridged([], chain(says("b"), says("c"), name="inner"))

    reply = await desk.prompt(chain(a, says("d")), "x")

    assert reply.text == "d(c(b(a(x))))"


async def test_a_compacted_agent_hands_its_summary_over_too(desk: Desk) -> None:
    async def compact(session: Any, _: Any) -> None:
        await session.trigger_compaction(keep_last=1)

    def decide(request: Request) -> str:
        return "the summary" if request.purpose == "summary" else "a's reply"

    a = Agent("a", model=Script(decide), hooks=Hooks(pre_request=[compact], end_turn=[bridge(says("b"))]))

    assert (await desk.prompt(a)).text == "b(the summary\n\na's reply)"
