"""The agents that workers run while they are killed: a lead, two hands below it, effects, questions and programs.

Every effect is one line in the file that UPCALL_TEST_EFFECTS names, written in one go.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from upcall import Agent, Context, Request, tool
from upcall.models import Script, call
from upcall.workspace import run_python


def note(*words: object) -> None:
    file = os.open(os.environ["UPCALL_TEST_EFFECTS"], os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    os.write(file, (" ".join(map(str, words)) + "\n").encode())
    os.close(file)


def die_here(where: str, key: str) -> None:
    """Stand still to be killed, if the test aims at this point: it left a file with its name.

    The first process that renames the file is the one; the new name tells the test which process and call it is.
    """
    folder = Path(os.environ["UPCALL_TEST_EFFECTS"]).parent
    try:
        (folder / f"aim.{where}").rename(folder / f"hit.{where}.{key}.{os.getpid()}")
    except FileNotFoundError:
        return
    time.sleep(60)
    raise RuntimeError("nobody killed this process")


def pay(key: str, session: str, call_id: str) -> None:
    note("charged", key, session, call_id)
    die_here("effect", key)


@tool
async def charge(key: str, ctx: Context) -> str:
    """Charge once.

    key: what for
    """
    await ctx.once("charge", pay, key, ctx.id, ctx.call_id)
    die_here("call", key)
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
    key = request.messages[0].text
    note("model", "member", key)
    await asyncio.sleep(THINKING)
    steps: list[Any] = [call("charge", key=key), call("ask_lead")]
    steps.append(call("ask_person", key=key) if key.endswith("a") else call("run_python", code=PROGRAM))
    done = results(request)
    return steps[len(done)] if len(done) < len(steps) else f"{key}: {len(done)} steps"


async def direct(request: Request) -> Any:
    name = request.messages[0].text
    note("model", "side_turn" if request.purpose == "side_turn" else "lead", name)
    await asyncio.sleep(THINKING)
    if request.purpose == "side_turn":
        return call("answer_callback", value="left")
    said = results(request)
    if not said:
        return [call("task", agent="hand", prompt=f"{name}-{part}") for part in "ab"]
    return " | ".join(said)


hand = Agent("hand", model=Script(work), tools=[charge, ask_lead, ask_person, double, run_python()])
lead = Agent("lead", model=Script(direct), agents=[hand])
