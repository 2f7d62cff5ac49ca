"""Agents that the tests serve. What they do follows from the prompt, in any process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from upcall import Agent, Context, ModelUnavailable, tool
from upcall.models import Script, call

print("printed while the module was imported")

FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Name", "minLength": 2},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "weight": {"type": "number", "default": 1.5},
        "tame": {"type": "boolean"},
        "kind": {"type": "string", "enum": ["cat", "dog"]},
        "size": {"oneOf": [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]},
        "likes": {"type": "array", "items": {"type": "string", "enum": ["fish", "sun"]}},
        "chip": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
    },
    "required": ["name", "age"],
}


def note(text: str) -> None:
    """Count an effect outside the log."""
    with Path("effects.txt").open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


@tool
async def ask_name(ctx: Context) -> str:
    """Ask for a name, then register it."""
    name = await ctx.raise_callback("What is its name?", "query", kind="request_user_input")
    await ctx.once("register", note, f"registered {name}")
    return f"registered {name}"


@tool
async def ask_kind(ctx: Context) -> str:
    """Ask for one of two kinds."""
    return str(
        await ctx.raise_callback(
            "Cat or dog?", "user_input", kind="request_user_input", choices=["cat", "dog"], context={"room": "hall"}
        )
    )


@tool
async def ask_form(ctx: Context) -> Any:
    """Ask for a form."""
    return await ctx.raise_callback("Describe the pet.", "user_input", kind="request_user_input", schema=FORM)


@tool
async def ask_caller(ctx: Context) -> str:
    """Ask whoever gave the task."""
    return str(await ctx.raise_callback("Which room?", "blocker"))


@tool(needs_approval=True)
def pay(amount: int, to: str) -> str:
    """Pay somebody."""
    note(f"paid {amount} to {to}")
    return f"paid {amount} to {to}"


@tool(needs_approval=True)
def switch(state: Any) -> str:
    """Switch something."""
    note(f"switched to {state!r}")
    return "switched"


@tool
async def sleep(seconds: float) -> str:
    """Sleep."""
    await asyncio.sleep(seconds)
    return f"slept {seconds}"


@tool
def shout() -> str:
    """Print in every way there is."""
    print("printed by a tool")
    os.write(1, b"written to descriptor 1\n")
    sys.__stdout__.write("written to the first stdout\n")  # type: ignore[union-attr]
    subprocess.run(["/bin/echo", "printed by a child process"], check=True)
    return f"read {sys.stdin.read()!r}"


def play(request: Any) -> Any:
    """Do what the last prompt says: its first word, and numbers after it."""
    last = request.messages[-1]
    if last.role == "tool":
        return "done: " + " / ".join(one.text for one in last.results)
    word, *more = last.text.split()
    match word:
        case "name" | "kind" | "form":
            return call(f"ask_{word}")
        case "blocker":
            return call("ask_caller")
        case "both":
            return [call("ask_name"), call("ask_kind")]
        case "pay":
            return call("pay", amount=int(more[0]), to=more[1])
        case "switch":
            return call("switch", state=1)
        case "secret":
            return call("pay", amount=1, to="password=hunter2hunter2")
        case "sleep":
            return call("sleep", seconds=float(more[0]))
        case "shout":
            return call("shout")
        case "fail":
            return ModelUnavailable("script", "the line is dead")
        case "count":
            return f"{len(request.messages)} messages"
        case _:
            return f"you said: {last.text}"


desk = Agent(
    "desk",
    instructions="Do what you are told.",
    model=Script(play),
    tools=[ask_name, ask_kind, ask_form, ask_caller, pay, switch, sleep, shout],
    description="Looks after pets.",
)


def manage(request: Any) -> Any:
    """Give each part of the prompt to a desk of its own, and pass up whatever the desks ask."""
    if request.purpose == "side_turn":
        return call("pass_up_callback", reason="not mine")
    if results := [one.text for message in request.messages for one in message.results]:
        return " + ".join(results)
    return [call("task", agent="desk", prompt=part.strip()) for part in request.messages[-1].text.split("/")]


manager = Agent("manager", instructions="Delegate.", model=Script(manage), agents=[desk])
