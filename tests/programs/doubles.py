"""What the tests of programs share: an agent that runs one program after the other, and files outside the store."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from callbacks.doubles import Desk, results
from upcall import Agent, Context, Reply, Request, Result, tool
from upcall.models import Script, call
from upcall.tools import Tool
from upcall.workspace import run_python


def programmer(*programs: str, tools: list[Any] | None = None, python: Tool | None = None, **options: Any) -> Agent:
    """An agent whose model runs these programs, each in a call of its own, and says what the last one came to."""

    def decide(request: Request) -> Any:
        done = len(results(request.messages))
        return call("run_python", code=programs[done]) if done < len(programs) else "over"

    given = [python or run_python(), *(tools or [])]
    return Agent("developer", model=Script(decide), tools=given, **options)


async def told(desk: Desk, agent: Agent, id: str = "s") -> list[Result]:
    """What the model was told of each call."""
    return results(await desk.messages(agent, id))


async def outcome(*programs: str, tools: list[Any] | None = None, **options: Any) -> Result:
    """What the last of these programs comes to, run in one turn."""
    desk, agent = Desk(), programmer(*programs, tools=tools, **options)
    reply = await desk.prompt(agent)
    assert reply.status == "done", reply
    return (await told(desk, agent))[-1]


async def through(desk: Desk, agent: Agent, *answers: Any) -> Reply:
    """Run to the end, each question answered from another runtime; returns the last reply."""
    reply = await desk.prompt(agent)
    for answer in answers:
        assert reply.status == "waiting"
        await desk.settle(agent, answer)
        reply = await desk.resume(agent)
    return reply


class Files:
    """Tools over files that count how often they ran."""

    def __init__(self, folder: Path) -> None:
        self._counts = folder / "counts"

    def note(self, what: str) -> None:
        with self._counts.open("a") as file:
            file.write(f"{what}\n")

    @property
    def noted(self) -> list[str]:
        return self._counts.read_text().split("\n")[:-1] if self._counts.exists() else []

    @property
    def read_file(self) -> Tool:
        @tool(read_only=True)
        async def read_file(path: str) -> str:
            """Read a file.

            path: which one
            """
            self.note(f"read {path}")
            if path.startswith("no"):
                raise FileNotFoundError(path)
            return f"<{path}>"

        return read_file

    @property
    def delete_file(self) -> Tool:
        @tool(needs_approval=True)
        def delete_file(path: str) -> str:
            """Delete a file."""
            self.note(f"delete {path}")
            return "gone"

        return delete_file

    @property
    def asking(self) -> Tool:
        @tool
        async def asking(what: str, ctx: Context) -> str:
            """A tool that asks itself."""
            self.note(f"asking {what}")
            return f"{what}: {await ctx.raise_callback(f'which {what}?')}"

        return asking


def workers() -> list[int]:
    """The interpreters that this process has running."""
    mine: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                name, _, rest = (folder / "stat").read_text().partition(" (")[2].rpartition(") ")
                if (
                    name == "monty"
                    and rest.split()[:2] != ["Z", str(os.getpid())]
                    and rest.split()[1] == str(os.getpid())
                ):
                    mine.append(int(folder.name))
    return mine
