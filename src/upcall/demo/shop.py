"""A team that asks back. A script plays each model, so no key is needed.

The demo copies this file into a folder of its own and runs it from there: change it, and run it again with
`upcall run shop:team "Build the sign-in page"`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from upcall import Agent, Context, Request, Team, tool
from upcall.models import Script, call
from upcall.workspace import run_python

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
            return "there are no settings, and none may be created"
        file.write_text("port = 8080\n")
    return file.read_text()


@tool
async def run_tests() -> str:
    """Run all tests."""
    await asyncio.sleep(0.6)
    return "212 passed"


@tool
async def write_page(name: str, colour: str) -> str:
    """Write a page with its button.

    name: what it is called
    colour: the button's
    """
    await asyncio.sleep(0.3)
    (HERE / f"{name}.html").write_text(f"<button class={colour}>{name}</button>\n")
    return f"{name} has a {colour} button"


# --- what the models say: decided from the request alone, so any process can go on ----------

PLAN = """\
[{"role": "developer", "task": "Build the service",
  "sequence": 1, "caller": "manager"},
 {"role": "developer", "task": "Build the pages",
  "sequence": 1, "caller": "manager"}]"""

PROGRAM = """\
for page in ["Home", "Sign in", "Help"]:
    colour = "grey"
    if page == "Sign in":
        colour = raise_callback(
            f"Which colour should the button {page!r} have?",
            "clarification",
            choices=["green", "blue", "orange"],
            priority="high",
        )
    print(write_page(page, colour))
"""


def manager_says(request: Request) -> Any:
    """Plans, and answers what its developers ask."""
    if request.purpose != "side_turn":
        return PLAN
    if "missing" in request.messages[-1].text:
        return call("answer_callback", value="yes")
    return call("pass_up_callback", reason="a matter of taste, so the customer should say")


def developer_says(request: Request) -> Any:
    """The service: settings, tests, a report. The pages: a program."""
    done = [result.text for message in request.messages for result in message.results]
    if request.messages[0].text == "Build the pages":
        return f"Written: {'; '.join(done[0].splitlines())}." if done else call("run_python", code=PROGRAM)
    if not done:
        return call("read_settings", path="settings.ini")
    return call("run_tests") if len(done) == 1 else f"The service runs on {done[0].strip()}; {done[1]}."


def reviewer_says(request: Request) -> Any:
    """A report on what it is shown."""
    seen = request.messages[-1].text
    done, settled = seen.count("): done"), seen.count("; answered by")
    questions = "1 question was" if settled == 1 else f"{settled} questions were"
    return f"The sign-in page is ready: {done} tasks are done, {questions} settled."


developer = Agent(
    "developer",
    description="builds services and pages",
    model=Script(developer_says),
    tools=[read_settings, run_tests, write_page, run_python()],
)
manager = Agent("manager", model=Script(manager_says))
reviewer = Agent("reviewer", model=Script(reviewer_says))
team = Team(manager, {"developer": developer}, reviewer)
