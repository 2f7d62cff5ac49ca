"""Document 0, run as it is written: its plan, its roles, its file, its line in the log."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from callbacks.doubles import Desk, answers
from teams.doubles import manages, reviews, team_of, works
from upcall import Context, Runtime, Team, tool

PLAN = """[
  {
    "role": "developer",
    "task": "Create authentication module",
    "sequence": 1,
    "caller": "manager"
  }
]"""

LINE = {
    "timestamp": "2026-02-08T20:45:30.123Z",
    "event_type": "AGENT_CALLBACK",
    "data": {
        "from": "developer01",
        "to": "manager",
        "type": "blocker",
        "message": "Cannot find config.py required for authentication module",
    },
}


def example(folder: Path, plan: str = PLAN) -> Team:
    @tool
    async def write_module(ctx: Context) -> str:
        """Check if the required file exists, as the document does."""
        if not [file.name for file in folder.iterdir()].count("config.py"):
            said = await ctx.raise_callback("Cannot find config.py required for authentication module", "blocker")
            return f"answered: {said}"
        return "written"

    manager = manages(plan, aside=answers("create config.py with defaults"))
    return Team(manager, {"developer": works("developer", write_module)}, reviews())


async def test_the_documents_example_runs_and_the_manager_answers(tmp_path: Path) -> None:
    team = example(tmp_path)

    async with Runtime(agents=[team]) as runtime:
        reply = await (await runtime.start(team)).prompt("We need a login")

    assert reply.status == "done"
    assert "answered: create config.py with defaults" in reply.text
    (callback,) = reply.callbacks
    assert callback.answer is not None
    assert (callback.agent, callback.intent, callback.answer.by) == ("developer01", "blocker", "manager")


async def test_the_documents_line_is_in_the_events_file_but_for_the_time(tmp_path: Path) -> None:
    team, mirror = example(tmp_path), tmp_path / "_events.jsonl"

    async with Runtime(agents=[team], events_file=mirror) as runtime:
        await (await runtime.start(team)).prompt("We need a login")

    lines = [json.loads(line) for line in mirror.read_text().splitlines()]
    (line,) = [line for line in lines if line["event_type"] == "AGENT_CALLBACK"]
    assert line | {"timestamp": LINE["timestamp"]} == LINE
    assert list(line["data"]) == list(LINE["data"])
    assert len(line["timestamp"]) == len(LINE["timestamp"])


async def test_the_events_file_tells_of_everything_from_the_first_plan_to_the_end(tmp_path: Path) -> None:
    team, mirror = example(tmp_path), tmp_path / "_events.jsonl"

    async with Runtime(agents=[team], events_file=mirror) as runtime:
        session = await runtime.start(team)
        await session.prompt("We need a login")

    lines = [json.loads(line) for line in mirror.read_text().splitlines()]
    of_team = [line["event_type"] for line in lines if line["data"].get("session") == session.id]
    assert of_team == [
        *("SESSION_STARTED", "TURN_STARTED"),
        *("STEP_STARTED", "STEP_ENDED", "CONTEXT_SET", "PLANNED"),
        *("STEP_STARTED", "STEP_ENDED"),
        *("STEP_STARTED", "STEP_ENDED"),
        *("RESPONDED", "TURN_ENDED"),
    ]
    (planned,) = [line["data"] for line in lines if line["event_type"] == "PLANNED"]
    assert planned["value"] == [
        {
            "worker": "developer01",
            "role": "developer",
            "task": "Create authentication module",
            "sequence": 1,
            "asks": True,
        }
    ]


async def test_a_missing_caller_means_that_the_agent_works_normally_and_asks_in_vain(
    tmp_path: Path, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    @tool
    async def asks(ctx: Context) -> str:
        """Ask nobody."""
        return f"got {await ctx.raise_callback('Which database?')}"

    alone = PLAN.replace(',\n    "caller": "manager"', "")
    team = team_of(alone, roles={"developer": works("developer", asks)})

    with caplog.at_level(logging.WARNING, "upcall"):
        reply = await desk.prompt(team)

    assert "got None" in reply.text
    assert any("developer01" in record.getMessage() for record in caplog.records)
