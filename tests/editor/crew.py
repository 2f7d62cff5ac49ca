"""Agents for an editor: a clerk with tools that ask, and a lead with three workers."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from upcall import Agent, Context, Request, tool
from upcall.models import Script, call
from upcall.models.script import Plain
from upcall.workspace import Folder, file_tools, todo_tools

FIELDS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Your name", "minLength": 2},
        "mail": {"type": "string", "format": "email"},
        "amount": {"type": "number", "minimum": 0, "maximum": 100},
        "count": {"type": "integer", "minimum": 1, "default": 3},
        "urgent": {"type": "boolean", "description": "Is it urgent?"},
        "tone": {"type": "string", "enum": ["formal", "casual"]},
        "size": {"oneOf": [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]},
        "level": {"enum": [1, 2, 3]},
        "tags": {"type": "array", "items": {"type": "string", "enum": ["red", "green", "blue"]}},
        "extra": {"type": "object", "properties": {"deep": {"type": "integer"}}},
    },
    "required": ["name", "amount"],
}


def note(text: str) -> None:
    """Write down an effect, so that tests can count it."""
    with Path("effects.txt").open("a") as file:
        file.write(f"{text}\n")


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def spam() -> str:
    """Print more than a pipe holds."""
    print("y" * 1_000_000, flush=True)
    return "printed"


@tool
async def shout(text: str) -> str:
    """Print, as a careless tool does."""
    print(f"PRINTED {text}", flush=True)
    process = await asyncio.create_subprocess_exec("sh", "-c", f"echo FROM-CHILD {text}; cat")
    await process.wait()
    return "printed"


def place(where: str) -> str:
    """What a pattern of approvals covers."""
    return where


@tool(needs_approval=True, approve_patterns={"this place": place})
async def deploy(where: str, times: int = 1) -> str:
    """Deploy."""
    note(f"deployed {where} {times}")
    return f"deployed to {where} {times} times"


@tool(needs_approval=True)
async def write_note(path: str, content: str, then: str = "") -> str:
    """Write a note."""
    Path(path).write_text(content)
    return "written"


@tool
async def survey(ctx: Context) -> Any:
    """Ask with every kind of field."""
    return await ctx.raise_callback("Please fill this in", "user_input", kind="request_user_input", schema=FIELDS)


@tool
async def choose(ctx: Context) -> Any:
    """Ask with choices."""
    return await ctx.raise_callback("Which tone?", "user_input", choices=["formal", "casual"])


@tool
async def question(text: str, ctx: Context) -> str:
    """Ask in words, and note the answer once."""
    answer = await ctx.raise_callback(text, "blocker")
    await ctx.once("note", note, f"{text} {answer}")
    return f"{text} -> {answer}"


@tool
async def wait(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "waited"


@tool
def deaf(seconds: float) -> str:
    """Wait in a thread, which nothing can stop."""
    time.sleep(seconds)
    return "waited"


@tool
async def talk(ctx: Context) -> str:
    """Show output while it runs."""
    for number in range(5):
        ctx.show(f"line {number}\n")
        await asyncio.sleep(0.15)
    return "talked"


def results(request: Request) -> list[str]:
    return [result.text for message in request.messages for result in message.results]


def play(request: Request) -> Plain:  # noqa: C901
    last = request.messages[-1]
    if last.role == "tool":
        return "The tools said: " + " / ".join(result.text for result in last.results)
    word, _, rest = last.text.partition(" ")
    match word:
        case "add":
            return ["I'll add.", call("add", a=1, b=2), call("add", a=3, b=4)]
        case "spam":
            return call("spam")
        case "shout":
            return call("shout", text=rest)
        case "deploy":
            return call("deploy", where=rest)
        case "note":
            return call("write_note", path="note.txt", content=rest)
        case "noterun":
            return call("write_note", path="note.txt", content="hello", then=rest * 30_000)
        case "deploys":
            return [call("deploy", where=rest * 10_000, times=times) for times in (1, 2, 3)]
        case "survey":
            return call("survey")
        case "choose":
            return call("choose")
        case "question":
            return call("question", text=rest)
        case "questions":
            return [call("question", text=one) for one in rest.split()]
        case "wait":
            return call("wait", seconds=float(rest.split()[0]))
        case "deaf":
            return call("deaf", seconds=float(rest.split()[0]))
        case "talk":
            return call("talk")
        case "todo":
            todos = [{"content": "one", "status": "completed"}, {"content": "two", "status": "in_progress"}]
            return call("write_todos", todos=todos)
        case "read":
            return call("read_file", path=rest)
        case "edit":
            path, old, new = rest.split()
            return call("edit_file", path=path, old_string=old, new_string=new)
        case "readedit":
            path, old, new = rest.split()
            if not results(request):
                return call("read_file", path=path)
            return call("edit_file", path=path, old_string=old, new_string=new)
        case "parallel":
            return [call("task", agent=f"worker{n}", prompt=f"{rest} {n}") for n in (1, 2, 3)]
        case "mcp":
            name, _, args = rest.partition(" ")
            return call(name, **json.loads(args or "{}"))
        case "secret":
            return "The key is api_key=sk-live-1234567890abcdef"
        case _:
            return f"You said: {last.text}"


TOOLS = [add, spam, shout, deploy, write_note, survey, choose, question, wait, deaf, talk]
workers = [Agent(f"worker{n}", model=Script(play), tools=[add, wait, deaf, question, deploy]) for n in (1, 2, 3)]
clerk = Agent(
    "clerk",
    model=Script(play),
    tools=TOOLS,
    agents=workers,
    kit=[file_tools(), todo_tools()],
    workspace=Folder("."),
    models={"fast": Script(play)},
)
