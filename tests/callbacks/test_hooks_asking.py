"""Hooks that ask: each point may raise a callback, park and run again, and nothing is done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from callbacks.doubles import Desk, Kept, Person, answers, asker, delegates, passes, worker
from upcall import (
    Agent,
    Answer,
    Callback,
    HookFailed,
    Hooks,
    ModelUnavailable,
    Request,
    Runtime,
    SessionAccess,
    SessionWaiting,
    tool,
)
from upcall.contracts import Claim
from upcall.events import CallbackAnswered
from upcall.models import Script, call

POINTS = ["pre_request", "before_model", "post_response", "before_tool", "after_tool", "end_turn"]


def asking(ran: list[Any]) -> Callable[..., Any]:
    """A hook for any point: it does something once, asks, and remembers the answer."""

    async def hook(session: SessionAccess, *_: Any) -> None:
        if session.get_context("told"):
            return
        await session.once("effect", lambda: ran.append("effect"))
        answer = await session.raise_callback("may this go on?", "blocker")
        session.set_context("told", answer)
        ran.append(answer)

    return hook


@tool
async def work() -> str:
    """Work."""
    return "worked"


@pytest.mark.parametrize("point", POINTS)
async def test_a_hook_at_this_point_asks_parks_and_continues_with_the_answer(point: str, place: Desk) -> None:
    ran: list[Any] = []
    hooks = Hooks(**{point: [asking(ran)]})
    agent = Agent("developer", model=worker(call("work")), tools=[work], hooks=hooks)

    waiting = await place.prompt(agent)
    await place.settle(agent, "yes")
    done = await place.resume(agent)

    assert (waiting.status, done.status, done.text) == ("waiting", "done", "worked")
    assert ran == ["effect", "yes"]
    assert [c.status for c in done.callbacks] == ["answered"]


@pytest.mark.parametrize("point", POINTS)
async def test_a_hook_at_this_point_that_a_person_answers_at_once_runs_once(point: str, desk: Desk) -> None:
    ran: list[Any] = []
    agent = Agent("developer", model=worker(call("work")), tools=[work], hooks=Hooks(**{point: [asking(ran)]}))

    reply = await desk.prompt(agent, host=Person(lambda _: "yes"))

    assert (reply.text, ran) == ("worked", ["effect", "yes"])


async def test_a_model_failed_hook_asks_and_continues_with_the_answer(place: Desk) -> None:
    async def ask(session: SessionAccess, request: Any, error: Any) -> str:
        return str(await session.raise_callback("the model is down; say what?", "error"))

    agent = Agent(
        "developer", model=Script(lambda _: ModelUnavailable("script", "down")), hooks=Hooks(model_failed=[ask])
    )

    waiting = await place.prompt(agent)
    await place.settle(agent, "closed today")
    done = await place.resume(agent)

    assert (waiting.status, done.text) == ("waiting", "closed today")


async def test_a_begin_session_hook_that_asks_makes_the_session_wait_for_its_answer(place: Desk) -> None:
    ran: list[Any] = []
    agent = Agent("developer", model=Script(lambda _: "ok"), hooks=Hooks(begin_session=[asking(ran)]))

    async with place.runtime(agent) as runtime:
        session = await runtime.start(agent, "s")
        with pytest.raises(SessionWaiting) as waiting:
            await session.prompt("go")
        (callback,) = await runtime.inbox()
        assert waiting.value.callbacks == (callback.id,)
        before = [event async for event in runtime.events("s")]
        with pytest.raises(SessionWaiting):
            await session.prompt("go")
        assert [event async for event in runtime.events("s")] == before
    await place.settle(agent, "yes")
    async with place.runtime(agent) as runtime:
        reply = await (await runtime.load("s")).prompt("go")

    assert (reply.text, ran) == ("ok", ["effect", "yes"])


async def test_a_begin_session_hook_that_raises_after_it_waited_leaves_a_session_to_resume(place: Desk) -> None:
    async def clumsy(session: SessionAccess) -> None:
        await session.raise_callback("may I?")
        raise KeyError("oops")

    agent = Agent("developer", model=Script(lambda _: "ok"), hooks=Hooks(begin_session=[clumsy]))
    async with place.runtime(agent) as runtime:
        await runtime.start(agent, "s")
    await place.settle(agent, "yes")

    with pytest.raises(HookFailed, match="a session that is kept on disk can then be resumed"):
        await place.resume(agent)


async def test_a_session_that_waits_in_its_begin_session_hook_is_listed_as_waiting_and_resumes(place: Desk) -> None:
    ran: list[Any] = []
    agent = Agent("developer", model=Script(lambda _: "ok"), hooks=Hooks(begin_session=[asking(ran)]))

    async with place.runtime(agent) as runtime:
        session = await runtime.start(agent, "s")
        loaded = await runtime.load("s")
        assert (session.status, loaded.status, await runtime.status("s")) == ("waiting", "waiting", "waiting")
        assert await runtime.ready() == []
        still = await runtime.resume("s")
        assert (still.status, [c.status for c in still.callbacks]) == ("waiting", ["open"])
    await place.settle(agent, "yes")
    async with place.runtime(agent) as runtime:
        assert await runtime.ready() == ["s"]
        begun = await runtime.resume("s")
        assert (begun.status, begun.text, ran) == ("done", "", ["effect", "yes"])
        assert (await runtime.status("s"), await runtime.ready()) == ("idle", [])
        again = await runtime.load("s")
        assert again.status == "idle"
        assert (await again.prompt("go")).text == "ok"

    assert ran == ["effect", "yes"]


async def test_a_session_that_waits_in_its_begin_session_hook_can_be_cancelled(place: Desk) -> None:
    agent = Agent("developer", model=Script(lambda _: "ok"), hooks=Hooks(begin_session=[asking([])]))

    async with place.runtime(agent) as runtime:
        await runtime.start(agent, "s")
        await runtime.cancel("s")
        assert (await runtime.status("s"), await runtime.inbox()) == ("cancelled", [])
        assert (await runtime.resume("s")).status == "cancelled"


async def test_an_answer_that_comes_while_a_begin_session_hook_parks_is_used_at_once() -> None:
    ran: list[Any] = []
    agent = Agent("developer", model=Script(lambda _: "ok"), hooks=Hooks(begin_session=[asking(ran)]))

    class AnsweredFirst(Kept):
        """Somebody answers in the moment before the run gives its memory up."""

        async def park(self, claim: Claim, events: Any, waits: Sequence[str], blobs: Any = None) -> bool:
            for callback_id in waits:
                await self.settle(callback_id, {callback_id: CallbackAnswered(callback_id, "yes", "ops")})
            return await super().park(claim, events, waits, blobs)

    async with Runtime(AnsweredFirst(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")

    assert (session.status, ran) == ("idle", ["effect", "yes"])


async def test_a_begin_session_hook_is_answered_by_a_person_who_is_there(desk: Desk) -> None:
    ran: list[Any] = []
    agent = Agent("developer", model=Script(lambda _: "ok"), hooks=Hooks(begin_session=[asking(ran)]))

    reply = await desk.prompt(agent, host=Person(lambda _: "yes"))

    assert (reply.text, ran) == ("ok", ["effect", "yes"])


async def test_a_childs_begin_session_hook_asks_its_caller(desk: Desk) -> None:
    ran: list[Any] = []
    child = Agent("developer", model=Script(lambda _: "ok"), hooks=Hooks(begin_session=[asking(ran)]))

    reply = await desk.prompt(delegates("manager", child, answers("yes")))

    assert (reply.text, ran) == ("ok", ["effect", "yes"])


async def test_an_on_callback_hook_that_asks_waits_and_then_answers(place: Desk) -> None:
    async def relay(session: SessionAccess, callback: Any) -> Answer:
        said = await session.raise_callback(
            f"my child wants to know: {callback.message}", kind="request_user_input"
        )
        return Answer(f"relayed {said}")

    manager = delegates("manager", asker(), hooks=Hooks(on_callback=[relay]))

    waiting = await place.prompt(manager)
    await place.settle(manager, "blue", "my child wants to know: which colour?")
    done = await place.resume(manager)

    assert (waiting.status, done.text) == ("waiting", "'relayed blue'")


async def test_a_hook_whose_must_answer_question_nobody_answers_fails_the_turn_by_name(desk: Desk) -> None:
    async def strict(session: SessionAccess, *_: Any) -> None:
        await session.raise_callback("may I?", "blocker", fallback_target="fail")

    agent = Agent("developer", model=Script(lambda _: "ok"), hooks=Hooks(pre_request=[strict]))

    with pytest.raises(HookFailed, match=r"strict.*nobody may answer the blocker 'may I\?'"):
        await desk.prompt(agent)


@pytest.mark.slow
async def test_two_hooks_of_one_point_each_get_their_own_answer(place: Desk) -> None:
    got: list[Any] = []

    async def first(session: SessionAccess, *_: Any) -> None:
        got.append(("first", await session.raise_callback("first?")))

    async def second(session: SessionAccess, *_: Any) -> None:
        got.append(("second", await session.raise_callback("second?")))

    agent = Agent("developer", model=Script(lambda _: "ok"), hooks=Hooks(pre_request=[first, second]))

    await place.prompt(agent)
    await place.settle(agent, 1, "first?")
    await place.resume(agent)
    await place.settle(agent, 2, "second?")
    done = await place.resume(agent)

    assert done.text == "ok"
    assert got[-2:] == [("first", 1), ("second", 2)]
    assert len(done.callbacks) == 2


async def test_a_hook_in_a_child_asks_up_as_a_tool_would(desk: Desk) -> None:
    ran: list[Any] = []
    child = Agent("developer", model=worker(call("work")), tools=[work], hooks=Hooks(before_tool=[asking(ran)]))
    manager = delegates("manager", child, passes())

    await desk.prompt(manager)
    await desk.settle(manager, "yes")
    done = await desk.resume(manager)

    assert (done.text, ran) == ("worked", ["effect", "yes"])


def boss_whose_hook_asks(**below: Any) -> Agent:
    """An agent whose on_callback hook asks a person about what the agent below it asks."""

    async def consult(session: SessionAccess, callback: Callback) -> Answer:
        said = await session.raise_callback("what should I say?", "blocker", kind="request_user_input")
        return Answer(f"{said}, by the hook")

    return delegates("boss", asker(**below), hooks=Hooks(on_callback=[consult]))


async def test_what_an_on_callback_hook_asks_is_withdrawn_when_its_question_is_answered_otherwise(
    place: Desk,
) -> None:
    boss = boss_whose_hook_asks()
    waiting = await place.prompt(boss)
    (original,) = [one for one in waiting.callbacks if one.message == "which colour?"]
    async with place.runtime(boss) as runtime:
        await runtime.answer(original.id, "blue")
    done = await place.resume(boss)

    assert (done.status, done.text) == ("done", "'blue'")
    assert sorted(one.status for one in done.callbacks) == ["answered", "withdrawn"]
    assert not await place.inbox(boss)


async def test_what_an_on_callback_hook_asks_is_withdrawn_when_its_question_expires(place: Desk) -> None:
    boss = boss_whose_hook_asks(timeout=60, default="grey")
    assert (await place.prompt(boss)).status == "waiting"
    place.clock.tick(61)
    done = await place.resume(boss)

    assert (done.status, done.text) == ("done", "'grey'")
    assert not await place.inbox(boss)


@pytest.mark.parametrize("answered", ["which colour?", "what should I say?"])
async def test_a_tree_in_which_an_on_callback_hook_waits_is_ready_once_one_of_the_two_questions_is_answered(
    place: Desk, answered: str
) -> None:
    boss = boss_whose_hook_asks()
    waiting = await place.prompt(boss)
    (question,) = [one for one in waiting.callbacks if one.message == answered]
    async with place.runtime(boss) as runtime:
        before = await runtime.ready()
        await runtime.answer(question.id, "blue")
        after = await runtime.ready()

    assert (before, after) == ([], ["s"])


async def test_a_default_arrives_in_time_while_an_on_callback_hook_waits(tmp_path: Path) -> None:
    boss = boss_whose_hook_asks(timeout=0.3, default="grey")
    async with Runtime(tmp_path / "log.db", agents=[boss]) as runtime:
        done = await (await runtime.start(boss, "s")).prompt("go")

    assert (done.status, done.text) == ("done", "'grey'")


async def test_a_hooks_question_leaves_the_screen_when_what_it_is_about_is_answered(place: Desk) -> None:
    asked = asyncio.Event()

    async def looks(callback: Callback) -> Any:
        asked.set()
        await asyncio.Event().wait()

    boss, person = boss_whose_hook_asks(), Person(looks)
    async with place.runtime(boss, host=person, hold=60) as runtime, asyncio.timeout(20):
        turn = asyncio.ensure_future((await runtime.start(boss, "s")).prompt("go"))
        await asked.wait()
        (original,) = [one for one in await runtime.store.callbacks(root="s") if one.message == "which colour?"]
        await runtime.answer(original.id, "blue")
        reply = await turn
        assert not await runtime.inbox()

    assert reply.text == "'blue'"
    assert [i for i, _ in person.withdrawn] == [person.seen[0].id]


@pytest.mark.parametrize("point", POINTS)
async def test_a_question_that_a_hook_no_longer_waits_for_is_withdrawn_when_the_hook_ends(
    point: str, place: Desk
) -> None:
    async def hasty(session: SessionAccess, *_: Any) -> None:
        if session.get_context("asked"):
            return
        session.set_context("asked", True)
        question = asyncio.ensure_future(session.raise_callback("anybody?", "blocker"))
        await asked.wait()
        question.cancel()

    asked = asyncio.Event()

    async def looks(callback: Callback) -> Any:
        asked.set()
        await asyncio.Event().wait()

    agent = Agent("developer", model=worker(call("work")), tools=[work], hooks=Hooks(**{point: [hasty]}))
    async with place.runtime(agent, host=Person(looks), hold=60) as runtime, asyncio.timeout(20):
        reply = await (await runtime.start(agent, "s")).prompt("go")
        assert not await runtime.inbox()

    assert (reply.status, [one.status for one in reply.callbacks]) == ("done", ["withdrawn"])


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
async def test_two_hooks_of_one_point_may_give_their_effects_the_same_name(point: str, place: Desk) -> None:
    ran: list[str] = []

    def auditing(who: str) -> Callable[..., Any]:
        async def hook(session: SessionAccess, *_: Any) -> None:
            ran.append(await session.once("audit", lambda: who))

        return hook

    agent = Agent(
        "developer",
        model=worker(call("work")),
        tools=[work],
        hooks=Hooks(**{point: [auditing("first"), auditing("second"), asking([])]}),
    )
    await place.prompt(agent)
    await place.settle(agent, "yes")
    assert (await place.resume(agent)).status == "done"

    assert ran[: len(ran) // 2 * 2] == ["first", "second"] * (len(ran) // 2)
    effects = [(e.origin, e.name) for e in await place.log(agent) if e.type == "once_started" and "audit" in e.name]
    assert len(effects) == len(set(effects))
    assert len(effects) % 2 == 0


async def test_a_hook_that_asks_after_a_compaction_gets_its_answer_and_the_model_continues(place: Desk) -> None:
    got: list[Any] = []

    async def ask(session: SessionAccess, request: Request) -> None:
        if request.purpose == "turn" and any(message.results for message in request.messages):
            got.append(await session.raise_callback("may this go on?", "blocker"))

    def compact(session: SessionAccess, *_: Any) -> None:
        session.compact_messages(keep_last=1)

    hooks = Hooks(before_model=[ask], after_tool=[compact])
    agent = Agent("developer", model=worker(call("work")), tools=[work], hooks=hooks)

    waiting = await place.prompt(agent)
    await place.settle(agent, "yes")
    done = await place.resume(agent)

    assert (waiting.status, done.status, done.text) == ("waiting", "done", "worked")
    assert got == ["yes"]


async def test_a_turn_that_failed_after_a_compaction_asks_the_model_when_it_is_resumed(place: Desk) -> None:
    broken = [True]

    def fail(_: SessionAccess, request: Request) -> None:
        if broken and any(message.results for message in request.messages):
            broken.clear()
            raise ValueError("not now")

    def compact(session: SessionAccess, *_: Any) -> None:
        session.compact_messages(keep_last=1)

    hooks = Hooks(before_model=[fail], after_tool=[compact])
    agent = Agent("developer", model=worker(call("work")), tools=[work], hooks=hooks)

    with pytest.raises(HookFailed):
        await place.prompt(agent)

    assert (await place.resume(agent)).text == "worked"
