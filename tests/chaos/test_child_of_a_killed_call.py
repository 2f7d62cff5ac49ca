"""A process dies while a tool waits for a child that it started, or while it acts on what the child replied."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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


@tool
async def act(ctx: Context) -> str:
    """Do what the child says; the process that was started for it dies in the middle."""
    said = (await ctx.start_child(CHILD, "go")).text
    with Path(os.environ["EFFECTS"]).open("a") as effects:
        effects.write(f"{said}\n")
    if __name__ == "__main__":
        os.kill(os.getpid(), signal.SIGKILL)
    return said


ACTOR = Agent("actor", model=_once("act"), tools=[act], agents=[CHILD])


class Killer:
    """A person whose screen takes the whole process down."""

    async def ask(self, callback: Callback) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def withdraw(self, callback_id: str, reason: str) -> None:
        """Never reached."""


async def die_asking(path: str) -> None:
    async with Runtime(path, agents=[PARENT], host=Killer()) as runtime:
        await (await runtime.start(PARENT, id="s")).prompt("go")


async def die_acting(path: str) -> None:
    async with Runtime(path, agents=[ACTOR]) as runtime:
        await runtime.resume("s")


def killed(path: Path, how: str) -> bool:
    """Run a part of this file in a process of its own; tells whether it was killed."""
    command = [sys.executable, "-m", "chaos.test_child_of_a_killed_call", str(path), how]
    return subprocess.run(command, cwd=Path(__file__).parents[1], check=False).returncode == -signal.SIGKILL


async def test_a_question_below_an_interrupted_call_is_withdrawn_and_takes_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    assert killed(path, "asking")

    async with Runtime(path, agents=[PARENT]) as runtime:
        [before] = await runtime.inbox()
        reply = await runtime.resume("s")
        after = await runtime.inbox()
        withdrawn = await runtime.inbox(status="withdrawn")

    assert reply.status == "done"
    assert reply.text.startswith("interrupted, outcome unknown")
    assert after == []
    assert [one.id for one in withdrawn] == [before.id]


async def test_what_a_call_did_with_its_childs_reply_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, effects = tmp_path / "log.db", tmp_path / "effects"
    monkeypatch.setenv("EFFECTS", str(effects))
    async with Runtime(path, agents=[ACTOR]) as runtime:
        assert (await (await runtime.start(ACTOR, id="s")).prompt("go")).status == "waiting"
        [asked] = await runtime.inbox()
        await runtime.answer(asked.id, "the red one")
    assert killed(path, "acting")
    assert effects.read_text() == "the red one\n"

    async with Runtime(path, agents=[ACTOR]) as runtime:
        reply = await runtime.resume("s")

    assert effects.read_text() == "the red one\n"
    assert reply.text.startswith("interrupted, outcome unknown")


if __name__ == "__main__":
    asyncio.run({"asking": die_asking, "acting": die_acting}[sys.argv[2]](sys.argv[1]))
