"""Parking and answering race: whatever the order, and however slow the store, no answer is left behind."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, cast

import pytest

from callbacks.doubles import Desk, Person, never
from delayed import DelayedStore
from upcall import Agent, Context, Request, Runtime, SessionTakenOver, tool
from upcall.app import open_store
from upcall.contracts import Claim, Store
from upcall.models import Script, call


def results(request: Request) -> list[str]:
    return [result.text for message in request.messages for result in message.results]


def calls_once(name: str) -> Script:
    """A model that calls one tool, then repeats what it said."""
    return Script(lambda request: "; ".join(results(request)) or call(name))


async def test_a_child_answered_while_it_unwinds_continues_instead_of_parking_behind_its_answer(desk: Desk) -> None:
    unwinding, answered = asyncio.Event(), asyncio.Event()

    @tool
    async def slow_to_unwind(n: int, ctx: Context) -> str:
        """Ask, and take a while to clean up."""
        try:
            return await ctx.raise_callback(f"Question {n}?", "blocker")
        finally:
            if n == 1 and not answered.is_set():
                unwinding.set()
                await answered.wait()

    def child_says(request: Request) -> Any:
        return results(request)[0] if results(request) else call("slow_to_unwind", n=int(request.messages[0].text))

    def parent_says(request: Request) -> Any:
        if request.purpose == "side_turn":
            return call("pass_up_callback", reason="not mine")
        return " ".join(results(request)) or [call("task", agent="child", prompt=str(n)) for n in range(2)]

    child = Agent("child", model=Script(child_says), tools=[slow_to_unwind])
    parent = Agent("parent", model=Script(parent_says), agents=[child])
    async with desk.runtime(parent, host=Person(never), hold=0.01) as runtime:
        turn = asyncio.ensure_future((await runtime.start(parent, "s")).prompt("go"))
        await unwinding.wait()
        second = next(c for c in await runtime.inbox() if c.message == "Question 1?")
        await runtime.answer(second.id, "an answer")
        answered.set()
        reply = await turn

        assert (reply.status, await runtime.ready()) == ("waiting", [])
        assert [(await runtime.status(f"s~r1c{n}")) for n in range(2)] == ["waiting", "done"]


def delayed(path: Path) -> Store:
    return cast("Store", DelayedStore(open_store(path)))


async def take_first_of_two(ctx: Context) -> str:
    """Ask two people and take whoever answers first."""
    asking = [asyncio.ensure_future(ctx.raise_callback(who)) for who in ("legal?", "sales?")]
    done, left = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    return f"first: {done.pop().result()}"


first_of_two = tool(name="first_of_two")(take_first_of_two)


async def test_the_first_of_two_answers_ends_its_call_when_commits_are_slow(tmp_path: Path) -> None:
    agent = Agent("a", model=calls_once("first_of_two"), tools=[first_of_two])
    async with Runtime(delayed(tmp_path / "log.db"), agents=[agent]) as runtime:
        await (await runtime.start(agent, "s")).prompt("go")
        sales = next(c for c in await runtime.inbox() if c.message == "sales?")
        await runtime.answer(sales.id, "yes")
        reply = await runtime.resume("s")

    assert (reply.status, reply.text) == ("done", "first: yes")
    assert {c.message: c.status for c in reply.callbacks} == {"legal?": "withdrawn", "sales?": "answered"}


async def block_the_loop(busy: asyncio.Event) -> None:
    """Take a while of each pass of the event loop, as many other sessions of a process would."""
    while busy.is_set():
        time.sleep(0.12)
        await asyncio.sleep(0)


@pytest.mark.slow
@pytest.mark.parametrize("nested", [0, 3])
async def test_the_first_of_two_answers_ends_its_call_when_the_loop_is_busy(tmp_path: Path, nested: int) -> None:
    @tool
    async def inside(ctx: Context) -> str:
        """Take the first of two answers in a task of a task."""
        work: Any = take_first_of_two(ctx)
        for _ in range(nested):
            work = asyncio.ensure_future(work)
        return await work

    agent, busy = Agent("a", model=calls_once("inside"), tools=[inside]), asyncio.Event()
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        await (await runtime.start(agent, "s")).prompt("go")
        sales = next(c for c in await runtime.inbox() if c.message == "sales?")
        await runtime.answer(sales.id, "yes")
        busy.set()
        blocking = asyncio.ensure_future(block_the_loop(busy))
        reply = await runtime.resume("s")
        busy.clear()
        await blocking

    assert (reply.status, reply.text) == ("done", "first: yes")


async def test_a_call_that_needs_all_its_answers_parks_again_after_the_first(tmp_path: Path) -> None:
    @tool
    async def both(ctx: Context) -> str:
        """Ask two people and wait for both."""
        return " ".join(await asyncio.gather(*[ctx.raise_callback(who, "blocker") for who in ("legal?", "sales?")]))

    agent = Agent("a", model=calls_once("both"), tools=[both])
    async with Runtime(delayed(tmp_path / "log.db"), agents=[agent]) as runtime:
        await (await runtime.start(agent, "s")).prompt("go")
        legal, sales = sorted(await runtime.inbox(), key=lambda c: c.message)
        await runtime.answer(sales.id, "yes")
        first = await runtime.resume("s")
        assert (first.status, await runtime.ready()) == ("waiting", [])
        await runtime.answer(legal.id, "fine")
        reply = await runtime.resume("s")

    assert reply.text == "fine yes"


async def test_an_effect_beside_a_question_runs_once_when_commits_are_slow(tmp_path: Path) -> None:
    bought: list[str] = []

    @tool
    async def buy(ctx: Context) -> str:
        """Buy, and ask at the same time."""
        answer, effect = await asyncio.gather(ctx.raise_callback("which?"), ctx.once("buy", bought.append, "it"))
        return f"{answer} {effect}"

    agent = Agent("a", model=calls_once("buy"), tools=[buy])
    async with Runtime(delayed(tmp_path / "log.db"), agents=[agent]) as runtime:
        await (await runtime.start(agent, "s")).prompt("go")
        await runtime.answer((await runtime.inbox())[0].id, "red")
        reply = await runtime.resume("s")

    assert (reply.text, bought) == ("red None", ["it"])


async def test_a_question_that_is_new_waits_for_other_tasks_of_its_call_to_claim_their_answers(desk: Desk) -> None:
    @tool
    async def two_branches(ctx: Context) -> str:
        """Ask two questions in one branch and a third in another, which takes its time."""

        async def quick() -> str:
            first = await ctx.raise_callback("first?", "blocker")
            return first + await ctx.raise_callback("second?", "blocker")

        async def slow() -> str:
            await asyncio.sleep(0.02)
            return str(await ctx.raise_callback("third?", "blocker"))

        return " ".join(await asyncio.gather(quick(), slow()))

    agent = Agent("a", model=calls_once("two_branches"), tools=[two_branches])
    async with desk.runtime(agent, host=Person(lambda callback: callback.message[:1])) as runtime:
        reply = await (await runtime.start(agent, "s")).prompt("go")

    assert reply.text == "fs t"


class TakenOver:
    """A store in which another process takes each run tree over as soon as this one has claimed it."""

    def __init__(self, inner: Store, rival: Store) -> None:
        self._inner, self._rival = inner, rival

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def claim(self, root: str, *, take_over: bool = False) -> Claim:
        claim = await self._inner.claim(root, take_over=take_over)
        await self._rival.claim(root, take_over=True)
        return claim


@pytest.mark.parametrize("repeatable", [True, False])
async def test_an_owner_that_was_taken_over_starts_no_tool_again(tmp_path: Path, repeatable: bool) -> None:
    runs: list[str] = []

    @tool(repeatable=repeatable)
    async def work(ctx: Context) -> str:
        """Ask the first time, then work."""
        runs.append("run")
        await ctx.raise_callback("May I?", "blocker")
        return "worked"

    path = tmp_path / "log.db"
    agent = Agent("a", model=calls_once("work"), tools=[work])
    async with Runtime(path, agents=[agent]) as runtime:
        await (await runtime.start(agent, "s")).prompt("go")
        await runtime.answer((await runtime.inbox())[0].id, "yes")
    runs.clear()

    rival = open_store(path)
    await rival.open()
    async with Runtime(cast("Store", TakenOver(open_store(path), rival)), agents=[agent]) as fenced:
        with pytest.raises(SessionTakenOver):
            await fenced.resume("s")
    await rival.close()

    assert runs == []


async def test_a_deadline_within_the_hold_is_waited_for_in_memory_without_a_host(tmp_path: Path) -> None:
    @tool
    async def tone(ctx: Context) -> str:
        """Ask for the tone."""
        return f"tone {await ctx.raise_callback('Which tone?', 'clarification', timeout=0.05, default='formal')}"

    agent = Agent("a", model=calls_once("tone"), tools=[tone])
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        held = await (await runtime.start(agent, "held")).prompt("go")
    async with Runtime(tmp_path / "log.db", agents=[agent], hold=0.0) as runtime:
        parked = await (await runtime.start(agent, "parked")).prompt("go")

    assert (held.status, held.text) == ("done", "tone formal")
    assert parked.status == "waiting"


async def test_an_effect_that_two_tasks_of_a_call_want_runs_once_and_both_get_its_value(tmp_path: Path) -> None:
    bought: list[str] = []

    @tool
    async def buy(ctx: Context) -> str:
        """Buy."""

        async def pay() -> int:
            bought.append("it")
            await asyncio.sleep(0)
            return len(bought)

        return str(await asyncio.gather(ctx.once("pay", pay), ctx.once("pay", pay)))

    agent = Agent("a", model=calls_once("buy"), tools=[buy])
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        session = await runtime.start(agent)
        reply = await session.prompt("go")

    assert (reply.text, bought) == ("[1, 1]", ["it"])


async def test_an_effect_that_calls_itself_by_its_own_name_is_an_error_and_does_not_hang() -> None:
    @tool
    async def buy(ctx: Context) -> str:
        """Buy."""
        return str(await ctx.once("pay", lambda: ctx.once("pay", lambda: "paid")))

    agent = Agent("a", model=calls_once("buy"), tools=[buy])
    async with Runtime(agents=[agent]) as runtime, asyncio.timeout(20):
        reply = await (await runtime.start(agent)).prompt("go")

    assert "once('pay') was called inside the effect of the same name; use another name" in reply.text
