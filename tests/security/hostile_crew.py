"""A program in which every text that a model, a tool, a child or an asker can write is hostile."""

from __future__ import annotations

from pathlib import Path

from security.texts import ALL

PROGRAM = f"""\
import json
import logging
import sys
import warnings

from upcall import Agent, Context, ModelUnavailable, tool
from upcall.models import Script, call

BAD = {ALL!r}.replace("\\\\ud800", chr(0xD800))
SAFE = BAD.encode("utf-8", "replace").decode()  # where JSON could not carry the other one
FORM = {{
    "type": "object",
    "properties": {{
        "size" + SAFE: {{"enum": ["small" + SAFE, "large"], "description": "how large " + SAFE}},
        "count": {{"type": "integer", "default": 3, "title": SAFE, "description": SAFE * 3, "minimum": 1}},
    }},
    "required": ["size" + SAFE],
}}
LINE = "x" * 900_000


@tool
async def read(path: str, ctx: Context) -> str:
    "Read."
    ctx.show(BAD + "\\n" + BAD)
    print("printed", BAD)
    sys.stderr.write("complained " + BAD + "\\n")
    for stream in (sys.stdout, sys.stderr):
        stream.buffer.write(b"bytes \\xff " + BAD.encode("utf-8", "surrogatepass") + b" were written\\n")
        stream.buffer.flush()
    logging.getLogger("somebody").warning("logged %s", SAFE)
    return "result " + BAD


@tool
async def fails(path: str) -> str:
    "Fail."
    raise ValueError("failed " + BAD)


@tool
async def ask_text(ctx: Context) -> str:
    "Ask."
    context = {{"key " + SAFE: "value " + SAFE, "n": [SAFE]}}
    return str(await ctx.raise_callback(
        "question " + SAFE, "blocker", choices=["yes " + SAFE, "no"], context=context
    ))


@tool
async def ask_form(ctx: Context) -> str:
    "Ask."
    return str(await ctx.raise_callback("form " + SAFE, "user_input", schema=FORM))


@tool
async def ask_long(ctx: Context) -> str:
    "Ask."
    return str(await ctx.raise_callback("long " + LINE, "query"))


@tool(needs_approval=True, approve_patterns={{"same " + SAFE: lambda command: command}}, name="deploy")
async def deploy(command: str, more: dict[str, str] | None = None) -> str:
    "Deploy."
    return "deployed " + command


def says(request):
    last = request.messages[-1]
    if last.role == "tool":
        return "reply " + SAFE
    match last.text.split():
        case ["tools", *_]:
            unknown = call("unknown" + SAFE, **{{"k" + SAFE: SAFE}})
            return ["text " + SAFE, call("read", path=SAFE), call("fails", path=SAFE), unknown]
        case ["long", *_]:
            return LINE
        case ["server", *_]:
            return ModelUnavailable("server " + SAFE, "answered " + SAFE)
        case ["crash", *_]:
            return RuntimeError("crashed " + SAFE)
        case ["deploy", *_]:
            return call("deploy", command="git " + SAFE, more={{"m" + SAFE: SAFE}})
        case ["child", *_]:
            return call("task", agent="inner", prompt="tools " + SAFE)
        case [name, *_]:
            return call(name)


TOOLS = [read, fails, ask_text, ask_form, ask_long, deploy]
inner = Agent("inner", description="inner " + SAFE, model=Script(says), tools=TOOLS)
crew = Agent("crew", description="crew " + SAFE, model=Script(says), tools=TOOLS, agents=[inner])
"""


def make_crew(folder: Path) -> Path:
    """The folder with the program in it, as crew.py."""
    (folder / "crew.py").write_text(PROGRAM, encoding="utf-8")
    return folder
