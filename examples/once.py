"""An effect beside a question: `ctx.once` keeps it from happening again when the tool is entered again.

A tool that waited runs again from its top once its callback is settled. Answers it had are given to it from
the log; code before the question runs again, so what must happen once belongs into `ctx.once`.
"""

import asyncio
import tempfile
from pathlib import Path

from upcall import Agent, Context, Request, Runtime, tool
from upcall.models import Script, call
from upcall.models.script import Plain

entered: list[str] = []
charged: list[int] = []


def charge(amount: int) -> str:
    charged.append(amount)
    return f"receipt {len(charged)}"


@tool
async def order(item: str, ctx: Context) -> str:
    """Pay for something and have it sent."""
    entered.append(item)
    receipt = await ctx.once("charge", charge, 40)
    street = await ctx.raise_callback(f"Where to send the {item}?", "blocker")
    return f"{item} goes to {street}, {receipt}"


def play(request: Request) -> Plain:
    last = request.messages[-1]
    return last.results[0].text if last.results else call("order", item="lamp")


shop = Agent("shop", model=Script(play), tools=[order])


async def main(log: Path) -> None:
    async with Runtime(log, agents=[shop]) as runtime:
        session = await runtime.start(shop, id="lamp")
        await session.prompt("Order a lamp.")
    async with Runtime(log, agents=[shop]) as runtime:
        (callback,) = await runtime.inbox()
        await runtime.answer(callback.id, "1 Hill Road")
        reply = await runtime.resume("lamp")
    print(reply.text)
    print(f"entered {len(entered)} times, charged {len(charged)} time")
    assert reply.text == "lamp goes to 1 Hill Road, receipt 1"
    assert (len(entered), len(charged)) == (2, 1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder) / "log.db"))
