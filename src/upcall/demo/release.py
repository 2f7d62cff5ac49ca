"""A release helper: three tools, two hooks, and a script in place of a model.

May import: agent, contracts, hooks, messages, models.script, tools.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from upcall.agent import Agent
from upcall.contracts import Emit, SessionAccess
from upcall.hooks import Hooks
from upcall.messages import Call, Request, Response, Result
from upcall.models.script import Plain, Script, call
from upcall.tools import Tool, tool

FILES = {
    "CHANGELOG.md": "# 1.4.0\n\n- Sign in with a passkey\n- Exports are twice as fast\n- Fixed: dates in winter\n",
    "settings.ini": "[release]\nchannel = stable\nupload_token = tok_live_51Hx8Qq2\n",
    "version.txt": "1.4.0\n",
}
PROMPT = "Is version 1.4.0 ready to go out? If it is, write the announcement."
SECRET = re.compile(r"tok_\w+")


# --- the tools ----------------------------------------------------------------------------


def tools(folder: Path, pace: float) -> list[Tool]:
    """What the agent can do, all of it inside one folder."""

    @tool(read_only=True)
    async def read_file(path: str) -> str:
        """Read a file.

        path: where it is, relative to the folder
        """
        return (folder / path).read_text()

    @tool(read_only=True)
    async def run_check(name: str) -> str:
        """Run one check: tests, links or version."""
        await asyncio.sleep(pace * {"tests": 30, "links": 20, "version": 10}.get(name, 0))
        if name == "version":
            version = (folder / "version.txt").read_text().strip()
            heading = (folder / "CHANGELOG.md").read_text().partition("\n")[0]
            return f"version.txt says {version}, CHANGELOG.md begins with {heading!r}"
        return {"tests": "212 passed", "links": "48 links, all alive"}[name]

    @tool
    async def write_file(path: str, text: str) -> str:
        """Write a file.

        path: where to, relative to the folder
        """
        target = folder / path
        target.parent.mkdir(exist_ok=True)
        target.write_text(text)
        return f"wrote {len(text)} characters to {path}"

    return [read_file, run_check, write_file]


# --- the hooks ----------------------------------------------------------------------------


def hide_secrets(session: SessionAccess, call: Call, result: Result) -> str | None:
    """An after_tool hook: the model never reads a token, whichever tool found it."""
    hidden = SECRET.sub("[hidden]", result.text)
    return hidden if hidden != result.text else None


def only_drafts(session: SessionAccess, call: Call) -> Call | None:
    """A before_tool hook: whatever the model says, it writes into drafts/."""
    if call.name != "write_file" or call.args["path"].startswith("drafts/"):
        return None
    return call.replace(args={**call.args, "path": f"drafts/{call.args['path']}"})


# --- the script ---------------------------------------------------------------------------

ANNOUNCEMENT = "# 1.4.0 is out\n\nSign in with a passkey, and get your exports in half the time.\n"


def play(request: Request) -> Plain:
    """What a model might say, decided from what has happened so far."""
    done = sum(len(message.results) for message in request.messages)
    if done == 0:
        return [
            "I'll look at the change log and the settings first.",
            call("read_file", path="CHANGELOG.md"),
            call("read_file", path="settings.ini"),
        ]
    if done == 2:
        return [
            "Three changes, going to the *stable* channel. Now the checks, all at once.",
            call("run_check", name="tests"),
            call("run_check", name="links"),
            call("run_check", name="version"),
        ]
    if done == 5:
        return ["All green, so here is the announcement.", call("write_file", path="NEWS.md", text=ANNOUNCEMENT)]
    return (
        "**Version 1.4.0 is ready.**\n\n"
        "- all 212 tests pass, all 48 links are alive\n"
        "- `version.txt` and `CHANGELOG.md` agree\n"
        "- the announcement is in `drafts/NEWS.md`\n"
    )


class Typed(Script):
    """A script that takes its time, so that people can read along."""

    def __init__(self, pace: float) -> None:
        super().__init__(play, name="script")
        self._pace = pace

    async def respond(self, request: Request, emit: Emit | None) -> Response:
        """The next reply, word by word."""
        response = await super().respond(request, None)
        await asyncio.sleep(self._pace * 8)
        for word in re.findall(r"\s*\S+\s*", response.text):
            if emit is not None:
                emit("text", word)
            await asyncio.sleep(self._pace)
        return response


def release_agent(folder: Path, pace: float = 0.03) -> Agent:
    """The agent, working in a folder with FILES in it. `pace` is the seconds that a word takes."""
    return Agent(
        "release",
        instructions="You prepare releases. Check everything before you announce anything.",
        model=Typed(pace),
        tools=tools(folder, pace),
        hooks=Hooks(before_tool=[only_drafts], after_tool=[hide_secrets]),
    )
