"""Closing with a drain: what is under way may end, nothing new starts, and everything can be resumed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from core.doubles import Place
from upcall import (
    Agent,
    Context,
    Hooks,
    Message,
    Request,
    Runtime,
    RuntimeClosed,
    SessionAccess,
    SyncContext,
    tool,
)
from upcall.events import CallbackAsked
from upcall.models import Script, call


def results(request: Request) -> list[str]:
    return [result.text for message in request.messages for result in message.results]


class Gate:
    """A tool that says when it runs and goes on when it is told to."""

    def __init__(self) -> None:
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        self.ended = 0

    async def __call__(self) -> str:
        self.begun.set()
        await self.go.wait()
        self.ended += 1
        return "worked"


def working(gate: Gate, *, then: Callable[[Request], Any] = lambda _: "done") -> Agent:
    @tool
    async def work() -> str:
        """Work until told."""
        return await gate()

    return Agent(
        "a", model=Script(lambda request: then(request) if results(request) else call("work")), tools=[work]
    )


async def test_a_drain_lets_a_running_call_end_and_stops_before_the_next_model_call(place: Place) -> None:
    gate, asked = Gate(), list[str]()

    def then(_: Request) -> str:
        asked.append("again")
        return "done"

    agent = working(gate, then=then)
    runtime = Runtime(place.store(), agents=[agent])
    turn = asyncio.ensure_future((await runtime.start(agent, "s")).prompt("go"))
    await gate.begun.wait()
    closing = asyncio.ensure_future(runtime.close(drain=20))
    gate.go.set()
    await closing
    with pytest.raises(RuntimeClosed):
        await turn
    assert (gate.ended, asked) == (1, [])

    async with Runtime(place.store(), agents=[agent]) as runtime:
        assert (await runtime.status("s"), await runtime.ready()) == ("interrupted", ["s"])
        reply = await runtime.resume("s")
        assert [r.text for m in (await runtime.load("s")).get_messages() for r in m.results] == ["worked"]
    assert (reply.text, gate.ended) == ("done", 1)


async def test_a_drain_lets_a_final_response_end_its_turn(place: Place) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(_: Request) -> str:
        begun.set()
        await go.wait()
        return "said in time"

    agent = Agent("a", model=Script(slow))
    runtime = Runtime(place.store(), agents=[agent])
    turn = asyncio.ensure_future((await runtime.start(agent, "s")).prompt("go"))
    await begun.wait()
    closing = asyncio.ensure_future(runtime.close(drain=20))
    go.set()
    await closing

    assert (await turn).text == "said in time"


async def test_a_drain_starts_none_of_the_calls_that_a_response_under_way_asks_for(place: Place) -> None:
    begun, go, ran = asyncio.Event(), asyncio.Event(), list[str]()

    @tool
    async def work() -> str:
        """Work."""
        ran.append("work")
        return "worked"

    async def slow(request: Request) -> Any:
        if results(request):
            return "done"
        begun.set()
        await go.wait()
        return [call("work"), call("work")]

    agent = Agent("a", model=Script(slow), tools=[work])
    runtime = Runtime(place.store(), agents=[agent])
    turn = asyncio.ensure_future((await runtime.start(agent, "s")).prompt("go"))
    await begun.wait()
    closing = asyncio.ensure_future(runtime.close(drain=20))
    go.set()
    await closing
    with pytest.raises(RuntimeClosed):
        await turn
    assert ran == []

    async with Runtime(place.store(), agents=[agent]) as runtime:
        assert (await runtime.resume("s")).text == "done"
    assert ran == ["work", "work"]


async def test_a_call_that_outlasts_the_drain_is_interrupted_as_after_a_crash(place: Place) -> None:
    gate = Gate()
    agent = working(gate, then=lambda request: results(request)[0][:28])
    runtime = Runtime(place.store(), agents=[agent])
    turn = asyncio.ensure_future((await runtime.start(agent, "s")).prompt("go"))
    await gate.begun.wait()
    await runtime.close(drain=0.01)
    with pytest.raises(RuntimeClosed):
        await turn

    async with Runtime(place.store(), agents=[agent]) as runtime:
        assert (await runtime.resume("s")).text == "interrupted, outcome unknown"


async def test_a_second_close_ends_a_drain_at_once(place: Place) -> None:
    gate = Gate()
    agent = working(gate)
    runtime = Runtime(place.store(), agents=[agent])
    turn = asyncio.ensure_future((await runtime.start(agent, "s")).prompt("go"))
    await gate.begun.wait()
    closing = asyncio.ensure_future(runtime.close(drain=3600))
    await runtime.close()
    await closing
    with pytest.raises(RuntimeClosed):
        await turn
    assert gate.ended == 0


async def test_nothing_is_prompted_or_resumed_while_a_runtime_drains(place: Place) -> None:
    gate = Gate()
    agent = working(gate)
    runtime = Runtime(place.store(), agents=[agent])
    turn = asyncio.ensure_future((await runtime.start(agent, "s")).prompt("go"))
    other = await runtime.start(agent, "other")
    await gate.begun.wait()
    closing = asyncio.ensure_future(runtime.close(drain=20))
    await asyncio.wait({closing}, timeout=0.01)
    with pytest.raises(RuntimeClosed, match="starts nothing new"):
        await other.prompt("go")
    with pytest.raises(RuntimeClosed):
        await runtime.start(agent, "third")
    with pytest.raises(RuntimeClosed):
        await runtime.resume("other")
    gate.go.set()
    await closing
    with pytest.raises(RuntimeClosed):
        await turn


async def test_a_closed_runtime_refuses_everything_with_runtime_closed(place: Place) -> None:
    agent = working(Gate())
    runtime = Runtime(place.store(), agents=[agent])
    session = await runtime.start(agent, "s")
    await runtime.close()
    for refused in (
        session.prompt("go"),
        runtime.start(agent, "other"),
        runtime.load("s"),
        runtime.resume("s"),
        runtime.submit(agent, "go"),
        runtime.inbox(),
        runtime.answer("q", "yes", by="person"),
    ):
        with pytest.raises(RuntimeClosed, match="is closed") as caught:
            await refused
        assert not caught.value.begun


async def test_what_is_stored_can_be_read_once_a_runtime_has_drained(place: Place) -> None:
    gate = Gate()
    agent = working(gate)
    async with Runtime(place.store(), agents=[agent]) as runtime:
        turn = asyncio.ensure_future((await runtime.start(agent, "s")).prompt("go"))
        await gate.begun.wait()
        draining = asyncio.ensure_future(runtime.drain(3600))
        await asyncio.wait({draining}, timeout=0.01)
        await runtime.drain(0)
        await draining
        with pytest.raises(RuntimeClosed):
            await turn
        assert (gate.ended, await runtime.status("s")) == (0, "interrupted")


class Absent:
    """A person who never answers."""

    async def ask(self, callback: Any) -> Any:
        await asyncio.Event().wait()

    def withdraw(self, callback_id: str, reason: str) -> None:
        pass


def asking_beside(gate: Gate) -> Agent:
    @tool
    async def ask_first(ctx: Context) -> str:
        """Ask somebody."""
        return await ctx.raise_callback("Which one?", "blocker")

    def child_says(request: Request) -> Any:
        if results(request):
            return results(request)[0]
        return call("ask_first" if request.messages[0].text == "ask" else "work")

    def parent_says(request: Request) -> Any:
        if request.purpose == "side_turn":
            return call("pass_up_callback", reason="not mine")
        return " ".join(results(request)) or [call("task", agent="child", prompt=p) for p in ("ask", "work")]

    work = working(gate).tools[0]
    child = Agent("child", model=Script(child_says), tools=[ask_first, work])
    return Agent("parent", model=Script(parent_says), agents=[child])


async def test_a_drained_tree_leaves_who_asked_waiting_and_who_worked_interrupted(place: Place) -> None:
    gate = Gate()
    parent = asking_beside(gate)
    runtime = Runtime(place.store(), agents=[parent], host=Absent())
    turn = asyncio.ensure_future((await runtime.start(parent, "s")).prompt("go"))
    await gate.begun.wait()
    async for event in runtime.events(follow=True):
        if isinstance(event, CallbackAsked) and event.target == "user":
            break
    closing = asyncio.ensure_future(runtime.close(drain=20))
    gate.go.set()
    await closing
    with pytest.raises(RuntimeClosed):
        await turn

    async with Runtime(place.store(), agents=[parent], host=Answering()) as runtime:
        assert [await runtime.status(f"s~r1c{n}") for n in range(2)] == ["waiting", "interrupted"]
        assert await runtime.ready() == ["s"]
        reply = await runtime.resume("s")
    assert (reply.text, gate.ended) == ("that one worked", 1)


class Answering:
    """A person who always says the same."""

    async def ask(self, callback: Any) -> Any:
        return "that one"

    def withdraw(self, callback_id: str, reason: str) -> None:
        pass


async def test_a_turn_that_only_waits_is_parked_by_a_drain_whatever_the_hold(place: Place) -> None:
    @tool
    async def ask_first(ctx: Context) -> str:
        """Ask somebody."""
        return await ctx.raise_callback("Which one?", "blocker")

    agent = Agent(
        "a", model=Script(lambda r: results(r)[0] if results(r) else call("ask_first")), tools=[ask_first]
    )
    runtime = Runtime(place.store(), agents=[agent], host=Absent(), hold=3600)
    turn = asyncio.ensure_future((await runtime.start(agent, "s")).prompt("go"))
    async for event in runtime.events(follow=True):
        if event.type == "callback_asked":
            break
    await runtime.close(drain=3600)

    assert (await turn).status == "waiting"


class Crew:
    """A boss, and a worker whose tool can't be run again: once it may, it has somebody else do the rest."""

    def __init__(self, then: Callable[[Context], Awaitable[str]]) -> None:
        self.gate, self.beside = Gate(), Gate()
        self.began = 0

        @tool
        async def begin(ctx: Context) -> str:
            """Begin, then have the rest done."""
            self.began += 1
            await self.gate()
            return f"began, {await then(ctx)}"

        @tool
        async def ask_first(ctx: Context) -> str:
            """Ask somebody."""
            return await ctx.raise_callback("Which one?", "blocker")

        child = Agent("child", model=Script(self._child_says), tools=[ask_first])
        tools = [begin, working(self.beside).tools[0]]
        worker = Agent("worker", model=Script(self._worker_says), tools=tools, agents=[child])
        self.boss = Agent("boss", model=Script(self._boss_says), agents=[worker])
        self.answers = True

    def _child_says(self, request: Request) -> Any:
        if results(request):
            return results(request)[0]
        return call("ask_first") if request.messages[0].text == "ask" else "the child is done"

    def _worker_says(self, request: Request) -> Any:
        if request.purpose == "side_turn":
            asked_itself = request.messages[-1].text == "How is it?"
            return "it goes well" if asked_itself else call("pass_up_callback", reason="not mine")
        return results(request)[0] if results(request) else call(request.messages[0].text)

    def _boss_says(self, request: Request) -> Any:
        if request.purpose == "side_turn":
            return (
                call("answer_callback", value="b") if self.answers else call("pass_up_callback", reason="no idea")
            )
        prompts = request.messages[0].text.split()
        return " / ".join(results(request)) or [call("task", agent="worker", prompt=p) for p in prompts]


async def child_says(ctx: Context, prompt: str) -> str:
    return (await ctx.start_child("child", prompt)).text


REST: dict[str, tuple[Callable[[Context], Awaitable[str]], str]] = {
    "a child": (lambda ctx: child_says(ctx, "go"), "the child is done"),
    "a child that asks": (lambda ctx: child_says(ctx, "ask"), "b"),
    "a side turn": (lambda ctx: ctx.prompt("How is it?"), "it goes well"),
}


@pytest.mark.parametrize(("then", "rest"), REST.values(), ids=REST.keys())
async def test_what_a_call_starts_that_can_not_run_again_is_part_of_that_call(
    place: Place, then: Callable[[Context], Awaitable[str]], rest: str
) -> None:
    crew = Crew(then)
    runtime = Runtime(place.store(), agents=[crew.boss])
    turn = asyncio.ensure_future((await runtime.start(crew.boss, "s")).prompt("begin"))
    await crew.gate.begun.wait()
    closing = asyncio.ensure_future(runtime.close(drain=20))
    await asyncio.wait({closing}, timeout=0.01)
    crew.gate.go.set()
    await closing
    with pytest.raises(RuntimeClosed):
        await turn

    async with Runtime(place.store(), agents=[crew.boss]) as runtime:
        assert ((await runtime.resume("s")).text, crew.began) == (f"began, {rest}", 1)


async def test_a_call_whose_child_waits_is_not_unknown_because_another_one_was_interrupted(place: Place) -> None:
    crew = Crew(lambda ctx: child_says(ctx, "ask"))
    crew.answers = False
    runtime = Runtime(place.store(), agents=[crew.boss], host=Absent())
    turn = asyncio.ensure_future((await runtime.start(crew.boss, "s")).prompt("begin work"))
    await crew.gate.begun.wait()
    await crew.beside.begun.wait()
    crew.gate.go.set()
    async for event in runtime.events(follow=True):
        if isinstance(event, CallbackAsked) and event.target == "user":
            break
    closing = asyncio.ensure_future(runtime.close(drain=20))
    await asyncio.wait({closing}, timeout=0.01)
    crew.beside.go.set()
    await closing
    with pytest.raises(RuntimeClosed):
        await turn

    async with Runtime(place.store(), agents=[crew.boss], host=Answering()) as runtime:
        assert (await runtime.resume("s")).text == "began, that one / worked"
    assert crew.beside.ended == 1


@pytest.mark.parametrize("when", ["before it asks", "while an agent is asked"])
async def test_a_drain_keeps_the_question_of_a_tool_that_catches_every_exception(when: str, tmp_path: Path) -> None:
    place = Place(tmp_path / "log.db")
    begun, asked, go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @tool
    async def inquire(ctx: Context) -> str:
        """Ask, and give up where that fails."""
        begun.set()
        if when == "before it asks":
            await go.wait()
        try:
            return f"got {await ctx.raise_callback('which?', 'blocker')}"
        except Exception as error:
            return f"gave up: {error!r}"

    async def slow(session: SessionAccess, request: Request) -> None:
        if request.purpose == "side_turn":
            asked.set()
            await go.wait()

    def leads(request: Request) -> Any:
        if request.purpose == "side_turn":
            return call("pass_up_callback", reason="not mine")
        return results(request)[0] if results(request) else call("task", agent="below", prompt="go")

    below = Agent(
        "below", model=Script(lambda r: results(r)[0] if results(r) else call("inquire")), tools=[inquire]
    )
    agent = Agent("lead", model=Script(leads), agents=[below], hooks=Hooks(before_model=[slow]))
    runtime = Runtime(place.store(), agents=[agent])
    turn = asyncio.ensure_future((await runtime.start(agent, "s")).prompt("go"))
    await (begun if when == "before it asks" else asked).wait()
    closing = asyncio.ensure_future(runtime.close(drain=20))
    await asyncio.sleep(0)
    go.set()
    await closing
    await asyncio.wait({turn})
    turn.exception()
    async with Runtime(place.store(), agents=[agent]) as runtime:
        waiting = await runtime.resume("s")
        assert (waiting.status, waiting.text) == ("waiting", "")
        (callback,) = await runtime.inbox()
        await runtime.answer(callback.id, "this")
        assert (await runtime.resume("s")).text == "got this"


async def guarded_child(ctx: Context | SessionAccess) -> str:
    try:
        return (await ctx.start_child("below", "go")).text
    except Exception as error:
        return f"gave up: {error!r}"


async def guarded_side_turn(ctx: Context | SessionAccess) -> str:
    try:
        return await ctx.prompt("How is it?")
    except Exception as error:
        return f"gave up: {error!r}"


async def bare_child(ctx: Context | SessionAccess) -> str:
    try:
        return (await ctx.start_child("below", "go")).text
    except BaseException as error:
        return f"gave up: {error!r}"


async def grouped_child(ctx: Context | SessionAccess) -> str:
    try:
        async with asyncio.TaskGroup() as group:
            child = group.create_task(ctx.start_child("below", "go"))
    except ExceptionGroup as error:
        return f"gave up: {error!r}"
    return child.result().text


class Watchful:
    """A lead whose tool or hook starts something and catches what it raises; the work takes its time."""

    def __init__(self, start: Callable[[Any], Awaitable[str]], where: str) -> None:
        self.gate = Gate()

        @tool(repeatable=True)
        async def delegate(ctx: Context) -> str:
            """Start something, and give up where that fails."""
            return await start(ctx)

        @tool(repeatable=True)
        def from_a_thread(ctx: SyncContext) -> str:
            """Start a child, and give up where that fails."""
            try:
                return ctx.start_child("below", "go").text
            except Exception as error:
                return f"gave up: {error!r}"

        @tool(read_only=True)
        async def work() -> str:
            """Work until told."""
            return await self.gate()

        async def note(session: SessionAccess, message: Message) -> str:
            return f"{message.text} {await start(session)}"

        called = "from_a_thread" if where == "a plain tool" else "delegate"

        def leads(request: Request) -> Any:
            if request.purpose == "side_turn":
                return "it worked" if "worked" in results(request) else call("work")
            if where == "a hook":
                return request.messages[0].text
            return results(request)[0] if results(request) else call(called)

        below = Agent("below", model=Script(lambda r: "it worked" if results(r) else call("work")), tools=[work])
        hooks = Hooks(pre_request=[note]) if where == "a hook" else Hooks()
        tools = [delegate, from_a_thread, work]
        self.agent = Agent("lead", model=Script(leads), agents=[below], tools=tools, hooks=hooks)


GUARDED = {
    "a tool that starts a child": (guarded_child, "a tool"),
    "a hook that starts a child": (guarded_child, "a hook"),
    "a plain tool that starts a child": (guarded_child, "a plain tool"),
    "a tool that asks its own agent": (guarded_side_turn, "a tool"),
    "a hook that asks its own agent": (guarded_side_turn, "a hook"),
    "a tool with a bare except": (bare_child, "a tool"),
    "a hook with a bare except": (bare_child, "a hook"),
    "a tool with a group of tasks": (grouped_child, "a tool"),
}


@pytest.mark.parametrize("drain", [20.0, 0.0], ids=["drained", "stopped at once"])
@pytest.mark.parametrize(("start", "where"), GUARDED.values(), ids=GUARDED.keys())
async def test_code_that_catches_every_exception_does_not_take_a_drain_for_a_failure(
    start: Callable[[Any], Awaitable[str]], where: str, drain: float, tmp_path: Path
) -> None:
    place, watchful = Place(tmp_path / "log.db"), Watchful(start, where)
    runtime = Runtime(place.store(), agents=[watchful.agent])
    turn = asyncio.ensure_future((await runtime.start(watchful.agent, "s")).prompt("so"))
    await watchful.gate.begun.wait()
    closing = asyncio.ensure_future(runtime.close(drain=drain))
    await asyncio.sleep(0)
    watchful.gate.go.set()
    await closing
    with pytest.raises(RuntimeClosed):
        await turn

    async with Runtime(place.store(), agents=[watchful.agent]) as runtime:
        assert (await runtime.status("s"), await runtime.ready()) == ("interrupted", ["s"])
        assert (await runtime.resume("s")).text.removeprefix("so ") == "it worked"


async def test_whoever_follows_the_log_hears_that_the_runtime_is_closed(place: Place) -> None:
    agent = Agent("a", model=Script(lambda _: "done"))
    runtime = Runtime(place.store(), agents=[agent])
    await (await runtime.start(agent, "s")).prompt("go")
    ended = asyncio.Event()

    async def follow() -> None:
        async for event in runtime.events(follow=True):
            if event.type == "turn_ended":
                ended.set()

    following = asyncio.ensure_future(follow())
    await ended.wait()
    await runtime.close()
    await asyncio.wait_for(following, 10)
