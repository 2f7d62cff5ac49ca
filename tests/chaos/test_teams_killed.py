"""Teams, chains and bridges killed anywhere: the same report, every part built once, and by one worker."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from chaos.asking import Place
from chaos.processes import Driver
from chaos.stage import FULL, HELD, answer, inbox, log, running
from chaos.teaming import ASKS_PERSON
from upcall import Runtime
from upcall.events import CallbackRaised, Planned, StepEnded, StepStarted, TurnStarted

SEEDS = range(30 if FULL else 3)
POINTS = range(0, 40, 1 if FULL else 13)
PARTS = {"team": range(8), "replanned": (0, 1, 2, 3, 5, 6, 7, 8)}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def at_work(place: Place, cast: str, hold: int = 0) -> AbstractContextManager[Driver]:
    return running(place, cast, "job", hold=hold, module="chaos.teaming")


def kill_after(place: Place, cast: str, lines: int, chance: random.Random | None = None) -> bool:
    """Let it run until it has said so much; whether it was killed before its end."""
    with at_work(place, cast) as process:
        for _ in range(lines):
            if process.read_line() in ("idle", ""):
                break
        if chance is not None:
            time.sleep(chance.random() * 0.02)
        process.kill()
        return "idle" not in process.said


def finish(place: Place, cast: str) -> None:
    with at_work(place, cast) as process:
        process.read_until("idle")


async def report(place: Place) -> str:
    async with Runtime(place.store) as runtime:
        assert await runtime.status("job") == "done"
        return (await runtime.load("job")).get_messages()[-1].text


async def undisturbed(folder: Path, cast: str) -> str:
    """What it comes to when nobody kills it."""
    folder.mkdir()
    place = Place(folder)
    finish(place, cast)
    return await report(place)


def built(place: Place) -> dict[str, list[str]]:
    """Who built each part, as counted outside the store."""
    found: dict[str, list[str]] = {}
    for words in place.noted():
        if words[0] == "built":
            found.setdefault(words[1], []).append(words[2])
    return found


async def check_steps(place: Place) -> None:
    """Each step began and ended once, each worker had one prompt, and each plan was accepted once."""
    events = await log(place)
    for kind in (StepStarted, StepEnded, Planned):
        assert set(Counter(e.step for e in events if isinstance(e, kind)).values()) == {1}
    prompts = Counter(e.session for e in events if isinstance(e, TurnStarted) and "~" in e.session)
    assert {s: n for s, n in prompts.items() if n > 1 and not s.endswith("~manager")} == {}
    asked = Counter((e.agent, e.message) for e in events if isinstance(e, CallbackRaised))
    assert set(asked.values()) <= {1}


@pytest.mark.parametrize("cast", ["team", "replanned"])
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_team_killed_at_random_points_reports_the_same_and_builds_everything_once(
    seed: int, cast: str, place: Place, tmp_path: Path
) -> None:
    chance = random.Random(f"{cast} {seed}")
    kills = sum(kill_after(place, cast, chance.randint(1, 170), chance) for _ in range(chance.randint(1, 3)))
    finish(place, cast)

    print(f"seed {seed}: {kills} kills")
    assert {part: len(who) for part, who in built(place).items()} == {f"part{n}": 1 for n in PARTS[cast]}
    assert await report(place) == await undisturbed(tmp_path / "calm", cast)
    await check_steps(place)


@pytest.mark.parametrize("when", ["while the manager thinks", "once it has planned"])
async def test_a_team_killed_during_a_replan_replans_once_and_reports_the_same(
    when: str, place: Place, tmp_path: Path
) -> None:
    if when == "while the manager thinks":
        place.open("slow")
    with at_work(place, "replanned") as process:
        process.read_until("replanning")
    place.open("plan2")
    if when == "once it has planned":
        kill_after(place, "replanned", 12)

    finish(place, "replanned")

    assert await report(place) == await undisturbed(tmp_path / "calm", "replanned")
    assert [e.step for e in await log(place) if isinstance(e, Planned)] == ["plan1", "plan2"]
    await check_steps(place)


def die_waiting(place: Place, how: str, *parts: str) -> None:
    """Run until these wait for the person, and die there."""
    with at_work(place, "person", hold=HELD if how == "within hold" else 0) as process:
        if how == "within hold":
            for part in parts:
                process.read_until(f"shown may {part} be made?")
        else:
            process.read_until("idle")


@pytest.mark.parametrize("how", ["within hold", "after it"])
async def test_a_team_killed_at_its_questions_continues_with_answers_from_other_processes(
    how: str, place: Place
) -> None:
    die_waiting(place, how, "part0", "part2")
    assert set(await inbox(place)) == {"may part0 be made?", "may part2 be made?"}
    await answer(place, "may part2 be made?", "yes-2")
    die_waiting(place, how, "part0")
    await answer(place, "may part0 be made?", "yes-0")
    die_waiting(place, how, "part3")
    assert set(await inbox(place)) == {"may part3 be made?"}
    await answer(place, "may part3 be made?", "yes-3")
    die_waiting(place, how, "part7")
    await answer(place, "may part7 be made?", "yes-7")
    finish(place, "person")

    said = await report(place)
    for part in ASKS_PERSON:
        assert f"{part} is there: yes-{part[-1]}" in said
        assert f'"may {part} be made?"; answered by ops: "yes-{part[-1]}"' in said
    assert {part: len(who) for part, who in built(place).items()} == {f"part{n}": 1 for n in range(8)}
    await check_steps(place)


@pytest.mark.parametrize("cast", ["line", "bridged"])
@pytest.mark.parametrize("point", POINTS)
async def test_a_chain_or_bridge_killed_between_and_inside_its_hops_continues_at_the_right_place(
    point: int, cast: str, place: Place
) -> None:
    kill_after(place, cast, point)
    finish(place, cast)

    parts, said = {"line": ((0, 2, 3), "c(b(a(go)))"), "bridged": ((0, 2), "b(a(go))")}[cast]
    assert {part: len(who) for part, who in built(place).items()} == {f"part{n}": 1 for n in parts}
    async with Runtime(place.store) as runtime:
        assert await runtime.status("job") == "done"
        assert (await runtime.load("job")).get_summary() == said
