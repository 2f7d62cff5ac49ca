"""The contract of stores: parking, settling, listing callbacks and lazy appends, one short test per promise."""

from __future__ import annotations

import pytest

from store.factories import (
    StoreFactory,
    child_of,
    put,
    question_events,
    start_and_claim,
    start_session,
    turn,
    turn_end,
    wait_until,
)
from upcall.contracts import Claim, Selection, Store
from upcall.errors import StoreError, UpcallError
from upcall.events import (
    AnyEvent,
    CallbackAnswered,
    CallbackExpired,
    CallbackWithdrawn,
    ContextSet,
    Parked,
    TurnResumed,
    content_hash,
)

BODY = b"a body of some length"


async def types(store: Store, session: str = "s") -> list[str]:
    return [event.type for event in await store.read(session)]


# --- park ---------------------------------------------------------------------------------


async def test_parking_stores_the_events_of_all_sessions_and_their_bodies(store: Store, other: Store) -> None:
    claim = await start_and_claim(store)
    await put(store, "s", turn(), claim=claim)
    await put(store, "s~1", child_of("s"), turn(), *question_events("q"), claim=claim)
    parked: dict[str, list[AnyEvent]] = {"s": [ContextSet("k", 1), Parked(())], "s~1": [Parked(("q",))]}
    assert await store.park(claim, parked, ["q"], {content_hash(BODY): BODY})
    assert (await types(other))[-2:] == ["context_set", "parked"]
    assert (await types(other, "s~1"))[-1] == "parked"
    assert await other.blob(content_hash(BODY)) == BODY


async def test_a_park_that_is_refused_stores_nothing_and_keeps_the_claim(store: Store, other: Store) -> None:
    claim = await start_and_claim(store)
    await put(store, "s", turn(), *question_events("q"), claim=claim)
    await other.settle("q", {"q": CallbackAnswered("q", "yes", "ops")})
    before = await types(store)
    assert not await store.park(claim, {"s": [Parked(("q",))]}, ["q"], {content_hash(BODY): BODY})
    assert (await types(store), claim.is_active) == (before, True)
    with pytest.raises(StoreError):
        await store.blob(content_hash(BODY))
    await put(store, "s", turn_end(), claim=claim)


async def test_nothing_can_be_appended_with_the_claim_of_a_parked_tree(store: Store) -> None:
    claim = await start_and_claim(store)
    await put(store, "s", turn(), *question_events("q"), claim=claim)
    await store.park(claim, {"s": [Parked(("q",))]}, ["q"])
    with pytest.raises(UpcallError):
        await put(store, "s", TurnResumed(1), claim=claim)


async def test_a_park_may_withdraw_what_was_settled_meanwhile_without_a_trace(store: Store, other: Store) -> None:
    claim = await start_and_claim(store)
    await put(store, "s", turn(), *question_events("q"), *question_events("moot"), claim=claim)
    await other.settle("moot", {"moot": CallbackAnswered("moot", "yes", "ops")})
    assert await store.park(claim, {"s": [CallbackWithdrawn("moot", "over"), Parked(("q",))]}, ["q"])
    held = await store.callback("moot")
    assert held is not None
    assert (held.status, "callback_withdrawn" in await types(store)) == ("answered", False)


# --- settle and callbacks -----------------------------------------------------------------


async def test_a_settlement_is_heard_by_every_process(store: Store, other: Store) -> None:
    claim = await start_and_claim(store)
    await put(store, "s", turn(), *question_events("q"), claim=claim)
    heard: dict[str, list[str]] = {"store": [], "other": []}
    stops = [
        store.listen(lambda event: heard["store"].append(event.type)),
        other.listen(lambda event: heard["other"].append(event.type)),
    ]
    watching = await other.last()
    await store.settle("q", {"q": CallbackAnswered("q", "yes", "ops")})
    await other.wait(watching, 10)
    await wait_until(lambda: heard["store"] and heard["other"])
    for stop in stops:
        stop()
    assert set(heard["store"]) == set(heard["other"]) == {"callback_answered"}


async def test_an_expiry_can_not_settle_what_was_answered(store: Store, other: Store) -> None:
    claim = await start_and_claim(store)
    await put(store, "s", turn(), *question_events("q"), claim=claim)
    await store.settle("q", {"q": CallbackAnswered("q", "yes", "ops")})
    refused = await other.settle("q", {"q": CallbackExpired("q")})
    assert refused is not None
    assert (refused.status, refused.answer and refused.answer.by) == ("answered", "ops")


async def test_the_callbacks_of_another_tree_are_not_listed_and_the_limit_counts_the_oldest(store: Store) -> None:
    for session in ("s", "t"):
        claim = await start_and_claim(store, session)
        names = [f"{session}{n}" for n in range(3)]
        await put(store, session, turn(), *[e for name in names for e in question_events(name)], claim=claim)
    listed = await store.callbacks(root="s")
    assert [one.id for one in listed] == ["s0", "s1", "s2"]
    assert [one.id for one in await store.callbacks(root="s", limit=2)] == ["s0", "s1"]
    assert await store.callbacks(root="nobody") == []


async def test_the_inbox_has_only_what_waits_for_a_person_up_to_its_limit(store: Store) -> None:
    claim = await start_and_claim(store)
    await put(store, "s", turn(), *[e for n in range(4) for e in question_events(f"q{n}")], claim=claim)
    await store.settle("q1", {"q1": CallbackAnswered("q1", "yes", "ops")})
    assert [one.id for one in await store.callbacks(inbox=True)] == ["q0", "q2", "q3"]
    assert [one.id for one in await store.callbacks(inbox=True, limit=2)] == ["q0", "q2"]
    assert [one.id for one in await store.callbacks(inbox=True, which=Selection(status="answered"))] == ["q1"]


# --- unfinished ---------------------------------------------------------------------------


async def test_a_limit_gives_the_oldest_ready_trees(store: Store) -> None:
    for name in ("a", "b", "c"):
        claim = await start_and_claim(store, name)
        await put(store, name, turn(), claim=claim)
        await store.release(claim)
    assert [row.id for row in await store.unfinished(2)] == ["a", "b"]


async def test_a_ready_tree_is_listed_once_whatever_made_it_ready(factory: StoreFactory, store: Store) -> None:
    claim = await start_and_claim(store)
    asked = [*question_events("q1"), *question_events("q2", factory.clock.now + 1)]
    await put(store, "s", turn(), *asked, claim=claim)
    await store.park(claim, {"s": [Parked(("q1", "q2"))]}, ["q1", "q2"])
    await store.settle("q1", {"q1": CallbackAnswered("q1", "yes", "ops")})
    factory.clock.now += 5
    assert [row.id for row in await store.unfinished()] == ["s"]


# --- lazy appends -------------------------------------------------------------------------


async def put_lazily(store: Store, claim: Claim | None) -> None:
    stored = store.append("s", [turn()], claim, lazy=True)
    if stored is not None:
        await stored


async def test_a_lazy_append_is_stored_before_the_next_one_of_its_session(store: Store, other: Store) -> None:
    claim = await start_and_claim(store)
    store.append("s", [turn()], claim, lazy=True)
    await put(store, "s", turn_end(), claim=claim)
    assert await types(other) == ["session_started", "turn_started", "turn_ended"]


async def test_a_lazy_append_is_stored_and_stamped_when_its_future_is_done(store: Store, other: Store) -> None:
    claim = await start_and_claim(store)
    event = turn()
    stored = store.append("s", [event], claim, lazy=True)
    if stored is not None:
        await stored
    assert (event.seq, await types(other)) == (2, ["session_started", "turn_started"])


async def test_a_lazy_append_with_a_lost_claim_is_refused(store: Store, other: Store) -> None:
    claim = await start_and_claim(store)
    await other.claim("s", take_over=True)
    with pytest.raises(UpcallError):
        await put_lazily(store, claim)
    assert await types(other) == ["session_started"]


async def test_a_lazy_append_that_starts_nothing_new_is_refused_like_any_other(store: Store) -> None:
    await start_session(store)
    with pytest.raises(StoreError):
        await put_lazily(store, None)
