"""What happens in a turn's last moments stays in that turn."""

from __future__ import annotations

import asyncio
from typing import Any

from upcall import Agent, Runtime, tool
from upcall.models import Script, call


async def test_a_tool_that_cancels_its_own_turn_ends_it_and_nothing_leaks() -> None:
    running: list[Runtime] = []

    @tool
    async def stop() -> str:
        await running[0].cancel("s")
        return "stopped"

    agent = Agent("a", model=Script([call("stop"), "went on"]), tools=[stop])
    async with Runtime(agents=[agent]) as runtime:
        running.append(runtime)
        session = await runtime.start(agent, "s")
        reply = await session.prompt("x")
        await asyncio.sleep(0)  # a leaked cancellation would be raised here

    assert reply.status == "cancelled"


async def test_waiting_for_a_child_is_no_time_of_the_tool_that_started_it() -> None:
    @tool(timeout=0.05)
    async def slow() -> str:
        await asyncio.sleep(0.02)
        return "slept"

    child = Agent("child", model=Script([call("slow"), call("slow"), call("slow"), "done"]), tools=[slow])
    limits: Any = Agent("x").limits.replace(tool_seconds=0.03)
    parent = Agent(
        "parent", model=Script([call("task", agent="child", prompt="x"), "end"]), agents=[child], limits=limits
    )
    async with Runtime(agents=[parent]) as runtime:
        session = await runtime.start(parent)
        reply = await session.prompt("go")

        assert session.get_messages()[2].results[0].text == "done"
    assert reply.text == "end"
