"""A process that is killed while it compacts: `python -m kit.compacting LOG`. It says when its summary begins."""

from __future__ import annotations

import asyncio
import itertools
import sys
from typing import Any

from upcall import Agent, Request, Runtime, tool
from upcall.kit import compact
from upcall.models import Script, call

STEPS = 12


@tool
async def step(number: int) -> str:
    """Take a step."""
    return f"step {number} " + "x" * 80


async def decide(request: Request) -> Any:
    if request.purpose == "summary":
        print("summary begins", flush=True)
        if "--hang" in sys.argv:
            await asyncio.Event().wait()
        return f"up to step {newest(request)}"
    number = newest(request)
    return f"done after {number}" if number >= STEPS else call("step", number=number + 1)


def newest(request: Request) -> int:
    """The last step that the conversation, or its summary, knows of."""
    words = " ".join(
        [m.text for m in request.messages] + [r.text for m in request.messages for r in m.results]
    ).split()
    return max([int(after) for word, after in itertools.pairwise(words) if word == "step"], default=0)


agent = Agent("walker", model=Script(decide), tools=[step], kit=[compact(150, keep_last=2)])


async def main() -> None:
    async with Runtime(sys.argv[1], agents=[agent]) as runtime:
        if await runtime.rows():
            reply = await runtime.resume("s")
        else:
            reply = await (await runtime.start(agent, "s")).prompt("go")
        print(reply.text, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
