"""Answers and cancels that come while the tree is at work: parking, side turns and people race, nothing is lost."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from chaos.asking import ASKERS, Place
from chaos.stage import FULL, HELD, finish, inbox, log, running
from upcall import Runtime
from upcall.events import CallbackAnswered, CallbackDelivered, Parked, ToolEnded


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("seed", range(50 if FULL else 2))
async def test_answers_that_arrive_while_the_run_gives_its_memory_up_are_never_lost(
    seed: int, place: Place
) -> None:
    chance, deadline = random.Random(seed), time.monotonic() + 60
    runs = 0
    async with Runtime(place.store) as runtime:
        for _ in range(6):
            runs += 1
            with running(place, "crowd", "job") as process:
                lines = 1000 if chance.random() < 0.7 else chance.randint(1, 60)  # to its end, or to a kill
                for number in range(lines):
                    if process.read_line() in ("", "idle"):
                        break
                    if number % 10 == 0:  # answers and the parking are as close as they can be
                        for callback in (await runtime.inbox())[: chance.randint(0, 2)]:
                            await runtime.answer(callback.id, f"colour{callback.message[-2]}", by="ops")
    while not (ends := finish(place, "crowd", "job"))[0].startswith("job done"):
        assert time.monotonic() < deadline
        async with Runtime(place.store) as runtime:  # only calls that were interrupted ask once more
            for callback in await runtime.inbox():
                await runtime.answer(callback.id, f"colour{callback.message[-2]}", by="ops")
    assert ends[0] == f"job done foreman({' '.join(f'painter: part{n}:colour{n}' for n in range(ASKERS))})"
    events, noted = await log(place), place.noted()
    for effect in ("buy", "painted"):
        assert set(Counter(tuple(w[1:3]) for w in noted if w[0] == effect).values()) == {1}
    assert set(Counter(e.callback_id for e in events if isinstance(e, CallbackDelivered)).values()) == {1}
    assert set(Counter(e.callback_id for e in events if isinstance(e, CallbackAnswered)).values()) == {1}
    again = sum(isinstance(e, ToolEnded) and e.how == "interrupted" for e in events)
    parked = sum(isinstance(e, Parked) and e.session == "job" for e in events)
    print(f"seed {seed}: {runs} runs, parked {parked} times, {again} calls interrupted")


async def test_a_person_may_answer_while_an_agent_still_thinks_and_the_agent_is_too_late(place: Place) -> None:
    with running(place, "pair", "job") as process:
        process.read_until("aside manager part0")
        async with Runtime(place.store) as runtime:
            held = {h.message: h for h in await runtime.store.callbacks(root="job")}
            first = held["how is part0 built?"].id
            await runtime.answer(first, "by-person", by="ops")
        process.read_until("result developer: part0 by-person")
        place.open("manager.part0", "manager.part1")
        process.read_until("idle")
        assert "reply job done manager(developer: part0 by-person developer: part1 by-manager)" in process.said
    answers = [(e.callback_id, e.by) for e in await log(place) if isinstance(e, CallbackAnswered)]
    assert answers[0] == (first, "ops")
    assert [by for _, by in answers] == ["ops", "manager"]


async def test_a_tree_that_died_in_its_side_turns_can_be_cancelled_whole_by_another_process(place: Place) -> None:
    with running(place, "pair", "job") as process:
        process.read_until("aside manager part0")
    async with Runtime(place.store) as runtime:
        await runtime.cancel("job", "no longer needed", by="ops")
        assert {r.status for r in await runtime.rows()} == {"cancelled"}
        assert {h.status for h in await runtime.store.callbacks(root="job")} == {"withdrawn"}
        assert await runtime.ready() == []
    place.open("manager.part0", "manager.part1")
    asked = len(place.noted())
    assert finish(place, "pair", "job") == ["job cancelled "]
    assert await inbox(place) == {}
    assert len(place.noted()) == asked  # no model was asked again
    await log(place)


async def test_the_person_is_shown_a_question_again_by_every_process_that_continues_it(place: Place) -> None:
    for _ in range(2):
        with running(place, "one", "s", hold=HELD) as process:
            process.read_until("shown what about s?")
    assert finish(place, "one", "s") == ["s waiting "]
    assert sum(w[0] == "model" for w in place.noted()) == 1
