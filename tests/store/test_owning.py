"""The contract of stores: one owner at a time, and older ones are fenced off."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from store.agents import worker
from store.factories import (
    StoreFactory,
    child_of,
    open_sqlite,
    put,
    start_and_claim,
    start_session,
    turn,
    turn_end,
    wait_until,
)
from upcall import Runtime
from upcall.contracts import Claim, Store
from upcall.errors import SessionBusy, SessionTakenOver, StoreError, UnknownSession
from upcall.events import Steered
from upcall.store.sqlite.store import SqliteStore


async def test_a_session_that_is_not_there_can_not_be_claimed(store: Store) -> None:
    with pytest.raises(UnknownSession):
        await store.claim("nobody")


async def test_a_tree_with_a_living_owner_is_busy_for_everybody_else(store: Store, other: Store) -> None:
    await start_and_claim(store)
    for one in (store, other):
        with pytest.raises(SessionBusy) as caught:
            await one.claim("s")
        assert caught.value.owner
        assert caught.value.is_local == (one is store)


async def test_of_many_claims_at_once_one_wins(store: Store, other: Store) -> None:
    await start_session(store)
    tries = [one.claim("s") for one in (store, other, store, other)]
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(o, Claim) for o in outcomes) == 1
    assert sum(isinstance(o, SessionBusy) for o in outcomes) == 3


async def test_a_released_tree_has_no_owner_and_can_be_claimed_by_anybody(store: Store, other: Store) -> None:
    claim = await start_and_claim(store)
    await store.release(claim)
    row = await other.row("s")
    assert row is not None
    assert row.owner == ""
    await other.claim("s")


async def test_a_claim_is_given_up_with_the_append_that_says_so(store: Store, other: Store) -> None:
    claim = await start_and_claim(store)
    await put(store, "s", turn(), turn_end(), claim=claim, release=True)
    assert claim.released
    assert [e.type for e in await other.read("s")][-1] == "turn_ended"
    await other.claim("s")


async def test_nothing_can_be_appended_with_a_claim_that_was_given_up(store: Store) -> None:
    claim = await start_and_claim(store)
    await store.release(claim)
    with pytest.raises(StoreError, match="given up"):
        await put(store, "s", turn(), claim=claim)
    assert len(await store.read("s")) == 1


async def test_every_new_claim_has_a_higher_epoch_than_all_before(store: Store, other: Store) -> None:
    epochs: list[int] = []
    await start_session(store)
    for one in (store, other, store):
        claim = await one.claim("s")
        epochs.append(claim.epoch)
        await one.release(claim)
    assert epochs == sorted(set(epochs))


async def test_who_was_taken_over_writes_nothing_more_and_is_told(store: Store, other: Store) -> None:
    old = await start_and_claim(store)
    new = await other.claim("s", take_over=True)
    with pytest.raises(SessionTakenOver):
        await put(store, "s", turn(), claim=old)
    assert isinstance(old.failure, SessionTakenOver)
    await put(other, "s", turn(text="mine"), claim=new)
    assert [e.type for e in await store.read("s")] == ["session_started", "turn_started"]


@pytest.mark.slow
async def test_an_owner_hears_that_it_was_taken_over_without_appending(store: Store, other: Store) -> None:
    old = await start_and_claim(store)
    told: list[Exception] = []
    old.on_failure = told.append
    await other.claim("s", take_over=True)
    await wait_until(lambda: told)
    assert isinstance(told[0], SessionTakenOver)


async def test_appends_on_both_sides_of_a_take_over_are_parted_by_it(store: Store) -> None:
    old = await start_and_claim(store)
    before = asyncio.ensure_future(put(store, "s", turn(1), claim=old))
    taking = asyncio.ensure_future(store.claim("s", take_over=True))
    after = asyncio.ensure_future(put(store, "s", turn(2), claim=old))
    outcomes = await asyncio.gather(before, taking, after, return_exceptions=True)
    assert isinstance(outcomes[2], SessionTakenOver)
    assert [e.seq for e in await store.read("s")] == [1, 2]


async def test_of_two_take_overs_the_later_one_owns_the_tree(store: Store) -> None:
    await start_session(store)
    first, second = await asyncio.gather(store.claim("s", take_over=True), store.claim("s", take_over=True))
    with pytest.raises(SessionTakenOver):
        await put(store, "s", turn(), claim=first)
    await put(store, "s", turn(), claim=second)


async def test_releasing_a_lost_claim_does_not_touch_the_new_owners(store: Store, other: Store) -> None:
    old = await start_and_claim(store)
    new = await other.claim("s", take_over=True)
    await store.release(old)
    row = await store.row("s")
    assert row is not None
    assert row.owner != ""
    await put(other, "s", turn(), claim=new)


async def test_the_owner_of_a_tree_is_listed_with_each_of_its_sessions(store: Store, other: Store) -> None:
    claim = await start_and_claim(store, "top")
    await put(store, "top~1", child_of("top"), claim=claim)
    rows = await other.rows()
    assert all(r.owner for r in rows)
    await store.release(claim)
    assert not any(r.owner for r in await other.rows())


async def test_others_may_speak_to_a_session_that_somebody_owns(store: Store, other: Store) -> None:
    claim = await start_and_claim(store)
    await put(other, "s", Steered("faster"))
    await put(store, "s", turn(), claim=claim)
    assert [(e.seq, e.type) for e in await store.read("s")][1:] == [(2, "steered"), (3, "turn_started")]


async def test_an_old_claim_gives_no_right_on_a_new_session_of_the_same_name(
    factory: StoreFactory, store: Store, other: Store
) -> None:
    old = await start_and_claim(store)
    new = await other.claim("s", take_over=True)
    await other.release(new)
    await other.delete(["s"])
    await start_session(other)
    fresh = await other.claim("s")
    with pytest.raises(SessionTakenOver):
        await put(store, "s", turn(), claim=old)
    await put(other, "s", turn(), claim=fresh)
    assert len(await other.read("s")) == 2


# --- SQLite -------------------------------------------------------------------------------


async def test_a_prompt_waits_for_another_owner_a_little_longer_than_the_stores_lease(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with open_sqlite(path, lambda: time.time() + 3600) as ahead:  # its heartbeat is never late
        await start_and_claim(ahead)
        async with Runtime(SqliteStore(path, lease=0.2), agents=[worker("writer")]) as runtime:
            session = await runtime.load("s")
            started = time.monotonic()
            with pytest.raises(SessionBusy) as caught:
                await session.prompt("go")
    assert not caught.value.is_local
    assert 0.2 <= time.monotonic() - started < 5.0
