"""Runs the command in a process of its own, and makes folders of scripted agents for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import msgspec

from cli.forked import run

COMMAND = [sys.executable, "-W", "error", "-m", "upcall"]

SCRIPT = """\
from upcall import ModelUnavailable
from upcall.models import Script, call


def play(request):
    last = request.messages[-1]
    if last.role == "tool":
        return "The tools said: " + " / ".join(result.text for result in last.results)
    match last.text.split()[0]:
        case "add":
            return ["I'll add.", call("add", a=1, b=2), call("add", a=3, b=4)]
        case "wait":
            return call("wait", seconds=float(last.text.split()[1]))
        case "block":
            return call("block", seconds=float(last.text.split()[1]))
        case "escape":
            return "red \\x1b[31malarm\\x1b[0m \\x1b]0;title\\x07 and \\u202eesrever\\u202c done"
        case "fail":
            return ModelUnavailable("script", "the line is dead")
        case "crash":
            return RuntimeError("a bug in the model")
        case "forever":
            return call("add", a=len(request.messages), b=1)
        case "markdown":
            return "# Title\\n\\nSome **bold** words of List<String>.\\n\\n<div>whole</div>\\n\\n- one\\n- two\\n"
        case _:
            return f"You said: {last.text}"


script = Script(play)
"""

TOOLS = '''\
import asyncio
import time

from upcall import tool


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def wait(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "waited"


@tool
def block(seconds: float) -> str:
    """Keep a thread busy."""
    time.sleep(seconds)
    return "blocked"
'''

AGENT = """\
---
description: Does sums
model: script:play.py
tools: [sums:add, sums:wait, sums:block]
---
You do sums.
"""


def make_agents(folder: Path) -> Path:
    """A folder with one scripted agent called helper."""
    agents = folder / "agents"
    agents.mkdir()
    (agents / "play.py").write_text(SCRIPT)
    (agents / "sums.py").write_text(TOOLS)
    (agents / "helper.md").write_text(AGENT)
    (agents / "helper.json").write_text('{"can_query_caller": true, "can_use_host_interaction": true}')
    return agents


def environment(**changes: str) -> dict[str, str]:
    """This process's environment without what would change the command's ways."""
    left_out = ("UPCALL_", "FORCE_COLOR", "NO_COLOR", "COLUMNS", "LINES", "PYTHONWARNINGS")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(left_out) and not k.endswith("_API_KEY")}
    kept["PATH"] = f"{Path(sys.executable).parent}:{kept['PATH']}"  # as in an environment that is activated
    return {**kept, "TERM": "xterm-256color", "PYTHONUNBUFFERED": "1", "PROMPT_TOOLKIT_NO_CPR": "1", **changes}


def upcall(*args: str, cwd: Path, given: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end; there is never a stack trace that nobody asked for."""
    done = run(*args, cwd=cwd, env=environment(**env), given=given)
    if "--trace" not in args:
        assert "Traceback" not in done.stderr + done.stdout, done.stderr
    return done


def start(*args: str, cwd: Path, stdin: IO[str] | None = None, **env: str) -> subprocess.Popen[str]:
    """Begin the command and leave it running."""
    return subprocess.Popen(
        [*COMMAND, *args],
        cwd=cwd,
        env=environment(**env),
        stdin=stdin or subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def out(*args: str, cwd: Path) -> Any:
    """What a command that has to succeed prints as JSON."""
    done = upcall(*args, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout)


def eventually(true: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    """Wait until something is true."""
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, f"not in {seconds:g} s: {what}"
        time.sleep(0.05)


def started(cwd: Path, session: str) -> bool:
    """Whether a session's tool call is on disk."""
    done = upcall("events", session, "--json", cwd=cwd)
    return "tool_started" in done.stdout
