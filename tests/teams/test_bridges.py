"""Bridges: an `end_turn` hook for wiring by hand. Above b lies what lies above a; what b says becomes the reply."""

from __future__ import annotations

from typing import Any

import pytest

from callbacks.doubles import Desk, Person, answers, asker, delegates
from teams.doubles import says, task_of
from upcall import Agent, Hooks, Limits, Request, chain
from upcall.errors import HookFailed
from upcall.events import HooksPassed, SessionStarted
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
    assert started[1].session.startswith("s~end_turn")


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


async def test_a_bridge_that_waits_goes_on_and_the_first_agent_does_not_run_again(place: Desk) -> None:
    ran: list[str] = []
    a = bridged(ran, asker("which?", "blocker", name="b", kind="request_user_input"))

    assert (await place.prompt(a)).status == "waiting"
    await place.settle(a, "this")
    reply = await place.resume(a)

    assert (reply.text, ran) == ("'this'", ["a"])
    assert len([e for e in await place.log(a, None) if isinstance(e, SessionStarted)]) == 2


async def test_a_next_agent_that_failed_fails_the_turn_and_is_gone_on_with(place: Desk) -> None:
    ran: list[str] = []
    tries = iter([RuntimeError("offline"), "b is back"])
    a = bridged(ran, Agent("b", model=Script(lambda _: next(tries))))

    with pytest.raises(HookFailed, match="offline"):
        await place.prompt(a)
    reply = await place.resume(a)

    assert (reply.text, ran) == ("b is back", ["a"])


async def test_a_next_agent_that_reaches_a_limit_fails_the_turn_by_its_name(desk: Desk) -> None:
    b = Agent("b", model=Script(lambda _: call("nothing")), limits=Limits(model_calls=1))

    with pytest.raises(HookFailed, match="it ended with model_calls"):
        await desk.prompt(bridged([], b))


async def test_each_turn_hands_over_anew(desk: Desk) -> None:
    a = bridged([], says("b"))

    async with desk.runtime(a) as runtime:
        session = await runtime.start(a, "s")
        first = await session.prompt("x")
        second = await session.prompt("y")

    assert (first.text, second.text) == ("b(a(x))", "b(a(y))")


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
