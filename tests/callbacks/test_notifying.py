"""Telling people that a question waits for them: beside the run, whatever the function that tells them does."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from callbacks.doubles import Desk, asker, worker
from upcall import Agent, Callback, Context, Reply, Runtime, tool
from upcall.messages import Priority
from upcall.models import call
from upcall.observe.notify import Notifier, Notify, notification_text
from upcall.observe.redact import Redactor


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


def asks_many(count: int) -> Agent:
    @tool
    async def work(n: int, ctx: Context) -> str:
        """Ask."""
        return str(await ctx.raise_callback(f"{n}?", priority="critical" if n == 3 else "normal"))

    return Agent("developer", model=worker(*(call("work", n=n) for n in range(count))), tools=[work])


async def test_the_questions_of_a_run_tree_are_one_notification(desk: Desk) -> None:
    told: list[Callback] = []

    reply = await asked(desk, told.append, Notify(told.append, "critical"), agent=asks_many(20))

    assert [callback.message for callback in told] == ["3?", "3?"]  # the first one of the highest priority
    assert [len(callback.group) for callback in told] == [20, 0]
    assert {*told[0].group} == {callback.id for callback in reply.callbacks}


async def test_a_plain_function_is_called_for_one_notification_after_the_other(desk: Desk) -> None:
    inside, told = threading.Lock(), list[tuple[str, bool]]()

    def posts(callback: Callback) -> None:
        alone = inside.acquire(blocking=False)
        told.append((callback.session_id, alone))
        if alone:
            inside.release()

    agent = asker("which colour?")
    async with Runtime(desk.store(), agents=[agent], notify=[posts]) as runtime:
        for n in range(20):
            await (await runtime.start(agent, f"s{n}")).prompt("go")

    assert sorted(told) == sorted((f"s{n}", True) for n in range(20))


def question(n: int, priority: Priority = "normal", session: str = "s~r1c0") -> Callback:
    return Callback(f"q{n}", session, "developer", f"{n}?", priority=priority)


async def test_a_run_tree_is_told_of_now_and_then_and_at_once_where_it_matters_more() -> None:
    told: list[str] = []
    heard = asyncio.Event()

    async def posts(callback: Callback) -> None:
        told.append(callback.id)
        heard.set()

    async def tell(*callbacks: Callback) -> None:
        heard.clear()
        for one in callbacks:
            notifier(one)
        await asyncio.wait_for(heard.wait(), 20)

    notifier = Notifier([posts], window=0.0, pause=1000.0)
    await tell(question(0))
    notifier(question(1))  # of the same tree, so it waits
    await tell(question(2, session="other"))
    await tell(question(3, "critical"))  # and takes along what waits
    notifier(question(4, "critical"))
    await notifier.close()

    assert told == ["q0", "q2", "q3", "q4"]


def test_a_notification_of_many_questions_names_ten_of_them_and_nothing_that_moves_a_cursor() -> None:
    many = [question(n).replace(message=f"question {n}\x1b[2J\nmore" + "x" * 5000) for n in range(199)]

    title, body = notification_text(many[5], many, Redactor())

    assert title == "199 questions wait (normal)"
    assert body.splitlines()[0].startswith("> developer: question 5")
    assert "… and 189 more" in body
    assert "\x1b" not in body
    assert len(body) < 5000


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
