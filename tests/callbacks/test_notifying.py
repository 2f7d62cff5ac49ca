"""Telling people that a question waits for them: beside the run, whatever the function that tells them does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from callbacks.doubles import Desk, asker, worker
from upcall import Agent, Callback, Context, Reply, Runtime, tool
from upcall.models import call
from upcall.observe.notify import Notify


async def asked(desk: Desk, *notify: Notify | Callable[[Callback], Any], agent: Agent | None = None) -> Reply:
    agent = agent or asker("which colour?", priority="high")
    async with Runtime(desk.store(), agents=[agent], notify=notify) as runtime:
        return await (await runtime.start(agent, "s")).prompt("go")


async def test_a_plain_function_that_waits_holds_up_neither_the_loop_nor_the_turn(desk: Desk) -> None:
    released, told = threading.Event(), list[tuple[str, bool]]()

    def posts(callback: Callback) -> None:
        on_time = released.wait(30)
        told.append((callback.message, on_time and threading.current_thread() is not threading.main_thread()))

    agent = asker("which colour?")
    async with Runtime(desk.store(), agents=[agent], notify=[posts]) as runtime:
        reply = await (await runtime.start(agent, "s")).prompt("go")
        assert (reply.status, told) == ("waiting", [])
        released.set()

    assert told == [("which colour?", True)]


async def test_a_plain_function_is_called_for_one_question_after_the_other(desk: Desk) -> None:
    @tool
    async def work(n: int, ctx: Context) -> str:
        """Ask."""
        return str(await ctx.raise_callback(f"{n}?"))

    inside, told = threading.Lock(), list[tuple[str, bool]]()

    def posts(callback: Callback) -> None:
        alone = inside.acquire(blocking=False)
        told.append((callback.message, alone))
        if alone:
            inside.release()

    agent = Agent("developer", model=worker(*(call("work", n=n) for n in range(20))), tools=[work])
    await asked(desk, posts, agent=agent)

    assert told == [(f"{n}?", True) for n in range(20)]


async def test_an_async_function_is_awaited_on_the_loop_however_it_is_written(desk: Desk) -> None:
    told: list[tuple[str, bool]] = []

    async def posts(where: str, callback: Callback) -> None:
        told.append((where, threading.current_thread() is threading.main_thread()))

    class Poster:
        async def __call__(self, callback: Callback) -> None:
            await posts("object", callback)

    await asked(desk, partial(posts, "partial"), Poster(), lambda callback: posts("lambda", callback))

    assert sorted(told) == [("lambda", True), ("object", True), ("partial", True)]


async def test_a_function_that_fails_is_named_in_a_warning_and_the_others_are_told(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    def broken(callback: Callback) -> None:
        raise RuntimeError("no network")

    with caplog.at_level(logging.WARNING, "upcall"):
        reply = await asked(desk, broken, lambda callback: told.append(callback.id))

    assert told == [reply.callbacks[0].id]
    assert f"broken in notify=[...] was not told of callback {told[0]}: RuntimeError: no network" in caplog.text


async def test_only_questions_of_the_least_priority_or_above_are_told(desk: Desk) -> None:
    told: list[str] = []

    await asked(
        desk,
        Notify(lambda callback: told.append("low")),
        Notify(lambda callback: told.append("high"), "high"),
        Notify(lambda callback: told.append("critical"), "critical"),
    )

    assert sorted(told) == ["high", "low"]
