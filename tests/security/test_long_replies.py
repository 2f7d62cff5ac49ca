"""Replies of a model that are read as JSON: none holds the event loop or fills the memory."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from upcall import Agent, Hooks, OutputInvalid, PlanRefused, Reply, Request, Runtime, Team
from upcall.models import Script

from .attacks import REPLIES
from .measuring import measured

pytestmark = pytest.mark.slow


class Row(msgspec.Struct):
    a: int


@pytest.mark.parametrize("output", [list[Row], list[dict[str, Any]]], ids=["structs", "dicts"])
@pytest.mark.parametrize("name", REPLIES)
async def test_no_typed_reply_holds_the_loop(name: str, output: Any) -> None:
    agent = Agent("a", model=Script(lambda _: REPLIES[name]), output=output)
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        async with measured() as took:
            with pytest.raises(OutputInvalid):
                await session.prompt("go")
    took.check()


@pytest.mark.parametrize("name", REPLIES)
async def test_no_plan_holds_the_loop(name: str) -> None:
    team = Team(Agent("m", model=Script(lambda _: REPLIES[name])), {"d": Agent("d", model=Script(["x"]))}, tries=1)
    async with Runtime(agents=[team]) as runtime:
        session = await runtime.start(team)
        async with measured() as took:
            with pytest.raises(PlanRefused):
                await session.prompt("go")
    took.check()


ROWS = json.dumps([{"a": n} for n in range(33_000)])
"""As many values as a reply may have."""


async def test_a_reply_at_the_bound_is_read_without_holding_the_loop() -> None:
    agent = Agent("a", model=Script([f"Rows [all of them]:\n{ROWS}"]), output=list[Row])
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        async with measured() as took:
            reply = await session.prompt("go")
    assert len(reply.output) == 33_000
    took.check()


async def test_the_value_that_a_hook_gets_is_not_the_one_that_the_reply_has() -> None:
    def empties(_: Any, reply: Reply) -> None:
        reply.output.clear()

    agent = Agent("a", model=Script([ROWS]), output=list[Row], hooks=Hooks(end_turn=[empties]))
    async with Runtime(agents=[agent]) as runtime:
        reply = await (await runtime.start(agent)).prompt("go")
    assert len(reply.output) == 33_000


async def test_a_steer_that_comes_while_a_long_reply_is_read_is_not_lost() -> None:
    seen: list[str] = []
    loop = asyncio.get_running_loop()

    class Checked(msgspec.Struct):
        a: int

        def __post_init__(self) -> None:
            if self.a == 0 and len(seen) == 1:  # in the thread that reads the reply
                asyncio.run_coroutine_threadsafe(session.steer("also this"), loop).result(10)

    def says(request: Request) -> str:
        seen.append(request.messages[-1].text)
        return ROWS

    agent = Agent("a", model=Script(says), output=list[Checked])
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        await session.prompt("go")
    assert seen == ["go", "also this"]
