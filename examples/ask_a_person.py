"""A tool asks a person, the work is parked on disk, the answer comes later, the work goes on.

The three runtimes below stand for three processes: nothing is kept in memory between them.
"""

import asyncio
import tempfile
from pathlib import Path

from upcall import Agent, Context, Request, Runtime, tool
from upcall.models import Script, call
from upcall.models.script import Plain


@tool
async def book_table(guests: int, ctx: Context) -> str:
    """Book a table for the evening."""
    hour = await ctx.raise_callback(
        "All tables at 19:00 are taken. Which hour instead?",
        "blocker",  # what must not be ignored: without an answer this raises
        choices=["18:00", "20:30"],
        priority="high",
    )
    return f"booked for {guests} at {hour}"


def play(request: Request) -> Plain:
    """A script that decides from the request alone, so that it goes on in another process."""
    results = [result for message in request.messages for result in message.results]
    return f"Done: {results[-1].text}." if results else call("book_table", guests=4)


host_desk = Agent("desk", model=Script(play), tools=[book_table])


async def ask(log: Path) -> None:
    async with Runtime(log, agents=[host_desk]) as runtime:
        session = await runtime.start("desk", id="friday")
        reply = await session.prompt("A table for four on Friday at seven, please.")
        print("status:", reply.status)
        assert reply.status == "waiting"


async def answer(log: Path) -> None:
    async with Runtime(log) as runtime:  # answering needs no agents
        for callback in await runtime.inbox():
            print(f"{callback.agent} asks: {callback.message} {list(callback.choices)}")
            await runtime.answer(callback.id, "20:30", by="ada")


async def go_on(log: Path) -> None:
    async with Runtime(log, agents=[host_desk]) as runtime:
        reply = await runtime.resume("friday")
        print("reply:", reply.text)
        (callback,) = reply.callbacks
        assert callback.answer is not None
        print(f"answered by {callback.answer.by} ({callback.answer.right})")
        assert reply.text == "Done: booked for 4 at 20:30."


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.db"
        asyncio.run(ask(path))
        asyncio.run(answer(path))
        asyncio.run(go_on(path))
