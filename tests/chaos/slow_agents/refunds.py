"""The agents of the web service once more, with calls that take a while: a signal finds some of them under way."""

from __future__ import annotations

import asyncio
from pathlib import Path

from upcall import Agent, Context, Request, tool
from upcall.models import Script, call
from upcall.models.script import Plain

A_WHILE = 0.03


async def pay(order: str, amount: object) -> None:
    await asyncio.sleep(A_WHILE)
    with Path("payments.txt").open("a") as file:
        file.write(f"{order} {amount}\n")
    await asyncio.sleep(A_WHILE)


@tool
async def refund(order: str, ctx: Context) -> str:
    """Refund an order."""
    amount = await ctx.raise_callback(f"How much for {order}?", "blocker")
    await ctx.once("pay", pay, order, amount)
    await asyncio.sleep(A_WHILE)
    return f"{order}: {amount}"


def results(request: Request) -> list[str]:
    return [result.text for message in request.messages for result in message.results]


async def play_clerk(request: Request) -> Plain:
    await asyncio.sleep(A_WHILE)
    return results(request)[0] if results(request) else call("refund", order=request.messages[0].text)


async def play_manager(request: Request) -> Plain:
    await asyncio.sleep(A_WHILE)
    if request.purpose == "side_turn":
        return call("pass_up_callback", reason="a person decides")
    orders = request.messages[0].text.split()
    return ", ".join(results(request)) or [call("task", agent="clerk", prompt=order) for order in orders]


clerk = Agent("clerk", model=Script(play_clerk), tools=[refund])
manager = Agent("manager", model=Script(play_manager), agents=[clerk])
