"""A program whose agents ask: a manager above developers, each tool another kind of question."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cli.command import out, upcall

PROGRAM = '''\
import asyncio
from pathlib import Path

from upcall import Agent, Context, tool
from upcall.models import Script, call

TABLE = {
    "type": "object",
    "properties": {
        "guests": {"type": "integer", "minimum": 1, "description": "how many come"},
        "window": {"type": "boolean", "default": True},
        "area": {"enum": ["inside", "terrace"]},
        "note": {"type": "string"},
    },
    "required": ["guests", "area"],
}


@tool
async def paint(ctx: Context) -> str:
    """Paint."""
    colour = await ctx.raise_callback(
        "Which colour?", "blocker", choices=["red", "dark blue"], priority="high", context={"tried": "green"}
    )
    return f"painted {colour}"


@tool
async def name(ctx: Context) -> str:
    """Name."""
    return "called " + str(await ctx.raise_callback("What is it called?", "query"))


@tool
async def book(ctx: Context) -> str:
    """Book."""
    return "booked " + str(await ctx.raise_callback("Which table?", "user_input", schema=TABLE))


@tool(needs_approval=True, approve_patterns={"same place": lambda env: env})
async def deploy(env: str, force: bool = False) -> str:
    """Deploy."""
    with Path("deployed.txt").open("a") as file:
        file.write(f"{env} {force}\\n")
    return f"deployed {env}"


@tool
async def slow(seconds: float) -> str:
    """Take long."""
    await asyncio.sleep(seconds)
    return "slow"


CALLS = {
    "paint": [call("paint")],
    "name": [call("name")],
    "book": [call("book")],
    "deploy": [call("deploy", env="prod")],
    "many": [call("name"), call("paint"), call("deploy", env="prod")],
    "slowly": [call("slow", seconds=1.0), call("paint")],
}


def developer_says(request):
    last = request.messages[-1]
    if last.role == "tool":
        return "; ".join(result.text for result in last.results)
    return CALLS[last.text.split()[0]]


def manager_says(request):
    if request.purpose == "side_turn":
        return call("pass_up_callback", reason="not mine to say")
    results = [result.text for message in request.messages for result in message.results]
    if results:
        return " | ".join(results)
    text = request.messages[-1].text
    count, what = (3, text.split()[1]) if text.startswith("three") else (1, text)
    return [call("task", agent="developer", prompt=what) for _ in range(count)]


developer = Agent("developer", model=Script(developer_says), tools=[paint, name, book, deploy, slow])
manager = Agent("manager", model=Script(manager_says), agents=[developer])
'''


def make_team(folder: Path) -> Path:
    """The folder with the program in it, as team.py."""
    (folder / "team.py").write_text(PROGRAM)
    return folder


def parked(folder: Path, prompt: str, session: str = "s1") -> list[dict[str, Any]]:
    """Run until it waits; returns the inbox."""
    done = upcall("run", "team:manager", prompt, "--id", session, cwd=folder)
    assert done.returncode == 3, done.stderr
    return out("inbox", cwd=folder)
