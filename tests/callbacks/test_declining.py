"""Declining: a person refuses to answer a question, and whoever asked gets what no answer gives."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from callbacks.doubles import Desk, Person, answers, asker, delegates, never, worker
from upcall import (
    Agent,
    AlreadySettled,
    Answer,
    AnswerRefused,
    Approve,
    Callback,
    CallbackUnresolved,
    Context,
    Decline,
    Hooks,
    Reject,
    Runtime,
    tool,
)
from upcall.events import CallbackAnswered, CallbackDeclined, HookRaised
from upcall.models import call


async def test_a_declined_question_has_no_value_and_says_who_declined_by_what_right_when_and_why(
    place: Desk,
) -> None:
    agent = asker()
    await place.prompt(agent)
    settled = await place.settle(agent, Decline("ask legal"), by="ann")

    assert settled.status == "declined"
    assert settled.answer is not None
    async with place.runtime(agent) as runtime:
        (listed,) = await runtime.inbox(status="declined")
        assert await runtime.inbox() == []
        assert await runtime.inbox(status="answered") == []
    assert listed.answer == Answer(None, "ann", "asserted", place.clock.now, "ask legal")
    (event,) = [e for e in await place.log(agent) if isinstance(e, CallbackDeclined)]
    assert (event.callback_id, event.reason, event.by, event.right) == (
        settled.id,
        "ask legal",
        "ann",
        "asserted",
    )


async def test_who_asked_gets_the_default_if_there_is_one(place: Desk) -> None:
    agent = asker(intent="blocker", default="green")
    await place.prompt(agent)
    await place.settle(agent, Decline("not now"))

    reply = await place.resume(agent)

    assert reply.text == "'green'"
    assert [c.status for c in reply.callbacks] == ["declined"]


@pytest.mark.parametrize("host", [None, Person(lambda _: Decline("not now"))], ids=["inbox", "live host"])
async def test_a_default_of_none_is_a_default_where_a_person_declined(host: Person | None, place: Desk) -> None:
    agent = asker(intent="blocker", default=None)
    reply = await place.prompt(agent, host=host)
    if host is None:
        await place.settle(agent, Decline("not now"))
        reply = await place.resume(agent)

    assert (reply.status, reply.text) == ("done", "None")


async def test_a_query_without_a_default_gets_none_and_a_warning_that_says_declined(
    place: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    agent = asker()
    await place.prompt(agent)
    await place.settle(agent, Decline("ask legal"), by="ann")
    caplog.clear()

    with caplog.at_level(logging.WARNING, "upcall"):
        reply = await place.resume(agent)

    assert reply.text == "None"
    assert "agent 'developer' asked 'which colour?' and ann declined: ask legal" in caplog.text


async def test_what_must_be_answered_raises_an_error_that_names_who_declined_and_why(place: Desk) -> None:
    caught: list[CallbackUnresolved] = []

    @tool
    async def work(ctx: Context) -> str:
        """Ask."""
        try:
            return str(await ctx.raise_callback("which colour?", "blocker"))
        except CallbackUnresolved as error:
            caught.append(error)
            raise

    agent = Agent("developer", model=worker(call("work")), tools=[work])
    await place.prompt(agent)
    await place.settle(agent, Decline("ask legal"), by="ann")

    reply = await place.resume(agent)

    assert "the blocker 'which colour?' from developer was declined by ann: ask legal" in reply.text
    assert (caught[0].declined_by, caught[0].reason) == ("ann", "ask legal")


@pytest.mark.parametrize(("reason", "told"), [("ask legal", "by ann: ask legal"), ("", "by ann.")])
async def test_a_model_that_asked_is_told_that_its_question_was_declined(
    reason: str, told: str, desk: Desk
) -> None:
    agent = Agent("developer", model=worker(call("ask", message="which colour?")))
    await desk.prompt(agent)
    await desk.settle(agent, Decline(reason), by="ann")

    assert f"The question was declined {told}" in (await desk.resume(agent)).text


async def test_a_declined_question_is_settled_for_good(place: Desk) -> None:
    agent = asker()
    callback_id = (await place.prompt(agent)).callbacks[0].id
    await place.settle(agent, Decline("no"), by="ann")

    async with place.runtime(agent) as runtime:
        with pytest.raises(AlreadySettled, match="was declined by ann at") as told:
            await runtime.answer(callback_id, "blue")

    assert (told.value.status, told.value.by) == ("declined", "ann")


async def test_a_question_that_expired_is_no_longer_declined(place: Desk) -> None:
    agent = asker(timeout=60)
    callback_id = (await place.prompt(agent)).callbacks[0].id
    place.clock.tick(60)

    async with place.runtime(agent) as runtime:
        with pytest.raises(AlreadySettled) as told:
            await runtime.answer(callback_id, Decline("too late"))

    assert told.value.status == "expired"


async def test_declining_settles_all_equal_questions_or_only_one(place: Desk) -> None:
    @tool
    async def work(ctx: Context) -> str:
        """Ask."""
        return repr(await ctx.raise_callback("which colour?", default="green"))

    agent = Agent("developer", model=worker(*[call("work")] * 3), tools=[work])
    await place.prompt(agent)
    async with place.runtime(agent) as runtime:
        (entry,) = await runtime.inbox()
        await runtime.answer(entry.id, Decline("no"), only=True)
        (left,) = await runtime.inbox()
        declined = await runtime.answer(left.id, Decline("no"))

    assert len(entry.group) == 3
    assert sorted(declined.group) == sorted(set(entry.group) - {entry.id})
    assert [c.status for c in (await place.resume(agent)).callbacks] == ["declined"] * 3


async def test_an_approval_is_rejected_and_never_declined(place: Desk) -> None:
    @tool(needs_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    agent = Agent("developer", model=worker(call("pay")), tools=[pay])
    await place.prompt(agent)

    with pytest.raises(AnswerRefused, match=r"rejected, but not declined: answer with Reject\('why'\)"):
        await place.settle(agent, Decline("no"))

    await place.settle(agent, Reject("no"))
    assert "rejected by ops: no" in (await place.resume(agent)).text


async def test_an_approval_raised_by_hand_is_a_question_and_may_be_declined(desk: Desk) -> None:
    agent = asker("may I?", "approval")
    await desk.prompt(agent)
    await desk.settle(agent, Decline("no"), by="ann")

    assert "the approval 'may I?' from developer was declined by ann: no" in (await desk.resume(agent)).text


@pytest.mark.parametrize("reason", [None, 5, ["no"], "x" * 1_000_001])
async def test_a_reason_is_a_text_of_bounded_length(reason: Any, desk: Desk) -> None:
    agent = asker()
    await desk.prompt(agent)

    with pytest.raises(AnswerRefused):
        await desk.settle(agent, Decline(reason))

    assert len(await desk.inbox(agent)) == 1


async def test_a_reason_with_half_a_character_is_stored_and_read_back(place: Desk) -> None:
    agent = asker(default="x")
    await place.prompt(agent)
    await place.settle(agent, Decline("no \ud800"))

    assert (await place.resume(agent)).text == "'x'"


async def test_a_hook_that_declines_settles_nothing_and_its_refusal_is_logged(desk: Desk) -> None:
    async def declines(_: Any, callback: Callback) -> Answer:
        return Answer(Decline("not mine"))

    below = asker("which colour?")
    agent = delegates("lead", below, answers("red"), hooks=Hooks(on_callback=[declines]))
    reply = await desk.prompt(agent)

    (callback,) = reply.callbacks
    assert callback.answer is not None
    assert (callback.status, callback.answer.value, callback.answer.by) == ("answered", "red", "lead")
    (raised,) = [e for e in await desk.log(agent) if isinstance(e, HookRaised)]
    assert "only a person may decline" in raised.error


async def test_a_host_may_decline_while_the_run_waits(desk: Desk) -> None:
    host = Person(lambda _: Decline("ask legal"))
    reply = await desk.prompt(asker(default="green"), host=host)

    assert (reply.status, reply.text) == ("done", "'green'")
    (callback,) = reply.callbacks
    assert callback.answer is not None
    assert (callback.status, callback.answer.value, callback.answer.reason) == ("declined", None, "ask legal")
    assert host.withdrawn == []


async def test_a_host_that_declines_an_approval_is_asked_again_with_the_reason(desk: Desk) -> None:
    @tool(needs_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    host = Person(lambda c: Approve() if c.problem else Decline("hm"))
    agent = Agent("developer", model=worker(call("pay")), tools=[pay])

    assert (await desk.prompt(agent, host=host)).text == "paid"
    assert [bool(c.problem) for c in host.seen] == [False, True]
    assert "rejected, but not declined" in host.seen[1].problem


async def test_a_question_declined_by_another_process_leaves_the_screen(tmp_path: Path) -> None:
    agent, host = asker(default="green"), Person(never)
    async with Runtime(tmp_path / "log.db", agents=[agent], host=host) as here:
        session = await here.start(agent, id="s")
        stream = session.stream("go")
        async for item in stream:
            if item.type == "callback_asked":
                async with Runtime(tmp_path / "log.db", agents=[agent]) as there:
                    await there.answer(item.callback_id, Decline("no"), by="bob")
    assert session.reply is not None
    assert session.reply.text == "'green'"


async def test_a_full_callback_that_was_declined_carries_the_reason_to_the_tool(desk: Desk) -> None:
    @tool
    async def work(ctx: Context) -> str:
        """Ask."""
        asked = await ctx.raise_callback_full("which colour?", default="green")
        assert asked.answer is not None
        return f"{asked.status} {asked.answer.value} {asked.answer.reason}"

    agent = Agent("developer", model=worker(call("work")), tools=[work])
    await desk.prompt(agent)
    await desk.settle(agent, Decline("ask legal"))

    assert (await desk.resume(agent)).text == "declined None ask legal"


async def test_no_answer_is_stored_for_a_declined_question(place: Desk) -> None:
    agent = asker(default=1)
    await place.prompt(agent)
    await place.settle(agent, Decline(""))
    await place.resume(agent)

    assert not [e for e in await place.log(agent) if isinstance(e, CallbackAnswered)]
