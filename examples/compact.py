"""Compaction as a hook after the response: too many words, and the model sums them up."""

import asyncio

from upcall import Agent, Hooks, Request, Response, Runtime, SessionAccess
from upcall.models import Script


async def compact(session: SessionAccess, response: Response) -> None:
    if sum(len(message.text) for message in session.get_messages()) > 500:
        await session.trigger_compaction(keep_last=4)


def reply(request: Request) -> str:
    return "They talked about the weather." if request.purpose == "summary" else "It will rain. " * 5


async def main() -> None:
    agent = Agent("talker", model=Script(reply), hooks=Hooks(post_response=[compact]))
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        for number in range(10):
            await session.prompt(f"And on day {number}?")
        print([message.text[:40] for message in session.get_messages()])


asyncio.run(main())
