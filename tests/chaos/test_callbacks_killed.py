"""Whoever dies while agents wait: nothing is asked, planned or done twice, and nobody waits for a sibling."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from chaos.asking import ASKERS, SHOWN, Place
from chaos.stage import FULL, HELD, answer, finish, inbox, log, running
from upcall import Runtime
from upcall.events import CallbackDelivered, MessageAdded, Responded, SessionStarted, ToolEnded

PARTS = ("part2", "part1", "part0")
KNOWN = {"part0": "by-developer", "part1": "by-manager", "part2": "by-person"}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def die_when_all_wait(place: Place, how: str) -> None:
    """The whole firm asks, and the process dies when all three testers wait for the person."""
    with running(place, "firm", "job", hold=HELD if how == "within hold" else 0) as process:
        if how == "within hold":
            for part in PARTS:
                process.read_until(f"shown may {part} begin?")
        else:
            process.read_until("parked job")
            process.read_until("idle")
            assert "left over 0" in process.said


@pytest.mark.parametrize("how", ["within hold", "after it"])
async def test_a_tree_of_seven_killed_before_every_answer_ends_right_and_plans_and_does_everything_once(
    how: str, place: Place
) -> None:
    die_when_all_wait(place, how)
    for part in PARTS:  # each goes on as far as its developer's side turn, where the process dies
        await answer(place, f"may {part} begin?", "yes")
        with running(place, "firm", "job", hold=HELD) as process:
            process.read_until(f"aside developer {part}")
    assert not [w for w in place.noted() if w[0] in ("decided", "checked")]

    with running(place, "firm", "job", hold=HELD) as process:
        place.open("developer.part2", "manager.part2")
        process.read_until("shown how is part2 checked?")
    await answer(place, "how is part2 checked?", "by-person")
    with running(place, "firm", "job", hold=HELD) as process:  # it ends while its siblings' side turns hang
        process.read_until("result developer(tester: part2 yes by-person)")
    with running(place, "firm", "job", hold=HELD) as process:
        place.open("developer.part1", "manager.part1")
        process.read_until("result developer(tester: part1 yes by-manager)")
    place.open("developer.part0")
    ends = finish(place, "firm", "job")

    inner = [f"developer(tester: {part} yes {by})" for part, by in KNOWN.items()]
    assert ends == [f"job done manager({' '.join(inner)})"]
    await check_done_once(place)


async def check_done_once(place: Place) -> None:
    """Of the firm: effects, side turns that came to an end, and model calls, counted outside the store."""
    done = Counter(" ".join((*w[:2], *w[4:])) for w in place.noted() if w[0] in ("rent", "checked"))
    assert done == Counter(
        [*(f"rent {part}" for part in PARTS), *(f"checked {part} yes {by}" for part, by in KNOWN.items())]
    )
    decided = Counter(tuple(w[1:3]) for w in place.noted() if w[0] == "decided")
    asked = [*(("developer", part) for part in PARTS), ("manager", "part1"), ("manager", "part2")]
    assert decided == Counter(asked)
    planned = Counter((w[1], w[3]) for w in place.noted() if w[0] == "model" and w[2] == "turn")
    assert planned == {("manager", "all"): 2, **{(a, p): 2 for a in ("developer", "tester") for p in PARTS}}
    await log(place)


async def test_a_parent_answers_its_child_in_a_new_process_and_its_history_has_only_the_exchange(
    place: Place,
) -> None:
    with running(place, "pair", "job") as process:
        process.read_until("aside manager part0")
        async with Runtime(place.store) as runtime:
            while len(await runtime.store.callbacks(root="job")) < 2:  # the other one may still be planning
                await asyncio.sleep(0.01)
    place.open("manager.part0", "manager.part1")
    ends = finish(place, "pair", "job")
    assert ends == ["job done manager(developer: part0 by-manager developer: part1 by-manager)"]
    decided = [w[1:] for w in place.noted() if w[0] == "decided"]
    assert decided == [["manager", "part0"], ["manager", "part1", "part0"]]  # the second sees the first exchange

    async with Runtime(place.store) as runtime:
        main = (await runtime.load("job")).get_messages()
        kinds = Counter(r.kind for r in await runtime.rows())
        callbacks = [c.id for c in await runtime.store.callbacks(root="job")]
    assert [m.role for m in main] == ["user", "assistant", "tool", "user", "user", "assistant"]
    assert [c.name for m in main for c in m.calls] == ["task", "task"]
    assert not [m for m in main if "raises a callback" in m.text]
    assert [SHOWN in m.text and "by-manager" in m.text for m in main[3:5]] == [True, True]
    assert kinds == {"agent": 3, "side_turn": 2}
    assert len(callbacks) == 2
    planned = Counter(w[1] for w in place.noted() if w[0] == "model" and w[2] == "turn")
    assert planned == {"manager": 2, "developer": 4}


async def test_a_question_reworded_before_a_kill_reaches_the_next_hop_in_the_new_words(place: Place) -> None:
    place.open("lead.part0")
    with running(place, "ladder", "job") as process:
        process.read_until("aside manager part0")
    place.open("manager.part0")
    assert finish(place, "ladder", "job") == ["job done manager(lead(developer: part0 by-manager))"]
    async with Runtime(place.store) as runtime:
        held = (await runtime.store.callbacks(root="job"))[0]
    assert held.reworded == "part0, in better words"
    assert held.message == "how is part0 built?"
    steps = [(one.agent, one.step) for one in held.path]
    assert steps == [("lead", "asked"), ("lead", "reworded"), ("manager", "asked")]
    assert held.path[1].reason == "it was unclear"
    assert [w[1:3] for w in place.noted() if w[0] == "decided"] == [["lead", "part0"], ["manager", "part0"]]


async def test_with_one_hop_the_question_stops_at_the_person_and_is_answered_there(place: Place) -> None:
    with running(place, "ladder", "short") as process:
        process.read_until("aside lead part0")
    place.open("lead.part0")
    assert finish(place, "ladder", "short") == ["short waiting "]
    waiting = await inbox(place)
    assert [c.reworded for c in waiting.values()] == ["part0, in better words"]
    await answer(place, "how is part0 built?", "by-person")
    assert finish(place, "ladder", "short") == ["short done manager(lead(developer: part0 by-person))"]
    assert [w[1] for w in place.noted() if w[0] == "decided"] == ["lead"]


@pytest.mark.parametrize("seed", range(100 if FULL else 2))
async def test_ten_questions_are_answered_in_any_order_and_any_subset_with_a_kill_at_any_point(
    seed: int, place: Place
) -> None:
    chance = random.Random(seed)
    with running(place, "crowd", "job") as process:
        for _ in range(chance.randint(5, 140)):
            if process.read_line() in ("", "idle"):
                break
    kills = 1
    while "done" not in (ends := finish(place, "crowd", "job"))[0].split()[:2]:
        waiting = await inbox(place)
        for message in chance.sample(sorted(waiting), chance.randint(1, len(waiting))):
            await answer(place, message, f"colour{message[-2]}")
        with running(place, "crowd", "job") as process:
            for _ in range(chance.randint(0, 60)):
                if process.read_line() in ("", "idle"):
                    break
        kills += 1
    assert ends[0] == f"job done foreman({' '.join(f'painter: part{n}:colour{n}' for n in range(ASKERS))})"
    await check_crowd(place, seed, kills)


async def check_crowd(place: Place, seed: int, kills: int) -> None:
    events, noted = await log(place), place.noted()
    interrupted = {(e.session, e.call_id) for e in events if isinstance(e, ToolEnded) and e.how == "interrupted"}
    bought = Counter(tuple(w[1:3]) for w in noted if w[0] == "buy")
    painted = Counter(tuple(w[1:3]) for w in noted if w[0] == "painted")
    assert set(bought.values()) == set(painted.values()) == {1}
    ran = {(e.session, e.call_id) for e in events if isinstance(e, ToolEnded) and e.how == "ran"}
    assert {c for c in ran if "~" in c[0]} <= set(painted)
    delivered = Counter(e.callback_id for e in events if isinstance(e, CallbackDelivered))
    assert set(delivered.values()) == {1}
    responses = sum(isinstance(e, Responded) for e in events)
    assert responses == 2 + 2 * ASKERS + len(interrupted)  # nobody who had planned was asked to plan again
    asked = sum(w[0] == "model" for w in noted)
    assert responses <= asked <= responses + kills * (ASKERS + 1)
    print(f"seed {seed}: {kills} kills, {len(interrupted)} interrupted, {asked - responses} model calls lost")


@pytest.mark.parametrize("seed", range(100 if FULL else 2))
async def test_a_tree_whose_agents_answer_each_other_is_killed_anywhere_and_ends_right(
    seed: int, place: Place
) -> None:
    chance = random.Random(seed)
    place.open(*(f"{agent}.{part}" for agent in ("developer", "manager") for part in PARTS))
    kills = 0
    while True:
        with running(place, "firm", "job") as process:
            for _ in range(chance.randint(1, 120)):
                if process.read_line() in ("", "idle"):
                    break
            time.sleep(chance.random() * 0.003)
        kills += 1
        ends = finish(place, "firm", "job")
        if ends[0].startswith("job done"):
            break
        for message in chance.sample(sorted(found := await inbox(place)), chance.randint(1, len(found))):
            await answer(place, message, "yes" if message.startswith("may") else "by-person")
    inner = [f"developer(tester: {part} yes {by})" for part, by in KNOWN.items()]
    assert ends == [f"job done manager({' '.join(inner)})"]
    events, noted = await log(place), place.noted()
    for effect in ("rent", "checked"):
        assert set(Counter(tuple(w[2:4]) for w in noted if w[0] == effect).values()) == {1}
    shown = Counter((e.session, e.origin) for e in events if isinstance(e, MessageAdded))
    assert set(shown.values()) == {1}
    delivered = Counter(e.callback_id for e in events if isinstance(e, CallbackDelivered))
    assert set(delivered.values()) == {1}
    planned = Counter(e.session for e in events if isinstance(e, Responded))
    again = Counter(e.session for e in events if isinstance(e, ToolEnded) and e.how == "interrupted")
    side = {e.session for e in events if isinstance(e, SessionStarted) and e.kind == "side_turn"}
    assert {s: n - again[s] for s, n in planned.items()} == {s: 1 if s in side else 2 for s in planned}
    print(f"seed {seed}: {kills} kills, {sum(again.values())} calls interrupted, {len(side)} side turns")


async def test_a_question_left_behind_by_a_tool_that_failed_is_withdrawn_and_keeps_nobody_waiting(
    place: Place,
) -> None:
    with running(place, "stray", "job", hold=1) as process:
        process.read_until("shown left behind")
        process.read_until("shown still open")
        place.open("fail")
        process.read_until("idle")
        assert {"reply job waiting ", "left over 0"} <= set(process.said)
        assert sum(line.startswith("taken away") for line in process.said) == 2
    assert list(await inbox(place)) == ["still open"]
    async with Runtime(place.store) as runtime:
        assert await runtime.ready() == []
    await answer(place, "still open", "yes")
    async with Runtime(place.store) as runtime:
        assert await runtime.ready() == ["job"]
    ended = finish(place, "stray", "job")
    assert "it failed" in ended[0]
    assert ended[0].endswith("| yes")


async def test_questions_from_a_gather_a_task_group_and_a_thread_survive_a_kill_and_leave_no_task(
    place: Place,
) -> None:
    with running(place, "knots", "job") as process:
        process.read_until("idle")
        assert {"reply job waiting ", "left over 0"} <= set(process.said)
    messages = ["threaded", "grouped 1", "gathered 1", "grouped 0", "gathered 0"]
    assert set(await inbox(place)) == set(messages)
    for message in messages:
        assert finish(place, "knots", "job") == ["job waiting "]
        await answer(place, message, f"<{message}>")
    expected = "<gathered 0> <gathered 1> | <grouped 0> <grouped 1> | <threaded>"
    assert finish(place, "knots", "job") == [f"job done {expected}"]
    noted = Counter(w[0] for w in place.noted())
    assert noted["swallowed"] == 0
    assert noted["rent"] == 1
    assert noted["model"] == 2


async def test_children_whose_provider_repeats_its_ids_are_never_joined(place: Place) -> None:
    with running(place, "echo", "job", hold=HELD) as process:
        process.read_until("shown give me part1")
        process.read_until("shown give me part0")
    for first, second in (("part1", "part0"), ("part3", "part2")):
        for part in (first, second):
            await answer(place, f"give me {part}", f"<{part}>")
            ends = finish(place, "echo", "job")
    assert ends == ["job done child: <part0> child: <part1> child: <part2> child: <part3>"]
    async with Runtime(place.store) as runtime:
        children = await runtime.rows(parent="job")
    assert len(children) == 4
    planned = Counter((w[1], w[3]) for w in place.noted() if w[0] == "model")
    assert planned == {("parent", "all"): 3, **{("child", f"part{n}"): 2 for n in range(4)}}
