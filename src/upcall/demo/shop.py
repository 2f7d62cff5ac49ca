"""A manager and two developers who ask back. A script plays each model, so no key is needed.

The demo copies this file into a folder of its own and runs it from there: change it, and run it again with
`upcall run shop:manager "Build the sign-in page"`.

May import: upcall, models.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from upcall import Agent, Context, Request, tool
from upcall.models import Script, call

HERE = Path(__file__).parent


@tool
async def read_settings(path: str, ctx: Context) -> str:
    """Read the settings of the service.

    path: where they are
    """
    await asyncio.sleep(0.4)
    file = HERE / path
    if not file.exists():
        # nobody is named here: policy decides who is asked
        said = await ctx.raise_callback(f"{path} is missing. Make a new one?", "blocker", choices=["yes", "stop"])
        if said == "stop":
            return "there are no settings, and none may be made"
        file.write_text("port = 8080\n")
    return file.read_text()


@tool
async def run_tests() -> str:
    """Run all tests."""
    await asyncio.sleep(0.8)
    return "212 passed"


@tool
async def draw_button(label: str, ctx: Context) -> str:
    """Draw a button.

    label: what it says
    """
    await asyncio.sleep(0.6)
    colour = await ctx.raise_callback(
        f"Which colour should the button {label!r} have?",
        "clarification",
        choices=["green", "blue", "orange"],
        context={"page": "light grey"},
        priority="high",
    )
    (HERE / "button.css").write_text(f"button {{ background: {colour} }}\n")
    return f"button.css has a {colour} button"


# --- what the models say: decided from the request alone, so any process can go on ----------


def backend_says(request: Request) -> Any:
    """Settings, then tests, then a report."""
    done = [result.text for message in request.messages for result in message.results]
    if not done:
        return call("read_settings", path="settings.ini")
    return call("run_tests") if len(done) == 1 else f"The service runs on {done[0].strip()}; {done[1]}."


def frontend_says(request: Request) -> Any:
    """A button, then a report."""
    done = [result.text for message in request.messages for result in message.results]
    return f"Done: {done[0]}." if done else call("draw_button", label="Sign in")


def manager_says(request: Request) -> Any:
    """Plans, answers what its developers ask, and reports."""
    if request.purpose == "side_turn":
        if "missing" in request.messages[-1].text:
            return call("answer_callback", value="yes")
        return call("pass_up_callback", reason="a matter of taste, so the customer should say")
    done = [result.text for message in request.messages for result in message.results]
    if done:
        return "The sign-in page is ready.\n\n" + "\n".join(f"- {text}" for text in done)
    return [
        call("task", agent="backend", prompt="Build the service"),
        call("task", agent="frontend", prompt="Draw the page"),
    ]


backend = Agent("backend", model=Script(backend_says), tools=[read_settings, run_tests])
frontend = Agent("frontend", model=Script(frontend_says), tools=[draw_button])
manager = Agent("manager", model=Script(manager_says), agents=[backend, frontend])
