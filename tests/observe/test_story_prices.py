"""What a turn cost, in the line at its end; a price that is not known is said, and never 0."""

from __future__ import annotations

from typing import Any

from upcall import Agent, Runtime, tool
from upcall.messages import Usage
from upcall.models import Script, call
from upcall.observe import Labels, price_list
from upcall.observe.story import Story


@tool
async def deploy_service(target: str) -> str:
    """Deploy."""
    return "ok"


class Metered(Script):
    """A script whose responses say how many tokens they took."""

    async def respond(self, request: Any, emit: Any) -> Any:
        return (await super().respond(request, emit)).replace(usage=Usage(1000, 100))


async def told(model: str, **options: Any) -> list[str]:
    """The lines of a turn with two model calls, each with its label."""
    plays = Metered([call("deploy_service", target="prod"), "done"], name=f"house:{model}")
    agent = Agent("ops", model=plays, tools=[deploy_service])
    story = Story(**options)
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        await session.prompt("go")
        found = [event async for event in runtime.events(session.id)]
    return [f"{line.label} {line.text}" for event in found for line in story.feed(event)]


async def test_a_turn_says_what_it_cost_where_prices_are_known() -> None:
    prices = price_list({"m-*": (3.0, 15.0)})
    assert (await told("m-1", cost=prices))[-1].endswith("2,000 tokens in, 200 out · cost 0.009")


async def test_a_turn_says_that_a_price_is_not_known() -> None:
    last = (await told("x-9", cost=price_list({"m-*": (3.0, 15.0)})))[-1]
    assert last.endswith("200 out · no price for x-9")
    assert "cost" not in last


async def test_a_turn_says_nothing_of_costs_without_prices() -> None:
    assert "price" not in (await told("m-1"))[-1]


async def test_labels_name_tools_where_they_are_given() -> None:
    labels = Labels().adding({"deploy_service": "Deploy"})
    assert 'Deploy target="prod"' in await told("m-1", labels=labels)
    assert 'deploy_service target="prod"' in await told("m-1")
