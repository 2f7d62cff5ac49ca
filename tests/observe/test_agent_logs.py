"""A log file for each agent: readable, without secrets, rotated, private."""

from __future__ import annotations

import asyncio
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from upcall import Agent, Call, Context, Hooks, Request, Result, Runtime, tool
from upcall.messages import Usage
from upcall.models import Script, call
from upcall.observe import Labels
from upcall.observe.log_files import LogFiles


@tool
async def search_logs(query: str, token: str) -> str:
    """Search the logs."""
    return f"3 lines with {query}; use ghp_abcdefghijklmnopqrstuvwxyz"


@tool
async def choose(ctx: Context) -> str:
    """Ask."""
    return str(await ctx.raise_callback("Which colour?", "blocker"))


def lines(file: Path) -> list[str]:
    """The lines of a file without their times and durations."""
    rows = file.read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d  ", row) for row in rows)
    return [re.sub(r" · [\d.]+ (ms|s)\b", "", row.split("  ", 1)[1]) for row in rows]


async def test_a_log_file_tells_what_an_agent_did_without_secrets(tmp_path: Path) -> None:
    plays = Script([call("search_logs", query="error", token="hunter2hunter2"), "There are 3."], name="house:m-1")
    agent = Agent("helper", model=plays, tools=[search_logs])
    async with Runtime(agents=[agent], log_dir=tmp_path / "logs") as runtime:
        await (await runtime.start(agent, "s")).prompt("How many errors?")

    assert lines(tmp_path / "logs" / "helper.log") == [
        "s  › How many errors?",
        "s  ▸ house:m-1",
        "s  ✓ house:m-1  Search Logs",
        "s  ▸ Search Logs  error",
        "s  ✓ Search Logs  error",
        "s    → 3 lines with error; use ⟦hidden 30 #1⟧",
        "s  ▸ house:m-1",
        "s  ✓ house:m-1  There are 3.",
        "s  ✓ Turn 1",
    ]
    assert stat.S_IMODE((tmp_path / "logs" / "helper.log").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "logs").stat().st_mode) == 0o700


async def test_each_agent_has_a_file_and_an_answer_from_another_process_is_in_it(tmp_path: Path) -> None:
    def leads(request: Request) -> Any:
        if request.purpose == "side_turn":
            return call("pass_up_callback", reason="a matter of taste")
        has_result = any(message.role == "tool" for message in request.messages)
        return "All done." if has_result else call("task", agent="worker", prompt="paint")

    policy: dict[str, Any] = {"can_query_caller": True, "can_use_host_interaction": True}
    below = Agent("worker", model=Script([call("choose"), "Painted."]), tools=[choose], **policy)
    top = Agent("lead", model=Script(leads), agents=[below])
    store, logs = tmp_path / "log.db", tmp_path / "logs"
    async with Runtime(store, agents=[top], hold=0, log_dir=logs) as runtime:
        assert (await (await runtime.start(top, "s")).prompt("go")).status == "waiting"
    async with Runtime(store) as elsewhere:
        (callback,) = await elsewhere.inbox()
        await elsewhere.answer(callback.id, "red", by="ada")
    async with Runtime(store, agents=[top], hold=0, log_dir=logs) as runtime:
        assert (await runtime.resume("s")).text == "All done."

    assert {file.name for file in logs.glob("*.log")} == {"lead.log", "worker.log"}
    assert lines(logs / "worker.log") == [
        "s~r1c0  › paint",
        "s~r1c0  ▸ script",
        "s~r1c0  ✓ script  Choose",
        "s~r1c0  ▸ Choose",
        "s~r1c0  ? Blocker  Which colour?",
        "s~r1c0  ↳ lead is asked",
        "s~r1c0  ↳ lead passed it up: a matter of taste",
        "s~r1c0  ↳ A person is asked",
        "s~r1c0  ✓ Blocker  Which colour? → ada: red",
        "s~r1c0  ✓ Choose",
        "s~r1c0    → red",
        "s~r1c0  ▸ script",
        "s~r1c0  ✓ script  Painted.",
        "s~r1c0  ✓ Turn 1",
    ]
    assert lines(logs / "lead.log")[-3:] == ["s  ▸ script", "s  ✓ script  All done.", "s  ✓ Turn 1"]


async def test_labels_and_prices_are_used_and_a_cost_that_is_not_known_is_not_shown(tmp_path: Path) -> None:
    known, unknown = (
        Agent(name, model=Metered(f"house:{name}"), tools=[search_logs]) for name in ("known", "unknown")
    )
    labels = Labels().adding({"search_logs": "Find"})
    async with Runtime(
        agents=[known, unknown], log_dir=tmp_path, labels=labels, prices={"known": (2.0, 10.0)}
    ) as runtime:
        for agent in (known, unknown):
            await (await runtime.start(agent)).prompt("go")

    assert "▸ Find  x\n" in (tmp_path / "known.log").read_text()
    assert "1,000 tokens in, 100 out · cost 0.003" in (tmp_path / "known.log").read_text()
    assert "1,000 tokens in, 100 out\n" in (tmp_path / "unknown.log").read_text()
    assert "cost" not in (tmp_path / "unknown.log").read_text()


class Metered(Script):
    """A script whose responses say how many tokens they took."""

    def __init__(self, name: str) -> None:
        super().__init__([call("search_logs", query="x", token=""), "done"], name=name)

    async def respond(self, request: Any, emit: Any) -> Any:
        return (await super().respond(request, emit)).replace(usage=Usage(1000, 100))


async def test_what_an_after_tool_hook_hides_is_never_in_a_log_file(tmp_path: Path) -> None:
    async def hides(session: Any, call: Call, result: Result) -> Result:
        return result.replace(text="3 lines")

    agent = Agent(
        "helper", model=Script([call("search_logs", query="error", token=""), "ok"]), tools=[search_logs],
        hooks=Hooks(after_tool=[hides]),
    )  # fmt: skip
    async with Runtime(agents=[agent], log_dir=tmp_path, events_file=tmp_path / "events.jsonl") as runtime:
        await (await runtime.start(agent)).prompt("go")
    assert "lines with" not in (tmp_path / "helper.log").read_text() + (tmp_path / "events.jsonl").read_text()
    assert "→ 3 lines\n" in (tmp_path / "helper.log").read_text()


def test_a_full_file_is_rotated_and_three_older_ones_are_kept(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, largest=100)
    for number in range(50):
        files.write("a", [f"{number:02} " + "x" * 40])
    files.close()

    names = sorted(file.name for file in tmp_path.glob("a.log*"))
    assert names == ["a.log", "a.log.1", "a.log.2", "a.log.3"]
    kept = [row[:2] for name in reversed(names) for row in (tmp_path / name).read_text().splitlines()]
    assert kept == [f"{number:02}" for number in range(50)][-len(kept) :]
    assert all(file.stat().st_size <= 100 for file in tmp_path.glob("a.log*"))


def test_two_writers_of_one_file_lose_no_line_when_it_is_rotated(tmp_path: Path) -> None:
    one, other = LogFiles(tmp_path, largest=2_000), LogFiles(tmp_path, largest=2_000)
    for number in range(60):
        (one if number % 2 else other).write("a", [f"{number:02} " + "x" * 80])
    one.close()
    other.close()
    found = [row[:2] for file in tmp_path.glob("a.log*") for row in file.read_text().splitlines()]
    assert sorted(found) == [f"{number:02}" for number in range(60)]


def test_a_log_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (tmp_path / "logs").mkdir()
    os.symlink(target, tmp_path / "logs" / "a.log")
    files = LogFiles(tmp_path / "logs")
    with pytest.raises(OSError, match="symbolic links"):
        files.write("a", ["x"])
    files.close()
    assert not target.exists()


async def test_a_log_file_that_can_not_be_written_stops_no_turn(tmp_path: Path) -> None:
    (tmp_path / "helper.log").mkdir()
    agent = Agent("helper", model=Script(["ok"]))
    async with Runtime(agents=[agent], log_dir=tmp_path) as runtime:
        reply = await asyncio.wait_for((await runtime.start(agent)).prompt("go"), 10)
    assert reply.text == "ok"
