"""The agents of workers that are stopped until others have taken their runs over, and then attempt one thing more.

A worker stands still where the test aims at: nothing else of it runs until it was stopped and continued. What it
then attempts, and what came of it, is noted outside the store with the id of its process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from chaos.fleet import note, results
from upcall import Agent, Context, Request, tool
from upcall.models import Script, call


def stand(where: str) -> None:
    """Let nothing of this process run, if the test aims at this point, until the test lets it continue."""
    folder, me = Path(os.environ["UPCALL_TEST_EFFECTS"]).parent, os.getpid()
    try:
        (folder / f"aim.{where}").rename(folder / f"hit.{where}.{me}")
    except FileNotFoundError:
        return
    until = time.monotonic() + 120
    while not (folder / f"go.{where}").exists():
        assert time.monotonic() < until, "nobody let this process continue"
        time.sleep(0.001)


async def attempt(what: str, attempted: Awaitable[Any]) -> Any:
    """Do something, and note what came of it."""
    try:
        value = await attempted
    except BaseException as error:
        note(what, os.getpid(), type(error).__name__)
        raise
    note(what, os.getpid(), "done")
    return value


@tool(repeatable=True)
async def pay(ctx: Context) -> str:
    """Pay once."""
    stand("once")
    return str(await attempt("once", ctx.once("pay", lambda: note("effect", os.getpid(), "happened"))))


@tool(repeatable=True)
async def ask_person(ctx: Context) -> str:
    """Ask a person."""
    stand("question")
    return str(await attempt("question", ctx.raise_callback("May I?", kind="request_user_input")))


@tool(repeatable=True)
async def first(ctx: Context) -> str:
    """Ask, and stand still when the answer is there."""
    note("first", os.getpid(), "started")
    stand("again")
    return str(await ctx.raise_callback("And first?", kind="request_user_input"))


@tool(repeatable=True)
async def second(ctx: Context) -> str:
    """Ask, beside the other one."""
    note("second", os.getpid(), "started")
    return str(await ctx.raise_callback("And second?", kind="request_user_input"))


@tool(repeatable=True)
async def touch() -> str:
    """Touch something."""
    note("tool", os.getpid(), "started")
    return "touched"


@tool(repeatable=True)
async def ask_lead(ctx: Context) -> str:
    """Ask the agent above."""
    return str(await ctx.raise_callback("Which side?", "query", max_bubble_hops=1))


def calling(where: str, *names: str) -> Script:
    """A model that calls these tools at once, and stands still before it does."""

    def respond(request: Request) -> Any:
        if results(request):
            return "done"
        stand(where)
        return [call(name) for name in names]

    return Script(respond)


def direct(request: Request) -> Any:
    if request.purpose == "side_turn":
        stand("answer")
        return call("answer_callback", value=f"left, says {os.getpid()}")
    return "done" if results(request) else call("task", agent="hand", prompt="go")


once = Agent("once", model=calling("", "pay"), tools=[pay])
question = Agent("question", model=calling("", "ask_person"), tools=[ask_person])
again = Agent("again", model=calling("", "first", "second"), tools=[first, second])
started = Agent("tool", model=calling("tool", "touch"), tools=[touch])
hand = Agent("hand", model=calling("", "ask_lead"), tools=[ask_lead])
answer = Agent("answer", model=Script(direct), agents=[hand])
EVERY = [once, question, again, started, answer]
