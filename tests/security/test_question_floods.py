"""Agents below that ask too much: what it costs whom, and who is told how often."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from callbacks.doubles import Desk
from upcall import (
    Agent,
    Approve,
    Call,
    Callback,
    Context,
    Hooks,
    Limits,
    Request,
    Result,
    Runtime,
    SessionAccess,
    Usage,
    tool,
)
from upcall.contracts import Store
from upcall.kit import budget
from upcall.messages import Response
from upcall.models import Script, call
from upcall.workspace import run_python

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
    assert {*reasons} == {f"its limit of {most} model calls is used up"}


async def test_side_turns_count_in_the_tokens_of_the_asked_agents_turn(desk: Desk):
    model = Counted(delegates(), tokens=1000)
    boss = family(model, 60, limits=Limits(tokens=20_000))

    async with desk.runtime(boss) as runtime:
        reply = await (await runtime.start(boss, "s")).prompt("go")
        reasons = await passed_reasons(runtime.store, "s~r1c0")

    assert reply.status == "done"
    assert model.side_turns == 19
    assert {*reasons} == {"its limit of 20000 tokens is used up"}


async def test_a_child_never_ends_its_parents_turn_by_asking(desk: Desk):
    """The parent needs every model call of its limit for itself, after its child has asked what it liked."""

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
            assert one.path[-2].reason == "its limit of 7 model calls is used up"
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
    assert {*reasons} == {"its limit of 10 model calls is used up"}


async def test_what_an_agent_had_no_room_for_is_not_in_its_conversation(desk: Desk):
    seen: list[int] = []

    def count(session: SessionAccess, request: Request) -> None:
        if request.purpose == "turn":
            seen.append(sum("asked you" in m.text for m in request.messages))

    boss = family(Counted(delegates()), 60, limits=Limits(model_calls=12), hooks=Hooks(before_model=[count]))
    await desk.prompt(boss)
    assert seen == [0, 10]


# --- open questions ---------------------------------------------------------------------


def asks(count: int, **limits: Any) -> Agent:
    """An agent that asks so many questions in one response and says what each call got."""

    def play(request: Request) -> Any:
        results = request.messages[-1].results
        if results:
            return " ".join(r.text for r in results)
        return [call("ask", message=f"{n}?") for n in range(count)]

    return Agent("asker", model=Script(play), limits=Limits(**limits))


async def answered_in_rounds(
    desk: Desk, agent: Agent, most: int, each: int, value: Any = None, total: int = 12
) -> list[str]:
    """Answer so many of what waits, resume, and so on; the messages in the order in which they were first seen."""
    seen: dict[str, str] = {}
    while total > 0:
        async with desk.runtime(agent) as runtime:
            waiting = await runtime.inbox()
            assert len(waiting) <= most
            seen |= {one.id: one.message for one in waiting}
            for one in waiting[:each]:
                await runtime.answer(one.id, value or f"<{one.message}>")
            if (reply := await runtime.resume("s")).status == "done":
                return [reply.text, *seen.values()]
            total -= len(waiting[:each])
            assert len(await runtime.inbox()) == min(most, total)
    raise AssertionError("it never ended")


@pytest.mark.slow
async def test_a_hundred_questions_of_a_response_are_open_and_the_rest_wait_until_others_are_settled(desk: Desk):
    agent = asks(QUESTIONS)
    reply = await desk.prompt(agent)
    assert (reply.status, len(reply.callbacks)) == ("waiting", 100)

    text, *seen = await answered_in_rounds(desk, agent, 100, 40, total=QUESTIONS)

    assert text == " ".join(f"<{n}?>" for n in range(QUESTIONS))
    assert sorted(seen) == sorted(f"{n}?" for n in range(QUESTIONS))


@pytest.mark.parametrize("most", [1, 3, 12, None])
async def test_the_number_of_open_questions_can_be_chosen(desk: Desk, most: int | None):
    agent = asks(12, open_questions=most)
    assert len((await desk.prompt(agent)).callbacks) == (most or 12)

    text, *_ = await answered_in_rounds(desk, agent, most or 12, 2)

    assert text == " ".join(f"<{n}?>" for n in range(12))


async def test_approvals_wait_for_each_other_too_and_each_call_runs_once(desk: Desk):
    ran: list[int] = []

    @tool(needs_approval=True)
    def pay(n: int) -> str:
        ran.append(n)
        return f"<{n}?>"

    def play(request: Request) -> Any:
        results = request.messages[-1].results
        return " ".join(r.text for r in results) if results else [call("pay", n=n) for n in range(12)]

    agent = Agent("asker", model=Script(play), tools=[pay], limits=Limits(open_questions=5))
    assert len((await desk.prompt(agent)).callbacks) == 5

    text, *_ = await answered_in_rounds(desk, agent, 5, 2, Approve())

    assert text == " ".join(f"<{n}?>" for n in range(12))
    assert sorted(ran) == [*range(12)]


async def test_the_questions_of_hooks_before_calls_wait_too(desk: Desk):
    async def may_run(session: SessionAccess, made: Call) -> Any:
        answer = await session.raise_callback(f"{made.args['n']}?")
        return Result(made.id, str(answer))

    @tool
    def step(n: int) -> str:
        return "ran"

    def play(request: Request) -> Any:
        results = request.messages[-1].results
        return " ".join(r.text for r in results) if results else [call("step", n=n) for n in range(12)]

    hooks = Hooks(before_tool=[may_run])
    agent = Agent("asker", model=Script(play), tools=[step], hooks=hooks, limits=Limits(open_questions=5))
    assert len((await desk.prompt(agent)).callbacks) == 5

    text, *_ = await answered_in_rounds(desk, agent, 5, 3)

    assert text == " ".join(f"<{n}?>" for n in range(12))


@pytest.mark.slow
async def test_a_call_that_asks_many_at_once_has_as_many_open_as_a_response_may(desk: Desk):
    @tool
    async def survey(ctx: Context) -> str:
        answers = await asyncio.gather(*(ctx.raise_callback(f"{n}?") for n in range(12)))
        return " ".join(map(str, answers))

    def play(request: Request) -> Any:
        results = request.messages[-1].results
        return results[0].text if results else call("survey")

    agent = Agent("asker", model=Script(play), tools=[survey], limits=Limits(open_questions=5))
    assert len((await desk.prompt(agent)).callbacks) == 5

    text, *_ = await answered_in_rounds(desk, agent, 5, 2)

    assert text == " ".join(f"<{n}?>" for n in range(12))


async def test_a_program_that_asks_many_at_once_has_as_many_open_as_a_response_may(desk: Desk):
    code = (
        "import asyncio\n"
        "answers = await asyncio.gather(*[raise_callback(str(n) + '?') for n in range(12)])\n"
        "' '.join(answers)"
    )

    def play(request: Request) -> Any:
        results = request.messages[-1].results
        return results[0].text if results else call("run_python", code=code)

    agent = Agent("asker", model=Script(play), tools=[run_python()], limits=Limits(open_questions=5))
    assert len((await desk.prompt(agent)).callbacks) == 5

    text, *_ = await answered_in_rounds(desk, agent, 5, 2)

    assert text == repr(" ".join(f"<{n}?>" for n in range(12)))


async def test_children_do_not_hold_the_places_of_their_parents_questions(desk: Desk):
    """Two children wait for people; the parent's own question beside them is asked all the same."""

    def play(request: Request) -> Any:
        results = request.messages[-1].results
        if results:
            return " ".join(r.text for r in results)
        tasks = [call("task", agent="asker", prompt="work") for _ in range(2)]
        return [*tasks, call("ask", message="mine?")]

    child = asks(2, open_questions=1)
    policy = {"passthrough_child_callbacks": True}
    boss = Agent(
        "boss", model=Script(play), agents=[child], limits=Limits(open_questions=1), callback_policy=policy
    )

    reply = await desk.prompt(boss)
    assert sorted(one.message for one in reply.callbacks) == ["0?", "0?", "mine?"]


async def test_a_live_host_is_asked_no_more_than_may_be_open(desk: Desk):
    class Person:
        def __init__(self) -> None:
            self.open = self.most = 0

        async def ask(self, callback: Callback) -> str:
            self.open += 1
            self.most = max(self.most, self.open)
            await asyncio.sleep(0)
            self.open -= 1
            return f"<{callback.message}>"

        def withdraw(self, callback_id: str, reason: str) -> None:
            pass

    person = Person()
    reply = await desk.prompt(asks(40, open_questions=7), host=person)

    assert reply.text == " ".join(f"<{n}?>" for n in range(40))
    assert person.most <= 7


async def test_a_response_that_waits_for_places_can_be_cancelled(desk: Desk):
    agent = asks(12, open_questions=5)
    await desk.prompt(agent)
    async with desk.runtime(agent) as runtime:
        await runtime.cancel("s")
        assert await runtime.inbox() == []
        assert await runtime.status("s") == "cancelled"
        assert (await (await runtime.load("s")).prompt("again")).status == "waiting"


KILLED = """
import asyncio, os, signal, sys
from upcall import Agent, Limits, Runtime
from upcall.models import Script, call


def play(request):
    results = request.messages[-1].results
    return " ".join(r.text for r in results) if results else [call("ask", message=f"{n}?") for n in range(12)]


class Person:
    async def ask(self, callback):
        await asyncio.Event().wait()

    def withdraw(self, callback_id, reason):
        pass


async def main():
    agent = Agent("asker", model=Script(play), limits=Limits(open_questions=5))
    async with Runtime(sys.argv[1], agents=[agent], host=Person(), hold=1000) as runtime:
        turn = asyncio.ensure_future((await runtime.start(agent, "s")).prompt("go"))
        while len(await runtime.inbox()) < 5:
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)


asyncio.run(main())
"""


@pytest.mark.slow
async def test_what_waited_for_a_place_is_asked_after_its_process_was_killed(tmp_path: Path):
    program = tmp_path / "killed.py"
    program.write_text(KILLED)
    process = await asyncio.create_subprocess_exec(sys.executable, str(program), str(tmp_path / "log.db"))
    assert await process.wait() == -signal.SIGKILL

    agent = asks(12, open_questions=5)
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        assert (await runtime.resume("s", take_over=True)).status == "waiting"
    text, *_ = await answered_in_rounds(Desk(tmp_path / "log.db"), agent, 5, 3)

    assert text == " ".join(f"<{n}?>" for n in range(12))
