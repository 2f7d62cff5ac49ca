"""A tool's own code starts a child that has to wait: the call waits with it, and its outcome is never unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from upcall import Agent, Context, Request, Runtime, tool
from upcall.contracts import Claim
from upcall.events import AnyEvent
from upcall.models import Script, call
from upcall.store.sqlite.store import SqliteStore


def results(request: Request) -> list[str]:
    return [result.text for message in request.messages for result in message.results]


@tool
async def ask_person(question: str, ctx: Context) -> str:
    """Ask a person."""
    return await ctx.raise_callback(question, "blocker", kind="request_user_input")


def child_says(request: Request) -> Any:
    return results(request)[0] if results(request) else call("ask_person", question=request.messages[0].text)


CHILD = Agent("child", model=Script(child_says), tools=[ask_person])


class Lead:
    """An agent with a tool of its own, which can't be run again and does `rest` after it has begun."""

    def __init__(self, rest: Callable[[Context, str], Awaitable[str]], *names: str) -> None:
        self.begun: list[str] = []

        @tool
        async def begin(name: str, ctx: Context) -> str:
            """Begin, then have the rest done."""
            self.begun.append(name)
            return await rest(ctx, name)

        def says(request: Request) -> Any:
            return " / ".join(results(request)) or [call("begin", name=name) for name in names]

        self.agent = Agent("lead", model=Script(says), tools=[begin], agents=[CHILD])


async def by_child(ctx: Context, name: str) -> str:
    return (await ctx.start_child("child", f"{name}?")).text


async def answer(runtime: Runtime, question: str) -> None:
    (callback,) = [one for one in await runtime.inbox() if one.message == question]
    await runtime.answer(callback.id, f"yes to {question}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


async def test_a_call_whose_child_waits_runs_again_once_the_child_is_answered(path: Path) -> None:
    lead = Lead(by_child, "a")
    async with Runtime(path, agents=[lead.agent]) as runtime:
        assert (await (await runtime.start("lead", "s")).prompt("go")).status == "waiting"
        await answer(runtime, "a?")
    async with Runtime(path, agents=[lead.agent]) as runtime:
        assert (await runtime.resume("s")).text == "yes to a?"
    assert lead.begun == ["a", "a"]  # code before it runs again, as it does before a question


async def test_a_call_is_not_run_again_while_its_child_still_waits(path: Path) -> None:
    lead = Lead(by_child, "a", "b")
    async with Runtime(path, agents=[lead.agent]) as runtime:
        await (await runtime.start("lead", "s")).prompt("go")
        await answer(runtime, "b?")
    async with Runtime(path, agents=[lead.agent]) as runtime:
        assert (await runtime.resume("s")).status == "waiting"
        assert (lead.begun, await runtime.ready()) == (["a", "b", "b"], [])
        await answer(runtime, "a?")
        assert (await runtime.resume("s")).text == "yes to a? / yes to b?"
    assert lead.begun == ["a", "b", "b", "a"]


@pytest.mark.slow
async def test_a_call_that_asks_beside_its_child_takes_whichever_answer_comes_first(path: Path) -> None:
    async def both(ctx: Context, name: str) -> str:
        own = ctx.raise_callback("mine?", "blocker", kind="request_user_input")
        return " and ".join(await asyncio.gather(by_child(ctx, name), own))

    for first, second in (("a?", "mine?"), ("mine?", "a?")):
        lead = Lead(both, "a")
        async with Runtime(path.with_name(f"{first[0]}.db"), agents=[lead.agent]) as runtime:
            await (await runtime.start("lead", "s")).prompt("go")
            await answer(runtime, first)
            assert (await runtime.resume("s")).status == "waiting"
            assert await runtime.ready() == []  # else whoever works would take it again and again
            await answer(runtime, second)
            assert (await runtime.resume("s")).text == "yes to a? and yes to mine?"


class Overtaken(SqliteStore):
    """A store on which somebody answers just before the first run tree is parked."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.first = True

    async def park(
        self, claim: Claim, events: Mapping[str, Sequence[AnyEvent]], waits: Sequence[str], blobs: Any = None
    ) -> bool:
        if self.first:
            self.first = False
            async with Runtime(self.where) as other:
                await answer(other, "a?")
        return await super().park(claim, events, waits, blobs)


@pytest.mark.in_file
async def test_an_answer_that_comes_while_such_a_call_is_parked_is_taken_at_once(path: Path) -> None:
    lead = Lead(by_child, "a")
    async with Runtime(Overtaken(path), agents=[lead.agent]) as runtime:
        reply = await (await runtime.start("lead", "s")).prompt("go")
    assert (reply.status, reply.text) == ("done", "yes to a?")


async def test_a_child_that_fails_after_its_answer_fails_inside_the_call(path: Path) -> None:
    def breaks(request: Request) -> Any:
        return ValueError("broken") if results(request) else child_says(request)

    child = Agent("child", model=Script(breaks), tools=[ask_person])
    lead = Lead(by_child, "a")
    agent = lead.agent.replace(agents=[child])
    async with Runtime(path, agents=[agent]) as runtime:
        await (await runtime.start("lead", "s")).prompt("go")
        await answer(runtime, "a?")
        assert "broken" in (await runtime.resume("s")).text
