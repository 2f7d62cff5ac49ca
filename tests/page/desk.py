"""Agents that want approvals, ask, fail, take their time, and write what attackers write."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from upcall import Agent, Context, Request, Team, tool
from upcall.messages import Response
from upcall.models import Script, call

SECRET = "sk-abcdefghijklmnopqrstuvwxyz0123456789abcdefghijk"
HOSTILE = (
    "<img src=x onerror=\"document.title='broken'\">\u202egnp.exe \x1b[31mred\x1b[0m <script>alert(1)</script>"
)
LONG = "\n".join(f"{number:3}  move the order {1000 + number} to the new table" for number in range(214))
FORM: dict[str, Any] = {
    "type": "object",
    "required": ["name", "count", "size"],
    "properties": {
        "name": {"type": "string", "title": "Name", "description": "As it stands on the bill."},
        "count": {"type": "integer", "title": "How many"},
        "weight": {"type": "number", "title": "Weight"},
        "gift": {"type": "boolean", "title": "It is a gift"},
        "size": {"enum": ["small", "large"], "title": "Size"},
        "extras": {"type": "array", "items": {"enum": ["box", "card", "ribbon"]}, "title": "Extras"},
        "address": {"type": "object", "title": "Address"},
        "note": {"type": "string", "title": "Note", "default": "ring twice"},
    },
}


@tool(needs_approval=True)
async def deploy(target: str, count: int, api_key: str) -> str:
    """Deploy the service."""
    whole = "the whole key" if api_key == SECRET else "another key"
    return f"deployed {count} to {target} with {whole}"


def folder_of(path: str) -> str:
    return path.rpartition("/")[0]


@tool(needs_approval=True, approve_patterns={"folder": folder_of})
async def write_file(path: str, text: str) -> str:
    """Write a file."""
    with Path("written.txt").open("a") as file:
        file.write(f"{path} {len(text)}\n")
    return f"{path} is written"


@tool
async def ask_person(what: str, ctx: Context) -> str:
    """Ask a person in one of several ways."""
    options: dict[str, dict[str, Any]] = {
        "colour": {"choices": ["green", "blue"]},
        "form": {"schema": FORM},
        "soon": {"timeout": 2.0, "choices": ["yes", "no"]},
        "urgent": {"priority": "critical", "choices": ["yes", "no"]},
        "later": {"timeout": 420.0, "choices": ["yes", "no"]},
        "name": {},
    }
    said = await ctx.raise_callback(f"What about {what}?", "clarification", **options[what])
    return f"answered {json.dumps(said)}"


@tool
async def import_orders(file: str) -> str:
    """Import the old orders."""
    raise ValueError(f"line 7 of {file} has no number")


@tool
async def wait_for_file(name: str) -> str:
    """Wait until a file exists."""
    async with asyncio.timeout(60):
        while not Path(name).exists():
            await asyncio.sleep(0.02)
    return f"{name} is there"


def results(request: Request) -> list[str]:
    return [result.text for message in request.messages for result in message.results]


def after(first: Callable[[Request], Any]) -> Script:
    """A model that makes calls first, and then repeats the last result."""
    return Script(lambda request: results(request)[-1] if results(request) else first(request))


def importer_says(request: Request) -> Any:
    return HOSTILE if results(request) else call("import_orders", file=HOSTILE)


def talker_says(request: Request) -> Any:
    """Say again what was said last; wait for a file, ask a person or fail where it is told to."""
    last = request.messages[-1]
    word, _, rest = last.text.partition(" ")
    if word == "wait" and last.role == "user":
        return call("wait_for_file", name=rest)
    if word == "ask" and last.role == "user":
        return call("ask_person", what=rest)
    if word == "fail" and not Path("mended").exists():
        raise RuntimeError("the line is dead")
    said = [message.text for message in request.messages if message.role == "user"]
    return f"I heard: {said[-1]}"


class Slow:
    """A model that says its reply word by word, each as soon as a file of that name exists."""

    name = "slow"

    async def respond(self, request: Request, emit: Callable[[Any, str], None] | None = None) -> Response:
        for word in ("one", "two"):
            async with asyncio.timeout(60):
                while not Path(word).exists():
                    await asyncio.sleep(0.02)
            if emit is not None:
                emit("text", f"{word} ")
        async with asyncio.timeout(60):
            while not Path("three").exists():
                await asyncio.sleep(0.02)
        return Response("one two three")


def packer_says(request: Request) -> Any:
    if results(request):
        return results(request)[-1]
    number = int(request.messages[0].text.split()[-1])
    if number == 3:
        return call("import_orders", file=f"orders-{number}.csv")
    return call("ask_person", what="colour") if number == 5 else f"Box {number} is packed."


def planner_says(request: Request) -> Any:
    if request.purpose == "side_turn":
        return call("pass_up_callback", reason="the customer chose the box")
    return json.dumps(
        [{"role": "packer", "task": f"Pack box {n}", "sequence": 1, "caller": "planner"} for n in range(1, 9)]
    )


def tester_says(request: Request) -> Any:
    """Test two asks at once; test one asks when a file `begin` exists."""
    done = results(request)
    if request.messages[0].text.endswith("two"):
        return done[-1] if done else call("ask_person", what="colour")
    steps = [call("wait_for_file", name="begin"), call("ask_person", what="name")]
    return steps[len(done)] if len(done) < len(steps) else done[-1]


class Lead:
    """A lead with two testers. It passes on what is a matter of taste, and thinks until a file `decided` exists."""

    name = "lead"

    async def respond(self, request: Request, emit: Callable[[Any, str], None] | None = None) -> Response:
        if request.purpose != "side_turn":
            tasks = [
                {"role": "tester", "task": f"Test {n}", "sequence": 1, "caller": "lead"} for n in ("one", "two")
            ]
            return Response(json.dumps(tasks))
        if "colour" in request.messages[-1].text:
            return Response("", [call("pass_up_callback", reason="a matter of taste")])
        async with asyncio.timeout(60):
            while not Path("decided").exists():
                await asyncio.sleep(0.02)
        return Response("", [call("answer_callback", value="Ada")])


def writer_says(request: Request) -> Any:
    paths = ("notes/a.txt", "notes/b.txt")
    done = results(request)
    if request.messages[0].text == "long":
        return done[-1] if done else call("write_file", path="plan.txt", text=LONG)
    return call("write_file", path=paths[len(done)], text="short") if len(done) < 2 else "Both are written."


deployer = Agent(
    "deployer",
    model=after(lambda request: call("deploy", target="staging", count=2, api_key=SECRET)),
    tools=[deploy],
)
importer = Agent("importer", model=Script(importer_says), tools=[import_orders])
clerk = Agent(
    "clerk", model=after(lambda request: call("ask_person", what=request.messages[0].text)), tools=[ask_person]
)
writer = Agent("writer", description="writes files", model=Script(writer_says), tools=[write_file])
talker = Agent(
    "talker", description="says again what it hears", model=Script(talker_says), tools=[ask_person, wait_for_file]
)
speaker = Agent("speaker", model=Slow())
packer = Agent("packer", model=Script(packer_says), tools=[ask_person, import_orders])
planner = Agent("planner", model=Script(planner_says))
checker = Agent("checker", model=Script(lambda request: "Seven of eight boxes are packed."))
crew = Team(planner, {"packer": packer}, checker)
pair = Team(
    Agent("lead", model=Lead()),
    {"tester": Agent("tester", model=Script(tester_says), tools=[ask_person, wait_for_file])},
    Agent("judge", model=Script(lambda request: "Both are tested.")),
)
