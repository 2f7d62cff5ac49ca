"""`runtime.work()` takes what becomes ready; a resumed turn can be joined and streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from core.doubles import Place
from upcall import Agent, Callback, Context, Request, Runtime, tool
from upcall.app import open_store
from upcall.contracts import Claim, Delta, Row, TakeLimit
from upcall.errors import SetupError
from upcall.events import TurnEnded
from upcall.models import Script, call
from upcall.store.sqlite.store import SqliteStore


def results(request: Request) -> list[str]:
    return [result.text for message in request.messages for result in message.results]


@tool
async def ask_first(ctx: Context) -> str:
    """Ask somebody."""
    return f"answer {await ctx.raise_callback('Which one?', 'blocker')}"


@tool
async def ask_with_default(ctx: Context) -> str:
    """Ask somebody who has little time."""
    return f"answer {await ctx.raise_callback('Which one?', 'clarification', timeout=0.05, default='none')}"


def asks(one: Any = ask_first, name: str = "a") -> Agent:
    return Agent(name, model=Script(lambda r: results(r)[0] if results(r) else call(one.name)), tools=[one])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@asynccontextmanager
async def working(path: Path, *agents: Agent, hold: float = 0.0) -> AsyncGenerator[Runtime]:
    """A runtime that works beside what the test does."""
    async with Runtime(path, agents=agents, hold=hold) as runtime:
        stop = asyncio.Event()
        worker = asyncio.ensure_future(runtime.work(stop))
        try:
            yield runtime
        finally:
            stop.set()
            await worker


async def ended(runtime: Runtime, *ids: str) -> dict[str, str]:
    """Wait until these sessions' turns have ended; returns how."""
    how: dict[str, str] = {}
    async with asyncio.timeout(20):
        async for event in runtime.events(follow=True):
            if isinstance(event, TurnEnded) and event.session in ids:
                how[event.session] = event.status
                if len(how) == len(ids):
                    break
    return how


async def test_work_continues_a_turn_that_another_process_answered(path: Path) -> None:
    agent = asks()
    async with Runtime(path, agents=[agent]) as web, working(path, agent) as worker:
        await (await web.start(agent, "s")).prompt("go")
        await web.answer((await web.inbox())[0].id, "b")
        await ended(worker, "s")

        assert (await web.resume("s")).text == "answer b"


async def test_work_takes_what_was_ready_before_it_began(path: Path) -> None:
    agent = asks()
    async with Runtime(path, agents=[agent]) as web:
        for n in range(3):
            await (await web.start(agent, f"s{n}")).prompt("go")
        for callback in await web.inbox():
            await web.answer(callback.id, "b")
    async with working(path, agent) as worker:
        assert await ended(worker, "s0", "s1", "s2") == {"s0": "done", "s1": "done", "s2": "done"}


@pytest.mark.slow
async def test_work_fires_a_deadline_by_a_timer(path: Path) -> None:
    agent = asks(ask_with_default)
    async with working(path, agent) as worker:
        reply = await (await worker.start(agent, "s")).prompt("go")
        assert reply.status == "waiting"
        await ended(worker, "s")

        assert (await worker.resume("s")).text == "answer none"


async def test_work_leaves_the_trees_of_agents_that_it_does_not_have(path: Path) -> None:
    mine, other = asks(), asks(name="other")
    async with Runtime(path, agents=[mine, other]) as web:
        for agent in (mine, other):
            await (await web.start(agent, agent.name)).prompt("go")
        for callback in await web.inbox():
            await web.answer(callback.id, "b")
        async with working(path, mine) as worker:
            await ended(worker, "a")
        assert (await web.ready(), await web.status("other")) == (["other"], "waiting")


async def test_two_workers_on_one_store_run_each_turn_once(path: Path) -> None:
    effects: list[str] = []

    @tool
    async def charge(ctx: Context) -> str:
        """Ask, then charge."""
        answer = await ctx.raise_callback("Charge?", "blocker")
        await ctx.once("charge", effects.append, ctx.id)
        return str(answer)

    agent = asks(charge)
    ids = [f"s{n}" for n in range(10)]
    async with Runtime(path, agents=[agent]) as web:
        for each in ids:
            await (await web.start(agent, each)).prompt("go")
        async with working(path, agent), working(path, agent):
            for callback in await web.inbox():
                await web.answer(callback.id, "yes")
            assert set((await ended(web, *ids)).values()) == {"done"}
    assert sorted(effects) == ids


async def test_a_worker_that_is_told_to_stop_drains_what_it_resumed(path: Path) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @tool(repeatable=True)
    async def slow(ctx: Context) -> str:
        """Ask, then take a while."""
        answer = await ctx.raise_callback("Which one?", "blocker")
        begun.set()
        await go.wait()
        return str(answer)

    agent = asks(slow)
    async with Runtime(path, agents=[agent]) as runtime:
        await (await runtime.start(agent, "s")).prompt("go")
        await runtime.answer((await runtime.inbox())[0].id, "b")
        stop = asyncio.Event()
        worker = asyncio.ensure_future(runtime.work(stop))
        await begun.wait()
        stop.set()
        await asyncio.wait({worker}, timeout=0.05)
        go.set()
        await worker
        assert [e.type async for e in runtime.events("s")][-1] == "tool_ended"
        assert (await runtime.resume("s")).text == "b"


@pytest.mark.slow
@pytest.mark.in_file
async def test_a_worker_ends_when_its_runtime_is_closed(path: Path) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @tool
    async def slow(ctx: Context) -> str:
        """Ask, then take a while."""
        answer = await ctx.raise_callback("Which one?", "blocker")
        begun.set()
        await go.wait()
        return str(answer)

    agent = asks(slow)
    looks = Looks(path)
    async with Runtime(looks, agents=[agent]) as runtime:
        for each in ("s", "t"):
            await (await runtime.start(agent, each)).prompt("go")
        first, second = await runtime.inbox()
        await runtime.answer(first.id, "b")
        worker = asyncio.ensure_future(runtime.work())
        await begun.wait()
        closing = asyncio.ensure_future(runtime.close(drain=20))
        await asyncio.wait({closing}, timeout=0.01)
        looked = looks.count
        async with Runtime(path) as other:
            await other.answer(second.id, "b")  # that would be ready now
        await asyncio.wait({closing}, timeout=0.5)
        assert looks.count - looked <= 1
        go.set()
        await asyncio.gather(closing, worker)

    async with Runtime(path, agents=[agent]) as runtime:
        assert [(await runtime.resume(each)).text for each in ("s", "t")] == ["b", "b"]


@pytest.mark.parametrize("drain", [0.0, 20.0])
async def test_a_runtime_that_is_closed_ends_its_idle_worker_before_its_store(path: Path, drain: float) -> None:
    looks = Looks(path)
    runtime = Runtime(looks, agents=[asks()])
    worker = asyncio.ensure_future(runtime.work())
    await looks.first.wait()
    await runtime.close(drain)

    assert worker.done()
    await worker


class Looks(SqliteStore):
    """A store that counts how often somebody looks for what is ready."""

    count = 0

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.first = asyncio.Event()

    async def take(
        self,
        agents: Collection[str] | None = None,
        *,
        exclude: Collection[str] = (),
        limits: Sequence[TakeLimit] = (),
    ) -> Claim | None:
        self.count += 1
        self.first.set()
        return await super().take(agents, exclude=exclude, limits=limits)

    async def unfinished(self, limit: int | None = None) -> list[Row]:
        return await super().unfinished(limit)


class Eager(Looks):
    """A store that calls a session ready which is not."""

    async def unfinished(self, limit: int | None = None) -> list[Row]:
        await super().unfinished(limit)
        return [row] if (row := await self.row("s")) is not None else []


async def test_a_tree_that_does_not_change_when_it_is_resumed_is_left_alone_until_it_does(path: Path) -> None:
    agent, resumed = asks(), list[str]()
    store = Eager(path)
    async with Runtime(store, agents=[agent]) as runtime:

        async def resume(root: str) -> bool:
            resumed.append(root)
            await runtime.resume(root)
            return True

        await (await runtime.start(agent, "s")).prompt("go")
        stop = asyncio.Event()
        worker = asyncio.ensure_future(runtime.work(stop, resume=resume))
        await asyncio.wait({worker}, timeout=0.3)
        assert resumed == ["s"]
        await runtime.answer((await runtime.inbox())[0].id, "b")
        await ended(runtime, "s")
        stop.set()
        await worker
    assert resumed.count("s") <= 3


class Raced(SqliteStore):
    """A store on which another process claims what is ready just before this one does."""

    claims = 0

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.other, self.lost = SqliteStore(path), asyncio.Event()

    async def claim(self, root: str, *, take_over: bool = False) -> Claim:
        await self.other.open()
        if not self.claims:
            await self.other.claim(root)
        self.claims += 1
        self.lost.set()
        return await super().claim(root, take_over=take_over)


@pytest.mark.in_file
async def test_a_worker_that_loses_a_race_leaves_at_once(path: Path) -> None:
    agent = asks()
    async with Runtime(path, agents=[agent]) as web:
        await (await web.start(agent, "s")).prompt("go")
        await web.answer((await web.inbox())[0].id, "b")
    store = Raced(path)
    async with Runtime(store, agents=[agent]) as runtime:
        stop = asyncio.Event()
        worker = asyncio.ensure_future(runtime.work(stop, settled_only=True))
        await store.lost.wait()
        stop.set()
        await worker
    await store.other.close()
    assert store.claims == 1


async def test_a_function_that_was_given_resumes_what_is_ready(path: Path) -> None:
    mine, other = asks(), asks(name="other")
    asked: list[str] = []
    done = asyncio.Event()
    async with Runtime(path, agents=[mine, other]) as web, Runtime(path) as watcher:

        async def resume(root: str) -> bool:
            asked.append(root)
            if root == "other":
                return False
            await web.resume(root)
            done.set()
            return True

        for agent in (other, mine):
            await (await web.start(agent, agent.name)).prompt("go")
        for callback in await web.inbox():
            await web.answer(callback.id, "b")
        stop = asyncio.Event()
        worker = asyncio.ensure_future(watcher.work(stop, resume=resume))
        await done.wait()
        stop.set()
        await worker

        assert (asked, await web.ready()) == (["other", "a"], ["other"])


async def test_a_turn_that_runs_here_is_joined_by_resume_with_its_events(place: Place) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(_: Request) -> str:
        begun.set()
        await go.wait()
        return "said"

    agent = Agent("a", model=Script(slow))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        turn = asyncio.ensure_future(session.prompt("go"))
        await begun.wait()
        joined = await runtime.load("s")
        stream = joined.stream()
        first = asyncio.ensure_future(anext(stream))
        again = asyncio.ensure_future(runtime.resume("s"))
        await asyncio.wait({first}, timeout=0.05)
        go.set()
        seen = [item for item in [await first, *[item async for item in stream]] if not isinstance(item, Delta)]

        assert {(await turn).text, (await again).text, joined.reply.text if joined.reply else ""} == {"said"}
        assert [item.type for item in seen][-1] == "turn_ended"


async def test_a_failure_of_the_joined_turn_is_raised_to_all_who_joined(place: Place) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def breaks(_: Request) -> str:
        begun.set()
        await go.wait()
        raise ValueError("broken")

    agent = Agent("a", model=Script(breaks))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        turn = asyncio.ensure_future((await runtime.start(agent, "s")).prompt("go"))
        await begun.wait()
        joined = asyncio.ensure_future(runtime.resume("s"))
        await asyncio.wait({joined}, timeout=0.01)
        go.set()
        outcomes = await asyncio.gather(turn, joined, return_exceptions=True)

    assert [str(outcome) for outcome in outcomes] == [str(outcomes[0])] * 2
    assert all(isinstance(outcome, Exception) for outcome in outcomes)


async def test_an_answered_turn_is_streamed_when_it_is_resumed(path: Path) -> None:
    agent = asks()
    async with Runtime(path, agents=[agent]) as runtime:
        await (await runtime.start(agent, "s")).prompt("go")
        await runtime.answer((await runtime.inbox())[0].id, "b")
        session = await runtime.load("s")
        seen = [item.type async for item in session.stream() if not isinstance(item, Delta)]

        assert (seen[0], seen[-1]) == ("turn_resumed", "turn_ended")
        assert session.reply is not None
        assert session.reply.text == "answer b"
        assert session.get_messages()[-1].text == "answer b"


async def test_a_session_is_resumed_without_a_text(path: Path) -> None:
    agent = asks()
    async with Runtime(path, agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("go")
        assert (await session.resume()).status == "waiting"
        await runtime.answer((await runtime.inbox())[0].id, "b")
        reply = await session.resume()

        assert (reply.text, session.reply, session.status) == ("answer b", reply, "done")


async def test_the_next_deadline_is_the_earliest_that_a_parked_session_waits_for(path: Path) -> None:
    agent = asks(ask_with_default)
    for where in (path, ":memory:"):
        store = open_store(where)
        durable = store.durable
        async with Runtime(store, agents=[agent], hold=0.0) as runtime:
            assert await store.next_deadline(0.0) is None
            await (await runtime.start(agent, "s")).prompt("go")
            callback = (await store.callbacks(root="s"))[0].expires if durable else None
            assert await store.next_deadline(0.0) == callback
            assert await store.next_deadline(1e12) is None


LIMITS = "a list of upcall.engines.TakeLimit, whose running and per_minute are 1 or more, or None"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"changed": "x"}, "work(changed='x'): pass 'run' or 'leave'"),
        ({"concurrency": 0}, "work(concurrency=0): pass a whole number of 1 or more"),
        ({"concurrency": True}, "work(concurrency=True): pass a whole number of 1 or more"),
        ({"drain": -1}, "work(drain=-1): pass seconds, 0 or more"),
        ({"retries": None}, "work(retries=None): pass upcall.engines.Retries(most, seconds)"),
        ({"limits": ["x"]}, f"work(limits=['x']): pass {LIMITS}"),
        ({"limits": 3}, f"work(limits=3): pass {LIMITS}"),
        ({"on_segment": "x"}, "work(on_segment='x'): pass a function"),
    ],
)
async def test_a_wrong_option_is_refused_with_what_to_pass(options: Any, what: str) -> None:
    async with Runtime(":memory:") as runtime:
        with pytest.raises(SetupError) as refused:
            await runtime.work(**options)
    assert str(refused.value) == what


@pytest.mark.parametrize("limit", [TakeLimit(running=0), TakeLimit(per_minute=-1), TakeLimit(running=True)])
async def test_a_limit_of_nothing_is_refused(limit: TakeLimit) -> None:
    async with Runtime(":memory:") as runtime:
        with pytest.raises(SetupError, match="running and per_minute are 1 or more, or None"):
            await runtime.work(limits=[limit])


class Slow:
    """A person who takes a long time to answer."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def ask(self, callback: Callback) -> None:
        self.asked.set()
        await asyncio.Event().wait()

    def withdraw(self, callback_id: str, reason: str) -> None:
        """Ends by itself."""


async def test_a_tree_that_waits_for_a_person_keeps_no_other_from_running(path: Path) -> None:
    person, stop = Slow(), asyncio.Event()
    other = Agent("other", model=Script(lambda _: "done"))
    async with Runtime(path, agents=[asks(), other], host=person, hold=600) as runtime:
        await runtime.submit("a", "go", id="asks")
        worker = asyncio.ensure_future(runtime.work(stop, concurrency=1, drain=0.1))
        await person.asked.wait()
        await runtime.submit("other", "go", id="s")
        async with asyncio.timeout(20):
            while await runtime.status("s") != "done":
                await asyncio.sleep(0.01)
        assert await runtime.status("asks") == "running"
        stop.set()
        await worker
