"""A call that has ended, or was stopped, starts nothing more, and what it had started ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from core.doubles import Place
from upcall import (
    Agent,
    Callback,
    CallEnded,
    Context,
    Hooks,
    Reply,
    Runtime,
    Session,
    SessionAccess,
    SyncContext,
    tool,
)
from upcall.models import Script, call

Stop = Callable[[Runtime, Session, "asyncio.Task[Reply]"], Awaitable[Any]]


class Silent:
    """A host whose person never answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def ask(self, callback: Callback) -> Any:
        self.asked.set()
        await asyncio.Event().wait()

    def withdraw(self, callback_id: str, reason: str) -> None:
        """Nothing is shown that could be taken back."""


async def _cancel(_: Runtime, session: Session, __: asyncio.Task[Reply]) -> None:
    await session.cancel("enough")


async def _cancel_task(_: Runtime, __: Session, running: asyncio.Task[Reply]) -> None:
    running.cancel()


async def _close(runtime: Runtime, _: Session, __: asyncio.Task[Reply]) -> None:
    await runtime.close()


async def ended(running: asyncio.Task[Reply]) -> None:
    async with asyncio.timeout(5):
        await asyncio.wait([running])
    if not running.cancelled():
        running.exception()


async def wait_for(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 5)


@pytest.mark.parametrize("stop", [_cancel, _cancel_task])
async def test_the_child_of_a_plain_def_tool_ends_with_its_cancelled_turn(place: Place, stop: Stop) -> None:
    working, log = asyncio.Event(), list[str]()

    @tool
    async def work() -> str:
        try:
            working.set()
            await asyncio.Event().wait()
        finally:
            log.append("child stopped")
        return "worked"

    kid = Agent("kid", model=Script([call("work"), "kid done"]), tools=[work])

    @tool
    def delegate(ctx: SyncContext) -> str:
        return ctx.start_child(kid, "go").text

    agent = Agent("a", model=Script([call("delegate"), "end"]), tools=[delegate], agents=[kid])
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        running = asyncio.ensure_future(session.prompt("x"))
        await working.wait()

        await stop(runtime, session, running)
        await ended(running)

        assert log == ["child stopped"]
        assert {row.status for row in await runtime.rows()} == {"cancelled"}


@pytest.mark.parametrize("stop", [_cancel, _cancel_task, _close])
async def test_a_thread_that_waits_for_an_answer_wakes_with_what_except_exception_does_not_catch(
    place: Place, stop: Stop
) -> None:
    left, host, log = threading.Event(), Silent(), list[str]()

    @tool
    def careful(ctx: SyncContext) -> str:
        try:
            return str(ctx.raise_callback("Delete everything?", "approval"))
        except Exception as error:
            log.append(f"went on after {error!r}")
            return "assumed yes"
        finally:
            left.set()

    agent = Agent("a", model=Script([call("careful"), "end"]), tools=[careful])
    async with Runtime(place.store(), agents=[agent], host=host) as runtime:
        session = await runtime.start(agent, "s")
        running = asyncio.ensure_future(session.prompt("x"))
        await host.asked.wait()

        await stop(runtime, session, running)
        await ended(running)
        await wait_for(left)

    assert log == []


async def test_a_thread_that_waits_for_an_answer_wakes_when_its_session_is_taken_over(place: Place) -> None:
    left, host = threading.Event(), Silent()

    @tool
    def careful(ctx: SyncContext) -> str:
        try:
            return str(ctx.raise_callback("Delete everything?", "approval"))
        finally:
            left.set()

    agent = Agent("a", model=Script([call("careful"), "end"]), tools=[careful])
    store = place.store()
    async with Runtime(store, agents=[agent], host=host) as runtime:
        session = await runtime.start(agent, "s")
        running = asyncio.ensure_future(session.prompt("x"))
        await host.asked.wait()

        second = Runtime(runtime.store, agents=[agent])
        await second.resume("s", take_over=True)
        await ended(running)

        await wait_for(left)


async def test_code_that_a_tool_left_behind_is_refused_by_name_and_the_turn_continues(place: Place) -> None:
    refused, tasks = dict[str, str](), list[asyncio.Task[None]]()
    over = asyncio.Event()
    kid = Agent("kid", model=Script(["never"]))

    @tool
    async def hasty(ctx: Context) -> str:
        async def late() -> None:
            await over.wait()

            async def compact() -> None:
                ctx.compact_messages()

            async def add() -> None:
                ctx.add_message("user", "late")

            async def keep() -> None:
                ctx.set_context("k", 1)

            uses: dict[str, Awaitable[Any]] = {
                "once": ctx.once("pay", lambda: 1), "ask": ctx.raise_callback("late?"), "add": add(),
                "full": ctx.raise_callback_full("late?"), "child": ctx.start_child(kid, "go"), "keep": keep(),
                "prompt": ctx.prompt("hm"), "summary": ctx.trigger_compaction(), "compact": compact(),
            }  # fmt: skip
            for name, use in uses.items():
                try:
                    await use
                except CallEnded as error:
                    refused[name] = str(error)
            ctx.show("nobody sees it")

        tasks.append(asyncio.ensure_future(late()))
        return "left a task"

    @tool
    async def slow() -> str:
        over.set()
        await tasks[0]
        return "slow"

    agent = Agent("a", model=Script([call("hasty"), call("slow"), "end"]), tools=[hasty, slow], agents=[kid])
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        async with asyncio.timeout(5):
            reply = await session.prompt("x")

        assert (reply.status, reply.text, reply.callbacks) == ("done", "end", ())
        assert [row.id for row in await runtime.rows()] == ["s"]
    assert sorted(refused) == ["add", "ask", "child", "compact", "full", "keep", "once", "prompt", "summary"]
    assert all(text.startswith("hasty has ended, so ") for text in refused.values())


async def test_code_that_a_hook_left_behind_is_refused_and_the_turn_continues() -> None:
    refused, tasks, over = list[str](), list[asyncio.Task[None]](), asyncio.Event()

    async def before(session: SessionAccess, _: Any) -> None:
        async def late() -> None:
            await over.wait()
            try:
                await session.raise_callback("late?")
            except CallEnded as error:
                refused.append(error.name)

        tasks.append(asyncio.ensure_future(late()))

    @tool
    async def slow() -> str:
        over.set()
        await tasks[0]
        return "slow"

    agent = Agent("a", model=Script([call("slow"), "end"]), tools=[slow], hooks=Hooks(before_tool=[before]))
    async with Runtime(agents=[agent]) as runtime:
        reply = await (await runtime.start(agent)).prompt("x")

    assert (reply.text, refused) == ("end", ["before_tool.r1c0"])


@pytest.mark.parametrize("use", ["once", "ask", "child", "keep"])
async def test_a_plain_def_tool_that_took_too_long_starts_nothing_more(place: Place, use: str) -> None:
    told, left, log = threading.Event(), threading.Event(), list[str]()
    kid = Agent("kid", model=Script(lambda _: log.append("child ran") or "kid done"))

    @tool(timeout=0.05)
    def late(ctx: SyncContext) -> str:
        told.wait(5)
        uses: dict[str, Callable[[], Any]] = {
            "once": lambda: ctx.once("pay", lambda: log.append("paid")), "keep": lambda: ctx.set_context("k", 1),
            "ask": lambda: ctx.raise_callback("late?"), "child": lambda: ctx.start_child(kid, "go"),
        }  # fmt: skip
        try:
            uses[use]()
            log.append("went on")
        except Exception as error:
            log.append(repr(error))
        finally:
            left.set()
        return "late"

    @tool
    async def slow() -> str:
        told.set()
        await wait_for(left)
        return "slow"

    agent = Agent("a", model=Script([call("late"), call("slow"), "end"]), tools=[late, slow], agents=[kid])
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        reply = await session.prompt("x")

        assert (reply.text, reply.callbacks, log) == ("end", (), [])
        assert session.get_context("k") is None
        assert [row.id for row in await runtime.rows()] == ["s"]


@pytest.mark.parametrize("stop", [_cancel, _cancel_task, _close])
async def test_a_tool_that_swallows_its_cancellation_starts_no_effect_and_no_child(
    place: Place, stop: Stop
) -> None:
    begun, log = asyncio.Event(), list[str]()
    kid = Agent("kid", model=Script(lambda _: log.append("child ran") or "kid done"))

    @tool
    async def stubborn(ctx: Context) -> str:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        for use in (lambda: ctx.once("pay", lambda: log.append("paid")), lambda: ctx.start_child(kid, "go")):
            try:
                await use()
            except asyncio.CancelledError:
                log.append("refused")
        return "done anyway"

    agent = Agent("a", model=Script([call("stubborn"), "end"]), tools=[stubborn], agents=[kid])
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        running = asyncio.ensure_future(session.prompt("x"))
        await begun.wait()

        await stop(runtime, session, running)
        await ended(running)

    assert log == ["refused", "refused"]


@pytest.mark.parametrize("where", ["tool", "two tools", "end_turn"])
async def test_a_turn_whose_task_is_cancelled_is_cancelled_though_its_code_swallows_that(
    place: Place, where: str
) -> None:
    begun, log = asyncio.Event(), list[str]()

    @tool
    async def stubborn() -> str:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "cleaned up"

    async def end(_: SessionAccess, __: Reply) -> None:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    calls = {"tool": call("stubborn"), "two tools": [call("stubborn"), call("stubborn")], "end_turn": "said"}[where]
    model = Script([calls, lambda _: log.append("asked again") or "end"])
    hooks = Hooks(end_turn=[end]) if where == "end_turn" else Hooks()
    agent = Agent("a", model=model, tools=[stubborn], hooks=hooks)
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        running = asyncio.ensure_future(session.prompt("x"))
        await begun.wait()

        running.cancel()
        await ended(running)

        assert (running.cancelled(), log) == (True, [])
        assert await runtime.status("s") == "cancelled"


async def test_a_tool_may_clean_up_with_its_context_when_its_own_time_limit_cancels_it() -> None:
    log = list[str]()

    @tool
    async def bounded(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.01):
                try:
                    await asyncio.Event().wait()
                finally:
                    await ctx.once("release", lambda: log.append("released"))
        except TimeoutError:
            log.append("timed out")
        return await ctx.once("note", lambda: "noted")

    agent = Agent("a", model=Script([call("bounded"), lambda r: r.messages[-1].results[0].text]), tools=[bounded])
    async with Runtime(agents=[agent]) as runtime:
        reply = await (await runtime.start(agent)).prompt("x")

    assert (reply.status, reply.text, log) == ("done", "noted", ["released", "timed out"])


async def test_a_prompt_in_a_task_that_was_cancelled_before_runs_to_its_end() -> None:
    @tool
    async def note(ctx: Context) -> str:
        return await ctx.once("note", lambda: "noted")

    agent = Agent("a", model=Script([call("note"), "end"]), tools=[note])
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)

        async def last_words() -> Reply:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return await session.prompt("x")

        running = asyncio.ensure_future(last_words())
        await asyncio.sleep(0)
        running.cancel()

        assert (await running).text == "end"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["parked", "held", "child"])
async def test_a_call_that_waited_has_only_the_rest_of_its_time_when_it_runs_again(
    tmp_path: Path, how: str
) -> None:
    runs, host = list[str](), Silent()

    @tool
    async def ask_one(ctx: Context) -> str:
        return str(await ctx.raise_callback("Which?", "blocker"))

    kid = Agent(
        "kid",
        model=Script(lambda r: "kid done" if r.messages[-1].results else call("ask_one")),
        tools=[ask_one],
        can_query_caller=False,
    )

    @tool(timeout=1.0)
    async def slow(ctx: Context) -> str:
        runs.append("run")
        await asyncio.sleep(0.6)
        if how == "child":
            return (await ctx.start_child(kid, "go")).text
        return str(await ctx.raise_callback("Which?", "blocker"))

    model = Script(lambda r: r.messages[-1].results[0].text if r.messages[-1].results else call("slow"))
    agent = Agent("a", model=model, tools=[slow], agents=[kid])
    async with Runtime(tmp_path / "log.db", agents=[agent], host=host if how == "held" else None) as first:
        session = await first.start(agent, "s")
        running = asyncio.ensure_future(session.prompt("x"))
        if how == "held":  # its process is lost after the question and before the call is parked
            await host.asked.wait()
        else:
            await ended(running)
        second = Runtime(first.store, agents=[agent])
        if how == "held":
            await second.resume("s", take_over=True)
            await ended(running)
        (question,) = await second.inbox()
        await second.answer(question.id, "the left one")

        reply = await second.resume("s")

    assert (reply.status, runs) == ("done", ["run", "run"])
    assert reply.text == "slow was stopped after 1 s; it may have had some of its effects"
