"""A manager gives work to a developer; the developer asks back; the manager's own model answers.

The manager's call of `task` stays open all the while. Its answer comes from a side turn: its model reads the
manager's transcript and the question, and nothing of that is added to the main conversation but a short note.
"""

import asyncio

from upcall import Agent, Context, Request, Runtime, tool
from upcall.models import Script, call
from upcall.models.script import Plain


@tool
async def write_page(name: str, ctx: Context) -> str:
    """Write a web page."""
    colour = await ctx.raise_callback(f"Which colour should the {name} page have?", "clarification")
    return f"{name} page written in {colour}"


def developer_script(request: Request) -> Plain:
    last = request.messages[-1]
    return last.results[0].text if last.results else call("write_page", name="login")


def manager_script(request: Request) -> Plain:
    if request.purpose == "side_turn":  # somebody below asks
        return call("answer_callback", value="dark green, as in the style guide")
    results = [result for message in request.messages for result in message.results]
    if not results:
        return call("task", agent="developer", prompt="Write the login page.")
    return f"Shipped: {results[-1].text}."


developer = Agent("developer", model=Script(developer_script), tools=[write_page], description="writes pages")
manager = Agent("manager", model=Script(manager_script), agents=[developer])  # `agents` gives it the tool `task`


async def main() -> None:
    async with Runtime(":memory:", agents=[manager]) as runtime:
        session = await runtime.start("manager")
        reply = await session.prompt("Ship the login page, dark green.")
        print(reply.text)
        (callback,) = reply.callbacks
        assert callback.answer is not None
        print(f"{callback.agent} asked: {callback.message}")
        print(f"{callback.answer.by} answered ({callback.answer.right}): {callback.answer.value}")
        for step in callback.path:
            print(f"  {step.step}: {step.agent} {step.reason}".rstrip())
        assert reply.text == "Shipped: login page written in dark green, as in the style guide."


if __name__ == "__main__":
    asyncio.run(main())
