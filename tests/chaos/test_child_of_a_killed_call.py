"""A process dies while a tool waits for a child that it started, and the child's question is before a person."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from upcall import Agent, Callback, Context, Request, Runtime, tool
from upcall.models import Script, call


@tool
async def inquire(ctx: Context) -> str:
    """Ask a person."""
    return await ctx.raise_callback("Which?", "blocker", kind="request_user_input")


def _once(name: str) -> Script:
    def play(request: Request) -> Any:
        results = request.messages[-1].results
        return results[0].text if results else call(name)

    return Script(play)


CHILD = Agent("child", model=_once("inquire"), tools=[inquire])


@tool
async def work(ctx: Context) -> str:
    """Work with a child."""
    return (await ctx.start_child(CHILD, "go")).text


PARENT = Agent("parent", model=_once("work"), tools=[work], agents=[CHILD])


class Killer:
    """A person whose screen takes the whole process down."""

    async def ask(self, callback: Callback) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def withdraw(self, callback_id: str, reason: str) -> None:
        """Never reached."""


async def die(path: str) -> None:
    async with Runtime(path, agents=[PARENT], host=Killer()) as runtime:
        await (await runtime.start(PARENT, id="s")).prompt("go")


async def test_a_question_below_an_interrupted_call_is_withdrawn_and_takes_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    command = [sys.executable, "-m", "chaos.test_child_of_a_killed_call", str(path)]
    program = subprocess.run(command, cwd=Path(__file__).parents[1], check=False)
    assert program.returncode == -signal.SIGKILL

    async with Runtime(path, agents=[PARENT]) as runtime:
        [before] = await runtime.inbox()
        reply = await runtime.resume("s")
        after = await runtime.inbox()
        withdrawn = await runtime.inbox(status="withdrawn")

    assert reply.status == "done"
    assert reply.text.startswith("interrupted, outcome unknown")
    assert after == []
    assert [one.id for one in withdrawn] == [before.id]


if __name__ == "__main__":
    asyncio.run(die(sys.argv[1]))
