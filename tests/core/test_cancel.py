"""Cancelling at every stage: the text so far is kept, open calls are settled, the log goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from core.doubles import Asked, Place, Stuck, log_of, said
from upcall import Agent, Hooks, Message, Reply, Response, Runtime, Session, SessionAccess, tool
from upcall.models import Script, call


class Endless:
    """A tool that never ends, and says when it has begun; `quick` beside it ends at once."""

    def __init__(self, expected: int = 1) -> None:
        self.begun = asyncio.Event()
        self.stopped = 0
        self._expected = expected

        @tool
        async def endless() -> None:
            """Never end."""
            self._expected -= 1
            if self._expected == 0:
                self.begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.stopped += 1

        @tool
        async def quick() -> str:
            """End at once."""
            return "quick"

        self.tools = [endless, quick]


async def cancelled(session: Session, running: asyncio.Task[Reply]) -> Reply:
    await session.cancel("enough")
    async with asyncio.timeout(5):
        return await running


async def test_cancel_while_the_model_writes_keeps_the_text_so_far(place: Place) -> None:
    model = Stuck("Once ", "upon ")
    agent = Agent("a", model=model)
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        running = asyncio.ensure_future(session.prompt("tell me"))
        await model.speaking.wait()

        reply = await cancelled(session, running)

        assert (reply.status, reply.text) == ("cancelled", "Once upon ")
        assert said((await runtime.load("s")).get_messages()) == ["user: tell me", "assistant: Once upon "]


async def test_cancel_before_the_first_word_leaves_the_prompt(place: Place) -> None:
    model = Stuck()
    agent = Agent("a", model=model)
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        running = asyncio.ensure_future(session.prompt("tell me"))
        await model.speaking.wait()

        reply = await cancelled(session, running)

        assert (reply.status, reply.text) == ("cancelled", "")
        assert said((await runtime.load("s")).get_messages()) == ["user: tell me"]
        assert session.status == "cancelled"


async def test_cancel_during_a_tool_settles_its_call_and_the_session_continues(place: Place) -> None:
    endless, asked = Endless(), Asked()
    script = Script(asked.then(lambda r: "ok" if r.messages[-1].text == "two" else call("endless")))
    agent = Agent("a", model=script, tools=endless.tools)
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        running = asyncio.ensure_future(session.prompt("one"))
        await endless.begun.wait()

        reply = await cancelled(session, running)

        assert reply.status == "cancelled"
        assert endless.stopped == 1
        assert (await session.prompt("two")).text == "ok"
        prompt, calling, results, second = asked.requests[-1].messages
        assert [prompt.text, second.text] == ["one", "two"]
        assert results.results[0].call_id == calling.calls[0].id
        assert results.results[0].is_error
        assert "cancelled" in results.results[0].text


async def test_cancel_during_parallel_tools_keeps_what_has_ended_and_settles_the_rest(place: Place) -> None:
    endless = Endless(expected=2)
    calls = [call("endless"), call("quick"), call("endless")]
    agent = Agent("a", model=Script([calls]), tools=endless.tools)
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        running = asyncio.ensure_future(session.prompt("one"))
        await endless.begun.wait()
        async for event in runtime.events("s", follow=True):
            if event.type == "tool_ended":
                break

        reply = await cancelled(session, running)

        first, quick, last = (await runtime.load("s")).get_messages()[-1].results
        assert reply.status == "cancelled"
        assert endless.stopped == 2
        assert (quick.text, quick.is_error) == ("quick", False)
        assert first.is_error
        assert last.is_error
        ended = [e for e in await log_of(runtime) if e.type == "tool_ended"]
        assert len(ended) == 3


@pytest.mark.parametrize("point", ["pre_request", "before_model", "post_response", "before_tool", "after_tool"])
async def test_cancel_inside_a_hook_leaves_a_log_that_continues(place: Place, point: str) -> None:
    inside, once = asyncio.Event(), iter([True])

    async def waits(session: SessionAccess, *passing: Any) -> None:
        if next(once, False):
            inside.set()
            await asyncio.Event().wait()

    endless = Endless()
    script = Script(lambda r: "ok" if r.messages[-1].text == "two" else call("quick"))
    hooks = Hooks(**{point: [waits]})  # pyright: ignore[reportArgumentType]
    agent = Agent("a", model=script, tools=endless.tools, hooks=hooks)
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        running = asyncio.ensure_future(session.prompt("one"))
        await inside.wait()

        reply = await cancelled(session, running)

        assert reply.status == "cancelled"
        assert (await runtime.load("s")).get_messages() == session.get_messages()
        assert (await session.prompt("two")).text == "ok"


async def test_cancel_inside_before_tool_never_lets_the_tool_run() -> None:
    inside, ran = asyncio.Event(), list[str]()

    @tool
    async def effect() -> None:
        """Have an effect."""
        ran.append("effect")

    async def waits(session: SessionAccess, passing: Any) -> None:
        inside.set()
        await asyncio.Event().wait()

    agent = Agent("a", model=Script([call("effect")]), tools=[effect], hooks=Hooks(before_tool=[waits]))
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        running = asyncio.ensure_future(session.prompt("one"))
        await inside.wait()
        await cancelled(session, running)

    assert ran == []


async def test_cancelling_the_task_that_awaits_prompt_cancels_the_turn(place: Place) -> None:
    endless = Endless()
    agent = Agent("a", model=Script([["half a reply", call("endless")], "ok"]), tools=endless.tools)
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        running = asyncio.ensure_future(session.prompt("one"))
        await endless.begun.wait()

        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

        assert endless.stopped == 1
        assert await runtime.status("s") == "cancelled"
        assert (await session.prompt("two")).text == "ok"


async def test_cancelling_with_a_timeout_around_prompt_works_as_usual() -> None:
    model = Stuck("Once ")
    agent = Agent("a", model=model)
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")

        async def prompt_until_it_speaks() -> None:
            async with asyncio.timeout(20) as limit:
                speaking = asyncio.ensure_future(model.speaking.wait())
                speaking.add_done_callback(lambda _: limit.reschedule(asyncio.get_running_loop().time()))
                await session.prompt("one")

        with pytest.raises(TimeoutError):
            await prompt_until_it_speaks()

        assert await runtime.status("s") == "cancelled"
        assert said(session.get_messages()) == ["user: one", "assistant: Once "]


async def test_a_streamed_turn_can_be_cancelled_from_outside(place: Place) -> None:
    model = Stuck("Once ")
    agent = Agent("a", model=model)
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        async for item in session.stream("go"):
            if item.__class__.__name__ == "Delta":
                await runtime.cancel("s")

        assert session.reply is not None
        assert (session.reply.status, session.reply.text) == ("cancelled", "Once ")


async def test_a_cancelled_turn_runs_no_end_turn_hook_and_resume_returns_it() -> None:
    ran: list[Reply] = []
    model = Stuck("Once ", first=Response(calls=(call("quick"),)))
    hooks = Hooks(end_turn=[lambda session, reply: ran.append(reply)])
    agent = Agent("a", model=model, tools=Endless().tools, hooks=hooks)
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        running = asyncio.ensure_future(session.prompt("one"))
        await model.speaking.wait()
        reply = await cancelled(session, running)

        assert await runtime.resume("s") == reply
        assert ran == []


async def test_cancel_reaches_the_children(place: Place) -> None:
    model = Stuck("working ")
    child = Agent("child", model=model)

    async def delegates(session: SessionAccess, message: Message) -> None:
        await session.start_child(child, "work")

    agent = Agent("a", model=Script(["never"]), hooks=Hooks(pre_request=[delegates]))
    async with Runtime(place.store(), agents=[agent, child]) as runtime:
        session = await runtime.start(agent, "s")
        running = asyncio.ensure_future(session.prompt("one"))
        await model.speaking.wait()

        reply = await cancelled(session, running)

        (row,) = await runtime.rows(parent="s")
        assert reply.status == "cancelled"
        assert row.status == "cancelled"
        assert said((await runtime.load(row.id)).get_messages()) == ["user: work", "assistant: working "]


async def test_cancel_of_a_session_that_does_nothing_changes_nothing(place: Place) -> None:
    agent = Agent("a", model=Script(["one", "two"]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.cancel()
        assert (await session.prompt("go")).text == "one"
        await session.cancel()
        assert (await session.prompt("go")).text == "two"


async def test_cancel_ends_a_turn_that_nobody_runs(place: Place) -> None:
    agent = Agent("a", model=Stuck())
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        stream = session.stream("go")
        await anext(stream)
        await stream.aclose()
    async with Runtime(place.store(), agents=[agent.replace(model=Script(["ok"]))]) as runtime:
        assert await runtime.status("s") == "interrupted"

        await runtime.cancel("s")

        assert await runtime.status("s") == "cancelled"
        assert (await (await runtime.load("s")).prompt("again")).text == "ok"


async def test_cancel_says_who_and_why_in_the_log() -> None:
    model = Stuck()
    agent = Agent("a", model=model)
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        running = asyncio.ensure_future(session.prompt("one"))
        await model.speaking.wait()
        await runtime.cancel("s", "enough", by="ops")
        await running

        asked: Any = next(e for e in await log_of(runtime) if e.type == "cancel_requested")
        assert (asked.by, asked.reason) == ("ops", "enough")


async def test_a_tool_that_swallows_its_cancellation_does_not_keep_the_turn_alive() -> None:
    begun = asyncio.Event()

    @tool
    async def stubborn() -> str:
        """Return although it was told to stop."""
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "I finished anyway"
        return ""

    asked = Asked()
    agent = Agent("a", model=Script(asked.then(lambda r: call("stubborn"))), tools=[stubborn])
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        running = asyncio.ensure_future(session.prompt("one"))
        await begun.wait()
        reply = await cancelled(session, running)

        results = [e for e in await log_of(runtime) if e.type == "tool_ended"]
        assert reply.status == "cancelled"
        assert len(results) == len(asked) == 1
