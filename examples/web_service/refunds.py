"""The agents of the web service: a manager with clerks, who ask a person how much to refund."""

from pathlib import Path

from upcall import Agent, Context, Request, tool
from upcall.models import Script, call
from upcall.models.script import Plain


def pay(order: str, amount: object) -> None:
    with Path("payments.txt").open("a") as file:
        file.write(f"{order} {amount}\n")


@tool
async def refund(order: str, ctx: Context) -> str:
    """Refund an order."""
    amount = await ctx.raise_callback(f"How much for {order}?", "blocker")
    await ctx.once("pay", pay, order, amount)  # never twice, whatever happens to the process
    return f"{order}: {amount}"


def results(request: Request) -> list[str]:
    return [result.text for message in request.messages for result in message.results]


def play_clerk(request: Request) -> Plain:
    return results(request)[0] if results(request) else call("refund", order=request.messages[0].text)


def play_manager(request: Request) -> Plain:
    if request.purpose == "side_turn":  # a clerk asks
        return call("pass_up_callback", reason="a person decides")
    orders = request.messages[0].text.split()
    return ", ".join(results(request)) or [call("task", agent="clerk", prompt=order) for order in orders]


clerk = Agent("clerk", model=Script(play_clerk), tools=[refund])
manager = Agent("manager", model=Script(play_manager), agents=[clerk])
