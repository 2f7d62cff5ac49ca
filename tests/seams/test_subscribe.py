"""Watching a runtime from any moment on: nothing twice, nothing left out, and nothing changes for what runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from seams.watching import Screen
from upcall import Agent, Context, Delta, Missed, Request, Response, Runtime, SetupError, tool
from upcall.models import Script, call


async def stored(runtime: Runtime) -> dict[str, list[int]]:
    """The sequence numbers of every session's events, from the log."""
    found: dict[str, list[int]] = {}
    async for event in runtime.events():
        found.setdefault(event.session, []).append(event.seq)
    return found


class Gate:
    """A tool that waits until the test lets it end."""

    def __init__(self) -> None:
        self.began, self.free = asyncio.Event(), asyncio.Event()

        @tool
        async def wait(ctx: Context) -> str:
            self.began.set()
            ctx.show("working")
            await self.free.wait()
            return "waited"

        self.tool = wait


@pytest.mark.parametrize("store", [":memory:", "log.db"])
async def test_a_subscriber_that_joins_in_mid_turn_sees_the_rest_without_a_gap_or_a_double(
    store: str, tmp_path: Path
) -> None:
    gate = Gate()
    worker = Agent("worker", model=Script([call("wait"), "the worker is done"]), tools=[gate.tool])
    manager = Agent(
        "manager", model=Script([call("task", agent="worker", prompt="go"), "all done"]), agents=[worker]
    )
    async with Runtime(store if store == ":memory:" else tmp_path / store, agents=[manager]) as runtime:
        session = await runtime.start(manager, id="m")
        turn = asyncio.ensure_future(session.prompt("go"))
        await gate.began.wait()
        async with Screen(runtime) as screen:
            gate.free.set()
            await turn
            await screen.until("m", "turn_ended")
        seen, logged = screen.numbers(), await stored(runtime)
    assert seen.keys() == logged.keys()
    for one, numbers in seen.items():
        assert numbers == logged[one][-len(numbers) :]
        assert len(numbers) < len(logged[one])
    assert "all done" in screen.text
    assert "the worker is done" in screen.text


async def test_a_subscriber_from_the_start_gets_every_event_of_questions_parks_answers_and_cancels(
    tmp_path: Path,
) -> None:
    @tool
    async def question(text: str, ctx: Context) -> str:
        return str(await ctx.raise_callback(text, "blocker"))

    def lead(request: Request) -> Any:
        if request.purpose == "side_turn":
            know = "colour" in request.messages[-1].text
            return call("answer_callback", value="red") if know else call("pass_up_callback", reason="not mine")
        return "done" if [m for m in request.messages if m.role == "tool"] else call("task", agent="w", prompt="go")

    def work(request: Request) -> Any:
        done = len([m for m in request.messages if m.role == "tool"])
        return call("question", text=("Which colour?", "Which size?", "Which day?")[done]) if done < 3 else "did it"

    worker = Agent("w", model=Script(work), tools=[question])
    manager = Agent("m", model=Script(lead), agents=[worker])
    async with Runtime(tmp_path / "log.db", agents=[manager]) as runtime, Screen(runtime) as screen:
        session = await runtime.start(manager, id="m")
        reply = await session.prompt("go")
        assert reply.status == "waiting"
        asked = await screen.until_asked()
        assert (asked.message, asked.session_id) == ("Which size?", "m~r1c0")
        await runtime.answer(asked.id, "large", by="ops")
        assert (await session.resume()).status == "waiting"
        await runtime.cancel("m", "enough")
        await screen.until("m", "turn_ended")
        assert screen.numbers() == await stored(runtime)
        assert [q.message for q in screen.questions] == ["Which size?", "Which day?"]


async def test_a_question_is_shown_only_once_it_can_be_answered(tmp_path: Path) -> None:
    agent = Agent("a", model=Script([call("ask", message="Which?"), "done"]))
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        session, answered = await runtime.start(agent), list[str]()

        async def answer() -> None:
            async with runtime.subscribe() as items:
                ready.set()
                async for item in items:
                    if item.type == "callback":
                        answered.append((await runtime.answer(item.id, "this")).status)
                        return

        ready = asyncio.Event()
        watching = asyncio.ensure_future(answer())
        await ready.wait()
        await session.prompt("go")
        await watching
        assert answered == ["answered"]
        assert (await session.resume()).status == "done"


class Talkative:
    """A model that says many short pieces without ever waiting."""

    name = "talkative"

    async def respond(self, request: Request, emit: Any) -> Response:
        for _ in range(1000):
            emit("text", "x")
        return Response("x" * 1000)


async def test_a_slow_subscriber_is_told_what_it_missed_and_never_blocks_the_turn() -> None:
    agent = Agent("a", model=Talkative())
    async with Runtime(agents=[agent]) as runtime, runtime.subscribe(buffer=10) as items:
        session = await runtime.start(agent, id="s")
        for _ in range(3):
            assert (await session.prompt("go")).status == "done"
        got = list[Any]()
        async for item in items:
            got.append(item)
            if isinstance(item, Missed):
                break
        await session.prompt("and now")
        assert len(got) == 11
        assert got[-1].count > 2000
        seen = {(e.session, e.seq) for e in got if not isinstance(e, Delta | Missed)}
        after = got[-1].after
        assert after is not None
        rest = {(e.session, e.seq) async for e in runtime.events(after=after)}
        everything = {(e.session, e.seq) async for e in runtime.events()}
        assert seen | rest == everything
        assert (await anext(items)).type != "missed"  # and it goes on


async def test_who_missed_only_deltas_has_no_event_to_read() -> None:
    ready, free, shown, end = (asyncio.Event() for _ in range(4))

    @tool
    async def talk(ctx: Context) -> str:
        ready.set()
        await free.wait()
        for _ in range(1000):
            ctx.show("x")
        shown.set()
        await end.wait()
        return "done"

    agent = Agent("a", model=Script([call("talk"), "done"]), tools=[talk])
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        turn = asyncio.ensure_future(session.prompt("go"))
        await ready.wait()
        async with runtime.subscribe(buffer=10) as items:
            free.set()
            await shown.wait()
            got = [await anext(items) for _ in range(11)]
            assert [item.type for item in got[:10]] == ["delta"] * 10
            assert got[10] == Missed(990, None)
            end.set()
            await turn


async def test_one_session_s_tree_can_be_watched_alone() -> None:
    agent = Agent("a", model=Script(lambda request: "hi"))
    async with Runtime(agents=[agent]) as runtime, Screen(runtime, session="one") as screen:
        for name in ("one", "one2", "two"):
            await (await runtime.start(agent, id=name)).prompt("go")
        await screen.until("one", "turn_ended")
    assert screen.events.keys() == {"one"}


async def test_a_subscription_ends_when_it_is_left_and_when_the_runtime_is_closed() -> None:
    agent = Agent("a", model=Script(lambda request: "hi"))
    async with Runtime(agents=[agent]) as runtime:
        bare = runtime.subscribe()
        session = await runtime.start(agent)
        waiting = asyncio.ensure_future(anext(bare))
        await asyncio.wait([waiting], timeout=0.01)
        await session.prompt("go")
        assert (await waiting).type in ("delta", "turn_started")
        await bare.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(bare)
        left = await runtime.subscribe().__aenter__()
        await session.prompt("go")
    kinds = [item.type async for item in left]
    assert kinds[-1] == "turn_ended"
    with pytest.raises(SetupError, match="buffer=0"):
        runtime.subscribe(buffer=0)


async def test_watching_does_not_change_what_is_written_to_the_log(tmp_path: Path) -> None:
    async def run(path: Path, watched: bool) -> list[tuple[str, int, int]]:
        agent = Agent("a", model=Script([call("ask", message="Which?"), "done"]))
        async with Runtime(path, agents=[agent]) as runtime:
            if watched:
                await runtime.subscribe().__aenter__()
            session = await runtime.start(agent, id="s")
            reply = await session.prompt("go")
            await runtime.answer(reply.callbacks[0].id, "this")
            await session.resume()
            return [(e.type, e.seq, e.pos) async for e in runtime.events()]

    assert await run(tmp_path / "a.db", watched=True) == await run(tmp_path / "b.db", watched=False)
