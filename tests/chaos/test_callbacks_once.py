"""What reached code, or was done, before a kill is never done again by itself."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from chaos.asking import Place
from chaos.stage import FULL, HELD, answer, finish, log, running
from upcall.events import CallbackDelivered, ToolEnded

STAGES = ("entered", "charging", "charged", "paid")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_a_call_killed_after_its_answer_was_delivered_is_interrupted_and_the_model_is_told(
    place: Place,
) -> None:
    with running(place, "one", "held", hold=HELD) as process:
        process.read_until("shown what about held?")
        await answer(place, "what about held?", "yes")
        while not process.read_line().startswith("got held"):
            pass
    ended = finish(place, "one", "held")
    assert ended[0].startswith("held done clerk: interrupted, outcome unknown"), ended
    noted = Counter(w[0] for w in place.noted())
    assert noted == {"model": 2, "got": 1}
    events = await log(place)
    assert sum(isinstance(e, CallbackDelivered) for e in events) == 1
    assert [e.how for e in events if isinstance(e, ToolEnded)] == ["interrupted"]


async def test_a_charge_under_once_is_never_made_twice_however_often_its_process_is_killed(place: Place) -> None:
    kills = 50 if FULL else 5
    chance = random.Random(kills)
    sessions = [f"s{n}" for n in range(kills)]
    for session in sessions:
        with running(place, "till", session) as process:
            process.read_until(f"at {chance.choice(STAGES)}")
            time.sleep(chance.random() * 0.003)
    ends = dict(line.split(" ", 1) for line in finish(place, "till", *sessions))
    assert set(ends) == set(sessions)
    charged = Counter(w[1] for w in place.noted() if w[0] == "charged")
    assert not [s for s in sessions if charged[s] > 1]
    for session in sessions:
        assert ends[session] in ("done cashier: all paid", "done cashier: all unknown")
        if ends[session].endswith("paid"):
            assert charged[session] == 1
    unknown = [s for s in sessions if ends[s].endswith("unknown")]
    print(f"{kills} kills: {kills - len(unknown)} paid, {len(unknown)} unknown, {sum(charged.values())} charges")


async def test_one_call_killed_again_and_again_charges_at_most_once(place: Place) -> None:
    for stage in ("charged", *["entered"] * (9 if FULL else 3)):
        with running(place, "till", "s") as process:
            while process.read_line() not in (f"at {stage}", "idle"):
                pass
    assert finish(place, "till", "s") in (["s done cashier: all unknown"], ["s done cashier: all paid"])
    assert sum(w[0] == "charged" for w in place.noted()) == 1
