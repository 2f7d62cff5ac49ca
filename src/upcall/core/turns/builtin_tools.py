"""The tools `task` and `ask`, by which a model delegates and asks."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from upcall.agent import Agent
from upcall.contracts import Context
from upcall.core.turns.access import HookSession
from upcall.messages import Result
from upcall.tools import Tool, tool


def task_tool(agents: list[Agent]) -> Tool:
    """The tool `task`: hands a piece of work to an agent below and returns what it says."""
    names = tuple(a.name for a in agents)
    about = "; ".join(f"{a.name}: {a.description}" if a.description else a.name for a in agents)

    async def task(agent: str, prompt: str, ctx: Context) -> str | Result:
        access = cast("HookSession", ctx)
        reply = await access.child(agent, prompt, ctx.call_id)
        if reply.status == "done":
            return reply.text
        why = f"limit {reply.limit}" if reply.status == "limit" else reply.status
        return Result("", f"{agent} ended with {why}; it said: {reply.text or 'nothing'}", is_error=True)

    task.__doc__ = (
        f"Give a task to an agent that works for you, and wait for what it says. Agents: {about}.\n\n"
        "agent: who does it\nprompt: everything it needs to know; it sees nothing of this conversation"
    )
    task.__annotations__ = {"agent": Literal[names], "prompt": str, "ctx": Context, "return": str | Result}
    return tool(task, repeatable=True)


@tool(repeatable=True)
async def ask(
    message: str,
    ctx: Context,
    type: Annotated[str, "query, clarification, blocker or error; what kind of answer is needed"] = "query",
    choices: Annotated[list[str] | None, "the answers to choose from, if there are few"] = None,
) -> Any:
    """Ask whoever gave you this work, and wait for the answer. Use it when you are stuck, when what you were told
    can be read in two ways that matter, or before something that can't be undone; not for what you can find out
    with your tools. One clear question at a time, with what you tried.

    message: the question, with what the other one needs to know to answer it
    """
    asked = await ctx.raise_callback_full(message, type, choices=choices or ())
    if asked.answer is None:
        return None
    if asked.status == "declined":
        why = f": {asked.answer.reason}" if asked.answer.reason else "."
        return f"The question was declined by {asked.answer.by or 'somebody'}{why}"
    return asked.answer.value
