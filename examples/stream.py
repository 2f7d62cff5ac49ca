"""Watch a turn while it happens: events are facts from the log, deltas are text still being written."""

import asyncio

from upcall import Agent, Context, Runtime, tool
from upcall.models import Script, call


@tool
async def count_words(text: str, ctx: Context) -> int:
    """Count the words of a text."""
    ctx.show("counting...")  # for whoever watches; never stored
    return len(text.split())


agent = Agent(
    "counter",
    model=Script([["Let me count.", call("count_words", text="one two three")], "There are three words."]),
    tools=[count_words],
)


async def main() -> None:
    async with Runtime(":memory:", agents=[agent]) as runtime:
        session = await runtime.start("counter")
        written: list[str] = []
        async for item in session.stream("How many words are in 'one two three'?"):
            if item.type == "delta":  # type checkers know by its type which class it is
                print(f"  {item.kind}: {item.text!r}")
                written.append(item.text)
            elif item.type == "tool_started":
                print(item.seq, item.type, item.name)
            else:
                print(item.seq, item.type)
        assert session.reply is not None
        print("reply:", session.reply.text)
        assert "three " in written


if __name__ == "__main__":
    asyncio.run(main())
