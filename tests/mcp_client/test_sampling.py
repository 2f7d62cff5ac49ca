"""Model calls that servers ask for: only where it is allowed, and counted as the agent's own."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from mcp_client.peers import UNASKED, agent, node_server
from upcall import Runtime
from upcall.links.mcp import McpServers
from upcall.messages import Request, Result
from upcall.models import Script, call

pytestmark = pytest.mark.slow

logging.getLogger("upcall").addHandler(logging.NullHandler())
TOOL = "everything__trigger-sampling-request"


def results(session: Any) -> list[Result]:
    return [one for message in session.get_messages() for one in message.results]


async def test_a_server_that_may_ask_for_model_calls_gets_an_answer_and_nothing_of_the_conversation() -> None:
    asked: list[Request] = []

    def sampled(request: Request) -> str:
        asked.append(request)
        return "a limerick"

    servers = McpServers(
        {"everything": node_server("everything", **UNASKED)},
        wait=30,
        sampling=["everything"],
        model=Script(sampled),
    )
    worker = agent(servers, [call(TOOL, prompt="Write a limerick.", maxTokens=50)])
    async with Runtime(":memory:", agents=[worker]) as runtime:
        session = await runtime.start("worker")
        reply = await session.prompt("My password is hunter2.")
        rows = await runtime.rows(parent=session.id)

    assert "a limerick" in results(session)[0].text
    assert "Write a limerick." in asked[0].messages[-1].text
    assert not any("hunter2" in message.text for message in asked[0].messages)
    assert asked[0].tools == ()
    assert [row.agent for row in rows] == ["everything.sampling"]
    assert reply.status == "done"


async def test_a_server_that_may_not_ask_for_model_calls_does_not_even_offer_to() -> None:
    servers = McpServers({"everything": node_server("everything", **UNASKED)}, wait=30)
    seen: list[str] = []

    def plan(request: Request) -> Any:
        seen.extend(one.name for one in request.tools)
        return "done"

    worker = agent(servers, plan)
    async with Runtime(":memory:", agents=[worker]) as runtime:
        await (await runtime.start("worker")).prompt("Begin.")

    assert "everything__echo" in seen
    assert TOOL not in seen
