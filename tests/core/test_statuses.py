"""A session's status is the same however it is read."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from core.doubles import Later, Place
from upcall import Agent, Context, Hooks, Request, Runtime, SessionAccess, tool
from upcall.core.runtime.retrying import Retries
from upcall.errors import ModelRefused, ModelUnavailable, SessionWaiting, TurnExists, UpcallError
from upcall.models import Script, call
from upcall.models.script import Plain


@tool
async def ask_first(ctx: Context) -> str:
    """Ask somebody."""
    return await ctx.raise_callback("Which one?", "blocker")


def play(request: Request) -> Plain:
    """Do what the last prompt says."""
    last = request.messages[-1]
    if last.results:
        return f"heard {last.results[0].text}"
    match last.text.rstrip(" 123456789"):
        case "ask":
            return call("ask_first")
        case "fail":
            raise ModelRefused("m", "no", 401)
        case "try again":
            raise ModelUnavailable("m", "away")
        case _:
            return "done"


def agent() -> Agent:
    return Agent("a", model=Script(play), tools=[ask_first])


async def statuses(runtime: Runtime, id: str = "s") -> set[str]:
    """Return the status of a session, in every way in which it can be read."""
    (row,) = await runtime.rows()
    (count,) = await runtime.store.counts()
    status = await runtime.status(id)
    listed = [one.id for one in await runtime.rows(status=status)]
    session = await runtime.load(id)
    return {status, row.status, count, session.status, *([] if listed == [id] else ["not listed"])}


@pytest.mark.parametrize("text", ["hello", "ask"])
async def test_a_submitted_session_is_queued_however_its_status_is_read(place: Place, text: str) -> None:
    async with Runtime(place.store(), agents=[agent()], host=Later(), hold=0) as runtime:
        await runtime.submit("a", "hello", id="s")
        assert await statuses(runtime) == {"queued"}
        await runtime.work(once=True)
        assert await statuses(runtime) == {"done"}
        await runtime.submit("a", text, id="s", turn=2)
        assert await statuses(runtime) == {"queued"}
        await runtime.work(once=True)
        assert await statuses(runtime) == {"done" if text == "hello" else "waiting"}


async def test_a_turn_that_is_tried_again_later_is_queued_however_its_status_is_read(place: Place) -> None:
    async with Runtime(place.store(), agents=[agent()]) as runtime:
        await runtime.submit("a", "try again", id="s")
        await runtime.work(once=True, retries=Retries(1, 3600.0))
        assert await statuses(runtime) == {"queued"}
        await runtime.cancel("s")
        assert await statuses(runtime) == {"cancelled"}


async def test_a_session_that_another_runtime_runs_is_running_when_it_is_loaded(place: Place) -> None:
    begun, stop = asyncio.Event(), asyncio.Event()

    async def wait(session: SessionAccess, text: object) -> None:
        begun.set()
        await stop.wait()

    waiting = agent().replace(hooks=Hooks(pre_request=[wait]))
    async with Runtime(place.store(), agents=[waiting]) as one, Runtime(place.store(), agents=[agent()]) as two:
        turn = asyncio.ensure_future((await one.start("a", "s")).prompt("hello"))
        await begun.wait()
        assert await statuses(one) == await statuses(two) == {"running"}
        stop.set()
        await turn
        assert await statuses(one) == await statuses(two) == {"done"}


steps = st.lists(
    st.sampled_from(
        ["submit hello", "submit ask", "submit fail", "prompt hello", "prompt ask", "work", "cancel", "answer"]
    ),
    max_size=8,
)


@given(steps)
@example(["submit ask", "work", "submit hello", "answer", "work"])
@example(["submit ask", "work", "submit hello", "cancel", "work"])
@example(["submit fail", "work", "submit hello", "cancel"])
@example(["submit hello", "prompt ask", "submit hello"])
def test_a_sessions_status_is_the_same_however_it_is_read(plan: list[str]) -> None:
    async def check() -> None:
        async with Runtime(":memory:", agents=[agent()], host=Later(), hold=0) as runtime:
            session = await runtime.start("a", "s")
            assert await statuses(runtime) == {"idle"}
            for step in plan:
                await do(runtime, step)
                assert len(found := await statuses(runtime)) == 1, (step, found)
            session = await runtime.load("s")
            with contextlib.suppress(SessionWaiting, ModelRefused):
                await session.prompt("hello")
                assert {session.status} == await statuses(runtime)

    asyncio.run(check())


async def do(runtime: Runtime, step: str) -> None:
    """Do one step; one that is refused changes nothing."""
    what, _, text = step.partition(" ")
    session = await runtime.load("s")
    match what:
        case "submit":
            for turn in range(1, 10):
                with contextlib.suppress(TurnExists):
                    await runtime.submit("a", f"{text} {turn}", id="s", turn=turn)
                    return
        case "prompt":
            with contextlib.suppress(UpcallError):
                await session.prompt(text)
        case "work":
            await runtime.work(once=True)
        case "cancel":
            await runtime.cancel("s")
        case _:
            for callback in await runtime.inbox():
                await runtime.answer(callback.id, "the left one")
