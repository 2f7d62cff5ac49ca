"""Hooks, their writes and what they ask, across resumes and crashes: nothing is lost and nothing done twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from core.doubles import Asked, Place, Stuck, crash, said, turn, types_of
from upcall import (
    Agent,
    Call,
    HookFailed,
    Hooks,
    Limits,
    Message,
    ModelUnavailable,
    OutputInvalid,
    Reply,
    Request,
    Response,
    Result,
    Runtime,
    SessionAccess,
    SessionExists,
    SessionTakenOver,
    tool,
)
from upcall.contracts import Emit
from upcall.models import Script, call

MOST = 20


def summing_up(request: Request) -> str:
    return "SUM" if request.purpose == "summary" else "ok"


async def resumed(place: Place, agent: Agent) -> Reply:
    async with Runtime(place.store(), agents=[agent]) as runtime:
        return await runtime.resume("s", take_over=True)


async def stored_types(place: Place, agent: Agent) -> list[str]:
    async with Runtime(place.store(), agents=[agent]) as runtime:
        return await types_of(runtime) if await runtime.rows() else []


# --- what hooks changed is used from the log --------------------------------------------


async def test_a_replaced_response_is_the_one_that_is_loaded(place: Place) -> None:
    def better(session: SessionAccess, response: Response) -> Response:
        return Response("better", calls=response.calls)

    @tool
    async def work() -> str:
        """Work."""
        return "worked"

    agent = Agent("a", model=Script([call("work"), "raw"]), tools=[work], hooks=Hooks(post_response=[better]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("go")

        expected = ["user: go", "assistant: better", "call work", "= worked", "assistant: better"]
        assert said(session.get_messages()) == expected
        assert (await runtime.load("s")).get_messages() == session.get_messages()


async def test_a_hook_that_speaks_for_a_silent_model_is_in_the_conversation() -> None:
    asked = Asked()
    hooks = Hooks(post_response=[lambda session, response: None if response.text else "instead"])
    agent = Agent("a", model=Script(asked.then(lambda r: Response("") if len(asked) == 1 else "ok")), hooks=hooks)
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        assert (await session.prompt("one")).text == "instead"
        await session.prompt("two")

    assert said(asked.requests[1].messages) == ["user: one", "assistant: instead", "user: two"]


async def test_a_response_replaced_by_nothing_leaves_no_empty_message() -> None:
    asked = Asked()
    hooks = Hooks(post_response=[lambda session, response: Response("")])
    agent = Agent("a", model=Script(asked.then(lambda r: "x")), hooks=hooks)
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        await session.prompt("one")
        await session.prompt("two")

    assert all(m.parts for m in asked.requests[1].messages)


async def test_a_prompt_that_is_compacted_and_then_replaced_stays_replaced(place: Place) -> None:
    def compacts(session: SessionAccess, message: Message) -> None:
        session.compact_messages(5)

    hooks = Hooks(pre_request=[compacts, lambda session, message: "changed"])
    agent = Agent("a", model=Script(["ok"]), hooks=hooks)
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("go")

        assert said(session.get_messages()) == ["user: changed", "assistant: ok"]
        assert (await runtime.load("s")).get_messages() == session.get_messages()


async def test_a_response_that_before_model_gave_is_never_asked_for_after_a_crash(place: Place) -> None:
    asked = Asked()
    hooks = Hooks(before_model=[lambda session, request: Response("hook")])
    agent = Agent("a", model=Script(asked.then(lambda r: "model")), hooks=hooks)
    for appends in range(2, MOST):
        place.clear()
        finished = await crash(place, agent, appends)
        if "turn_started" in await stored_types(place, agent):
            assert (await resumed(place, agent)).text == "hook", appends
        assert len(asked) == 0
        if finished:
            return
    pytest.fail("the run makes more appends than that")


async def test_the_prompt_is_stored_before_any_hook_sees_it(place: Place) -> None:
    runtime: Runtime
    seen: list[list[str]] = []

    async def looks(session: SessionAccess, passing: Any) -> None:
        seen.append(await types_of(runtime))

    for point in ("pre_request", "before_model"):
        place.clear()
        hooks = Hooks(**{point: [looks]})  # pyright: ignore[reportArgumentType]
        agent = Agent("a", model=Script(["ok"]), hooks=hooks)
        async with Runtime(place.store(), agents=[agent]) as runtime:
            session = await runtime.start(agent, "s")
            await session.prompt("go")
    assert all("turn_started" in types for types in seen)


# --- a hook that runs again -------------------------------------------------------------


async def test_a_hook_that_wrote_and_raised_writes_once_in_all(place: Place) -> None:
    runs: list[int] = []

    def writes(session: SessionAccess, message: Message) -> None:
        session.add_message("user", "note")
        session.set_context("k", 1)
        runs.append(1)
        if len(runs) == 1:
            raise ValueError("not yet")

    agent = Agent("a", model=Script(["ok"]), hooks=Hooks(pre_request=[writes]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        with pytest.raises(HookFailed):
            await session.prompt("go")
        await runtime.resume("s")

        assert said((await runtime.load("s")).get_messages()) == ["user: go", "user: note", "assistant: ok"]


async def test_a_hook_that_asks_something_else_the_second_time_gets_that_answered(place: Place) -> None:
    runs: list[int] = []

    async def asks(session: SessionAccess, message: Message) -> None:
        runs.append(1)
        session.set_context("got", await session.prompt(f"question {len(runs)}"))
        if len(runs) == 1:
            raise ValueError("not yet")

    script = Script(lambda r: "re " + r.messages[-1].text)
    agent = Agent("a", model=script, hooks=Hooks(pre_request=[asks]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        with pytest.raises(HookFailed):
            await session.prompt("go")
        await runtime.resume("s")
        assert (await runtime.load("s")).get_context("got") == "re question 2"


async def test_side_turns_and_children_are_another_turns_own(place: Place) -> None:
    got: list[str] = []
    child = Agent("b", model=Script(lambda r: "b " + r.messages[-1].text))

    async def asks(session: SessionAccess, message: Message) -> None:
        got.append(await session.prompt("what of " + message.text))

    async def delegates(session: SessionAccess, reply: Reply) -> None:
        got.append((await session.start_child("b", reply.text)).text)

    script = Script(lambda r: "re " + r.messages[-1].text)
    agent = Agent("a", model=script, hooks=Hooks(pre_request=[asks], end_turn=[delegates]), agents=[child])
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("one")
        await session.prompt("two")

    assert got == ["re what of one", "b re one", "re what of two", "b re two"]


async def test_a_side_turn_that_failed_is_repeated_by_resume(place: Place) -> None:
    answers = iter([ModelUnavailable("m", "gone"), "aside", "ok"])

    async def asks(session: SessionAccess, message: Message) -> None:
        session.set_context("got", await session.prompt("what?"))

    agent = Agent("a", model=Script(lambda r: next(answers)), hooks=Hooks(pre_request=[asks]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        with pytest.raises(HookFailed):
            await session.prompt("go")
        assert (await runtime.resume("s")).text == "ok"
        assert (await runtime.load("s")).get_context("got") == "aside"


async def test_the_children_of_a_turn_are_counted_across_resumes() -> None:
    child, runs = Agent("b", model=Script(lambda r: "b")), list[int]()

    async def delegates(session: SessionAccess, message: Message) -> None:
        await session.start_child(child, "one")
        runs.append(1)
        if len(runs) == 1:
            raise ValueError("not yet")
        await session.start_child(child, "two")

    hooks, limits = Hooks(pre_request=[delegates]), Limits(children=1)
    agent = Agent("a", model=Script(["never"]), hooks=hooks, limits=limits)
    async with Runtime(agents=[agent, child]) as runtime:
        session = await runtime.start(agent, "s")
        with pytest.raises(HookFailed):
            await session.prompt("go")
        reply = await runtime.resume("s")
        assert (reply.status, reply.limit) == ("limit", "children")


@pytest.mark.slow
async def test_the_children_of_a_turn_are_counted_across_resumes_after_a_thousand_others() -> None:
    child, runs = Agent("b", model=Script(lambda r: "b")), list[int]()

    async def delegates(session: SessionAccess, message: Message) -> None:
        for number in range(334 if message.text == "many" else 1):
            await session.start_child(child, f"{number}")
        runs.append(1)
        if len(runs) == 4:
            raise ValueError("not yet")
        if message.text == "few":
            for number in range(334):
                await session.start_child(child, f"more {number}")

    hooks, limits = Hooks(pre_request=[delegates]), Limits(children=334)
    agent = Agent("a", model=Script(lambda r: "a"), hooks=hooks, limits=limits)
    async with Runtime(agents=[agent, child]) as runtime:
        session = await runtime.start(agent, "s")
        for _ in range(3):
            await session.prompt("many")
        with pytest.raises(HookFailed):
            await session.prompt("few")
        reply = await runtime.resume("s")
        assert (reply.status, reply.limit) == ("limit", "children")


# --- compaction -------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["pre_request", "before_model"])
async def test_a_hook_that_compacted_and_died_compacts_and_writes_once(place: Place, point: str) -> None:
    async def sums_up(session: SessionAccess, passing: Any) -> None:
        if session.id != "s":
            return
        session.add_message("user", "note")
        await session.trigger_compaction(keep_last=1)
        await session.prompt("aside")

    hooks = Hooks(**{point: [sums_up]})  # pyright: ignore[reportArgumentType]
    agent = Agent("a", model=Script(summing_up), hooks=hooks)
    for appends in range(2, MOST):
        place.clear()
        finished = await crash(place, agent, appends)
        if "turn_started" in await stored_types(place, agent):
            assert (await resumed(place, agent)).text == "ok", appends
            types = await stored_types(place, agent)
            assert (types.count("compacted"), types.count("message_added")) == (1, 1), appends
        if finished:
            return
    pytest.fail("the run makes more appends than that")


async def test_a_compaction_in_post_response_keeps_the_hooks_after_it(place: Place) -> None:
    async def sums_up(session: SessionAccess, response: Response) -> None:
        await session.trigger_compaction(keep_last=1)

    hooks = Hooks(post_response=[sums_up, lambda session, response: response.text + "!"])
    agent = Agent("a", model=Script(summing_up), hooks=hooks)
    for appends in range(2, MOST):
        place.clear()
        finished = await crash(place, agent, appends)
        if "turn_started" in await stored_types(place, agent):
            assert (await resumed(place, agent)).text == "ok!", appends
        if finished:
            return
    pytest.fail("the run makes more appends than that")


async def test_a_turn_that_compacted_first_and_died_is_still_there_to_resume(place: Place) -> None:
    def compacts(session: SessionAccess, request: Request) -> None:
        session.set_context("k", "kept")
        session.compact_messages(1)

    agent = Agent("a", model=Script(lambda r: "ok"), hooks=Hooks(before_model=[compacts]))
    for appends in range(1, MOST):
        place.clear()
        finished = await crash(place, agent, appends)
        if "turn_started" in await stored_types(place, agent):
            assert (await resumed(place, agent)).text == "ok", appends
            async with Runtime(place.store(), agents=[agent]) as runtime:
                assert await runtime.status("s") == "done", appends
                assert (await runtime.load("s")).get_context("k") == "kept", appends
        if finished:
            return
    pytest.fail("the run makes more appends than that")


async def test_a_summary_that_came_to_nothing_is_not_asked_for_again_and_again() -> None:
    asked = Asked()

    async def sums_up(session: SessionAccess, call: Call, result: Result) -> None:
        if not session.get_context("asked"):
            session.set_context("asked", True)
            await session.trigger_compaction()

    @tool
    async def work() -> str:
        """Work."""
        return "worked"

    def decide(request: Request) -> Any:
        if request.purpose == "summary":
            return ""
        return call("work") if len(request.messages) < 7 else "ok"

    await turn(Agent("a", model=Script(asked.then(decide)), tools=[work], hooks=Hooks(after_tool=[sums_up])))
    assert [r.purpose for r in asked.requests].count("summary") == 1


# --- sessions ---------------------------------------------------------------------------


async def test_start_with_an_id_that_is_taken_runs_no_begin_session_hook(place: Place) -> None:
    runs: list[str] = []

    async def begins(session: SessionAccess) -> None:
        runs.append(await session.prompt("who am I?"))

    agent = Agent("a", model=Script(lambda r: "you"), hooks=Hooks(begin_session=[begins]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        await runtime.start(agent, "s")
        with pytest.raises(SessionExists):
            await runtime.start(agent, "s")
    assert runs == ["you"]


async def test_begin_session_that_died_is_done_before_the_first_turn(place: Place) -> None:
    async def begins(session: SessionAccess) -> None:
        session.set_context("me", await session.prompt("who am I?"))

    agent = Agent("a", model=Script(lambda r: "you"), hooks=Hooks(begin_session=[begins]))
    for appends in range(1, 6):
        place.clear()
        await crash(place, agent, appends)
        async with Runtime(place.store(), agents=[agent]) as runtime:
            if "s" not in [row.id for row in await runtime.rows()]:
                continue
            session = await runtime.load("s")
            await session.prompt("go", take_over=True)
            assert session.get_context("me") == "you", appends


async def test_who_was_taken_over_in_one_program_continues_from_what_is_stored(place: Place) -> None:
    waiting = asyncio.Event()

    async def waits(session: SessionAccess, request: Request) -> None:
        if not waiting.is_set():
            waiting.set()
            await asyncio.Event().wait()

    agent = Agent("a", model=Script(lambda r: "ok"), hooks=Hooks(before_model=[waits]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        running = asyncio.ensure_future(session.prompt("one"))
        await waiting.wait()
        await (await runtime.load("s")).prompt("two", take_over=True)
        with pytest.raises(SessionTakenOver):
            await running

        await session.prompt("three")
        assert session.get_messages() == (await runtime.load("s")).get_messages()


async def test_steering_during_the_last_response_is_answered_too(place: Place) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(request: Request) -> str:
        begun.set()
        await go.wait()
        return "first"

    agent = Agent("a", model=Script([slow, lambda r: "saw " + r.messages[-1].text]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        running = asyncio.ensure_future(session.prompt("go"))
        await begun.wait()
        await session.steer("left")
        go.set()
        assert (await running).text == "saw left"


async def test_an_end_turn_hook_may_give_prose_beside_the_checked_output() -> None:
    hooks = Hooks(end_turn=[lambda session, reply: f"it is {reply.output}"])
    agent = Agent("a", model=Script(["5"]), output=int, hooks=hooks)
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        reply = await session.prompt("go")
        assert (reply.text, reply.output) == ("it is 5", 5)
        assert await runtime.resume("s") == reply


async def test_resume_after_invalid_output_asks_again() -> None:
    agent = Agent("a", model=Script(["x", "y", "z", "5"]), output=int)
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        with pytest.raises(OutputInvalid):
            await session.prompt("go")
        assert (await runtime.resume("s")).output == 5


class Breaks:
    """A model whose first answer breaks off and whose second never ends."""

    name = "breaks"

    def __init__(self) -> None:
        self.tries = 0
        self.speaking = asyncio.Event()

    async def respond(self, request: Request, emit: Emit | None) -> Response:
        self.tries += 1
        assert emit is not None
        if self.tries == 1:
            emit("text", "wrong ")
            raise ModelUnavailable(self.name, "it broke off")
        emit("text", "right")
        self.speaking.set()
        await asyncio.Event().wait()
        return Response("")


async def test_the_text_of_an_answer_that_broke_off_is_not_kept() -> None:
    model = Breaks()
    agent = Agent("a", model=model, hooks=Hooks(model_failed=[lambda session, request, error: request]))
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        running = asyncio.ensure_future(session.prompt("go"))
        await model.speaking.wait()
        await session.cancel()
        reply = await running
        assert (reply.status, reply.text) == ("cancelled", "right")


async def test_closing_a_runtime_interrupts_a_whole_tree_and_cancel_ends_it(place: Place) -> None:
    child = Agent("b", model=Stuck())

    async def delegates(session: SessionAccess, message: Message) -> None:
        await session.start_child("b", "work")

    agent = Agent("a", model=Script(["never"]), hooks=Hooks(pre_request=[delegates]), agents=[child])
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        async for event in session.stream("go"):
            if getattr(event, "type", "") == "model_started":
                break
    async with Runtime(place.store(), agents=[agent]) as runtime:
        await runtime.cancel("s")
        assert {row.status for row in await runtime.rows()} == {"cancelled"}
