"""Agents below that ask too much: what it costs whom, and who is told how often."""

from __future__ import annotations

from typing import Any

import pytest

from callbacks.doubles import Desk
from upcall import Agent, Hooks, Limits, Request, Runtime, SessionAccess, Usage
from upcall.contracts import Store
from upcall.kit import budget
from upcall.messages import Response
from upcall.models import Script, call

QUESTIONS = 300


class Counted:
    """A model that answers by a function, claims tokens, and counts how often it was asked for what."""

    name = "counted"

    def __init__(self, play: Any, tokens: int = 0) -> None:
        self._script, self._tokens = Script(play), tokens
        self.turns = self.side_turns = 0

    async def respond(self, request: Request, emit: Any) -> Response:
        if request.purpose == "side_turn":
            self.side_turns += 1
        else:
            self.turns += 1
        return (await self._script.respond(request, emit)).replace(usage=Usage(self._tokens))


def asks_at_once(count: int) -> Script:
    """A child that asks so many questions in one response, and says what came back."""

    def play(request: Request) -> Any:
        results = request.messages[-1].results
        if results:
            return f"{sum('yes' in r.text for r in results)} answered"
        return [call("ask", message=f"question {n}?") for n in range(count)]

    return Script(play)


def delegates(value: Any = "yes", more: int = 0) -> Any:
    """A parent that delegates, answers what it is asked, and makes some more model calls of its own."""

    def play(request: Request) -> Any:
        if request.purpose == "side_turn":
            return call("answer_callback", value=value)
        made = sum(len(m.calls) for m in request.messages if m.role == "assistant")
        if made == 0:
            return call("task", agent="child", prompt="work")
        said = next(m.results[0].text for m in request.messages if m.results)
        return call("note") if made <= more else f"the child said: {said}"

    return play


def family(model: Counted, count: int = QUESTIONS, **options: Any) -> Agent:
    child = Agent("child", model=asks_at_once(count), callback_policy={"fallback_target": "fail"})
    return Agent("boss", model=model, agents=[child], **options)


async def passed_reasons(store: Store, session: str) -> list[str]:
    return [e.reason for e in await store.read(session) if e.type == "callback_passed"]


@pytest.mark.parametrize("most", [2, 3, 10, 50])
async def test_side_turns_count_in_the_model_calls_of_the_asked_agents_turn_and_never_end_it(desk: Desk, most: int):
    model = Counted(delegates())
    boss = family(model, 60, limits=Limits(model_calls=most))

    async with desk.runtime(boss) as runtime:
        reply = await (await runtime.start(boss, "s")).prompt("go")
        reasons = await passed_reasons(runtime.store, "s~r1c0")

    assert reply.status == "done"
    assert model.turns + model.side_turns == most
    assert reply.text == f"the child said: {most - 2} answered"
    assert {*reasons} == {f"its limit of {most} model calls leaves no room"}


async def test_side_turns_count_in_the_tokens_of_the_asked_agents_turn(desk: Desk):
    model = Counted(delegates(), tokens=1000)
    boss = family(model, 60, limits=Limits(tokens=20_000))

    async with desk.runtime(boss) as runtime:
        reply = await (await runtime.start(boss, "s")).prompt("go")
        reasons = await passed_reasons(runtime.store, "s~r1c0")

    assert reply.status == "done"
    assert model.side_turns == 19
    assert {*reasons} == {"its limit of 20000 tokens leaves no room"}


async def test_a_child_never_ends_its_parents_turn_by_asking(desk: Desk):
    """The parent needs every model call of its limit for itself, after its child has asked what it liked."""
    from upcall import tool

    @tool
    def note() -> str:
        return "noted"

    model = Counted(delegates(more=5))
    boss = family(model, 60, limits=Limits(model_calls=7), tools=[note])

    reply = await desk.prompt(boss)

    assert (reply.status, model.turns) == ("done", 7)
    assert model.side_turns == 5


@pytest.mark.parametrize("limits", [{"calls": 40}, {"tokens": 40_000}, {"money": 0.04}])
async def test_side_turns_count_in_a_budget_and_leave_the_last_of_it_to_the_turns(
    desk: Desk, limits: dict[str, Any]
):
    model = Counted(delegates(), tokens=1000)
    prices = {"*": (1.0, 1.0)} if "money" in limits else None
    boss = family(model, 60, kit=[budget(**limits, prices=prices)])

    async with desk.runtime(boss) as runtime:
        reply = await (await runtime.start(boss, "s")).prompt("go")
        reasons = await passed_reasons(runtime.store, "s~r1c0")

    assert reply.status == "done"
    assert 30 <= model.side_turns + model.turns <= 40
    name = next(iter(limits))
    assert {*reasons} == {f"it gave no answer: its limit budget.{name} was reached"}


async def test_what_side_turns_used_is_counted_again_from_the_log_after_a_crash(desk: Desk):
    """The first process is left in the middle: its last questions wait for a person; another one continues."""
    model = Counted(delegates())

    def play(request: Request) -> Any:
        results = request.messages[-1].results
        if not results:
            return [call("ask", message=f"question {n}?") for n in range(8)]
        if len([m for m in request.messages if m.role == "assistant"]) == 1:
            return [call("ask", message=f"again {n}?") for n in range(8)]
        return "done"

    child = Agent("child", model=Script(play))
    boss = Agent("boss", model=model, agents=[child], limits=Limits(model_calls=7))

    reply = await desk.prompt(boss)
    assert reply.status == "waiting"
    assert model.side_turns == 5
    async with desk.runtime(boss) as runtime:
        for one in await runtime.inbox():
            await runtime.answer(one.id, "yes")
        assert (await runtime.resume("s")).status == "waiting"
        assert model.side_turns == 5  # none of the second eight had room
        for one in await runtime.inbox():
            assert one.path[-2].reason == "its limit of 7 model calls leaves no room"
            await runtime.answer(one.id, "yes")
        assert (await runtime.resume("s")).status == "done"
    assert model.turns == 2


async def test_a_fallback_agent_outside_the_chain_has_one_limit_for_all_questions_of_a_turn(desk: Desk):
    helper_model = Counted(delegates())
    helper = Agent("helper", model=helper_model, limits=Limits(model_calls=10))
    asker = Agent(
        "asker",
        model=asks_at_once(40),
        callback_policy={"fallback_target": "helper"},
        can_use_host_interaction=False,
    )

    async with Runtime(desk.store(), agents=[asker, helper]) as runtime:
        reply = await (await runtime.start(asker, "s")).prompt("go")
        reasons = await passed_reasons(runtime.store, "s")

    assert reply.text == "10 answered"
    assert helper_model.side_turns == 10
    assert {*reasons} == {"its limit of 10 model calls leaves no room"}


async def test_what_an_agent_had_no_room_for_is_not_in_its_conversation(desk: Desk):
    seen: list[int] = []

    def count(session: SessionAccess, request: Request) -> None:
        if request.purpose == "turn":
            seen.append(sum("asked you" in m.text for m in request.messages))

    boss = family(Counted(delegates()), 60, limits=Limits(model_calls=12), hooks=Hooks(before_model=[count]))
    await desk.prompt(boss)
    assert seen == [0, 10]
