"""A process killed at random points loses nothing acknowledged and repeats nothing that has a result."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from chaos.driver import STEPS
from chaos.processes import Found, driver, look
from upcall.app import open_store

SEEDS = range(100 if os.environ.get("UPCALL_CHAOS") == "full" else 8)
SESSIONS = ("one", "two")
TURNS = 3


async def inspect(path: Path, effects: Path, said: list[str]) -> Found:
    """What the processes so far have left, checked against what they said."""
    store = open_store(path)
    await store.open()
    try:
        found = await look(store, effects)
    finally:
        await store.close()
    found.check_said(said)
    return found


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_killed_process_loses_nothing_and_the_sessions_continue_to_the_right_end(
    seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    path, effects = tmp_path / "log.db", tmp_path / "effects"
    said: list[str] = []
    kills = chance.randint(1, 3)
    for _ in range(kills):
        with driver("work", path, effects, TURNS, *SESSIONS) as process:
            for _ in range(chance.randint(0, 60)):
                if not process.read_line():
                    break
            time.sleep(chance.random() * 0.02)
            process.kill()
            said += process.said
        await inspect(path, effects, said)
    with driver("work", path, effects, TURNS, *SESSIONS) as process:
        said += process.end()
    found = await inspect(path, effects, said)
    resumed = sum(e.type == "turn_resumed" for e in found.events)
    print(f"seed {seed}: {kills} kills, {resumed} turns went on, {found.interrupted} calls were interrupted")
    assert said[-1] == "finished"
    assert {s.turn.phase for s in found.states.values()} == {"done"}
    assert {s.turn.number for s in found.states.values()} == {TURNS}
    assert {s.conversation.reply_text for s in found.states.values()} == {"tool done"}
    for session in SESSIONS:
        did = {w[3] for w in found.effects if w[0] == "end" and w[1] == session}
        assert did == {f"turn{t}.{n}" for t in range(TURNS) for n in range(STEPS)}
    assert found.responses <= found.model_calls <= found.responses + kills * len(SESSIONS)
