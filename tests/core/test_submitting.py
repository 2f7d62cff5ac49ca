"""Submitted turns are queued once, and whoever runs `work()` runs them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from core.doubles import Later, Place
from upcall import Agent, Context, Hooks, Reply, Request, Runtime, SessionAccess, SyncContext, tool
from upcall.contracts import TakeLimit
from upcall.core.runtime.retrying import Retries, may_pass
from upcall.core.runtime.worker import Segment
from upcall.errors import (
    HookFailed,
    ModelRefused,
    ModelUnavailable,
    QueueFull,
    SessionExists,
    SessionWaiting,
    SetupError,
    TurnExists,
    UnknownAgent,
)
from upcall.events import AnyEvent, TurnResumed, TurnStarted
from upcall.messages import user
from upcall.models import Script, call
from upcall.store.memory import MemoryStore
from upcall.store.sqlite.store import SqliteStore


def echo(name: str = "a") -> Agent:
    return Agent(name, model=Script(lambda request: f"heard {request.messages[-1].text}"))


def results(request: Request) -> list[str]:
    return [result.text for message in request.messages for result in message.results]


async def work(runtime: Runtime, **options: Any) -> list[tuple[str, str]]:
    """Work until nothing is left; returns what was done with each tree."""
    seen: list[Segment] = []
    await runtime.work(once=True, on_segment=seen.append, **options)
    return [(one.root, one.outcome) for one in seen]


# --- queueing -----------------------------------------------------------------------------


async def test_a_submitted_turn_only_waits_in_the_queue(place: Place) -> None:
    async with Runtime(place.store(), agents=[echo()]) as runtime:
        session_id = await runtime.submit("a", "hello", id="s", tags={"order": "17"}, data={"n": 1})
        session = await runtime.load("s")
        assert (session_id, await runtime.status("s"), await runtime.ready()) == ("s", "queued", ["s"])
        assert (session.tags, session.data, session.reply) == ({"order": "17"}, {"n": 1}, None)


async def test_a_queued_turn_is_run_by_work(place: Place) -> None:
    async with Runtime(place.store(), agents=[echo()]) as runtime:
        session_id = await runtime.submit("a", "hello", by="ops")
        assert await work(runtime) == [(session_id, "done")]
        session = await runtime.load(session_id)
        assert session.reply is not None
        events = [event async for event in runtime.events(session_id)]
        (started,) = [event for event in events if isinstance(event, TurnStarted)]
        assert (session.reply.text, started.by, started.queued) == ("heard hello", "ops", 2)


async def test_submitting_the_same_again_does_nothing_even_after_it_ran(place: Place) -> None:
    async with Runtime(place.store(), agents=[echo()]) as runtime:
        for _ in range(2):
            await runtime.submit("a", "hello", id="s")
        first = await work(runtime)
        await runtime.submit("a", "hello", id="s")
        assert (first, await work(runtime), await runtime.status("s")) == ([("s", "done")], [], "done")


async def test_other_text_for_the_same_turn_is_refused(place: Place) -> None:
    async with Runtime(place.store(), agents=[echo()]) as runtime:
        await runtime.submit("a", "hello", id="s")
        with pytest.raises(TurnExists, match="another prompt"):
            await runtime.submit("a", "bye", id="s")
        await work(runtime)
        with pytest.raises(TurnExists, match="another prompt"):
            await runtime.submit("a", "bye", id="s")


async def test_turns_of_one_session_run_in_their_order(place: Place) -> None:
    async with Runtime(place.store(), agents=[echo()]) as runtime:
        for number, text in enumerate(("one", "two", "three"), 1):
            await runtime.submit("a", text, id="s", turn=number)
        assert await work(runtime) == [("s", "done")] * 3
        session = await runtime.load("s")
        assert [m.text for m in session.get_messages() if m.role == "user"] == ["one", "two", "three"]


async def test_a_turn_whose_predecessor_is_missing_is_refused(place: Place) -> None:
    async with Runtime(place.store(), agents=[echo()]) as runtime:
        with pytest.raises(TurnExists, match="next turn of this session is turn 1"):
            await runtime.submit("a", "hello", id="s", turn=2)
        await runtime.submit("a", "hello", id="s")
        with pytest.raises(TurnExists, match="next turn of this session is turn 2"):
            await runtime.submit("a", "hello", id="s", turn=3)


async def test_a_turn_can_be_queued_for_a_session_that_was_prompted(place: Place) -> None:
    async with Runtime(place.store(), agents=[echo()]) as runtime:
        await (await runtime.start("a", "s")).prompt("one")
        await runtime.submit("a", "one", id="s")
        with pytest.raises(TurnExists):
            await runtime.submit("a", "other", id="s")
        await runtime.submit("a", "two", id="s", turn=2)
        await work(runtime)
        assert (await runtime.resume("s")).text == "heard two"


async def test_a_prompt_comes_after_what_is_queued(place: Place) -> None:
    async with Runtime(place.store(), agents=[echo()]) as runtime:
        await runtime.submit("a", "one", id="s")
        session = await runtime.load("s")
        reply = await session.prompt("two")
        texts = [m.text for m in session.get_messages() if m.role == "user"]
        assert (reply.text, texts, await runtime.ready()) == ("heard two", ["one", "two"], [])


async def test_resume_runs_a_queued_turn(place: Place) -> None:
    async with Runtime(place.store(), agents=[echo()]) as runtime:
        await runtime.submit("a", "hello", id="s")
        assert (await runtime.resume("s")).text == "heard hello"


async def test_past_the_queue_limit_a_submission_is_refused(place: Place) -> None:
    async with Runtime(place.store(), agents=[echo()]) as runtime:
        await runtime.submit("a", "hello", id="s", queue_limit=1)
        with pytest.raises(QueueFull):
            await runtime.submit("a", "hello", id="t", queue_limit=1)
        await runtime.submit("a", "hello", id="s", queue_limit=1)


@pytest.mark.parametrize(
    "wrong", [{"priority": "urgent"}, {"tenant": "a\nb"}, {"turn": 0}, {"id": "a b"}, {"data": [1]}, {"turn": True}]
)
async def test_a_wrong_argument_is_refused_before_anything_is_stored(place: Place, wrong: dict[str, Any]) -> None:
    async with Runtime(place.store(), agents=[echo()]) as runtime:
        with pytest.raises(SetupError):
            await runtime.submit("a", "hello", **wrong)
        with pytest.raises(SetupError):
            await runtime.submit("a", "  ")
        with pytest.raises(UnknownAgent):
            await runtime.submit("b", "hello")
        assert await runtime.rows() == []


async def test_a_session_of_another_agent_or_with_other_tags_is_refused(place: Place) -> None:
    async with Runtime(place.store(), agents=[echo(), echo("b")]) as runtime:
        await runtime.submit("a", "hello", id="s", tags={"order": "17"})
        with pytest.raises(SetupError, match="session of 'a'"):
            await runtime.submit("b", "hello", id="s")
        with pytest.raises(SetupError, match="other tags"):
            await runtime.submit("a", "hello", id="s", tags={"order": "18"})


async def test_a_queued_session_can_not_be_started_again(place: Place) -> None:
    async with Runtime(place.store(), agents=[echo()]) as runtime:
        await runtime.submit("a", "hello", id="s")
        with pytest.raises(SessionExists):
            await runtime.start("a", "s")


async def test_a_cancelled_queued_turn_never_runs(place: Place) -> None:
    async with Runtime(place.store(), agents=[echo()]) as runtime:
        await runtime.submit("a", "hello", id="s")
        await runtime.cancel("s", "not needed", by="ops")
        assert (await runtime.status("s"), await work(runtime)) == ("cancelled", [])
        await runtime.submit("a", "again", id="s", turn=2)
        assert await work(runtime) == [("s", "done")]
        assert (await runtime.resume("s")).text == "heard again"


# --- running ------------------------------------------------------------------------------


@tool
async def ask_first(ctx: Context) -> str:
    """Ask somebody."""
    return f"answer {await ctx.raise_callback('Which one?', 'blocker')}"


def asks() -> Agent:
    return Agent("a", model=Script(lambda r: results(r)[0] if results(r) else call("ask_first")), tools=[ask_first])


async def test_who_cancels_a_waiting_session_cancels_the_turns_that_are_queued_behind_it(place: Place) -> None:
    async with Runtime(place.store(), agents=[asks()], host=Later(), hold=0) as runtime:
        await runtime.submit("a", "go", id="s")
        assert await work(runtime) == [("s", "waiting")]
        await runtime.submit("a", "then", id="s", turn=2)
        assert await runtime.status("s") == "waiting"
        await runtime.cancel("s")
        assert (await runtime.status("s"), await work(runtime), await runtime.inbox()) == ("cancelled", [], [])
        await runtime.submit("a", "then", id="s", turn=3)
        assert await runtime.status("s") == "queued"


async def test_a_question_parks_the_tree_and_its_answer_lets_work_finish_it(place: Place) -> None:
    agent = Agent(
        "a", model=Script(lambda r: results(r)[0] if results(r) else call("ask_first")), tools=[ask_first]
    )
    async with Runtime(place.store(), agents=[agent], hold=0) as runtime:
        await runtime.submit("a", "go", id="s")
        first = await work(runtime)
        (callback,) = await runtime.inbox() if runtime.store.durable else [None]
        if callback is not None:
            await runtime.answer(callback.id, "b")
            assert (first, await work(runtime)) == ([("s", "waiting")], [("s", "done")])
            assert (await runtime.resume("s")).text == "answer b"


async def test_begin_session_hooks_of_a_submitted_session_run_before_its_turn(place: Place) -> None:
    seen: list[str] = []

    def begin(session: SessionAccess) -> None:
        seen.append(session.id)
        session.set_context("k", "v")

    agent = Agent("a", model=Script(["hello"]), hooks=Hooks(begin_session=[begin]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        await runtime.submit("a", "go", id="s")
        before = [*seen]
        assert (before, await work(runtime), seen) == ([], [("s", "done")], ["s"])
        assert (await runtime.load("s")).get_context("k") == "v"


async def test_a_begin_session_hook_that_raises_fails_the_session_which_can_be_resumed(place: Place) -> None:
    fails = [True]

    def begin(_: SessionAccess) -> None:
        if fails:
            fails.pop()
            raise ValueError("no")

    agent = Agent("a", model=Script(["hello"]), hooks=Hooks(begin_session=[begin]))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        await runtime.submit("a", "go", id="s")
        failed = await work(runtime)
        status = await runtime.status("s")
        assert (failed, status) == ([("s", "failed")], "failed")
        assert (await runtime.resume("s")).text == "hello"


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def failing(*errors: Exception) -> Agent:
    """An agent whose model fails with these, one after the other, and then replies."""
    left = [*errors]

    def decide(_: Request) -> Any:
        if left:
            raise left.pop(0)
        return "at last"

    return Agent("a", model=Script(decide))


async def test_a_failure_that_may_pass_is_tried_again_three_times_with_growing_pauses() -> None:
    clock = Clock()
    agent = failing(*[ModelUnavailable("m", "overloaded")] * 3)
    async with Runtime(MemoryStore(clock), agents=[agent]) as runtime:
        await runtime.submit("a", "go", id="s")
        outcomes: list[Any] = []
        for seconds in (2.0, 8.0, 32.0):
            outcomes.append(await work(runtime))
            clock.now += seconds - 0.5
            outcomes.append((await work(runtime), await runtime.status("s")))
            clock.now += 0.5
        assert outcomes == [[("s", "retry")], ([], "queued")] * 3
        assert await work(runtime) == [("s", "done")]


async def test_after_three_retries_the_turn_fails_and_can_be_resumed_by_hand() -> None:
    agent = failing(*[ModelUnavailable("m", "overloaded")] * 4)
    clock = Clock()
    async with Runtime(MemoryStore(clock), agents=[agent]) as runtime:
        await runtime.submit("a", "go", id="s")
        outcomes: list[Any] = []
        for _ in range(4):
            outcomes += await work(runtime, retries=Retries(3, 1.0))
            clock.now += 100
        assert [outcome for _, outcome in outcomes] == ["retry", "retry", "retry", "failed"]
        assert (await work(runtime), await runtime.status("s")) == ([], "failed")
        assert (await runtime.resume("s")).text == "at last"


async def test_other_failures_fail_at_once() -> None:
    async with Runtime(agents=[failing(ModelRefused("m", "no such model"))]) as runtime:
        await runtime.submit("a", "go", id="s")
        assert (await work(runtime), await runtime.status("s")) == ([("s", "failed")], "failed")


async def test_a_failure_of_a_prompt_is_not_tried_again() -> None:
    async with Runtime(agents=[failing(ModelUnavailable("m", "overloaded"))]) as runtime:
        session = await runtime.start("a", "s")
        with pytest.raises(ModelUnavailable):
            await session.prompt("go")
        assert (await runtime.ready(), await runtime.status("s")) == ([], "failed")


async def test_too_many_requests_pause_the_model_for_all_workers() -> None:
    clock, store = Clock(), None
    store = MemoryStore(clock)
    limited = failing(ModelUnavailable("busy", "too many", 1, 429))
    limited = limited.replace(model=Named("busy", limited.model))
    async with Runtime(store, agents=[limited, echo("b")]) as runtime:
        for agent, name in (("a", "s"), ("a", "t"), ("b", "u")):
            await runtime.submit(agent, "go", id=name)
        first = await work(runtime, concurrency=1)
        clock.now += 20
        paused = await work(runtime)
        clock.now += 20
        assert first == [("s", "retry"), ("u", "done")]
        assert (paused, sorted(await work(runtime))) == ([], [("s", "done"), ("t", "done")])


class Named:
    """A model with another name."""

    def __init__(self, name: str, inner: Any) -> None:
        self.name, self._inner = name, inner

    async def respond(self, request: Request, emit: Any) -> Any:
        return await self._inner.respond(request, emit)


async def test_limits_hold_while_trees_run() -> None:
    running = most = 0

    @tool
    async def slow() -> str:
        """Wait a little."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return "ok"

    agent = Agent("a", model=Script(lambda r: "ok" if results(r) else call("slow")), tools=[slow])
    async with Runtime(agents=[agent]) as runtime:
        for n in range(6):
            await runtime.submit("a", "go", id=f"s{n}")
        done = await work(runtime, limits=[TakeLimit(agents=("a",), running=2)])
    assert (len(done), most) == (6, 2)


async def test_a_worker_leaves_turns_of_a_changed_agent_if_it_is_told_to(tmp_path: Path) -> None:
    def agent(instructions: str) -> Agent:
        script = Script(lambda r: results(r)[0] if results(r) else call("ask_first"))
        return Agent("a", instructions=instructions, model=script, tools=[ask_first])

    path = tmp_path / "log.db"
    async with Runtime(path, agents=[agent("old")], hold=0) as runtime:
        await runtime.submit("a", "go", id="s")
        await work(runtime)
        await runtime.answer((await runtime.inbox())[0].id, "b")
    async with Runtime(path, agents=[agent("new")], hold=0) as runtime:
        left = await work(runtime, changed="leave")
        assert (left, await runtime.ready()) == ([("s", "left")], ["s"])
        assert await work(runtime) == [("s", "done")]


async def test_work_goes_on_with_what_is_submitted_meanwhile(place: Place) -> None:
    async with Runtime(place.store(), agents=[echo()]) as runtime:
        stop, seen = asyncio.Event(), asyncio.Queue[Segment]()
        worker = asyncio.ensure_future(runtime.work(stop, on_segment=seen.put_nowait))
        for n in range(3):
            await runtime.submit("a", "go", id=f"s{n}")
            async with asyncio.timeout(20):
                assert (await seen.get()).root == f"s{n}"
        stop.set()
        await worker


# --- from hooks and tools -----------------------------------------------------------------


async def test_a_tool_submits_a_session_of_its_own_once_though_it_runs_again(tmp_path: Path) -> None:
    runs: list[str] = []

    @tool
    async def notify(ctx: Context) -> str:
        """Submit and ask."""
        runs.append(await ctx.submit("b", "write the report", tags={"kind": "report"}, tenant="acme"))
        return f"answer {await ctx.raise_callback('Send it?', 'blocker')}"

    agent = Agent("a", model=Script(lambda r: results(r)[0] if results(r) else call("notify")), tools=[notify])
    async with Runtime(tmp_path / "log.db", agents=[agent, echo("b")], hold=0) as runtime:
        session = await runtime.start("a", "s")
        assert (await session.prompt("go")).status == "waiting"
        await runtime.answer((await runtime.inbox())[0].id, "yes")
        assert (await runtime.resume("s")).text == "answer yes"
        rows = await runtime.rows(agent="b")
        assert (len(runs), len({*runs}), [row.id for row in rows]) == (2, 1, [runs[0]])
        assert (rows[0].parent, rows[0].tags, rows[0].status) == ("", {"kind": "report"}, "queued")
        assert await work(runtime) == [(runs[0], "done")]


async def test_the_same_submission_twice_in_one_call_is_two_sessions(place: Place) -> None:
    @tool
    def notify(ctx: SyncContext) -> str:
        """Submit twice, from a thread."""
        return " ".join([ctx.submit("b", "report"), ctx.submit("b", "report")])

    agent = Agent("a", model=Script(lambda r: results(r)[0] if results(r) else call("notify")), tools=[notify])
    async with Runtime(place.store(), agents=[agent, echo("b")]) as runtime:
        reply = await (await runtime.start("a", "s")).prompt("go")
        assert len({*reply.text.split()}) == 2
        assert sorted(row.id for row in await runtime.rows(status="queued")) == sorted(reply.text.split())


async def test_a_hook_submits_for_each_turn(place: Place) -> None:
    async def after(session: SessionAccess, _: Reply) -> None:
        await session.submit("b", "tidy up")

    agent = Agent("a", model=Script(["one", "two"]), hooks=Hooks(end_turn=[after]))
    async with Runtime(place.store(), agents=[agent, echo("b")]) as runtime:
        session = await runtime.start("a", "s")
        await session.prompt("go")
        await session.prompt("go")
        assert len(await runtime.rows(agent="b", status="queued")) == 2


async def test_submitting_an_unknown_agent_is_an_error_in_the_tool(place: Place) -> None:
    @tool
    async def notify(ctx: Context) -> str:
        """Submit."""
        return await ctx.submit("nobody", "report")

    agent = Agent("a", model=Script(lambda r: results(r)[0] if results(r) else call("notify")), tools=[notify])
    async with Runtime(place.store(), agents=[agent]) as runtime:
        reply = await (await runtime.start("a", "s")).prompt("go")
        assert "there is no agent called 'nobody'" in reply.text


# --- poison -------------------------------------------------------------------------------


async def test_a_tree_whose_workers_died_three_times_fails_and_can_be_resumed(tmp_path: Path) -> None:
    path, now = tmp_path / "log.db", [1_000_000.0]
    agent = echo()
    stores = [SqliteStore(path, lambda: now[0]) for _ in range(3)]
    async with Runtime(SqliteStore(path), agents=[agent]) as runtime:
        await runtime.submit("a", "go", id="s")
        (queued,) = [e for e in await runtime.store.read("s") if e.type == "turn_queued"]
    events: list[AnyEvent] = [TurnStarted(1, user("go"), queued=queued.seq), TurnResumed(1, died=True)]
    for number, store in enumerate(stores):  # each takes it and dies: its heartbeat is an hour late
        await store.open()
        claim = await store.take()
        assert claim is not None
        stored = store.append("s", [events[min(number, 1)].replace()], claim)
        assert stored is None or await stored is None
        now[0] += 3600
    async with Runtime(SqliteStore(path, lambda: now[0]), agents=[agent]) as runtime:
        assert (await work(runtime), await runtime.status("s")) == ([("s", "failed")], "failed")
        assert (await runtime.resume("s")).text == "heard go"
    for store in stores:
        await store.close()


async def test_a_session_whose_workers_died_three_times_in_its_first_hooks_fails_and_can_be_resumed(
    tmp_path: Path,
) -> None:
    path, now, begun = tmp_path / "log.db", [1_000_000.0], list[str]()
    agent = Agent(
        "a", model=Script(["done"]), hooks=Hooks(begin_session=[lambda session: begun.append(session.id)])
    )
    stores = [SqliteStore(path, lambda: now[0]) for _ in range(3)]
    async with Runtime(SqliteStore(path), agents=[agent]) as runtime:
        await runtime.submit("a", "go", id="s")
    for number, store in enumerate(stores):  # each takes it and dies: its heartbeat is an hour late
        await store.open()
        claim = await store.take()
        assert claim is not None
        if number:
            stored = store.append("s", [TurnResumed(0, died=True)], claim)
            assert stored is None or await stored is None
        now[0] += 3600
    async with Runtime(SqliteStore(path, lambda: now[0]), agents=[agent]) as runtime:
        assert (await work(runtime), await runtime.status("s")) == ([("s", "failed")], "failed")
        assert begun == []
        assert (await runtime.resume("s")).text == "done"
        assert begun == ["s"]
    for store in stores:
        await store.close()


@pytest.mark.parametrize("then", ["resumed", "prompted"])
async def test_a_started_session_whose_workers_died_three_times_in_its_first_hooks_fails_and_can_begin(
    then: str, tmp_path: Path
) -> None:
    path, now, begun = tmp_path / "log.db", [1_000_000.0], list[str]()

    async def asks(session: SessionAccess) -> None:
        begun.append(await session.raise_callback("which?", "blocker"))

    agent = Agent("a", model=Script(["done"]), hooks=Hooks(begin_session=[asks]))
    async with Runtime(SqliteStore(path, lambda: now[0]), agents=[agent], hold=0) as runtime:
        await runtime.start("a", "s")
        await runtime.answer((await runtime.inbox())[0].id, "b")
    stores = [SqliteStore(path, lambda: now[0]) for _ in range(3)]
    for number, store in enumerate(stores):  # each takes it and dies: its heartbeat is an hour late
        await store.open()
        claim = await store.take()
        assert claim is not None
        if number:
            stored = store.append("s", [TurnResumed(0, died=True)], claim)
            assert stored is None or await stored is None
        now[0] += 3600
    async with Runtime(SqliteStore(path, lambda: now[0]), agents=[agent]) as runtime:
        assert (await work(runtime), await runtime.status("s")) == ([("s", "failed")], "failed")
        assert (await work(runtime), begun) == ([], [])
        if then == "resumed":
            await runtime.resume("s")
            assert (await runtime.status("s"), begun) == ("idle", ["b"])
        assert (await (await runtime.load("s")).prompt("go")).text == "done"
        assert begun == ["b"]
    for store in stores:
        await store.close()


async def test_a_started_session_whose_worker_died_in_its_first_hooks_notes_it_and_begins_again(
    tmp_path: Path,
) -> None:
    path, now, begun = tmp_path / "log.db", [1_000_000.0], list[str]()

    async def asks(session: SessionAccess) -> None:
        begun.append(await session.raise_callback("which?", "blocker"))

    agent = Agent("a", model=Script(["done"]), hooks=Hooks(begin_session=[asks]))
    store = SqliteStore(path, lambda: now[0])
    async with Runtime(SqliteStore(path, lambda: now[0]), agents=[agent], hold=0) as runtime:
        await runtime.start("a", "s")
        await runtime.answer((await runtime.inbox())[0].id, "b")
    await store.open()
    assert await store.take() is not None
    now[0] += 3600
    async with Runtime(SqliteStore(path, lambda: now[0]), agents=[agent]) as runtime:
        assert len(await work(runtime)) == 1
        assert (await runtime.status("s"), begun) == ("idle", ["b"])
        died = [event.died for event in await runtime.store.read("s") if isinstance(event, TurnResumed)]
        assert died == [True]
    await store.close()


async def test_a_session_whose_worker_died_in_its_first_hooks_begins_again(tmp_path: Path) -> None:
    path, now, begun = tmp_path / "log.db", [1_000_000.0], list[str]()
    agent = Agent(
        "a", model=Script(["done"]), hooks=Hooks(begin_session=[lambda session: begun.append(session.id)])
    )
    store = SqliteStore(path, lambda: now[0])
    async with Runtime(SqliteStore(path), agents=[agent]) as runtime:
        await runtime.submit("a", "go", id="s")
    await store.open()
    assert await store.take() is not None
    now[0] += 3600
    async with Runtime(SqliteStore(path, lambda: now[0]), agents=[agent]) as runtime:
        assert (await work(runtime), begun) == ([("s", "done")], ["s"])
        types = [event.type for event in await runtime.store.read("s")]
        assert types[1:4] == ["turn_queued", "turn_resumed", "hooks_passed"]
    await store.close()


async def test_a_session_that_waits_takes_a_queued_turn_after_its_answer(tmp_path: Path) -> None:
    agent = Agent(
        "a", model=Script(lambda r: results(r)[0] if results(r) else call("ask_first")), tools=[ask_first]
    )
    async with Runtime(tmp_path / "log.db", agents=[agent], hold=0) as runtime:
        await runtime.submit("a", "go", id="s")
        await work(runtime)
        await runtime.submit("a", "more", id="s", turn=2)
        assert (await work(runtime), await runtime.status("s")) == ([], "waiting")
        session = await runtime.load("s")
        with pytest.raises(SessionWaiting):
            await session.prompt("other")
        await runtime.answer((await runtime.inbox())[0].id, "b")
        assert await work(runtime) == [("s", "done"), ("s", "done")]


def test_a_hook_failure_counts_by_what_caused_it() -> None:
    failure = HookFailed("h", "pre_request", ConnectionResetError("gone"))
    alone = may_pass(failure)
    failure.__cause__ = ConnectionResetError("gone")
    assert (alone, may_pass(failure), may_pass(ValueError("no"))) == (False, True, False)


async def test_work_once_takes_a_turn_that_was_queued_behind_one_which_ended_while_it_looked() -> None:
    first_may_end, first_has_ended = asyncio.Event(), asyncio.Event()

    class SlowToSay(MemoryStore):
        """A store whose answer "nothing is left" arrives after the first turn has ended."""

        async def take(self, *args: Any, **options: Any) -> Any:
            found = await super().take(*args, **options)
            if found is None and not first_may_end.is_set():
                first_may_end.set()
                await first_has_ended.wait()
                await asyncio.sleep(0.05)  # the worker notices it
            return found

    async def reply(request: Request) -> str:
        await first_may_end.wait()
        return f"heard {request.messages[-1].text}"

    async with Runtime(SlowToSay(), agents=[Agent("a", model=Script(reply))]) as runtime:
        await runtime.submit("a", "one", id="s")
        await runtime.submit("a", "two", id="s", turn=2)
        await runtime.work(once=True, on_segment=lambda _: first_has_ended.set())
        assert await runtime.status("s") == "done"
        assert ((await runtime.load("s")).reply or Reply("")).text == "heard two"
