"""A model call over HTTP, what an export leaves out, and how long a run tree worked."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from upcall import Agent, Runtime, tool
from upcall.hosts.web.export_page import Bodies
from upcall.models import Script, call
from web.serving import get, make_agents, post, run_in, serving, until

KEY = "sk-live-1234567890abcdefghij"


@tool
async def read_file(name: str) -> str:
    """Read a file."""
    return f"{name} says </script><script>alert(1)</script>, and the key is {KEY}"


def answers() -> Script:
    return Script([call("read_file", name="a.txt"), call("read_file", name="b.txt"), "Both are read."])


async def run_reader(folder: Path) -> None:
    """Let an agent read two files, in this process, over the folder's log."""
    agent = Agent("reader", instructions="You read files.", model=answers(), tools=[read_file])
    async with Runtime(folder / "log.db", agents=[agent]) as runtime:
        await (await runtime.start("reader", "s1")).prompt(f"read both with {KEY}")


@pytest.mark.slow
async def test_a_model_call_has_its_request_its_response_and_the_request_before(tmp_path: Path) -> None:
    await run_reader(tmp_path)
    async with serving(tmp_path, "--store", "log.db") as server, server.client() as client:
        first = await get(client, "/api/sessions/s1/calls/1")
        second = await get(client, "/api/sessions/s1/calls/2")
        await get(client, "/api/sessions/s1/calls/4", 404)
        await get(client, "/api/sessions/s1/calls/99999999999999999999", 404)
        await get(client, "/api/sessions/s1/calls/1?seq=1", 404)
        await get(client, "/api/sessions/s1/calls/1?seq=x", 422)
        await get(client, "/api/sessions/nope/calls/1", 404)
        nodes = (await get(client, "/api/sessions/s1/nodes"))["nodes"]
        seq = next(node["seq"] for node in nodes if node["kind"] == "model" and node["call"] == 2)
        assert await get(client, f"/api/sessions/s1/calls/2?seq={seq}") == second
    assert first["before"] is None
    assert second["before"] == first["request"]
    assert [one["name"] for one in second["request"]["tools"]] == ["read_file", "ask"]
    assert [len(one["request"]["messages"]) for one in (first, second)] == [1, 3]
    assert second["response"]["calls"][0]["args"] == {"name": "b.txt"}
    assert KEY not in str([first, second])
    assert "⟦hidden" in str(first["request"])


def test_bodies_are_dropped_largest_first() -> None:
    bodies = Bodies(100)
    for name, size in (("a", 20), ("b", 90), ("c", 30), ("d", 40), ("e", 5)):
        bodies.put("events", name, "x" * (size - 2))
    kept = msgspec.json.decode(b"".join(bodies.pieces("events")))
    assert list(kept) == ["a", "c", "d", "e"]
    assert bodies.left_out == 1
    assert b"".join(bodies.pieces("cards")) == b"{}"


@pytest.mark.slow
async def test_a_team_worked_as_long_as_its_workers_and_waited_for_the_rest(tmp_path: Path) -> None:
    agent = make_agents(tmp_path)
    async with serving(tmp_path, agent, "--store", "log.db") as server, server.client() as client:
        await post(client, "/api/sessions", {"agent": "clerk", "text": "wait 0.4", "id": "s1"})
        done = await until(client, "/api/sessions/s1", lambda one: one["session"]["status"] == "done")
        assert 0.35 < done["session"]["ran_seconds"] < 3
        assert done["session"]["waited_seconds"] == 0
        await run_in(tmp_path, "refund A", "s2")
        waits = await get(client, "/api/sessions/s2")
        later = await until(
            client,
            "/api/sessions/s2",
            lambda one: one["session"]["waited_seconds"] > waits["session"]["waited_seconds"] + 0.2,
        )
        assert later["session"]["ran_seconds"] == waits["session"]["ran_seconds"]
