"""How soon the page knows what another process has written, and how soon a run continues after its answer."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cli.command import environment
from web.serving import Sent, make_agents, post, sent, serving

ROUNDS = 100 if os.environ.get("UPCALL_SCALE") == "full" else 15
SLACK = 1 if os.environ.get("UPCALL_SCALE") == "full" else 4
"""A machine that runs other tests at the same time gets so many times the time."""

ASKER = """
import asyncio, sys
from upcall import Runtime
from office import clerk

async def main():
    async with Runtime("log.db", agents=[clerk]) as runtime:
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            session = await runtime.start("clerk", line.strip())
            await session.prompt(f"refund {line.strip()}")
            print("asked", flush=True)

asyncio.run(main())
"""


@asynccontextmanager
async def asker(folder: Path) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A process that asks a question for each line that it reads."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ASKER),
        cwd=folder,
        env=environment(PYTHONPATH=str(folder)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert await asyncio.wait_for(process.stdout.readline(), 60) == b"ready\n"
    try:
        yield process
    finally:
        process.stdin.close()
        await asyncio.wait_for(process.wait(), 60)


class Seen:
    """What a stream has said, with the time at which it came."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.found: list[tuple[float, Sent]] = []
        self._task = asyncio.ensure_future(self._follow(response))

    async def _follow(self, response: aiohttp.ClientResponse) -> None:
        async for one in sent(response):
            self.found.append((time.time(), one))

    async def first(self, true: Any) -> tuple[float, Any]:
        """When the first thing came of which this is not None, and that."""
        async with asyncio.timeout(30):
            while True:
                for at, one in self.found:
                    if (value := true(one)) is not None:
                        return at, value
                await asyncio.sleep(0.002)

    def close(self) -> None:
        self._task.cancel()


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def card_of(session: str) -> Any:
    def find(one: Sent) -> Any:
        cards = one.data["open"] if one.name == "questions" else ()
        return next((card for card in cards if card["session_id"] == session), None)

    return find


def event_of(session: str, *kinds: str) -> Any:
    def find(one: Sent) -> Any:
        events = one.data if one.name == "message" else ()
        return next((e for e in events if e["session"] == session and e["type"] in kinds), None)

    return find


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_question_of_another_process_is_on_the_page_and_its_run_continues_within_half_a_second(
    tmp_path: Path,
) -> None:
    agent = make_agents(tmp_path)
    late: dict[str, list[float]] = {"written": [], "question": [], "continued": []}
    async with (
        serving(tmp_path, agent, "--store", "log.db") as server,
        server.client() as client,
        client.get("/api/live") as live,
        client.get("/api/events") as events,
        asker(tmp_path) as process,
    ):
        page, log = Seen(live), Seen(events)
        assert process.stdin is not None
        for number in range(ROUNDS):
            session = f"s{number}"
            process.stdin.write(f"{session}\n".encode())
            at, raised = await log.first(event_of(session, "callback_asked"))
            late["written"].append(at - raised["time"])
            at, card = await page.first(card_of(session))
            late["question"].append(at - card["created"])
            await log.first(event_of(session, "parked"))
            pressed = time.time()
            await post(client, f"/api/callbacks/{card['id']}/answer", {"value": 1})
            _, resumed = await log.first(event_of(session, "turn_resumed", "callback_delivered"))
            late["continued"].append(resumed["time"] - pressed)
            await log.first(event_of(session, "turn_ended"))
            log.found.clear()
            page.found.clear()
        page.close()
        log.close()
    for name, found in late.items():
        parts = " ".join(f"p{part}={percentile(found, part / 100) * 1000:.0f}" for part in (50, 95, 99))
        print(f"{name}: {parts} ms, {len(found)} times")
    assert percentile(late["written"], 0.95) < 0.25 * SLACK
    assert percentile(late["question"], 0.95) < 0.5 * SLACK
    assert percentile(late["continued"], 0.95) < 0.5 * SLACK
