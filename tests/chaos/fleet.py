"""The agents that workers run while they are killed: a lead, two hands below it, effects, questions and programs.

Every effect is one line in the file that UPCALL_TEST_EFFECTS names, written in one go.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from upcall import Agent, Context, Request, tool
from upcall.models import Script, call
from upcall.workspace import run_python


def note(*words: object) -> None:
    file = os.open(os.environ["UPCALL_TEST_EFFECTS"], os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    os.write(file, (" ".join(map(str, words)) + "\n").encode())
    os.close(file)


@tool
async def charge(key: str, ctx: Context) -> str:
    """Charge once.

    key: what for
    """
    await ctx.once("charge", note, "charged", key)
    await asyncio.sleep(0.1)
    return f"charged {key}"


@tool(repeatable=True)
async def ask_lead(ctx: Context) -> str:
    """Ask the agent above."""
    return f"lead said {await ctx.raise_callback('Which side?', 'query', max_bubble_hops=1)}"


@tool(repeatable=True)
async def ask_person(key: str, ctx: Context) -> str:
    """Ask a person.

    key: what about
    """
    return f"person said {await ctx.raise_callback(f'May {key} go out?', 'blocker', kind='request_user_input')}"


@tool(read_only=True, repeatable=True)
async def double(number: int) -> int:
    """Double a number."""
    return number * 2


THINKING = 0.2
"""Seconds that a model call takes, so that processes die in the middle of one."""

PROGRAM = "a = double(number=20)\nb = double(number=1)\na + b"


def results(request: Request) -> list[str]:
    return [result.text for message in request.messages for result in message.results]


async def work(request: Request) -> Any:
    """One step after the other, each by a call."""
    note("model", request.messages[0].text)
    await asyncio.sleep(THINKING)
    key = request.messages[0].text
    steps: list[Any] = [call("charge", key=key), call("ask_lead")]
    steps.append(call("ask_person", key=key) if key.endswith("a") else call("run_python", code=PROGRAM))
    done = results(request)
    return steps[len(done)] if len(done) < len(steps) else f"{key}: {len(done)} steps"


async def direct(request: Request) -> Any:
    note("model", request.messages[0].text)
    await asyncio.sleep(THINKING)
    if request.purpose == "side_turn":
        return call("answer_callback", value="left")
    name = request.messages[0].text
    said = results(request)
    if not said:
        return [call("task", agent="hand", prompt=f"{name}-{part}") for part in "ab"]
    return " | ".join(said)


hand = Agent("hand", model=Script(work), tools=[charge, ask_lead, ask_person, double, run_python()])
lead = Agent("lead", model=Script(direct), agents=[hand])
