"""Prompt augmentation: a hook that adds what is known about the user to every model call."""

import asyncio

from upcall import Agent, Hooks, Message, Request, Runtime, SessionAccess
from upcall.kit import add_instructions
from upcall.models import Script


def learn(session: SessionAccess, message: Message) -> None:
    if message.text.startswith("I prefer "):
        session.set_context("preferences", message.text)


def augment(session: SessionAccess, request: Request) -> Request | None:
    preferences = session.get_context("preferences")
    return add_instructions(request, f"## User preferences\n{preferences}") if preferences else None


async def main() -> None:
    hooks = Hooks(pre_request=[learn], before_model=[augment])
    agent = Agent("helper", instructions="Be helpful.", model=Script(lambda r: r.instructions), hooks=hooks)
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        print((await session.prompt("I prefer short answers.")).text)


asyncio.run(main())
