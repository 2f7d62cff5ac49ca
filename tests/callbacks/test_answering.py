"""Answers: the first valid one wins, the rest are told exactly what happened; the inbox, its groups, any order."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callbacks.doubles import Desk, Person, asker, delegates, never, passes, results, worker
from quick import examples
from upcall import (
    Agent,
    AlreadySettled,
    Answer,
    AnswerRefused,
    Approve,
    Call,
    CallbackError,
    Context,
    Decline,
    Reject,
    Request,
    SessionWaiting,
    SetupError,
    SyncContext,
    UnknownCallback,
    tool,
)
from upcall.events import CallbackAnswered
from upcall.models import Script, call

# --- the first one wins -------------------------------------------------------------------


@pytest.mark.slow
async def test_a_second_answer_is_told_by_whom_and_when_the_first_was_given(place: Desk) -> None:
    agent = asker()
    await place.prompt(agent)
    first = await place.settle(agent, "blue", by="ann")
    place.clock.tick(5)

    async with place.runtime(agent) as runtime:
        with pytest.raises(AlreadySettled, match="was answered by ann at") as told:
            await runtime.answer(first.id, "red", by="bob")

    assert (told.value.status, told.value.by, told.value.at) == ("answered", "ann", place.clock.now - 5)
    assert (await place.resume(agent)).text == "'blue'"


async def test_of_many_people_answering_at_once_exactly_one_wins_and_all_others_are_told_who(place: Desk) -> None:
    agent = asker()
    callback_id = (await place.prompt(agent)).callbacks[0].id

    async with place.runtime(agent) as runtime:
        tries = [runtime.answer(callback_id, n, by=f"p{n}") for n in range(10)]
        ends = await asyncio.gather(*tries, return_exceptions=True)

    lost = [e for e in ends if isinstance(e, AlreadySettled)]
    won = [e for e in ends if not isinstance(e, BaseException)]
    assert (len(won), len(lost)) == (1, 9)
    assert won[0].answer is not None
    assert {e.by for e in lost} == {won[0].answer.by}
    assert len([e for e in await place.log(agent) if isinstance(e, CallbackAnswered)]) == 1


async def test_an_answer_after_expiry_is_refused_though_no_process_noticed_it(place: Desk) -> None:
    agent = asker(timeout=60)
    callback_id = (await place.prompt(agent)).callbacks[0].id
    place.clock.tick(60)

    async with place.runtime(agent) as runtime:
        with pytest.raises(AlreadySettled) as told:
            await runtime.answer(callback_id, "blue")

    assert (told.value.status, told.value.by, told.value.at) == ("expired", "", place.clock.now)
    assert not [e for e in await place.log(agent) if isinstance(e, CallbackAnswered)]


async def test_an_answer_after_a_withdrawal_says_so(desk: Desk) -> None:
    agent = asker()
    callback_id = (await desk.prompt(agent)).callbacks[0].id

    async with desk.runtime(agent) as runtime:
        await runtime.cancel("s", "no longer needed")
        with pytest.raises(AlreadySettled, match="withdrawn") as told:
            await runtime.answer(callback_id, "blue")

    assert (told.value.status, told.value.at) == ("withdrawn", desk.clock.now)


async def test_an_unknown_id_is_unknown(desk: Desk) -> None:
    async with desk.runtime(asker()) as runtime:
        with pytest.raises(UnknownCallback, match="there is no callback called 'q123'"):
            await runtime.answer("q123", "blue")


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), {"price": [float("nan")]}, object()])
async def test_an_answer_that_json_can_not_hold_is_refused_and_the_question_stays_open(
    desk: Desk, value: Any
) -> None:
    await desk.prompt(asker())
    async with desk.runtime(asker()) as runtime:
        (held,) = await runtime.inbox()
        with pytest.raises(AnswerRefused, match="an answer must be a JSON value"):
            await runtime.answer(held.id, value)
        assert [one.id for one in await runtime.inbox()] == [held.id]


async def test_a_person_may_not_settle_a_request_resolution(desk: Desk) -> None:
    asked = asyncio.Event()
    go = asyncio.Event()

    async def slow(_: Request) -> Call:
        asked.set()
        await go.wait()
        return call("answer_callback", value="by the agent")

    manager = delegates("manager", asker(kind="request_resolution"), slow)
    async with desk.runtime(manager) as runtime:
        session = await runtime.start(manager, "s")
        turn = asyncio.ensure_future(session.prompt("go"))
        await asked.wait()
        (held,) = await runtime.store.callbacks(root="s")
        with pytest.raises(AnswerRefused, match="a person can't answer a callback of the kind request_resolution"):
            await runtime.answer(held.id, "by me")
        go.set()
        reply = await turn

    assert reply.text == "'by the agent'"


async def test_a_person_may_answer_by_id_what_an_agent_is_being_asked(desk: Desk) -> None:
    asked = asyncio.Event()

    async def forever(_: Request) -> Any:
        asked.set()
        await asyncio.Event().wait()

    manager = delegates("manager", asker(), forever)
    async with desk.runtime(manager) as runtime:
        session = await runtime.start(manager, "s")
        turn = asyncio.ensure_future(session.prompt("go"))
        await asked.wait()
        assert not await runtime.inbox()
        (held,) = await runtime.store.callbacks(root="s")
        await runtime.answer(held.id, "blue", by="ann")
        reply = await asyncio.wait_for(turn, 5)

    answer = reply.callbacks[0].answer
    assert answer is not None
    assert (reply.text, answer.by) == ("'blue'", "ann")


async def test_an_agent_that_was_overtaken_is_not_told_that_it_answered(desk: Desk) -> None:
    asked, go = asyncio.Event(), asyncio.Event()
    last: list[Request] = []

    async def late(_: Request) -> Any:
        asked.set()
        await go.wait()
        return call("answer_callback", value="red")

    def decide(request: Request) -> Any:
        last.append(request)
        if request.purpose == "side_turn":
            return late(request)
        said = results(request.messages)
        return said[0].text if said else call("task", agent="developer", prompt="x")

    manager = Agent("manager", model=Script(decide), agents=[asker()])
    async with desk.runtime(manager) as runtime:
        session = await runtime.start(manager, "s")
        turn = asyncio.ensure_future(session.prompt("go"))
        await asked.wait()
        (held,) = await runtime.store.callbacks(root="s")
        await runtime.answer(held.id, "blue")
        go.set()
        reply = await asyncio.wait_for(turn, 5)

    assert reply.text == "'blue'"
    assert not [m for m in last[-1].messages if "You answered" in m.text]


async def test_who_answered_and_by_what_right_is_in_the_log(place: Desk) -> None:
    agent = asker()
    callback_id = (await place.prompt(agent)).callbacks[0].id

    async with place.runtime(agent) as runtime:
        await runtime.answer(callback_id, "blue", by="ann", right="token")
        await runtime.resume("s")

    (answered,) = [e for e in await place.log(agent) if isinstance(e, CallbackAnswered)]
    assert (answered.value, answered.by, answered.right, answered.time) == ("blue", "ann", "token", place.clock.now)


async def test_none_and_false_are_answers_like_any_other(desk: Desk) -> None:
    agent = asker()
    values: list[Any] = [None, False, 0, "", [], {}]
    for n, value in enumerate(values):
        await desk.prompt(agent, id=f"s{n}")
        await desk.settle(agent, value)
        reply = await desk.resume(agent, f"s{n}")
        assert (reply.status, reply.text) == ("done", repr(value))


# --- the inbox ----------------------------------------------------------------------------


async def test_the_inbox_has_the_highest_priority_first_and_then_the_oldest(place: Desk) -> None:
    order = ["normal", "critical", "low", "high", "critical", "normal"]

    @tool
    async def work(n: int, ctx: Context) -> str:
        """Ask."""
        return str(await ctx.raise_callback(f"{n}?", priority=order[n]))  # pyright: ignore[reportArgumentType]

    agent = Agent("developer", model=worker(call("work", n=0)), tools=[work])
    for n in range(len(order)):
        await place.prompt(agent.replace(model=worker(call("work", n=n))), id=f"s{n}")
        place.clock.tick(1)

    assert [c.message for c in await place.inbox(agent)] == ["1?", "4?", "3?", "0?", "5?", "2?"]


async def test_the_inbox_lists_only_what_waits_for_a_person(desk: Desk) -> None:
    settled = asker("settled?")
    await desk.prompt(settled, id="one")
    await desk.settle(settled, "yes")
    waiting = asker("waiting?")
    await desk.prompt(waiting, id="two")

    assert [c.message for c in await desk.inbox(waiting)] == ["waiting?"]


def five(ask: Any, **options: Any) -> Agent:
    """A manager with five children that each make the same call."""
    child = Agent("developer", model=worker(call("work")), tools=[ask])
    calls = [call("task", agent="developer", prompt=str(i)) for i in range(5)]
    return Agent("manager", model=worker(*calls, aside=passes()), agents=[child], **options)


@tool
async def work(ctx: Context) -> str:
    """Ask the same as the others."""
    return str(await ctx.raise_callback("which licence?"))


async def test_five_equal_questions_of_one_tree_are_one_entry_and_one_answer(place: Desk) -> None:
    manager = five(work)
    await place.prompt(manager)

    (entry,) = await place.inbox(manager)
    assert (len(entry.group), entry.id in entry.group) == (5, True)
    await place.settle(manager, "MIT")
    done = await place.resume(manager)

    assert done.text == "; ".join(["MIT"] * 5)
    assert {c.answer.value for c in done.callbacks if c.answer} == {"MIT"}
    assert len(done.callbacks) == 5


async def test_with_only_one_of_equal_questions_is_answered(place: Desk) -> None:
    manager = five(work)
    await place.prompt(manager)

    for n in range(5):
        async with place.runtime(manager) as runtime:
            (entry,) = await runtime.inbox()
            assert len(entry.group) == 5 - n
            await runtime.answer(entry.id, str(n), only=True)
    done = await place.resume(manager)

    assert sorted(done.text.split("; ")) == list("01234")


async def test_equal_questions_of_two_trees_are_two_entries(desk: Desk) -> None:
    agent = asker()
    await desk.prompt(agent, id="one")
    await desk.prompt(agent, id="two")

    assert [len(c.group) for c in await desk.inbox(agent)] == [1, 1]


async def test_questions_that_differ_in_anything_that_counts_are_not_grouped(desk: Desk) -> None:
    variants: list[dict[str, Any]] = [
        {}, {"choices": ["a", "b"]}, {"schema": {"type": "string"}}, {"timeout": 60}, {"context": {"for": "a"}},
        {"context": {"for": "b"}}, {"callback_type": "clarification"}, {"kind": "request_user_input"},
        {"message": "what else?"},
    ]  # fmt: skip

    @tool
    async def vary(n: int, ctx: Context) -> str:
        """Ask."""
        options: dict[str, Any] = {"message": "which?", "key": "licence", **variants[n]}
        return str(await ctx.raise_callback(**options))

    @tool
    async def other(n: int, ctx: Context) -> str:
        """Ask the same by another tool."""
        return str(await ctx.raise_callback("which?", key="licence"))

    calls = [call("vary", n=n) for n in range(len(variants))]
    child = Agent("lawyer", model=worker(call("other", n=0)), tools=[other])
    calls += [call("other", n=0), call("task", agent="lawyer", prompt="ask")]
    model = worker(*calls, aside=passes())
    agent = Agent("developer", model=model, tools=[vary, other], agents=[child])
    await desk.prompt(agent)

    assert [len(c.group) for c in await desk.inbox(agent)] == [1] * len(calls)


async def test_a_key_takes_no_part_in_what_is_grouped(desk: Desk) -> None:
    @tool
    async def each(ctx: Context) -> str:
        """Ask with a key of its own."""
        return str(await ctx.raise_callback("which?", key=ctx.call_id))

    agent = Agent("developer", model=worker(*(call("each") for _ in range(3))), tools=[each])
    await desk.prompt(agent)

    assert [len(c.group) for c in await desk.inbox(agent)] == [3]


async def test_equal_questions_that_were_reworded_differently_are_not_grouped(desk: Desk) -> None:
    def rewords(request: Request) -> Any:
        texts = [m.text for m in request.messages if "You passed it up" in m.text]
        return call("reword_callback", message=f"licence number {len(texts)}?", reason="clearer")

    child = Agent("developer", model=worker(call("work")), tools=[work])
    calls = [call("task", agent="developer", prompt=str(i)) for i in range(3)]
    manager = Agent("manager", model=worker(*calls, aside=rewords), agents=[child])
    await desk.prompt(manager)

    found = await desk.inbox(manager)
    assert sorted((c.reworded, len(c.group)) for c in found) == [(f"licence number {n}?", 1) for n in range(3)]
    async with desk.runtime(manager) as runtime:
        await runtime.answer(found[0].id, "MIT")
        assert len(await runtime.inbox()) == 2


async def test_each_of_a_group_keeps_its_own_withdrawal(desk: Desk) -> None:
    manager = five(work)
    waiting = await desk.prompt(manager)

    async with desk.runtime(manager) as runtime:
        await runtime.cancel(waiting.callbacks[2].session_id)
        (entry,) = await runtime.inbox()
        assert len(entry.group) == 4
        await runtime.answer(entry.id, "MIT")
    statuses = [c.status for c in (await desk.resume(manager)).callbacks]

    assert sorted(statuses) == ["answered"] * 4 + ["withdrawn"]


# --- any subset, any order ----------------------------------------------------------------

ENDS = {f"t{n}": f"answer {n}" for n in range(5)} | {f"c{n}": f"answer {n + 5}" for n in range(5)}
entered: dict[str, int] = {}
effects: list[str] = []


@tool
async def from_tool(name: str, ctx: Context) -> str:
    """Ask from a parallel tool."""
    entered[name] = entered.get(name, 0) + 1
    await ctx.once("effect", effects.append, name)
    return str(await ctx.raise_callback(f"{name}?"))


@tool
def from_child(name: str, ctx: SyncContext) -> str:
    """Ask from a child's tool, in a thread."""
    entered[name] = entered.get(name, 0) + 1
    ctx.once("effect", lambda: effects.append(name))
    return str(ctx.raise_callback(f"{name}?", "blocker"))


def crowd() -> Agent:
    """Five parallel tools and five parallel children, each with a question of its own."""

    def child(request: Request) -> Any:
        said = results(request.messages)
        return said[0].text if said else call("from_child", name=request.messages[0].text)

    below = Agent("developer", model=Script(child), tools=[from_child])
    calls = [call("from_tool", name=f"t{n}") for n in range(5)]
    calls += [call("task", agent="developer", prompt=f"c{n}") for n in range(5)]
    return Agent("manager", model=worker(*calls, aside=passes()), agents=[below], tools=[from_tool])


@pytest.mark.slow
@settings(max_examples=examples(15))
@given(
    order=st.permutations(sorted(ENDS)),
    cuts=st.sets(st.integers(1, 9), max_size=4),
)
async def test_ten_questions_are_answered_in_any_order_and_any_subsets(order: list[str], cuts: set[int]) -> None:
    desk, agent = Desk(), crowd()
    entered.clear()
    effects.clear()
    reply = await desk.prompt(agent)
    places = [0, *sorted(cuts), len(order)]

    for start, end in pairwise(places):
        async with desk.runtime(agent) as runtime:
            by_name = {c.message[:-1]: c.id for c in await runtime.inbox()}
            for name in order[start:end]:
                await runtime.answer(by_name[name], ENDS[name])
            reply = await runtime.resume("s")
            assert reply.status == ("done" if end == len(order) else "waiting")
            assert {c.message[:-1] for c in await runtime.inbox()} == set(order[end:])

    assert reply.text == "; ".join(
        ENDS[name] for name in (*(f"t{n}" for n in range(5)), *(f"c{n}" for n in range(5)))
    )
    assert entered == dict.fromkeys(ENDS, 2)
    assert sorted(effects) == sorted(ENDS)


async def test_two_waiting_children_are_answered_in_reverse_order_and_each_effect_happens_once(place: Desk) -> None:
    """ADK ran only the first of two waiting children; deepagents-acp crashed on the second's resume."""
    done: list[str] = []

    @tool
    async def buy(ctx: Context) -> str:
        """Buy."""
        what = ctx.get_messages()[0].text
        await ctx.once("pay", done.append, what)
        return str(await ctx.raise_callback(f"which {what}?"))

    child = Agent("developer", model=worker(call("buy")), tools=[buy])
    calls = [call("task", agent="developer", prompt=p) for p in ("paint", "brush")]
    manager = Agent("manager", model=worker(*calls, aside=passes()), agents=[child])

    await place.prompt(manager)
    await place.settle(manager, "flat", "which brush?")
    middle = await place.resume(manager)
    await place.settle(manager, "blue", "which paint?")
    end = await place.resume(manager)

    assert (middle.status, end.text, sorted(done)) == ("waiting", "blue; flat", ["brush", "paint"])


async def test_several_questions_in_one_tool_answered_out_of_order_each_get_their_own_answer(place: Desk) -> None:
    """langgraph#6533: answers were matched by order."""

    @tool
    async def survey(ctx: Context) -> str:
        """Ask three things at once."""
        return "/".join(await asyncio.gather(*(ctx.raise_callback(f"{n}?") for n in "abc")))

    agent = Agent("developer", model=worker(call("survey")), tools=[survey])
    await place.prompt(agent)

    await place.settle(agent, "C", "c?")
    await place.resume(agent)
    await place.settle(agent, "A", "a?")
    middle = await place.resume(agent)
    await place.settle(agent, "B", "b?")
    done = await place.resume(agent)

    assert (middle.status, done.text) == ("waiting", "A/B/C")


# --- replies ------------------------------------------------------------------------------


async def test_prompt_on_a_waiting_session_names_its_callbacks(desk: Desk) -> None:
    agent = asker()
    waiting = await desk.prompt(agent)

    async with desk.runtime(agent) as runtime:
        with pytest.raises(SessionWaiting) as told:
            await (await runtime.load("s")).prompt("more")

    assert told.value.callbacks == (waiting.callbacks[0].id,)
    assert waiting.callbacks[0].id in str(told.value)


async def test_a_loaded_session_that_waits_has_its_reply_with_the_callbacks_of_its_tree(place: Desk) -> None:
    manager = delegates("manager", asker(), passes())
    waiting = await place.prompt(manager)

    async with place.runtime(manager) as runtime:
        session, child = await runtime.load("s"), await runtime.load("s~r1c0")
        assert (session.reply, session.status) == (waiting, "waiting")
        assert child.reply is not None
        assert (child.reply.status, child.reply.callbacks) == ("waiting", waiting.callbacks)
        await runtime.answer(waiting.callbacks[0].id, "blue")
        await runtime.resume("s")
        assert (await runtime.load("s")).reply == await runtime.resume("s")


@pytest.mark.parametrize("host", [None, Person(never)])
async def test_a_prompt_that_is_refused_because_the_session_waits_leaves_the_log_as_it_was(
    place: Desk, host: Person | None
) -> None:
    manager = delegates("manager", asker(), passes())
    await place.prompt(manager)
    before = await place.log(manager, None)

    async with place.runtime(manager, host=host) as runtime:
        session = await runtime.load("s")
        for _ in range(3):
            with pytest.raises(SessionWaiting):
                await session.prompt("are you there?")
            with pytest.raises(SessionWaiting):
                async for _ in session.stream("are you there?"):
                    pass

    assert await place.log(manager, None) == before
    await place.settle(manager, "blue")
    assert (await place.resume(manager)).text == "'blue'"


async def test_prompt_on_an_answered_session_first_finishes_that_turn(desk: Desk) -> None:
    agent = asker()
    await desk.prompt(agent)
    await desk.settle(agent, "blue")

    async with desk.runtime(agent) as runtime:
        session = await runtime.load("s")
        await session.prompt("more")
        texts = [m.text for m in session.get_messages() if m.role in ("user", "assistant") and m.text]

    assert texts[:3] == ["go", "'blue'", "more"]


async def test_a_reply_has_all_callbacks_of_this_turns_tree_and_none_of_an_earlier_turn(desk: Desk) -> None:
    manager = delegates("manager", asker(), passes())
    await desk.prompt(manager)
    await desk.settle(manager, "blue")
    first = await desk.resume(manager)

    async with desk.runtime(manager) as runtime:
        again = await runtime.resume("s")
        second = await (await runtime.load("s")).prompt("and now?")

    assert [c.status for c in first.callbacks] == ["answered"]
    assert again == first
    assert second.callbacks == ()


async def test_resume_without_an_answer_changes_nothing(place: Desk) -> None:
    agent = asker()
    waiting = await place.prompt(agent)
    before = await place.log(agent)

    again = await place.resume(agent)

    assert (again.status, again.callbacks) == ("waiting", waiting.callbacks)
    assert await place.log(agent) == before


async def test_a_callback_error_is_one_family(desk: Desk) -> None:
    for error in (AlreadySettled, AnswerRefused, UnknownCallback):
        assert issubclass(error, CallbackError)


async def test_cancel_in_a_race_with_an_answer_leaves_one_of_the_two(place: Desk) -> None:
    agent = asker()
    callback_id = (await place.prompt(agent)).callbacks[0].id

    async with place.runtime(agent) as runtime:
        ends = await asyncio.gather(
            runtime.cancel("s"), runtime.answer(callback_id, "blue"), return_exceptions=True
        )
        held = await runtime.store.callback(callback_id)
        assert held is not None
        status = await runtime.status("s")

    assert status == "cancelled"
    assert held.status == ("withdrawn" if isinstance(ends[1], AlreadySettled) else "answered")
    assert not held.delivered


async def test_nothing_waits_in_memory_for_a_person_who_never_looks(desk: Desk) -> None:
    agent = asker()
    async with desk.runtime(agent, host=Person(never), hold=0.0) as runtime:
        session = await runtime.start(agent, "s")
        reply = await session.prompt("go")

        assert (reply.status, runtime.turns) == ("waiting", {})


# --- who answered -------------------------------------------------------------------------


async def test_a_host_says_who_answered_and_by_what_right_with_its_answer(place: Desk) -> None:
    agent = asker()
    reply = await place.prompt(agent, host=Person(lambda _: Answer("blue", by="ann", right="oidc")))

    (answer,) = [c.answer for c in reply.callbacks]
    assert answer is not None
    assert (reply.text, answer.value, answer.by, answer.right) == ("'blue'", "blue", "ann", "oidc")
    (event,) = [e for e in await place.log(agent) if isinstance(e, CallbackAnswered)]
    assert (event.value, event.by, event.right) == ("blue", "ann", "oidc")


@pytest.mark.parametrize("said", ["blue", Answer("blue"), Answer("blue", at=5.0, reason="because")], ids=str)
async def test_a_host_that_does_not_say_who_answered_is_logged_as_user_and_asserted(said: Any, desk: Desk) -> None:
    reply = await desk.prompt(asker(), host=Person(lambda _: said))

    (answer,) = [c.answer for c in reply.callbacks]
    assert answer == Answer("blue", "user", "asserted", desk.clock.now)


async def test_approvals_and_refusals_of_a_host_carry_who_gave_them(desk: Desk) -> None:
    @tool(needs_approval=True)
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    verdicts = {1: Approve(), 2: Reject("too much"), 3: Approve(args={"amount": 0})}
    host = Person(lambda c: Answer(verdicts[(c.args or {})["amount"]], by="ann", right="token"))
    agent = Agent("clerk", model=worker(*[call("pay", amount=n) for n in (1, 2, 3)]), tools=[pay])
    reply = await desk.prompt(agent, host=host)

    assert {(c.answer.by, c.answer.right) for c in reply.callbacks if c.answer} == {("ann", "token")}
    assert "rejected by ann: too much" in reply.text
    declined = await desk.prompt(
        asker(default=1), id="t", host=Person(lambda _: Answer(Decline("no"), by="ann", right="token"))
    )
    assert [(c.status, c.answer and c.answer.by) for c in declined.callbacks] == [("declined", "ann")]


async def test_a_host_answers_null_inside_an_answer_and_a_bare_none_leaves_the_question(desk: Desk) -> None:
    reply = await desk.prompt(asker(schema={"type": ["string", "null"]}), host=Person(lambda _: Answer(None)))
    assert (reply.status, reply.text) == ("done", "None")
    reply = await desk.prompt(asker(), id="t", host=Person(lambda _: None))
    assert reply.status == "waiting"


WRONG = [
    {"by": 5},
    {"by": "x" * 501},
    {"right": 5},
    {"right": "agent"},
    {"right": "hook"},
    {"right": "x" * 51},
    {"right": "two words"},
    {"right": "a\nb"},
]


@pytest.mark.parametrize("claim", WRONG, ids=lambda claim: repr(claim)[:40])
async def test_a_host_that_claims_what_it_may_not_leaves_the_question_in_the_inbox(
    claim: dict[str, Any], desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    agent = asker()
    reply = await desk.prompt(agent, host=Person(lambda _: Answer("blue", **claim)))

    assert reply.status == "waiting"
    assert "invalid answer from the host" in caplog.text
    assert [c.status for c in await desk.inbox(agent)] == ["open"]


@pytest.mark.parametrize("claim", [*WRONG, {"right": ""}], ids=lambda claim: repr(claim)[:40])
async def test_a_program_that_claims_what_it_may_not_is_told_so(claim: dict[str, Any], desk: Desk) -> None:
    agent = asker()
    callback_id = (await desk.prompt(agent)).callbacks[0].id

    async with desk.runtime(agent) as runtime:
        with pytest.raises(SetupError, match=next(iter(claim))):
            await runtime.answer(callback_id, "blue", **claim)
        with pytest.raises(AnswerRefused, match="give only the value"):
            await runtime.answer(callback_id, Answer("blue"))
