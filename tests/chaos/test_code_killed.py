"""Programs whose process dies: each goes on at the line where it stood, and no file is read twice."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from chaos.asking import Place
from chaos.stage import FULL, HELD, answer, beside, finish, inbox, log, running
from upcall.events import InnerCalled, ProgramSaved, ToolEnded, ToolTriedAgain

FILES = ("one", "two", "three", "four", "five")
PRINTED = "asking about three asking about five"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def question(session: str, path: str) -> str:
    return f"what about {session}/{path}?"


def said(session: str, three: str, five: str) -> str:
    """What the program comes to."""
    answers = {"three": f"={three}", "five": f"={five}"}
    parts = [f"{session}/{path}{answers.get(path, '')}" for path in FILES]
    return f"{PRINTED} '{' '.join(parts)}'"


def read(place: Place) -> Counter[tuple[str, str]]:
    """How often each session read each file, counted outside the store."""
    return Counter((w[1], w[2]) for w in place.noted() if w[0] == "read")


def die_at(place: Place, path: str, how: str) -> None:
    """Run until it asks about that file, and die: while it is held in memory, or once it has given that up."""
    with running(place, "reader", "job", hold=HELD if how == "within hold" else 0) as process:
        if how == "within hold":
            process.read_until(f"shown {question('job', path)}")
        else:
            process.read_until("parked job")
            process.read_until("idle")
            assert "left over 0" in process.said


@pytest.mark.parametrize("how", ["within hold", "after it"])
async def test_a_program_killed_at_both_its_questions_reads_each_file_once(how: str, place: Place) -> None:
    die_at(place, "three", how)
    assert sorted(read(place).values()) == [1, 1, 1]
    await answer(place, question("job", "three"), "left")
    die_at(place, "five", how)
    callback = (await inbox(place))[question("job", "five")]
    place.open("now")
    with beside(place, "answer", "now", "ops", callback.id, "right") as other:
        assert other.end()[-1] == "answered ops right"

    assert finish(place, "reader", "job") == [f"job done {said('job', 'left', 'right')}"]
    assert read(place) == {("job", path): 1 for path in FILES}
    events = await log(place)
    made = [(e.call.id, e.call.name) for e in events if isinstance(e, InnerCalled)]
    assert len(made) == len(set(made)) == 7
    assert [e.calls for e in events if isinstance(e, ProgramSaved)] == [4, 7, 7]
    again = Counter(e.call_id for e in events if isinstance(e, ToolTriedAgain))
    assert again == {"r1c0": 2, "r1c0.4": 1, "r1c0.7": 1}
    assert [w[2] for w in place.noted() if w[0] == "model"] == ["turn", "turn"]


async def test_a_program_held_in_memory_continues_in_its_own_process_when_another_answers(place: Place) -> None:
    with running(place, "reader", "job", hold=HELD) as process:
        for path, value in (("three", "left"), ("five", "right")):
            process.read_until(f"shown {question('job', path)}")
            await answer(place, question("job", path), value)
        process.read_until(f"reply job done {said('job', 'left', 'right')}")
    assert read(place) == {("job", path): 1 for path in FILES}
    assert not [e for e in await log(place) if isinstance(e, ToolTriedAgain)]


@pytest.mark.parametrize("seed", range(20 if FULL else 2))
async def test_ten_parked_programs_are_answered_in_any_order_and_each_file_is_read_once(
    seed: int, place: Place
) -> None:
    chance = random.Random(seed)
    sessions = [f"s{n}" for n in range(10)]
    with running(place, "reader", *sessions) as process:
        process.read_until("idle")
        assert "left over 0" in process.said
    for path in ("three", "five"):
        waiting = [question(s, path) for s in sessions]
        assert set(await inbox(place)) == set(waiting)
        chance.shuffle(waiting)
        for first, second in ((0, 3), (3, 10)):
            for message in waiting[first:second]:
                await answer(place, message, f"{path}-{message.split('/')[0].split()[-1]}")
            ends = finish(place, "reader", *sessions)
    assert ends == sorted(f"{s} done {said(s, f'three-{s}', f'five-{s}')}" for s in sessions)
    assert read(place) == {(s, path): 1 for s in sessions for path in FILES}


@pytest.mark.parametrize("seed", range(50 if FULL else 3))
async def test_a_program_killed_anywhere_ends_right_and_reads_no_file_twice(seed: int, place: Place) -> None:
    chance = random.Random(seed)
    kills = 0
    while True:
        with running(place, "reader", "job") as process:
            for _ in range(chance.randint(1, 40)):
                if process.read_line() in ("", "idle"):
                    break
            time.sleep(chance.random() * 0.003)
        kills += 1
        (end,) = finish(place, "reader", "job")
        if end.startswith("job done"):
            break
        for message in await inbox(place):
            await answer(place, message, "yes")
    assert set(read(place).values()) == {1}
    events = await log(place)
    interrupted = {e.call_id for e in events if isinstance(e, ToolEnded) and e.how == "interrupted"}
    lost = {e.call.args["path"] for e in events if isinstance(e, InnerCalled) and e.call.id in interrupted}
    parts = [f"{path}?" if path in lost else f"job/{path}" for path in FILES]
    parts = [f"{part}=yes" if path in ("three", "five") else part for part, path in zip(parts, FILES, strict=True)]
    assert end == f"job done {PRINTED} '{' '.join(parts)}'"
    print(f"seed {seed}: {kills} kills, {len(lost)} reads interrupted")


async def test_the_interpreter_of_a_killed_process_ends_too(place: Place) -> None:
    with running(place, "reader", "job", hold=HELD) as process:
        process.read_until(f"shown {question('job', 'three')}")
        pid = process.process.pid
        children = Path(f"/proc/{pid}/task").glob("*/children")
        interpreters = [child for file in children for child in file.read_text().split()]
        assert len(interpreters) == 1
    deadline = time.monotonic() + 10
    while Path(f"/proc/{interpreters[0]}/exe").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{interpreters[0]}/exe").exists()
