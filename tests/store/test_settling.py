"""The contract of stores: settling callbacks, parking for them, and when the next one expires."""

from __future__ import annotations

import pytest

from store.factories import (
    StoreFactory,
    child_of,
    put,
    question,
    question_events,
    start_and_claim,
    start_session,
    turn,
)
from upcall.callbacks import Callback
from upcall.contracts import Claim, Selection, Store
from upcall.errors import SessionTakenOver
from upcall.events import (
    CallbackAnswered,
    CallbackAsked,
    CallbackDelivered,
    CallbackExpired,
    Parked,
    SessionAdopted,
    SessionStarted,
    Steered,
)


async def asked(store: Store, *names: str, expires: float | None = None) -> Claim:
    """A session whose turn has asked a person these questions."""
    claim = await start_and_claim(store)
    events = [event for name in names for event in question_events(name, expires)]
    await put(store, "s", turn(), *events, claim=claim)
    return claim


async def found(store: Store, name: str) -> Callback:
    callback = await store.callback(name)
    assert callback is not None
    return callback


def answered(name: str, value: str = "yes") -> CallbackAnswered:
    return CallbackAnswered(name, value, "ops")


# --- settling -----------------------------------------------------------------------------


async def test_a_callback_that_is_not_there_is_none(store: Store) -> None:
    assert await store.callback("nobody") is None


async def test_the_first_answer_wins_and_the_second_is_told_of_it(store: Store, other: Store) -> None:
    await asked(store, "q")
    assert await other.settle("q", {"q": answered("q", "first")}) is None
    already = await store.settle("q", {"q": answered("q", "second")})
    assert already is not None
    assert already.answer is not None
    assert (already.status, already.answer.value) == ("answered", "first")
    assert [e.type for e in await store.read("s")].count("callback_answered") == 1


async def test_an_answer_after_the_deadline_is_refused_but_the_expiry_is_taken(
    factory: StoreFactory, store: Store
) -> None:
    deadline = factory.clock.now + 60
    await asked(store, "q", expires=deadline)
    factory.clock.now = deadline
    late = await store.settle("q", {"q": answered("q")})
    assert late is not None
    assert late.status == "expired"
    assert [e.type for e in await store.read("s")][-1] == "callback_asked"
    assert await store.settle("q", {"q": CallbackExpired("q")}) is None
    assert (await found(store, "q")).status == "expired"


async def test_callbacks_are_settled_together_and_those_already_settled_stay_as_they_are(store: Store) -> None:
    claim = await asked(store, "first", "before")
    await put(store, "s~1", child_of("s"), turn(), *question_events("below"), claim=claim)
    await store.settle("before", {"before": answered("before", "no")})
    names = ("first", "before", "below")
    assert await store.settle("first", {name: answered(name) for name in names}) is None
    answers = [(await found(store, name)).answer for name in names]
    assert [one.value for one in answers if one is not None] == ["yes", "no", "yes"]
    assert [e.type for e in await store.read("s~1")][-1] == "callback_answered"


async def test_who_was_taken_over_settles_nothing(store: Store, other: Store) -> None:
    old = await asked(store, "q")
    await other.claim("s", take_over=True)
    with pytest.raises(SessionTakenOver):
        await store.settle("q", {"q": answered("q")}, old)
    assert (await found(store, "q")).status == "open"


async def test_a_delivered_answer_is_known_as_delivered(store: Store) -> None:
    claim = await asked(store, "q")
    await store.settle("q", {"q": answered("q")})
    before = (await found(store, "q")).delivered
    await put(store, "s", CallbackDelivered("q", "r1c0"), claim=claim)
    assert (before, (await found(store, "q")).delivered) == (False, True)


async def test_approvals_of_an_adopted_log_wait_for_a_person_again(store: Store) -> None:
    await asked(store, "again", "settled")
    for name in ("again", "settled"):
        await store.settle(name, {name: answered(name)})
    await put(store, "s", SessionAdopted("me", ("again",)))
    assert [one.id for one in await store.callbacks(inbox=True)] == ["again"]
    reopened = await found(store, "again")
    assert (reopened.status, reopened.target, reopened.answer) == ("open", "user", None)


# --- listing ------------------------------------------------------------------------------


async def test_the_inbox_is_in_order_of_priority_and_then_of_age(factory: StoreFactory, store: Store) -> None:
    claim = await start_and_claim(store)
    await put(store, "s", turn(), claim=claim)
    for name, priority in (("a", "low"), ("b", "normal"), ("c", "critical"), ("d", "normal"), ("e", "high")):
        factory.clock.now += 1
        await put(store, "s", question(name).replace(priority=priority), CallbackAsked(name, "user"), claim=claim)
    assert [one.id for one in await store.callbacks(inbox=True)] == ["c", "e", "b", "d", "a"]
    assert [one.id for one in await store.callbacks(inbox=True, limit=2)] == ["c", "e"]


async def test_the_callbacks_of_a_run_tree_are_listed_oldest_first_whatever_their_status(store: Store) -> None:
    claim = await asked(store, "one", "two")
    await put(store, "s~1", child_of("s"), turn(), question("three"), CallbackAsked("three", "boss"), claim=claim)
    await store.settle("one", {"one": answered("one")})
    stranger = await start_and_claim(store, "stranger")
    await put(store, "stranger", turn(), *question_events("four"), claim=stranger)
    assert [one.id for one in await store.callbacks(root="s")] == ["one", "two", "three"]
    assert [one.id for one in await store.callbacks(root="s", limit=1)] == ["one"]
    assert await store.callbacks(root="nobody") == []


async def test_a_row_has_the_title_and_the_folders_of_its_run_tree(store: Store) -> None:
    titled = SessionStarted("writer", title="Orders", folder="/srv/shop", roots=("/srv/docs",))
    await put(store, "top", titled)
    await put(store, "top~1", child_of("top"), claim=await store.claim("top"))
    await start_session(store, "plain")
    rows = {row.id: (row.title, row.folder, row.roots) for row in await store.rows()}
    of_tree = ("Orders", "/srv/shop", ("/srv/docs",))
    assert rows == {"top": of_tree, "top~1": of_tree, "plain": ("", "", ())}
    in_folder = await store.rows(which=Selection(folder="/srv/shop"))
    assert [row.id for row in in_folder] == ["top~1", "top"]
    assert await store.rows(which=Selection(folder="/srv")) == []


# --- parking ------------------------------------------------------------------------------


async def test_a_run_is_not_parked_for_a_callback_that_another_process_settled(store: Store, other: Store) -> None:
    claim = await asked(store, "q1", "q2")
    await other.settle("q2", {"q2": answered("q2")})
    assert not await store.park(claim, {"s": [Steered("x"), Parked(("q1", "q2"))]}, ["q1", "q2"])
    assert [e.type for e in await store.read("s")][-1] == "callback_answered"
    assert claim.is_active
    await put(store, "s", Steered("still mine"), claim=claim)


async def test_who_was_taken_over_parks_nothing(store: Store, other: Store) -> None:
    old = await asked(store, "q")
    new = await other.claim("s", take_over=True)
    with pytest.raises(SessionTakenOver):
        await store.park(old, {"s": [Parked(("q",))]}, ["q"])
    row = await other.row("s")
    assert row is not None
    assert row.status == "running"
    assert await other.park(new, {"s": [Parked(("q",))]}, ["q"])


async def test_a_parked_run_can_be_claimed_by_anybody_and_its_claim_is_released(store: Store, other: Store) -> None:
    claim = await asked(store, "q")
    assert await store.park(claim, {"s": [Parked(("q",))]}, ["q"])
    assert claim.released
    assert (await other.claim("s")).epoch > claim.epoch


async def test_the_next_deadline_is_the_first_at_which_a_parked_run_can_continue(
    factory: StoreFactory, store: Store
) -> None:
    now = factory.clock.now
    claim = await start_and_claim(store)
    questions = [*question_events("late", now + 60), *question_events("soon", now + 30), *question_events("ever")]
    await put(store, "s", turn(), *questions, claim=claim)
    while_running = await store.next_deadline(now)
    await store.park(claim, {"s": [Parked(("late", "soon", "ever"))]}, ["late", "soon", "ever"])
    deadlines = [await store.next_deadline(after) for after in (now, now + 30, now + 60)]
    await store.settle("soon", {"soon": answered("soon")})
    assert (while_running, deadlines) == (None, [now + 30, now + 60, None])
    assert await store.next_deadline(now) == now + 60
