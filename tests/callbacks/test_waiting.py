"""Waiting: an open callback is the parked state; what ran is not run again; nobody gets somebody else's answer."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from callbacks.doubles import Desk, Person, answers, asker, at_work, delegates, never, passes, results, worker
from upcall import (
    Agent,
    AlreadySettled,
    Call,
    Callback,
    Context,
    Hooks,
    Limits,
    Reject,
    Request,
    Response,
    Runtime,
    SyncContext,
    errors,
    tool,
)
from upcall.contracts import Claim
from upcall.events import (
    AnyEvent,
    CallbackDelivered,
    CallbackWithdrawn,
    CancelRequested,
    Parked,
    ToolEnded,
    ToolTriedAgain,
    TurnResumed,
)
from upcall.models import Script, call
from upcall.store.sqlite.store import SqliteStore
from upcall.workspace import run_python

# --- parking ------------------------------------------------------------------------------


async def test_a_turn_that_waits_gives_its_memory_up_and_is_listed_as_waiting(place: Desk) -> None:
    agent = asker()
    async with place.runtime(agent) as runtime:
        session = await runtime.start(agent, "s")
        reply = await session.prompt("go")

        assert (reply.status, await runtime.status("s"), runtime.turns) == ("waiting", "waiting", {})
    (parked,) = [e for e in await place.log(agent) if isinstance(e, Parked)]
    assert parked.waits == (reply.callbacks[0].id,)


async def test_a_reply_that_waits_has_no_output_whatever_was_said_beside_the_call(place: Desk) -> None:
    def decide(request: Request) -> Any:
        said = results(request.messages)
        return said[0].text if said else Response("Let me ask.", [call("work")])

    agent = asker().replace(model=Script(decide), output=int)
    waiting = await place.prompt(agent)
    assert (waiting.status, waiting.text, waiting.output) == ("waiting", "Let me ask.", None)
    again = await place.resume(agent)
    await place.settle(agent, 7)

    assert (again.status, again.output) == ("waiting", None)
    assert (await place.resume(agent)).output == 7


async def test_who_parked_a_session_does_not_take_another_one_of_its_id_for_it(place: Desk) -> None:
    @tool
    async def work(ctx: Context) -> str:
        """Ask."""
        return f"{ctx.get_messages()[0].text}: {await ctx.raise_callback('which?')}"

    agent = at_work(work)
    async with place.runtime(agent) as runtime:
        await (await runtime.start(agent, "s")).prompt("the first")
        async with place.runtime(agent) as other:
            await other.delete("s")
        await place.prompt(agent, "the second")
        await place.settle(agent, "blue")

        assert (await runtime.resume("s")).text == "the second: blue"


@pytest.mark.slow
async def test_more_sessions_than_are_kept_at_hand_continue_in_any_order(place: Desk) -> None:
    agent = asker()
    async with place.runtime(agent) as runtime:
        ids = [f"s{n}" for n in range(40)]
        replies = [await (await runtime.start(agent, i)).prompt("go") for i in ids]
        for reply in replies[::-1]:
            await runtime.answer(reply.callbacks[0].id, reply.session_id)

        assert [(await runtime.resume(i)).text for i in ids] == [repr(i) for i in ids]


async def test_a_question_does_not_wait_for_code_that_takes_its_time_to_unwind(place: Desk) -> None:
    seen: list[Callback] = []

    @tool
    async def work(ctx: Context) -> str:
        """Ask, and clean up until the question is in the inbox."""
        try:
            return str(await ctx.raise_callback("which?"))
        finally:
            async with asyncio.timeout(20):
                while not seen:
                    seen.extend(await runtime.inbox())
                    await asyncio.sleep(0.01)

    agent = at_work(work)
    async with place.runtime(agent) as runtime:
        reply = await (await runtime.start(agent, "s")).prompt("go")

    assert (reply.status, [c.id for c in seen]) == ("waiting", [c.id for c in reply.callbacks])


async def test_a_question_is_in_the_inbox_while_another_call_runs(place: Desk) -> None:
    @tool
    async def ask_now(ctx: Context) -> str:
        """Ask."""
        return str(await ctx.raise_callback("which?"))

    @tool
    async def look() -> str:
        """Look into the inbox until something is there."""
        async with asyncio.timeout(20):
            while not (found := await runtime.inbox()):
                await asyncio.sleep(0.01)
        return found[0].message

    agent = Agent("developer", model=worker(call("ask_now"), call("look")), tools=[ask_now, look])
    async with place.runtime(agent) as runtime:
        reply = await (await runtime.start(agent, "s")).prompt("go")

    assert reply.status == "waiting"
    assert [e.result.text for e in await place.log(agent) if isinstance(e, ToolEnded)] == ["which?"]


async def test_delivered_is_written_before_the_value_reaches_the_code(place: Desk) -> None:
    seen: list[list[str]] = []

    @tool
    async def work(ctx: Context) -> str:
        """Ask, then look into the log."""
        await ctx.raise_callback("which?")
        seen.append([e.type for e in await place.log(agent)])
        return "ok"

    agent = at_work(work)
    await place.prompt(agent)
    await place.settle(agent, "this")
    await place.resume(agent)

    assert "callback_delivered" in seen[0]


async def test_every_re_entry_is_logged_as_an_attempt(desk: Desk) -> None:
    @tool
    async def work(ctx: Context) -> str:
        """Ask three times."""
        return "".join([str(await ctx.raise_callback(f"{n}?")) for n in range(3)])

    agent = at_work(work)
    reply = await desk.prompt(agent)
    for n in range(3):
        await desk.settle(agent, n)
        reply = await desk.resume(agent)

    assert reply.text == "012"
    log = await desk.log(agent)
    assert [e.attempt for e in log if isinstance(e, ToolTriedAgain)] == [1, 2, 3]
    assert len([e for e in log if isinstance(e, CallbackDelivered)]) == 3


async def test_a_turn_unwinds_only_when_every_call_has_ended_or_waits(desk: Desk) -> None:
    go, ran = asyncio.Event(), list[str]()

    @tool
    async def slow() -> str:
        """Take a while."""
        await go.wait()
        ran.append("slow")
        return "slow"

    @tool
    async def ask_now(ctx: Context) -> str:
        """Ask."""
        asyncio.get_running_loop().call_later(0.02, go.set)
        return str(await ctx.raise_callback("which?"))

    agent = Agent("developer", model=worker(call("slow"), call("ask_now")), tools=[slow, ask_now])

    waiting = await desk.prompt(agent)
    assert (waiting.status, ran) == ("waiting", ["slow"])
    await desk.settle(agent, "this")
    done = await desk.resume(agent)

    assert (done.text, ran) == ("slow; this", ["slow"])


async def test_a_sibling_that_was_answered_ends_while_the_others_wait(desk: Desk) -> None:
    entered: list[str] = []

    @tool
    async def work(name: str, ctx: Context) -> str:
        """Ask."""
        entered.append(name)
        return str(await ctx.raise_callback(f"{name}?"))

    agent = Agent("developer", model=worker(call("work", name="a"), call("work", name="b")), tools=[work])
    await desk.prompt(agent)
    await desk.settle(agent, "B", "b?")
    await desk.resume(agent)

    ended = [e.result.text for e in await desk.log(agent) if isinstance(e, ToolEnded)]
    assert (ended, sorted(entered)) == (["B"], ["a", "b", "b"])


async def test_an_answer_that_comes_while_the_turn_parks_is_not_lost(place: Desk) -> None:
    """Parking is a conditional append: whoever answers in between lets it fail, and the turn goes on."""
    agent = asker()

    async with place.runtime(agent, host=Person(lambda _: None)) as runtime:
        session = await runtime.start(agent, "s")
        turn = asyncio.ensure_future(session.prompt("go"))
        while not await runtime.inbox():
            await asyncio.sleep(0)
        (callback,) = await runtime.inbox()
        await runtime.answer(callback.id, "blue")
        reply = await turn
        if reply.status == "waiting":  # it had parked before the answer came
            reply = await runtime.resume("s")

    assert reply.text == "'blue'"


async def test_waiting_is_counted_in_no_limit(place: Desk) -> None:
    agent = asker().replace(limits=Limits(turn_seconds=10, tool_seconds=10))
    await place.prompt(agent)
    place.clock.tick(1_000_000)
    await place.settle(agent, "blue")

    done = await place.resume(agent)

    assert (done.status, done.text) == ("done", "'blue'")


# --- ctx.once -----------------------------------------------------------------------------


async def test_once_runs_an_effect_at_most_once_per_call_and_keeps_its_result(place: Desk) -> None:
    paid: list[int] = []

    @tool
    async def buy(price: int, ctx: Context) -> str:
        """Buy."""

        async def pay(amount: int) -> dict[str, int]:
            paid.append(amount)
            return {"receipt": len(paid)}

        receipt = await ctx.once("pay", pay, price)
        return f"{receipt} {await ctx.raise_callback(f'gift wrap for {price}?')}"

    agent = Agent("developer", model=worker(call("buy", price=5), call("buy", price=7)), tools=[buy])
    await place.prompt(agent)
    await place.settle(agent, "yes", "gift wrap for 5?")
    await place.resume(agent)
    await place.settle(agent, "no", "gift wrap for 7?")
    done = await place.resume(agent)

    assert done.text == "{'receipt': 1} yes; {'receipt': 2} no"
    assert paid == [5, 7]


async def test_once_gives_who_runs_the_effect_what_a_later_run_gets(desk: Desk) -> None:
    seen: list[Any] = []

    @tool
    async def work(ctx: Context) -> str:
        """Buy."""
        seen.append(await ctx.once("buy", lambda: {1: (2, 3)}))
        return await ctx.raise_callback("which?")

    agent = at_work(work)
    await desk.prompt(agent)
    await desk.settle(agent, "this")
    await desk.resume(agent)

    assert seen == [{"1": [2, 3]}, {"1": [2, 3]}]


async def test_an_effect_is_not_given_up_in_the_middle_because_its_call_asks_besides(place: Desk) -> None:
    begun: list[str] = []
    ended = asyncio.Event()

    async def effect() -> str:
        begun.append("effect")
        await ended.wait()
        return "bought"

    @tool
    async def work(ctx: Context) -> str:
        """Buy and ask at once."""
        asking, buying = ctx.raise_callback("which?"), ctx.once("buy", effect)
        return " ".join(await asyncio.gather(asking, buying))

    agent = at_work(work)
    async with place.runtime(agent) as runtime:
        turn = asyncio.ensure_future((await runtime.start(agent, "s")).prompt("go"))
        while not (begun and await runtime.inbox()):
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        ended.set()
        assert (await turn).status == "waiting"
    await place.settle(agent, "this")

    assert ((await place.resume(agent)).text, begun) == ("this bought", ["effect"])


async def test_once_keeps_a_failure_too(desk: Desk) -> None:
    tries: list[int] = []

    @tool
    async def buy(ctx: Context) -> str:
        """Buy."""

        def pay() -> None:
            tries.append(1)
            raise ValueError("card declined")

        try:
            await ctx.once("pay", pay)
        except Exception as error:
            return f"{await ctx.raise_callback('pay cash?')} after {error}"
        return "paid"

    agent = Agent("developer", model=worker(call("buy")), tools=[buy])
    await desk.prompt(agent)
    await desk.settle(agent, "yes")
    done = await desk.resume(agent)

    assert tries == [1]
    assert "card declined" in done.text


# --- replay -------------------------------------------------------------------------------


async def test_equal_questions_of_one_call_are_matched_by_count(place: Desk) -> None:
    @tool
    async def work(ctx: Context) -> str:
        """Ask the same twice."""
        return f"{await ctx.raise_callback('next?')} {await ctx.raise_callback('next?')}"

    agent = at_work(work)
    await place.prompt(agent)
    await place.settle(agent, "first")
    await place.resume(agent)
    await place.settle(agent, "second")

    assert (await place.resume(agent)).text == "first second"


async def test_a_key_stands_for_the_whole_question(desk: Desk) -> None:
    runs: list[int] = []

    @tool
    async def work(ctx: Context) -> str:
        """Ask in other words each time."""
        runs.append(1)
        return str(await ctx.raise_callback(f"attempt {len(runs)}: which?", key="which"))

    agent = at_work(work)
    await desk.prompt(agent)
    await desk.settle(agent, "this")

    assert (await desk.resume(agent)).text == "this"


async def test_context_hints_and_times_are_no_part_of_the_digest(desk: Desk) -> None:
    runs: list[int] = []

    @tool
    async def work(ctx: Context) -> str:
        """Ask the same with other trimmings."""
        runs.append(1)
        n = len(runs)
        return str(
            await ctx.raise_callback(
                "which?", context={"n": n}, priority="low" if n > 1 else "high", timeout=n * 60, max_bubble_hops=n
            )
        )

    agent = at_work(work)
    await desk.prompt(agent)
    await desk.settle(agent, "this")

    assert (await desk.resume(agent)).text == "this"


@pytest.mark.parametrize(
    "second",
    [
        {"message": "how much?"},
        {"message": "which?", "callback_type": "blocker"},
        {"message": "which?", "kind": "request_user_input"},
        {"message": "which?", "choices": ["a"]},
        {"message": "which?", "schema": {"type": "string"}},
    ],
    ids=["message", "intent", "kind", "choices", "schema"],
)
async def test_a_call_that_asks_something_else_when_it_runs_again_gets_replay_mismatch(
    desk: Desk, second: dict[str, Any]
) -> None:
    runs: list[int] = []

    @tool
    async def work(ctx: Context) -> str:
        """Ask something else the second time."""
        runs.append(1)
        question: dict[str, Any] = {"message": "which?"} if len(runs) == 1 else second
        return str(await ctx.raise_callback(**question))

    agent = at_work(work)
    await desk.prompt(agent)
    await desk.settle(agent, "this")
    done = await desk.resume(agent)

    assert done.status == "done"
    assert "'which?' was answered 'this'" in done.text
    assert "ReplayMismatch: tool 'work' ran again after an answer but no longer asks the question" in done.text
    assert not await desk.inbox(agent)


async def test_a_call_that_no_longer_asks_gets_replay_mismatch_too(desk: Desk) -> None:
    runs: list[int] = []

    @tool
    async def work(ctx: Context) -> str:
        """Ask the first time only."""
        runs.append(1)
        return str(await ctx.raise_callback("which?")) if len(runs) == 1 else "no need"

    agent = at_work(work)
    await desk.prompt(agent)
    await desk.settle(agent, "this")

    text = (await desk.resume(agent)).text
    assert text.startswith("ReplayMismatch: tool 'work' ran again")
    assert "'which?' was answered 'this'" in text


async def test_a_tool_that_is_gone_gives_the_model_an_error_that_carries_the_answer(place: Desk) -> None:
    before = asker(model=worker(call("work")))
    await place.prompt(before)
    await place.settle(before, "blue")
    after = Agent("developer", model=worker(call("work")))

    done = await place.resume(after)

    said = results(await place.messages(after))
    assert said[0].is_error
    assert "the answer to 'which colour?' was 'blue'" in done.text


async def test_a_program_whose_tool_is_gone_gives_the_model_an_error_that_carries_the_answer(place: Desk) -> None:
    run = call("run_python", code="raise_callback('which colour?')")
    before = Agent("developer", model=worker(run), tools=[run_python()])
    await place.prompt(before)
    await place.settle(before, "blue")

    done = await place.resume(Agent("developer", model=worker(run)))

    assert "the answer to 'which colour?' was 'blue'" in done.text


async def test_a_tool_that_is_gone_before_its_approval_gives_the_model_what_was_said_of_it(place: Desk) -> None:
    @tool(needs_approval=True)
    async def work() -> str:
        """Work."""
        return "worked"

    before = at_work(work)
    await place.prompt(before)
    await place.settle(before, Reject("on a Friday?"))

    done = await place.resume(Agent("developer", model=worker(call("work"))))

    assert "there is no tool called 'work'" in done.text
    assert "on a Friday?" in done.text


async def test_a_tool_that_now_wants_other_arguments_refuses_the_call_and_the_turn_continues(place: Desk) -> None:
    before = asker(model=worker(call("work")))
    await place.prompt(before)
    await place.settle(before, "blue")

    @tool
    async def work(shade: str) -> str:
        """Take what it had to ask for."""
        return shade

    done = await place.resume(at_work(work))

    assert done.status == "done"
    assert "shade: missing; expected string" in done.text


async def test_a_change_of_the_agent_between_park_and_resume_is_noted(desk: Desk) -> None:
    agent = asker()
    await desk.prompt(agent)
    await desk.settle(agent, "blue")
    changed = agent.replace(instructions="Be careful.")

    await desk.resume(changed)

    (resumed,) = [e for e in await desk.log(changed) if isinstance(e, TurnResumed)]
    assert resumed.setup


# --- parking inside a tool ----------------------------------------------------------------


async def test_parking_inside_gather_leaves_no_task_and_no_question_behind(place: Desk) -> None:
    cleaned: list[int] = []

    @tool
    async def work(ctx: Context) -> str:
        """Ask three at once, and something else beside it."""

        async def one(n: int) -> str:
            try:
                return str(await ctx.raise_callback(f"{n}?"))
            finally:
                cleaned.append(n)

        return ",".join(await asyncio.gather(*(one(n) for n in range(3))))

    agent = at_work(work)
    async with place.runtime(agent) as runtime:
        before = len(asyncio.all_tasks())
        session = await runtime.start(agent, "s")
        await session.prompt("go")
        await asyncio.sleep(0)
        assert sorted(cleaned) == [0, 1, 2]
        assert len(asyncio.all_tasks()) <= before + 1  # the store's own
        inbox = await runtime.inbox()
        assert sorted(c.message for c in inbox) == ["0?", "1?", "2?"]
        for callback in inbox:
            await runtime.answer(callback.id, callback.message[0])
        reply = await runtime.resume("s")

    assert reply.text == "0,1,2"


@pytest.mark.parametrize("how", ["gather", "wait"])
async def test_parking_ends_what_a_tool_runs_beside_its_question(how: str, place: Desk) -> None:
    ran: list[str] = []
    begun = asyncio.Event()

    @tool
    async def work(ctx: Context) -> str:
        """Ask beside something slow."""

        async def slow() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ran.append("ended")

        async def ask() -> str:
            await begun.wait()
            return str(await ctx.raise_callback("which?"))

        if how == "gather" and not ran:
            await asyncio.gather(ask(), slow())
        return await asyncio.create_task(ask())

    agent = at_work(work)
    async with place.runtime(agent) as runtime:
        if how == "wait":
            begun.set()
        session = await runtime.start(agent, "s")
        waiting = await session.prompt("go")
        ended = list(ran)
        await runtime.answer(waiting.callbacks[0].id, "this")
        done = await runtime.resume("s")
        again = await session.prompt("once more")

    assert (waiting.status, ended) == ("waiting", ["ended"] if how == "gather" else [])
    assert (done.text, again.status) == ("this", "done")


async def test_a_tool_continues_with_the_first_of_two_answers(place: Desk) -> None:
    @tool
    async def work(ctx: Context) -> str:
        """Ask two, take who is first."""
        asking = [asyncio.ensure_future(ctx.raise_callback(who)) for who in ("ann?", "ben?")]
        done, left = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        return f"first: {done.pop().result()}"

    agent = at_work(work)
    assert (await place.prompt(agent)).status == "waiting"
    await place.settle(agent, "yes", "ben?")

    assert (await place.resume(agent)).text == "first: yes"
    assert await place.inbox(agent) == []


async def test_parking_inside_a_task_group_ends_its_tasks(place: Desk) -> None:
    cancelled: list[str] = []

    @tool
    async def work(ctx: Context) -> str:
        """Ask beside endless work."""

        async def endless() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append("endless")
                raise

        async with asyncio.TaskGroup() as group:
            beside = group.create_task(endless())
            asked = group.create_task(ctx.raise_callback("which?"))
            answer = str(await asked)
            beside.cancel()
        return answer

    agent = at_work(work)
    waiting = await place.prompt(agent)
    await place.settle(agent, "this")
    done = await place.resume(agent)

    assert (waiting.status, done.text, cancelled) == ("waiting", "this", ["endless", "endless"])


async def test_except_exception_can_not_swallow_the_parking_and_finally_runs(place: Desk) -> None:
    ran: list[str] = []

    @tool
    async def work(ctx: Context) -> str:
        """Catch what may be caught."""
        try:
            return str(await ctx.raise_callback("which?"))
        except Exception:
            ran.append("except")
            return "swallowed"
        finally:
            ran.append("finally")

    agent = at_work(work)
    waiting = await place.prompt(agent)
    await place.settle(agent, "this")
    done = await place.resume(agent)

    assert (waiting.status, done.text, ran) == ("waiting", "this", ["finally", "finally"])


async def test_a_tool_that_swallows_its_parking_fails_by_name(desk: Desk) -> None:
    @tool
    async def greedy(ctx: Context) -> str:
        """Catch everything."""
        try:
            return str(await ctx.raise_callback("which?"))
        except BaseException:
            return "I know better"

    agent = Agent("developer", model=worker(call("greedy")), tools=[greedy])
    reply = await desk.prompt(agent)

    (result,) = results(await desk.messages(agent))
    assert result.is_error
    assert result.text.startswith("ToolSwallowedParking: tool 'greedy' caught")
    assert "I know better" not in reply.text
    assert [c.status for c in reply.callbacks] == ["withdrawn"]


async def test_a_sync_tool_that_swallows_its_parking_fails_by_name(desk: Desk) -> None:
    @tool
    def greedy(ctx: SyncContext) -> str:
        """Catch everything."""
        try:
            return str(ctx.raise_callback("which?"))
        except BaseException:
            return "I know better"

    agent = Agent("developer", model=worker(call("greedy")), tools=[greedy])
    await desk.prompt(agent)

    (result,) = results(await desk.messages(agent))
    assert (result.is_error, result.text[:37]) == (True, "ToolSwallowedParking: tool 'greedy' c")


async def test_a_parked_sync_tool_leaves_its_thread(desk: Desk) -> None:
    left = threading.Event()

    @tool
    def work(ctx: SyncContext) -> str:
        """Ask."""
        try:
            return str(ctx.raise_callback("which?"))
        finally:
            left.set()

    await desk.prompt(at_work(work))

    assert left.is_set()


async def test_a_call_that_ends_withdraws_what_it_still_asked(desk: Desk) -> None:
    @tool
    async def work(ctx: Context) -> str:
        """Ask, and leave without waiting."""
        asked = asyncio.ensure_future(ctx.raise_callback("which?", kind="request_user_input"))
        while not (await asyncio.sleep(0)) and not asked.done() and not await runtime.inbox():
            pass
        asked.cancel()
        return "did not wait"

    agent = at_work(work)
    async with desk.runtime(agent, host=Person(never)) as runtime:
        reply = await (await runtime.start(agent, "s")).prompt("go")

        assert (reply.text, [c.status for c in reply.callbacks]) == ("did not wait", ["withdrawn"])
        assert not await runtime.inbox()


# --- hold and the person at the screen ----------------------------------------------------


async def test_an_answer_while_it_is_held_enters_the_tool_once(place: Desk) -> None:
    entered: list[int] = []

    @tool
    async def work(ctx: Context) -> str:
        """Ask."""
        entered.append(1)
        return str(await ctx.raise_callback("which?"))

    agent = at_work(work)
    async with place.runtime(agent, host=Person(never)) as runtime:
        session = await runtime.start(agent, "s")
        turn = asyncio.ensure_future(session.prompt("go"))
        while not (inbox := await runtime.inbox()):
            await asyncio.sleep(0)
        await runtime.answer(inbox[0].id, "this")
        reply = await asyncio.wait_for(turn, 5)

    assert (reply.text, entered) == ("this", [1])


async def test_after_the_hold_it_unwinds_and_the_person_is_told(place: Desk) -> None:
    person = Person(never)
    agent = asker()
    async with place.runtime(agent, host=person, hold=0.02) as runtime:
        place.clock.now = 0.0
        reply = await (await runtime.start(agent, "s")).prompt("go")

        assert (reply.status, runtime.turns) == ("waiting", {})
    assert [i for i, _ in person.withdrawn] == [reply.callbacks[0].id]


async def test_a_wrong_value_from_the_person_is_asked_again_with_the_reason(desk: Desk) -> None:
    def wrong_then_right(callback: Callback) -> str:
        return "blue" if callback.problem else "green"

    person = Person(wrong_then_right)
    reply = await desk.prompt(asker(choices=["red", "blue"]), host=person)

    assert reply.text == "'blue'"
    assert [c.problem for c in person.seen] == ["", "'green' is not one of the choices: 'red', 'blue'"]


async def test_a_person_who_returns_none_leaves_it_waiting_and_nothing_is_held(desk: Desk) -> None:
    agent = asker()

    reply = await desk.prompt(agent, host=Person(lambda _: None))

    assert (reply.status, [c.message for c in await desk.inbox(agent)]) == ("waiting", ["which colour?"])


async def test_a_host_that_never_answers_validly_leaves_the_question_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Parrot:
        asked = 0

        async def ask(self, callback: Callback) -> str:
            self.asked += 1
            return "something else"

        def withdraw(self, callback_id: str, reason: str) -> None: ...

    @tool
    async def choose(ctx: Context) -> str:
        """Ask with choices."""
        return str(await ctx.raise_callback("Which?", "blocker", choices=["this", "that"]))

    host, agent = Parrot(), Agent("a", model=worker(call("choose")), tools=[choose])
    async with Runtime(tmp_path / "log.db", agents=[agent], host=host) as runtime:
        async with asyncio.timeout(60):
            reply = await (await runtime.start("a")).prompt("go")
        waiting = await runtime.inbox()

    assert (reply.status, host.asked, len(waiting)) == ("waiting", 100, 1)
    assert "100 invalid answers in a row" in caplog.text


async def test_a_host_that_breaks_leaves_the_question_waiting_and_is_heard_of(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Callback) -> Any:
        raise RuntimeError("no screen")

    agent = asker()
    with caplog.at_level(logging.ERROR, "upcall"):
        reply = await desk.prompt(agent, host=Person(broken))

    assert (reply.status, len(await desk.inbox(agent))) == ("waiting", 1)
    assert "no screen" in caplog.text


async def test_what_was_settled_elsewhere_is_withdrawn_from_the_screen(desk: Desk) -> None:
    person = Person(never)
    agent = asker()
    async with desk.runtime(agent, host=person) as runtime:
        turn = asyncio.ensure_future((await runtime.start(agent, "s")).prompt("go"))
        while not person.seen:
            await asyncio.sleep(0)
        await runtime.answer(person.seen[0].id, "blue")
        await asyncio.wait_for(turn, 5)

    assert [i for i, _ in person.withdrawn] == [person.seen[0].id]


async def test_what_the_person_answered_is_not_withdrawn_from_the_screen(place: Desk) -> None:
    person = Person(lambda _: "blue")
    await place.prompt(asker(), host=person)

    assert person.withdrawn == []


async def test_parallel_children_are_asked_about_side_by_side(desk: Desk) -> None:
    together = asyncio.Barrier(3)

    async def all_at_once(callback: Callback) -> str:
        await together.wait()
        return callback.message

    @tool
    async def work(ctx: Context) -> str:
        """Ask."""
        return str(await ctx.raise_callback(f"{ctx.get_messages()[0].text}?"))

    child = at_work(work)
    calls = [call("task", agent="developer", prompt=p) for p in "abc"]
    manager = Agent("manager", model=worker(*calls, aside=passes()), agents=[child])

    reply = await asyncio.wait_for(desk.prompt(manager, host=Person(all_at_once)), 10)

    assert reply.text == "a?; b?; c?"


async def test_many_sync_tools_that_wait_hold_up_nobody(desk: Desk) -> None:
    """Waiting holds no place in any concurrency limit: more threads wait than the pool usually has."""
    many = 80
    person_has: list[Callback] = []
    everybody = asyncio.Event()

    async def when_all_have_asked(callback: Callback) -> str:
        person_has.append(callback)
        if len(person_has) == many:
            everybody.set()
        await everybody.wait()
        return "go"

    @tool
    def work(n: int, ctx: SyncContext) -> str:
        """Ask."""
        return str(ctx.raise_callback(f"{n}?"))

    agent = Agent("developer", model=worker(*(call("work", n=n) for n in range(many))), tools=[work])
    reply = await asyncio.wait_for(desk.prompt(agent, host=Person(when_all_have_asked)), 20)

    assert reply.text == "; ".join(["go"] * many)


# --- expiry -------------------------------------------------------------------------------


async def test_a_callback_that_expires_gives_its_default(place: Desk) -> None:
    agent = asker("create it?", "blocker", timeout=3600, default="create it")
    waiting = await place.prompt(agent)
    place.clock.tick(3600)

    done = await place.resume(agent)

    assert waiting.callbacks[0].expires == waiting.callbacks[0].created + 3600
    assert (done.text, done.callbacks[0].status, done.callbacks[0].answer) == ("'create it'", "expired", None)


async def test_none_is_a_default_like_any_other(desk: Desk) -> None:
    agent = asker("x?", "blocker", timeout=60, default=None)
    await desk.prompt(agent)
    desk.clock.tick(61)

    assert (await desk.resume(agent)).text == "None"


@pytest.mark.parametrize("intent", ["query", "blocker", "approval"])
async def test_without_a_default_expiry_raises_callback_expired(intent: str, desk: Desk) -> None:
    agent = asker("which?", intent, timeout=60)
    await desk.prompt(agent)
    desk.clock.tick(60)

    done = await desk.resume(agent)

    assert "('which?') expired after 60 s without an answer" in done.text
    assert "after 3 s without" in str(errors.CallbackExpired("q1", "which?", 2.99978))


async def test_a_held_callback_expires_by_itself(desk: Desk) -> None:
    agent = asker("which?", timeout=0.02, default="late")

    async def let_time_pass(_: Callback) -> None:
        desk.clock.tick(1)
        await asyncio.Event().wait()

    person = Person(let_time_pass)
    reply = await asyncio.wait_for(desk.prompt(agent, host=person), 10)

    assert reply.text == "'late'"
    assert [i for i, _ in person.withdrawn] == [reply.callbacks[0].id]


async def test_the_sidecars_timeout_counts_for_a_person_from_being_asked(place: Desk) -> None:
    agent = asker("which?", policy={"timeout": 100})
    waiting = await place.prompt(agent)
    place.clock.tick(99)
    still = await place.resume(agent)
    place.clock.tick(1)
    done = await place.resume(agent)

    assert waiting.callbacks[0].expires == waiting.callbacks[0].created + 100
    assert (still.status, done.callbacks[0].status) == ("waiting", "expired")


async def test_expires_is_the_earlier_of_the_callbacks_and_the_targets_time(desk: Desk) -> None:
    earlier = await desk.prompt(asker(timeout=50, policy={"timeout": 100}), id="one")
    later = await desk.prompt(asker(timeout=500, policy={"timeout": 100}), id="two")

    spans = [(c.expires or 0) - c.created for c in (*earlier.callbacks, *later.callbacks)]
    assert spans == [50, 100]


async def test_the_whole_callbacks_time_ends_a_side_turn_too(desk: Desk) -> None:
    async def slow(_: Request) -> Any:
        desk.clock.tick(1)
        await asyncio.Event().wait()

    manager = delegates("manager", asker(timeout=0.02, default="late"), slow)

    reply = await asyncio.wait_for(desk.prompt(manager), 10)

    assert (reply.text, reply.callbacks[0].status) == ("'late'", "expired")


async def test_expired_is_never_denied_or_approved(desk: Desk) -> None:
    agent = asker("may I?", "approval", timeout=60)
    callback_id = (await desk.prompt(agent)).callbacks[0].id
    desk.clock.tick(61)
    await desk.resume(agent)

    async with desk.runtime(agent) as runtime:
        with pytest.raises(AlreadySettled) as told:
            await runtime.answer(callback_id, "yes")
    assert told.value.status == "expired"


# --- cancelling ---------------------------------------------------------------------------


async def test_cancel_withdraws_every_open_callback_of_the_tree_and_ends_its_children(place: Desk) -> None:
    child = asker(kind="request_user_input")
    calls = [call("task", agent="developer", prompt=p) for p in "ab"]
    manager = Agent("manager", model=worker(*calls), agents=[child])
    await place.prompt(manager)

    async with place.runtime(manager) as runtime:
        await runtime.cancel("s", "not needed")
        assert not await runtime.inbox()
        statuses = {r.id: r.status for r in await runtime.rows()}
        held = await runtime.store.callbacks(root="s")
        withdrawn = [e async for e in runtime.events() if isinstance(e, CallbackWithdrawn)]

    assert set(statuses.values()) == {"cancelled"}
    assert [h.status for h in held] == ["withdrawn", "withdrawn"]
    assert {e.callback_id for e in withdrawn} == {h.id for h in held}
    assert all("not needed" in e.reason for e in withdrawn)


class CancelledFirst(SqliteStore):
    """A store in which somebody else's cancel comes right before a turn is parked."""

    async def park(
        self, claim: Claim, events: Mapping[str, Sequence[AnyEvent]], waits: Sequence[str], blobs: Any = None
    ) -> bool:
        if self.cancels:
            self.cancels = False
            asked = [h.id for h in await self.callbacks(root=claim.root) if h.status == "open"]
            withdrawn = [CallbackWithdrawn(callback_id, "enough") for callback_id in asked]
            await self.append_all({self.session or claim.root: [CancelRequested("them", "enough"), *withdrawn]})
        return await super().park(claim, events, waits, blobs)

    cancels, session = True, ""


def breaks(agent: Agent) -> Agent:
    """The agent with another call beside its question, before which a hook fails once that question waits."""

    @tool
    async def other() -> str:
        """Never runs."""
        return "ran"

    async def fails(session: Any, made: Call) -> None:
        if made.name == "other":
            while not session.turn.state.turn.callbacks:
                await asyncio.sleep(0)
            raise ValueError("bad hook")

    model = Script(lambda r: "fresh" if r.messages[-1].text == "next" else [call("work"), call("other")])
    return agent.replace(model=model, tools=[*agent.tools, other], hooks=Hooks(before_tool=[fails]))


async def test_a_limit_withdraws_what_children_of_the_turn_still_ask_and_ends_them(place: Desk) -> None:
    child = asker(name="child")
    twice = worker(*[call("task", agent="child", prompt=p) for p in "12"], aside=passes())
    top = Agent("top", model=twice, agents=[child], limits=Limits(children=1))

    async with place.runtime(top) as runtime:
        reply = await (await runtime.start(top, "s")).prompt("go")
        assert (reply.status, reply.limit, await runtime.inbox()) == ("limit", "children", [])
        children = [r for r in await runtime.rows(parent="s") if r.kind == "agent"]
        assert [(r.status, r.owner) for r in children] == [("cancelled", "")]
        assert [c.status for c in reply.callbacks] == ["withdrawn"]


async def test_a_question_of_a_turn_that_failed_waits_for_its_resume_until_it_is_cancelled(place: Desk) -> None:
    agent = breaks(asker())
    with pytest.raises(errors.HookFailed, match="bad hook"):
        await place.prompt(agent)

    (left,) = await place.inbox(agent)
    async with place.runtime(agent) as runtime:
        await runtime.cancel("s")
        with pytest.raises(AlreadySettled, match="withdrawn"):
            await runtime.answer(left.id, "blue")
        assert (await runtime.inbox(), await runtime.status("s")) == ([], "failed")


async def test_a_new_prompt_withdraws_what_the_failed_turn_before_it_asked(place: Desk) -> None:
    agent = breaks(asker())
    async with place.runtime(agent) as runtime:
        session = await runtime.start(agent, "s")
        with pytest.raises(errors.HookFailed):
            await session.prompt("go")
        assert len(await runtime.inbox()) == 1

        assert (await session.prompt("next")).text == "fresh"
        assert await runtime.inbox() == []


async def test_a_child_that_fails_leaves_no_question_behind(place: Desk) -> None:
    boss = delegates("boss", breaks(asker(name="child")), passes())

    reply = await place.prompt(boss)

    assert (reply.status, await place.inbox(boss)) == ("done", [])
    assert "bad hook" in reply.text


async def test_a_cancel_in_the_moment_in_which_a_question_parks_ends_the_turn(tmp_path: Path) -> None:
    agent = asker()
    async with Runtime(CancelledFirst(tmp_path / "log.db"), agents=[agent]) as runtime:
        reply = await (await runtime.start(agent, "s")).prompt("go")

        assert (reply.status, [c.status for c in reply.callbacks]) == ("cancelled", ["withdrawn"])
        assert (await runtime.status("s"), await runtime.inbox()) == ("cancelled", [])


async def test_a_cancel_in_the_moment_in_which_a_child_prompted_by_its_id_parks_ends_its_turn(
    tmp_path: Path,
) -> None:
    @tool
    async def colour(ctx: Context) -> str:
        """Ask for a colour."""
        return await ctx.raise_callback("which colour?", kind="request_user_input")

    def says(request: Request) -> Any:
        return call("colour") if request.messages[-1].text == "now" else "ok"

    child = Agent("child", model=Script(says), tools=[colour])
    top = Agent("top", model=worker(call("task", agent="child", prompt="wait")), agents=[child])
    store = CancelledFirst(tmp_path / "log.db")
    async with Runtime(store, agents=[top]) as runtime:
        await (await runtime.start(top, "s")).prompt("go")
        (below,) = [row.id for row in await runtime.rows(parent="s")]
        store.session = below
        reply = await (await runtime.load(below)).prompt("now")

        assert (reply.status, [c.status for c in reply.callbacks]) == ("cancelled", ["withdrawn"])
        assert (await runtime.status(below), await runtime.inbox()) == ("cancelled", [])
        assert {row.owner for row in await runtime.rows()} == {""}


async def test_cancelling_a_held_turn_withdraws_its_question_from_the_screen(desk: Desk) -> None:
    person = Person(never)
    agent = asker()
    async with desk.runtime(agent, host=person) as runtime:
        session = await runtime.start(agent, "s")
        turn = asyncio.ensure_future(session.prompt("go"))
        while not person.seen:
            await asyncio.sleep(0)
        await session.cancel()
        reply = await asyncio.wait_for(turn, 5)

    assert (reply.status, [c.status for c in reply.callbacks]) == ("cancelled", ["withdrawn"])
    assert [i for i, _ in person.withdrawn] == [person.seen[0].id]


async def test_an_answer_accepted_before_the_cancel_stays_answered_and_undelivered(place: Desk) -> None:
    agent = asker()
    await place.prompt(agent)
    settled = await place.settle(agent, "blue")

    async with place.runtime(agent) as runtime:
        await runtime.cancel("s")
        shown = await runtime.callback(settled.id)

    assert (shown.status, shown.delivered) == ("answered", False)


async def test_an_answer_that_was_used_is_delivered(place: Desk) -> None:
    agent = asker()
    await place.prompt(agent)
    settled = await place.settle(agent, "blue")
    await place.resume(agent)

    async with place.runtime(agent) as runtime:
        shown = await runtime.callback(settled.id)

    assert (shown.status, shown.delivered) == ("answered", True)


@pytest.mark.slow
async def test_cancel_withdraws_more_callbacks_than_a_page_has(desk: Desk) -> None:
    many = 1_050

    @tool
    async def work(ctx: Context) -> str:
        """Ask a lot."""
        await asyncio.gather(*(ctx.raise_callback(f"{n}?") for n in range(many)))
        return "ok"

    unlimited = Limits(open_questions=None)
    agent = Agent("developer", model=worker(call("work")), tools=[work], limits=unlimited)
    waiting = await desk.prompt(agent)

    async with desk.runtime(agent) as runtime:
        assert len(await runtime.inbox()) == many
        await runtime.cancel("s")
        assert not await runtime.inbox()
    assert len(waiting.callbacks) == many


async def test_a_side_turn_that_is_cancelled_by_its_id_counts_as_passing_up(desk: Desk) -> None:
    asked = asyncio.Event()

    async def forever(_: Request) -> Any:
        asked.set()
        await asyncio.Event().wait()

    manager = delegates("manager", asker(), forever)
    async with desk.runtime(manager) as runtime:
        turn = asyncio.ensure_future((await runtime.start(manager, "s")).prompt("go"))
        await asked.wait()
        (side,) = [r for r in await runtime.rows() if r.kind == "side_turn"]
        await runtime.cancel(side.id)
        reply = await asyncio.wait_for(turn, 5)

    assert (reply.status, reply.callbacks[0].path[1].reason) == ("waiting", "its side turn was cancelled")


async def test_a_turns_task_that_is_cancelled_while_an_agent_is_asked_ends_the_side_turn(desk: Desk) -> None:
    asked = asyncio.Event()

    async def forever(_: Request) -> Any:
        asked.set()
        await asyncio.Event().wait()

    manager = delegates("manager", asker(), forever)
    async with desk.runtime(manager) as runtime:
        turn = asyncio.ensure_future((await runtime.start(manager, "s")).prompt("go"))
        await asked.wait()
        turn.cancel()
        await asyncio.wait([turn])
        rows = {r.kind: r.status for r in await runtime.rows()}
        held = await runtime.store.callbacks(root="s")

    assert rows == {"agent": "cancelled", "side_turn": "cancelled"}
    assert [h.status for h in held] == ["withdrawn"]


async def never_answers(_: Request) -> Any:
    """A model that thinks without end."""
    await asyncio.Event().wait()


# --- rights, then and now -----------------------------------------------------------------


async def test_an_agent_that_lost_its_right_to_be_asked_meanwhile_is_passed_over(desk: Desk) -> None:
    before = delegates("manager", asker(), passes())
    top = delegates("top", before, never_answers)
    async with desk.runtime(top, hold=0.0) as runtime:
        turn = asyncio.ensure_future((await runtime.start(top, "s")).prompt("go"))
        while not [r for r in await runtime.rows() if r.kind == "side_turn" and r.agent == "top"]:
            await asyncio.sleep(0)
        await runtime.close()
        await asyncio.wait([turn])
        turn.exception()
    later = delegates("top", before, answers("now I would"), callback_policy={"passthrough_child_callbacks": True})

    reply = await desk.resume(later)

    assert reply.status == "waiting"
    assert [c.message for c in await desk.inbox(later)] == ["which colour?"]
