"""A model may call a tool by any name: servers get one that they take, and the log keeps what the model wrote."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from upcall import Agent, Runtime, tool
from upcall.contracts import Model
from upcall.events import Responded
from upcall.models import Anthropic, OpenAIChat
from upcall.models.providers import Provided

from . import anthropic_wire as a
from . import openai_wire as o
from .rules import NAME, check_anthropic, check_openai
from .server import serving, stream

# pydantic-ai takes seconds to import, and every worker imports every test module: tests import it as they run.
if TYPE_CHECKING:
    from pydantic_ai.models.function import AgentInfo, DeltaToolCalls

NAMES = {
    "functions.look": "functions_look",
    "": "_",
    "look around": "look_around",
    "löök\n": "l__k_",
    "x" * 70: "x" * 64,
}


@tool
def look() -> str:
    """Look around."""
    return "looked"


async def names_in_log(model: Model, *prompts: str) -> list[str]:
    """The names of the calls that the log keeps, after these prompts to an agent with that model."""
    agent = Agent("a", model=model, tools=[look])
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        for prompt in prompts:
            assert (await session.prompt(prompt)).status == "done"
        events = [event async for event in runtime.events("s")]
    return [call.name for event in events if isinstance(event, Responded) for call in event.message.calls]


@pytest.mark.parametrize("name", NAMES)
async def test_openai_gets_every_called_name_back_in_a_form_that_it_takes(name: str) -> None:
    called = stream(o.said(tool_calls=[o.tool(0, "call_0", name, "{}")]), o.STOP, o.DONE)
    async with serving(called, o.OK, o.OK) as server:
        model = OpenAIChat("m", base_url=f"{server.url}/v1", retries=0)
        assert await names_in_log(model, "go", "again") == [name]
        await model.close()
    for asked in server.asked[1:]:
        check_openai(asked.json["messages"], ("call_0",))
        (call,) = [one for message in asked.json["messages"] for one in message.get("tool_calls", ())]
        assert call["function"]["name"] == NAMES[name]


@pytest.mark.parametrize("name", NAMES)
async def test_anthropic_gets_every_called_name_back_in_a_form_that_it_takes(name: str) -> None:
    called = stream(a.start(), a.use(0, name, "{}", id="toolu_0"), a.stop("tool_use"), a.LAST)
    async with serving(called, a.OK, a.OK) as server:
        model = Anthropic("m", base_url=server.url, retries=0)
        assert await names_in_log(model, "go", "again") == [name]
        await model.close()
    for asked in server.asked[1:]:
        check_anthropic(asked.json, ("toolu_0",))
        blocks = [block for message in asked.json["messages"] for block in message["content"]]
        assert [block["name"] for block in blocks if block["type"] == "tool_use"] == [NAMES[name]]


@pytest.mark.slow
async def test_other_providers_get_every_called_name_back_in_a_form_that_they_take() -> None:
    from pydantic_ai import messages as theirs
    from pydantic_ai.models.function import DeltaToolCall, FunctionModel

    seen: list[list[theirs.ModelMessage]] = []

    async def answer(messages: list[theirs.ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        seen.append(messages)
        if len(seen) == 1:
            yield {0: DeltaToolCall(name="functions.look", json_args="{}", tool_call_id="c")}
        else:
            yield "done"

    assert await names_in_log(Provided(FunctionModel(stream_function=answer)), "go") == ["functions.look"]
    said, told = seen[1][1].parts[0], seen[1][2].parts[0]
    assert isinstance(said, theirs.ToolCallPart)
    assert isinstance(told, theirs.ToolReturnPart)
    assert said.tool_name == told.tool_name == "functions_look"
    assert NAME.fullmatch(said.tool_name)
