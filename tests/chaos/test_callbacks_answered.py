"""Answers from other processes: the first one wins, every other one is told exactly what happened."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from chaos.asking import Place
from chaos.stage import FULL, HELD, answer, beside, finish, inbox, log, row_of, running, wait_until
from upcall import Runtime
from upcall.errors import AlreadySettled
from upcall.events import CallbackAnswered, CallbackRaised, CallbackWithdrawn

QUICK = 2.0
"""Seconds that a busy machine may need for what should take a quarter of one."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def waiting(place: Place, session: str) -> str:
    """A parked session with no process alive; returns what it waits for."""
    assert finish(place, "one", session) == [f"{session} waiting "]
    return (await inbox(place))[f"what about {session}?"].id


async def test_an_answer_from_another_process_reaches_a_living_asker_at_once(place: Place) -> None:
    sessions = [f"s{n}" for n in range(20 if FULL else 5)]
    took: list[float] = []
    with running(place, "one", *sessions, hold=HELD) as process:
        for session in sessions:
            process.read_until(f"shown what about {session}?")
        async with Runtime(place.store) as runtime:
            found = {c.message: c.id for c in await runtime.inbox()}
            for session in sessions:
                settled = await runtime.answer(found[f"what about {session}?"], "go on", by="ops")
                assert settled.answer is not None
                while not process.read_line().startswith(f"got {session} "):
                    pass
                got = [line for line in process.said if line.startswith(f"got {session} ")]
                took.append(float(got[0].split()[2]) - settled.answer.at)
    middle = sorted(took)[len(took) // 2]
    print(f"an answer reached its asker after {middle * 1000:.1f} ms, {max(took) * 1000:.1f} at most")
    assert max(took) < QUICK
    assert middle < 0.25


async def test_the_same_answer_sent_again_is_told_by_whom_and_when_it_was_settled(place: Place) -> None:
    callback_id = await waiting(place, "s")
    first = await answer(place, "what about s?", "yes")
    before = await log(place)
    async with Runtime(place.store) as runtime:
        with pytest.raises(AlreadySettled) as told:
            await runtime.answer(callback_id, "yes", by="ops")
    assert first.answer is not None
    assert (told.value.status, told.value.by, told.value.at) == ("answered", "ops", first.answer.at)
    assert await log(place) == before
    assert finish(place, "one", "s") == ["s done clerk: all yes"]
    async with Runtime(place.store) as runtime:
        with pytest.raises(AlreadySettled) as told:
            await runtime.answer(callback_id, "no", by="late")
    assert (told.value.status, told.value.by) == ("answered", "ops")


@pytest.mark.parametrize("attempt", range(30 if FULL else 2))
async def test_of_two_processes_that_answer_at_once_one_wins_and_the_other_is_told_who(
    attempt: int, place: Place
) -> None:
    callback_id = await waiting(place, "s")
    with (
        beside(place, "answer", "race", "ann", callback_id, "from-ann") as ann,
        beside(place, "answer", "race", "bob", callback_id, "from-bob") as bob,
    ):
        place.open("race")
        said = [ann.end()[-1], bob.end()[-1]]
    winner = "ann" if said[0].startswith("answered") else "bob"
    assert sorted(said) == sorted([f"answered {winner} from-{winner}", f"already answered {winner}"]), attempt
    assert [e.by for e in await log(place) if isinstance(e, CallbackAnswered)] == [winner]
    assert finish(place, "one", "s") == [f"s done clerk: all from-{winner}"]


async def test_an_answer_after_expiry_is_refused_though_no_process_lived_to_see_it_expire(place: Place) -> None:
    assert finish(place, "one", "brief") == ["brief waiting "]
    raised = next(e for e in await log(place) if isinstance(e, CallbackRaised))
    callback_id = raised.callback_id
    assert raised.expires is not None
    wait_until(raised.expires)
    before = await log(place)
    async with Runtime(place.store) as runtime:
        with pytest.raises(AlreadySettled) as told:
            await runtime.answer(callback_id, "too late", by="ops")
    assert told.value.status == "expired"
    assert await log(place) == before
    ended = finish(place, "one", "brief")
    assert len(ended) == 1
    assert ended[0].startswith("brief done clerk: ")
    assert "expired" in ended[0].lower() or "nobody answered" in ended[0].lower(), ended
    assert not [w for w in place.noted() if w[0] == "got"]


async def test_an_answer_after_cancelling_is_told_that_the_question_was_withdrawn(place: Place) -> None:
    callback_id = await waiting(place, "s")
    place.open("now")
    with beside(place, "cancel", "now", "s") as canceller:
        assert canceller.end()[-1] == "cancelled"
    before = await log(place)
    with beside(place, "answer", "now", "ops", callback_id, "yes") as late:
        assert late.end()[-1] == "already withdrawn -"
    assert await log(place) == before
    assert finish(place, "one", "s") == ["s cancelled "]
    assert await inbox(place) == {}
    assert not [w for w in place.noted() if w[0] == "got"]


@pytest.mark.parametrize("alive", [False, True], ids=["nobody runs it", "its owner lives"])
async def test_an_answer_and_a_cancel_at_once_leave_one_outcome_that_both_are_told(
    alive: bool, place: Place
) -> None:
    outcomes: Counter[str] = Counter()
    for number in range(30 if FULL else 2):
        session, gate = f"s{number}", f"race{number}"
        with running(place, "one", session, hold=HELD if alive else 0) as owner:
            owner.read_until(f"shown what about {session}?" if alive else "idle")
            outcomes[await race(place, session, gate)] += 1
            if alive:
                owner.read_until("idle")
        assert finish(place, "one", session)[0].split()[1] in ("cancelled", "done")
        assert await inbox(place) == {}
    print(f"an answer and a cancel at once: {dict(outcomes)}")


async def race(place: Place, session: str, gate: str) -> str:
    """Answer and cancel at once; what was said must be what is stored."""
    callback_id = (await inbox(place))[f"what about {session}?"].id
    with (
        beside(place, "answer", gate, "ops", callback_id, "yes") as answerer,
        beside(place, "cancel", gate, session) as canceller,
    ):
        place.open(gate)
        said = answerer.end()[-1]
        assert canceller.end()[-1] == "cancelled"
    events = [e for e in await log(place) if getattr(e, "callback_id", "") == callback_id]
    settled = [e for e in events if isinstance(e, CallbackAnswered | CallbackWithdrawn)]
    status, by, _ = await row_of(place, callback_id)
    if said == "answered ops yes":
        assert (status, by) == ("answered", "ops")
        assert isinstance(settled[0], CallbackAnswered)
    else:
        assert said == "already withdrawn -"
        assert status == "withdrawn"
        assert isinstance(settled[0], CallbackWithdrawn)
    assert len(settled) == 1, [e.type for e in settled]
    return status
