"""Agents that ask: a clerk about refunds, and one that wants to deploy."""

import asyncio
from pathlib import Path
from typing import Any

from upcall import Agent, Context, Request, tool
from upcall.models import Script, call
from upcall.models.script import Plain


@tool
async def refund(order: str, ctx: Context) -> str:
    """Refund an order."""
    key = {"api_key": "sk-live-1234567890ab"}
    amount = await ctx.raise_callback(f"How much for {order}?", "blocker", context=key)
    with Path("payments.txt").open("a") as file:
        file.write(f"{order} {amount}\n")
    return f"{order}: {amount}"


@tool(needs_approval=True)
async def deploy(where: str, token: str) -> str:
    """Deploy."""
    with Path("deployed.txt").open("a") as file:
        file.write(f"{where} {token}\n")
    return f"deployed to {where}"


@tool(needs_approval=True)
async def switch(state: Any) -> str:
    """Switch something."""
    Path("switched.txt").write_text(repr(state))
    return "switched"


@tool
async def wait(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "waited"


def results(request: Request) -> list[str]:
    return [result.text for message in request.messages for result in message.results]


def play(request: Request) -> Plain:
    done = results(request)
    text = request.messages[-1].text
    if request.messages[-1].role == "tool":
        return done[-1]
    word, _, rest = text.partition(" ")
    if word == "refund":
        return call("refund", order=rest)
    if word == "deploy":
        return call("deploy", where=rest, token="topsecrettoken-123456")
    if word == "switch":
        return call("switch", state=1)
    if word == "wait":
        return call("wait", seconds=float(rest))
    return f"You said: {text}"


clerk = Agent("clerk", model=Script(play), tools=[refund, deploy, switch, wait])
