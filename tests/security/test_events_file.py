"""What models write reaches the file of events in order, and without holding up the event loop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from security.measuring import measured
from upcall import Agent, Request, Response, Runtime, tool
from upcall.models import Script, call

TEXTS = {
    "plain": "the quick brown fox\n",
    "like secrets": 'passworda\\":x-?token={',
    "quotes": "\\\"cookie::'eyJ",
}


class Speaker:
    """A model that says one text, as a whole."""

    name = "speaker"

    def __init__(self, text: str) -> None:
        self._text = text

    async def respond(self, request: Request, emit: Any) -> Response:
        return Response(self._text if len(request.messages) == 1 else "short")


@pytest.mark.slow
@pytest.mark.parametrize("kind", TEXTS)
async def test_a_huge_reply_is_written_to_the_events_file_without_stalling_the_loop(
    tmp_path: Path, kind: str
) -> None:
    text = TEXTS[kind] * (1_900_000 // len(TEXTS[kind]))
    agent = Agent("a", model=Speaker(text))
    async with Runtime(agents=[agent], events_file=tmp_path / "events.jsonl") as runtime:
        session = await runtime.start(agent)
        async with measured() as cost:
            await session.prompt("go")
        await session.prompt("again")

    cost.check(growth=256_000_000)  # several copies of the line, in a thread
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    turn = ["TURN_STARTED", "MODEL_STARTED", "RESPONDED", "TURN_ENDED"]
    assert [line["event_type"] for line in lines] == ["SESSION_STARTED", *turn, *turn]


async def test_events_after_a_large_one_are_written_after_it(tmp_path: Path) -> None:
    @tool
    def big() -> Any:
        """Return much."""
        return "x" * 100_000

    agent = Agent("a", model=Script([[call("big"), call("big")], "done"]), tools=[big])
    async with Runtime(agents=[agent], events_file=tmp_path / "events.jsonl") as runtime:
        session = await runtime.start(agent)
        await session.prompt("go")
        stored = [event.type.upper() async for event in runtime.events(session.id)]

    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [line["event_type"] for line in lines] == stored
