"""The contract of stores: which run trees are ready to continue, whatever the number of others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from store.agents import counted
from store.factories import (
    StoreFactory,
    child_of,
    open_sqlite,
    put,
    question,
    question_events,
    start_and_claim,
    start_session,
    turn,
    turn_end,
)
from upcall import Agent, Runtime
from upcall.contracts import Claim, Store
from upcall.errors import StoreError
from upcall.events import (
    AnyEvent,
    CallbackAnswered,
    CallbackAsked,
    CallbackDelivered,
    CallbackPassed,
    CallbackWithdrawn,
    HooksPassed,
    Parked,
    SessionStarted,
    TurnResumed,
)
from upcall.models import Script

MANY = 1001


async def park(store: Store, claim: Claim, waits: dict[str, list[str]]) -> None:
    events = {session: [Parked(tuple(names))] for session, names in waits.items()}
    assert await store.park(claim, events, [name for names in waits.values() for name in names])


async def parked(store: Store, session: str, *questions: str, expires: float | None = None) -> None:
    """A session whose turn asked these and is parked."""
    claim = await start_and_claim(store, session)
    await put(
        store, session, turn(), *[e for name in questions for e in question_events(name, expires)], claim=claim
    )
    await park(store, claim, {session: list(questions)})


async def settle(store: Store, name: str) -> None:
    assert await store.settle(name, {name: CallbackAnswered(name, "yes", "ops")}) is None


async def ready(store: Store, limit: int | None = None) -> list[str]:
    return [row.id for row in await store.unfinished(limit)]


# --- what is ready ------------------------------------------------------------------------


async def test_a_turn_that_nobody_runs_any_more_is_ready(store: Store, other: Store) -> None:
    claim = await start_and_claim(store)
    await put(store, "s", turn(), claim=claim)
    while_owned = await ready(other)
    await store.release(claim)
    assert (while_owned, await ready(other)) == ([], ["s"])


async def test_sessions_without_a_turn_and_with_an_ended_one_are_not_ready(store: Store) -> None:
    await start_session(store, "idle")
    claim = await start_and_claim(store, "done")
    await put(store, "done", turn(), turn_end(), claim=claim, release=True)
    assert await ready(store) == []


async def test_a_parked_tree_is_ready_once_what_it_waits_for_is_settled(store: Store, other: Store) -> None:
    await parked(store, "s", "q1", "q2")
    before = await ready(other)
    await settle(other, "q2")
    assert (before, await ready(store)) == ([], ["s"])


async def test_a_parked_tree_is_ready_once_what_it_waits_for_is_withdrawn(store: Store) -> None:
    await parked(store, "s", "q1")
    await store.append_all({"s": [CallbackWithdrawn("q1", "cancelled")]})
    assert await ready(store) == ["s"]


async def test_a_parked_tree_is_ready_from_the_moment_its_question_expires(
    factory: StoreFactory, store: Store
) -> None:
    deadline = factory.clock.now + 60
    await parked(store, "s", "q1", expires=deadline)
    factory.clock.now = deadline - 1
    before = await ready(store)
    factory.clock.now = deadline
    assert (before, await ready(store)) == ([], ["s"])


@pytest.mark.parametrize("then", [CallbackAsked("q1", "lead"), CallbackPassed("q1", "lead", "not mine")])
async def test_a_parked_tree_whose_question_goes_to_an_agent_next_is_ready(store: Store, then: AnyEvent) -> None:
    claim = await start_and_claim(store)
    await put(store, "s", turn(), question("q1"), then, claim=claim)
    await park(store, claim, {"s": ["q1"]})
    assert await ready(store) == ["s"]


async def test_a_parked_tree_is_ready_when_a_child_can_continue(store: Store) -> None:
    claim = await start_and_claim(store, "top")
    await put(store, "top", turn(), claim=claim)
    for name in ("top~1", "top~2"):
        await put(store, name, child_of("top"), turn(), *question_events(f"q{name}"), claim=claim)
    await park(store, claim, {"top": [], "top~1": ["qtop~1"], "top~2": ["qtop~2"]})
    before = await ready(store)
    await settle(store, "qtop~2")
    assert (before, await ready(store)) == ([], ["top"])


async def test_an_answer_that_the_parked_tree_does_not_wait_for_makes_nothing_ready(store: Store) -> None:
    claim = await start_and_claim(store)
    await put(store, "s", turn(), *question_events("q1"), *question_events("q2"), claim=claim)
    await settle(store, "q1")  # its call took another answer first, and has ended
    await park(store, claim, {"s": ["q2"]})
    before = await ready(store)
    await settle(store, "q2")
    assert (before, await ready(store)) == ([], ["s"])


async def test_a_tree_that_parks_again_waits_only_for_what_its_newest_park_names(store: Store) -> None:
    await parked(store, "s", "q1", "q2")
    await settle(store, "q1")
    claim = await store.claim("s")
    await put(store, "s", TurnResumed(1), CallbackDelivered("q1", "r1c0"), claim=claim)
    await park(store, claim, {"s": ["q2"]})
    before = await ready(store)
    await settle(store, "q2")
    assert (before, await ready(store)) == ([], ["s"])


async def test_a_child_that_stays_parked_while_the_others_continue_is_still_waited_for(store: Store) -> None:
    claim = await start_and_claim(store, "top")
    await put(store, "top", turn(), claim=claim)
    for name in ("top~1", "top~2"):
        await put(store, name, child_of("top"), turn(), *question_events(f"q{name}"), claim=claim)
    await park(store, claim, {"top": [], "top~1": ["qtop~1"], "top~2": ["qtop~2"]})
    await settle(store, "qtop~1")
    claim = await store.claim("top")
    await put(store, "top", TurnResumed(1), claim=claim)
    await put(store, "top~1", TurnResumed(1), CallbackDelivered("qtop~1", "r1c0"), turn_end(), claim=claim)
    await park(store, claim, {"top": []})
    before = await ready(store)
    await settle(store, "qtop~2")
    assert (before, await ready(store)) == ([], ["top"])


async def test_a_session_whose_first_hooks_wait_is_ready_once_they_can_continue(store: Store) -> None:
    await put(store, "s", SessionStarted("writer", begins=True))
    claim = await store.claim("s")
    await put(store, "s", *question_events("q1"), claim=claim)
    await park(store, claim, {"s": ["q1"]})
    before = await ready(store)
    await settle(store, "q1")
    answered = await ready(store)
    claim = await store.claim("s")
    await put(store, "s", CallbackDelivered("q1", "begin_session"), HooksPassed("begin_session"), claim=claim)
    await store.release(claim)
    assert (before, answered, await ready(store)) == ([], ["s"], [])


async def test_a_tree_of_a_process_that_died_is_ready(tmp_path: Path) -> None:
    now = 1_000_000.0

    async with open_sqlite(tmp_path / "log.db", clock=lambda: now) as dead:
        await put(dead, "s", SessionStarted("writer"))
        claim = await dead.claim("s")
        await put(dead, "s", turn(), claim=claim)
        async with open_sqlite(tmp_path / "log.db", clock=lambda: now + 60) as living:  # its heartbeat is late
            assert await ready(living) == ["s"]


# --- whatever the number of others --------------------------------------------------------


@pytest.mark.slow
async def test_a_thousand_older_running_trees_hide_no_ready_one(store: Store) -> None:
    for number in range(MANY):
        await put(store, f"busy{number}", turn(), claim=await start_and_claim(store, f"busy{number}"))
    await parked(store, "s", "q1")
    await settle(store, "q1")
    assert (await ready(store), await ready(store, limit=1)) == (["s"], ["s"])


@pytest.mark.slow
async def test_a_thousand_older_parked_trees_hide_no_ready_one(store: Store) -> None:
    async def make(number: int) -> None:
        claim = await start_and_claim(store, f"t{number}")
        await put(
            store, f"t{number}", turn(), *question_events(f"a{number}"), *question_events(f"b{number}"), claim=claim
        )
        await settle(store, f"a{number}")  # nobody asks for this answer any more
        await park(store, claim, {f"t{number}": [f"b{number}"]})

    for first in range(0, MANY, 100):
        await asyncio.gather(*[make(number) for number in range(first, min(first + 100, MANY))])
    await parked(store, "s", "q1")
    await settle(store, "q1")
    assert (await ready(store), await ready(store, limit=1)) == (["s"], ["s"])


@pytest.mark.slow
async def test_a_runtime_lists_every_ready_tree_however_many_there_are(store: Store) -> None:
    for number in range(MANY):
        await put(store, f"s{number}", turn(), claim=await start_and_claim(store, f"s{number}"), release=True)
    runtime = Runtime(store, agents=[Agent("writer", model=Script(["done"]))])
    assert await runtime.ready() == [f"s{number}" for number in range(MANY)]


@pytest.mark.slow
async def test_looking_for_ready_trees_costs_the_same_beside_a_hundred_times_as_many_others(tmp_path: Path) -> None:
    steps: list[int] = []
    for others in (10, 1000):
        with counted() as work:
            async with open_sqlite(tmp_path / f"{others}.db") as store:
                for number in range(others):
                    await start_session(store, f"idle{number}")
                    await parked(store, f"waiting{number}", f"q{number}")
                await settle(store, "q0")
                before = work.steps
                assert await ready(store) == ["waiting0"]
                steps.append(work.steps - before)
    assert steps[1] <= steps[0] * 1.5


async def test_parking_stores_the_bodies_that_its_events_name_or_nothing_at_all(store: Store) -> None:
    claim = await start_and_claim(store, "s")
    await put(store, "s", turn(), *question_events("q"), claim=claim)
    await settle(store, "q")

    assert not await store.park(claim, {"s": [Parked(("q",))]}, ["q"], {"refused": b"body"})
    with pytest.raises(StoreError):
        await store.blob("refused")
    assert await store.park(claim, {"s": [Parked(())]}, [], {"stored": b"body"})
    assert await store.blob("stored") == b"body"
