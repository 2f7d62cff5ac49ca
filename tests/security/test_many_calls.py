"""A response of many calls: what is looked up and counted for each of them does not hold the event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from upcall import Agent, Request, Runtime, tool
from upcall.events import ToolEnded
from upcall.kit import stuck
from upcall.messages import Result
from upcall.models import Script, call

from .measuring import measured


@tool
async def echo(word: str) -> str:
    """Echo."""
    return "ok"


def named(name: str) -> Any:
    @tool(name=name)
    async def look() -> str:
        """Look."""
        return "ok"

    return look


TOOLS = [named(f"search_the_documents_of_customer_number_{n}") for n in range(60)]


async def results_of(agent: Agent) -> list[Result]:
    async with Runtime(agents=[agent], hold=0.0) as runtime:
        session = await runtime.start(agent)
        async with measured() as took:
            await session.prompt("go")
        took.check()
        return [result for message in session.get_messages() for result in message.results]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["serach_the_documents_of_nmuber_{}", "search_the_documents_" * 60 + "{}"])
async def test_a_thousand_calls_of_unknown_tools_do_not_hold_the_loop(name: str) -> None:
    agent = Agent("a", model=Script([[call(name.format(n)) for n in range(1000)], "end"]), tools=TOOLS)
    found = await results_of(agent)
    assert len(found) == 1000
    assert "The tools are: " in found[2].text
    assert "earlier result of this response lists the tools" in found[3].text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["serach", "echo"])
async def test_a_thousand_calls_of_a_response_leave_the_loop_to_others_while_they_are_stored(
    name: str, tmp_path: Path
) -> None:
    agent = Agent("a", model=Script([[call(name, word=str(n)) for n in range(1000)], "end"]), tools=[echo])
    async with Runtime(tmp_path / "log.db", agents=[agent], hold=0.0) as runtime:
        session = await runtime.start(agent)
        async with measured() as took:
            items = [item async for item in session.stream("go")]
        took.check(stall=0.1)
    assert sum(isinstance(item, ToolEnded) for item in items) == 1000


async def test_a_turn_that_is_cancelled_while_its_calls_are_started_ends() -> None:
    ran: list[str] = []

    @tool
    async def cancels(word: str) -> str:
        """Cancel the turn."""
        ran.append(word)
        if len(ran) == 1:
            turn.cancel()
        return "ok"

    agent = Agent("a", model=Script([[call("cancels", word=str(n)) for n in range(1000)], "end"]), tools=[cancels])
    async with Runtime(agents=[agent], hold=0.0) as runtime:
        session = await runtime.start(agent)
        turn = asyncio.ensure_future(session.prompt("go"))
        with pytest.raises(asyncio.CancelledError):
            await turn
    assert 0 < len(ran) < 1000


async def test_an_unknown_tool_after_many_known_ones_is_told_the_names() -> None:
    agent = Agent("a", model=Script([[*[call(TOOLS[0].name)] * 5, call("serach")], "end"]), tools=TOOLS)
    found = await results_of(agent)
    assert f"The tools are: {TOOLS[0].name}" in found[5].text


async def test_of_a_name_of_millions_of_characters_the_beginning_is_told() -> None:
    agent = Agent("a", model=Script([call("s" * 3_900_000), "end"]), tools=TOOLS)
    (found,) = await results_of(agent)
    assert f"there is no tool called '{'s' * 128}…'." in found.text


@pytest.mark.slow
async def test_a_thousand_equal_calls_are_counted_once() -> None:
    agent = Agent(
        "a", model=Script([[call("echo", word="x" * 3_000)] * 1000, "end"]), tools=[echo], kit=[stuck(1000)]
    )
    found = await results_of(agent)
    assert [result.is_error for result in found] == [False] * 999 + [True]
    assert "this is call number 1000 of echo" in found[-1].text


async def test_of_a_repeated_call_with_a_megabyte_the_beginning_is_asked_about() -> None:
    def circles(request: Request) -> Any:
        return call("echo", word="x" * 1_500_000) if len(request.messages) < 8 else "end"

    agent = Agent("a", model=Script(circles), tools=[echo], kit=[stuck(3)])
    found = await results_of(agent)
    assert "this is call number 3 of echo" in found[2].text
