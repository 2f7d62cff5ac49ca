"""How much disk a session takes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from store.agents import worker
from upcall import Runtime

TURNS = 1000


async def run(path: Path, size: int) -> tuple[int, int]:
    """A thousand turns with one tool call each; returns the file's size and that of the messages as JSON."""
    async with Runtime(path, agents=[worker(size=size)]) as runtime:
        session = await runtime.start("worker")
        for _ in range(TURNS):
            await session.prompt("go")
        messages = len(msgspec.json.encode(session.get_messages()))
    return path.stat().st_size, messages


@pytest.mark.slow
async def test_a_thousand_tiny_turns_take_at_most_2_kb_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size, _ = await run(tmp_path / "log.db", 2)
    with capsys.disabled():
        print(f"\n{size / TURNS:.0f} bytes a tiny turn")
    assert size / TURNS <= 2048


@pytest.mark.slow
async def test_a_thousand_turns_with_results_of_4_kb_take_at_most_twice_their_messages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size, messages = await run(tmp_path / "log.db", 4096)
    with capsys.disabled():
        print(f"\n{size / messages:.2f} × the messages' JSON")
    assert size <= 2 * messages
