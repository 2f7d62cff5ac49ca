"""Equal questions at one screen: the person who is here is asked once for all of them, whatever becomes of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from callbacks.doubles import Desk, passes, worker
from upcall import Agent, Approve, Callback, Context, Reply, Runtime, tool
from upcall.events import CallbackExpired
from upcall.models import call


class Screen:
    """A host that shows what it is asked and answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[Callback] = []
        self.withdrawn: list[tuple[str, str]] = []
        self._open: dict[str, asyncio.Future[Any]] = {}
        self._changed = asyncio.Condition()

    async def ask(self, callback: Callback) -> Any:
        said = self._open[callback.id] = asyncio.get_running_loop().create_future()
        async with self._changed:
            self.asked.append(callback)
            self._changed.notify_all()
        return await said

    def withdraw(self, callback_id: str, reason: str) -> None:
        self.withdrawn.append((callback_id, reason))
        self._open.pop(callback_id).cancel()

    async def shows(self, count: int) -> Callback:
        """Return what was asked last once so many were."""
        async with self._changed, asyncio.timeout(10):
            await self._changed.wait_for(lambda: len(self.asked) >= count)
        return self.asked[-1]

    def says(self, value: Any) -> None:
        self._open.pop(self.asked[-1].id).set_result(value)


@tool
async def work(ctx: Context) -> str:
    """Ask the same as the others."""
    return str(await ctx.raise_callback("which licence?", choices=["MIT", "GPL"]))


def parallel(count: int, ask: Any = work) -> Agent:
    child = Agent("developer", model=worker(call("work")), tools=[ask])
    calls = [call("task", agent="developer", prompt=str(i)) for i in range(count)]
    return Agent("manager", model=worker(*calls, aside=passes()), agents=[child])


@asynccontextmanager
async def running(
    place: Desk, agent: Agent, hold: float = 30.0
) -> AsyncGenerator[tuple[Runtime, Screen, asyncio.Task[Reply]]]:
    screen = Screen()
    async with place.runtime(agent, host=screen, hold=hold) as runtime, asyncio.timeout(20):
        yield runtime, screen, asyncio.ensure_future((await runtime.start(agent, "s")).prompt("go"))


async def all_ask(runtime: Runtime, count: int) -> None:
    """Return when the inbox has one entry for so many questions."""
    while len((await runtime.inbox())[0].group) < count:
        await asyncio.sleep(0.001)


async def others(runtime: Runtime, shown: Callback) -> list[str]:
    """The ids of the questions that wait beside the one on the screen."""
    return [i for i in (await runtime.inbox())[0].group if i != shown.id]


async def test_a_person_is_asked_once_for_five_equal_questions_and_sees_all_their_ids(place: Desk) -> None:
    async with running(place, parallel(5)) as (_, screen, turn):
        shown = await screen.shows(1)
        screen.says("MIT")
        reply = await turn

    assert reply.text == "; ".join(["MIT"] * 5)
    assert set(shown.group) == {c.id for c in reply.callbacks}
    assert shown.group[0] == shown.id
    assert (len(screen.asked), screen.withdrawn) == (1, [])


async def test_a_question_that_comes_later_is_settled_by_the_answer_to_its_equals(place: Desk) -> None:
    first_is_shown = asyncio.Event()

    @tool(name="work")
    async def one_after_the_other(ctx: Context) -> str:
        """Ask; the second one does it only when the first is on the screen."""
        if ctx.id.endswith("c1"):
            await first_is_shown.wait()
        return str(await ctx.raise_callback("which licence?"))

    async with running(place, parallel(2, one_after_the_other)) as (runtime, screen, turn):
        await screen.shows(1)
        first_is_shown.set()
        await all_ask(runtime, 2)
        screen.says("MIT")
        reply = await turn

    assert reply.text == "MIT; MIT"
    assert (len(screen.asked), screen.withdrawn) == (1, [])


async def test_the_rest_of_a_group_stay_on_the_screen_when_another_one_is_answered(place: Desk) -> None:
    async with running(place, parallel(3)) as (runtime, screen, turn):
        shown = await screen.shows(1)
        await all_ask(runtime, 3)
        await runtime.answer((await others(runtime, shown))[0], "GPL", only=True)
        screen.says("MIT")
        reply = await turn

    assert sorted(reply.text.split("; ")) == ["GPL", "MIT", "MIT"]
    assert (len(screen.asked), screen.withdrawn) == (1, [])


async def test_the_rest_of_a_group_are_asked_when_the_one_on_the_screen_is_answered_elsewhere(place: Desk) -> None:
    async with running(place, parallel(3)) as (runtime, screen, turn):
        shown = await screen.shows(1)
        await all_ask(runtime, 3)
        rest = await others(runtime, shown)
        await runtime.answer(shown.id, "GPL", only=True)
        again = await screen.shows(2)
        screen.says("MIT")
        reply = await turn

    assert sorted(reply.text.split("; ")) == ["GPL", "MIT", "MIT"]
    assert [i for i, _ in screen.withdrawn] == [shown.id]
    assert (again.id in rest, sorted(again.group)) == (True, sorted(rest))


async def test_the_rest_of_a_group_are_asked_when_the_one_on_the_screen_is_withdrawn(place: Desk) -> None:
    async with running(place, parallel(3)) as (runtime, screen, turn):
        shown = await screen.shows(1)
        await all_ask(runtime, 3)
        await runtime.cancel(shown.session_id, "not needed")
        again = await screen.shows(2)
        screen.says("MIT")
        reply = await turn

    assert sorted(c.status for c in reply.callbacks) == ["answered", "answered", "withdrawn"]
    assert screen.withdrawn[0][0] == shown.id
    assert shown.id not in again.group


async def test_the_rest_of_a_group_are_asked_when_the_one_on_the_screen_expires(desk: Desk) -> None:
    asked = asyncio.Event()

    @tool(name="work")
    async def at_two_times(ctx: Context) -> str:
        """Ask; the second one is raised an hour later, so it has an hour left when the first has none."""
        if ctx.id.endswith("c1"):
            await asked.wait()
        return str(await ctx.raise_callback("which licence?", timeout=3600, default="none"))

    async with running(desk, parallel(2, at_two_times)) as (runtime, screen, turn):
        first = await screen.shows(1)
        desk.clock.tick(1800)
        asked.set()
        await all_ask(runtime, 2)
        desk.clock.tick(1801)
        await runtime.store.settle(first.id, {first.id: CallbackExpired(first.id)})
        second = await screen.shows(2)
        screen.says("MIT")
        reply = await turn

    assert reply.text == "none; MIT"
    assert (screen.withdrawn[0][0], second.group) == (first.id, (second.id,))


async def test_a_group_that_is_answered_elsewhere_is_withdrawn_once_and_not_asked_again(place: Desk) -> None:
    async with running(place, parallel(5)) as (runtime, screen, turn):
        shown = await screen.shows(1)
        await all_ask(runtime, 5)
        await runtime.answer((await others(runtime, shown))[0], "MIT")
        reply = await turn

    assert reply.text == "; ".join(["MIT"] * 5)
    assert (len(screen.asked), [i for i, _ in screen.withdrawn]) == (1, [shown.id])


async def test_a_wrong_value_is_asked_for_again_once_for_the_whole_group(place: Desk) -> None:
    async with running(place, parallel(3)) as (runtime, screen, turn):
        await screen.shows(1)
        await all_ask(runtime, 3)
        screen.says("BSD")
        again = await screen.shows(2)
        screen.says("MIT")
        reply = await turn

    assert reply.text == "MIT; MIT; MIT"
    assert ("not one of the choices" in again.problem, len(again.group)) == (True, 3)


async def test_a_group_that_is_left_for_later_is_not_held_in_memory(place: Desk) -> None:
    async with running(place, parallel(3)) as (runtime, screen, turn):
        await screen.shows(1)
        await all_ask(runtime, 3)
        screen.says(None)
        reply = await turn
        assert (reply.status, runtime.turns) == ("waiting", {})
        (entry,) = await runtime.inbox()

    assert (len(entry.group), len(screen.asked), screen.withdrawn) == (3, 1, [])


async def test_after_the_hold_a_group_is_taken_off_the_screen_once(place: Desk) -> None:
    async with running(place, parallel(3), hold=0.2) as (_, screen, turn):
        shown = await screen.shows(1)
        place.clock.tick(60)
        reply = await turn

    assert reply.status == "waiting"
    assert (len(screen.asked), [i for i, _ in screen.withdrawn]) == (1, [shown.id])


async def test_another_process_asks_once_for_the_group_that_waits(place: Desk) -> None:
    agent = parallel(4)
    await place.prompt(agent)
    screen = Screen()
    async with place.runtime(agent, host=screen) as runtime, asyncio.timeout(20):
        turn = asyncio.ensure_future(runtime.resume("s"))
        shown = await screen.shows(1)
        screen.says("GPL")
        reply = await turn

    assert (reply.text, len(shown.group)) == ("GPL; GPL; GPL; GPL", 4)


async def test_equal_questions_of_two_run_trees_are_asked_one_by_one(place: Desk) -> None:
    agent, screen = parallel(1), Screen()
    async with place.runtime(agent, host=screen) as runtime, asyncio.timeout(20):
        turns = [asyncio.ensure_future((await runtime.start(agent)).prompt("go")) for _ in range(2)]
        await screen.shows(2)
        assert [len(callback.group) for callback in screen.asked] == [1, 1]
        for callback in screen.asked:
            await runtime.answer(callback.id, "MIT")
        assert [(await turn).text for turn in turns] == ["MIT", "MIT"]


@pytest.mark.parametrize("count", [2, 3])
async def test_approvals_are_asked_one_by_one_even_where_they_are_equal(place: Desk, count: int) -> None:
    @tool(needs_approval=True)
    async def deploy() -> str:
        """Deploy."""
        return "deployed"

    agent = Agent("developer", model=worker(*(call("deploy") for _ in range(count))), tools=[deploy])
    seen: list[tuple[str, ...]] = []

    class Yes:
        async def ask(self, callback: Callback) -> Any:
            seen.append(callback.group)
            return Approve()

        def withdraw(self, callback_id: str, reason: str) -> None: ...

    reply = await place.prompt(agent, host=Yes())

    assert (reply.status, [len(group) for group in seen]) == ("done", [1] * count)


async def test_an_answer_from_elsewhere_is_used_where_the_host_has_no_withdraw(place: Desk) -> None:
    asked = asyncio.Event()

    class Silent:
        async def ask(self, callback: Callback) -> Any:
            asked.set()
            await asyncio.Event().wait()

    host: Any = Silent()
    agent = parallel(1)
    async with place.runtime(agent, host=host) as runtime, asyncio.timeout(20):
        turn = asyncio.ensure_future((await runtime.start(agent)).prompt("go"))
        await asked.wait()
        [callback] = await runtime.inbox()
        await runtime.answer(callback.id, "MIT")
        assert (await turn).text == "MIT"
