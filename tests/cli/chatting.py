"""An agent to chat with: it writes todos, calls tools that wait for a file, delegates and asks."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from cli.screen import CTRL_D, Screen

PROGRAM = '''\
import asyncio
from pathlib import Path

from upcall import Agent, Context, ModelUnavailable, tool
from upcall.models import Script, call
from upcall.workspace import Folder, InLog, file_tools

LONG = "\\n".join(f"line {number} of the file" for number in range(1, 31))


@tool
async def hold(name: str) -> str:
    """Wait for a file of that name."""
    while not Path(name).exists():
        await asyncio.sleep(0.02)
    return "held"


@tool
def shout(word: str) -> str:
    """Print it."""
    print(f"printed: {word}")
    return "shouted"


@tool
async def read(path: str, note: str = "") -> str:
    """Read a file."""
    return LONG


@tool
async def ask_name(ctx: Context) -> str:
    """Ask, once there is a file called ask."""
    while not Path("ask").exists():
        await asyncio.sleep(0.02)
    return "called " + str(await ctx.raise_callback("What is it called?", "query"))


@tool
async def plan(done: int, ctx: Context) -> str:
    """Write todos."""
    names = ["read the code", "change it", "run the tests"]
    states = ["completed"] * done + ["in_progress"] + ["pending"] * 3
    ctx.set_context("todos", [{"content": n, "status": s} for n, s in zip(names, states)])
    ctx.set_context("pinned.todos", "what is still to do")
    return "written"


@tool(needs_approval=True)
async def deploy(env: str) -> str:
    """Deploy."""
    return f"deployed {env}"


async def summary():
    while Path("slow-summary").exists():
        await asyncio.sleep(0.02)
    return ModelUnavailable("script", "no summary today") if Path("no-summary").exists() else "They talked."


def says(request):
    if request.purpose == "summary":
        return summary()
    last = request.messages[-1]
    if last.role == "tool":
        return "The tools said: " + " / ".join(result.text.splitlines()[0] for result in last.results)
    match last.text.split():
        case ["hold", name]:
            return call("hold", name=name)
        case ["read"]:
            return [call("read", path="a.py"), call("read", path="b.py", note="first\\nsecond")]
        case ["shout"]:
            return call("shout", word="hey")
        case ["name"]:
            return call("ask_name")
        case ["plan", done]:
            return call("plan", done=int(done))
        case ["write"]:
            return call("write_file", path="texts/draft.md", content="a draft")
        case ["deploy"]:
            return call("deploy", env="prod")
        case ["team"]:
            return [call("task", agent="reader", prompt="read"), call("task", agent="reader", prompt="hold gate")]
        case ["markdown"]:
            return "# Title\\n\\nSome **bold** words.\\n\\n- one\\n- two\\n"
        case _:
            return f"You said: {last.text}"


TOOLS = [hold, shout, read, ask_name, plan, deploy]
reader = Agent("reader", description="reads", model=Script(says), tools=[hold, read])
helper = Agent("helper", model=Script(says), tools=TOOLS, agents=[reader])
other = Agent("other", model=Script(says))
builder = Agent("builder", model=Script(says), workspace=Folder("site"))
keeper = Agent("keeper", model=Script(says), workspace=InLog(), kit=[file_tools()])
'''


def make_helper(folder: Path) -> Path:
    """The folder with the program in it, as crew.py."""
    (folder / "crew.py").write_text(PROGRAM)
    return folder


@contextmanager
def chat(folder: Path) -> Generator[Screen]:
    """A chat with the helper in session s1, from its first line until Ctrl-D, with which it ends well."""
    with Screen("chat", "crew:helper", "--id", "s1", cwd=folder) as screen:
        screen.see("›")
        yield screen
        screen.press(CTRL_D)
        assert screen.end() == 0
