"""The contract of stores: what appending promises."""

from __future__ import annotations

import asyncio

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
from upcall.contracts import Store
from upcall.errors import SessionExists, StoreError, UnknownCallback, UnknownSession
from upcall.events import (
    CallbackAnswered,
    CallbackWithdrawn,
    CancelRequested,
    Compacted,
    ContextSet,
    HooksPassed,
    MessageAdded,
    SessionStarted,
    Steered,
    ToolEnded,
    ToolStarted,
)
from upcall.messages import Result, user


async def test_appended_events_are_stamped_with_session_number_position_and_time(
    factory: StoreFactory, store: Store
) -> None:
    factory.clock.now = 1234.5
    (event,) = await put(store, "s", SessionStarted("writer"))
    assert (event.session, event.seq, event.time) == ("s", 1, 1234.5)
    assert event.pos == await store.last() > 0


async def test_what_is_read_equals_what_was_appended(store: Store) -> None:
    claim = await start_and_claim(store)
    written = await put(store, "s", turn(), ContextSet("k", {"a": [1, None, "ü"]}), claim=claim)
    assert (await store.read("s"))[1:] == list(written)


async def test_sequence_numbers_count_per_session_and_positions_rise_over_the_store(store: Store) -> None:
    a, b = await start_and_claim(store, "a"), await start_and_claim(store, "b")
    for number in (1, 2):
        await put(store, "a", turn(number), turn_end(number), claim=a)
        await put(store, "b", turn(number), claim=b)
    every = await store.read_all()
    assert [e.pos for e in every] == sorted({e.pos for e in every})
    assert [e.seq for e in every if e.session == "a"] == [1, 2, 3, 4, 5]
    assert [e.seq for e in every if e.session == "b"] == [1, 2, 3]


async def test_appends_that_are_not_awaited_are_stored_in_the_order_of_the_calls(store: Store) -> None:
    claim = await start_and_claim(store)
    handed = [store.append("s", [ContextSet("n", n)], claim) for n in range(50)]
    await asyncio.gather(*[stored for stored in handed if stored is not None])
    values = [e.value for e in await store.read("s") if isinstance(e, ContextSet)]
    assert values == list(range(50))


async def test_several_events_are_stored_together_or_not_at_all(store: Store) -> None:
    await start_session(store)
    with pytest.raises(StoreError):
        await put(store, "s", Steered("left"), turn(), Steered("right"))
    assert [e.type for e in await store.read("s")] == ["session_started"]


async def test_a_new_session_may_bring_more_events_in_its_first_append(store: Store) -> None:
    await put(store, "s", SessionStarted("writer"), MessageAdded(user("hello")), HooksPassed("begin_session"))
    assert [e.seq for e in await store.read("s")] == [1, 2, 3]


async def test_a_second_start_of_the_same_session_is_refused(store: Store) -> None:
    await start_session(store)
    with pytest.raises(SessionExists):
        await put(store, "s", SessionStarted("writer"))
    assert len(await store.read("s")) == 1


async def test_of_two_processes_that_start_the_same_session_one_is_refused(store: Store, other: Store) -> None:
    tries = [put(one, "s", SessionStarted("writer")) for one in (store, other)]
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    assert sorted(isinstance(o, SessionExists) for o in outcomes) == [False, True]
    assert len(await store.read("s")) == 1


async def test_appending_to_a_session_that_is_not_there_is_refused(store: Store) -> None:
    with pytest.raises(UnknownSession):
        await put(store, "nobody", Steered("hello?"))
    assert await store.read_all() == []


async def test_a_child_of_nobody_is_refused_and_leaves_nothing(store: Store) -> None:
    with pytest.raises(UnknownSession, match="nobody"):
        await put(store, "c", child_of("nobody"))
    assert await store.row("c") is None


async def test_without_a_claim_only_what_others_may_say_is_taken(store: Store) -> None:
    await start_session(store)
    await put(store, "s", Steered("faster"), CancelRequested())
    for event in (turn(), turn_end(), ContextSet("k", 1), ToolStarted("r1c0"), Compacted(())):
        with pytest.raises(StoreError, match="only the owner of the run tree"):
            await put(store, "s", event)
    assert [e.type for e in await store.read("s")] == ["session_started", "steered", "cancel_requested"]


async def test_a_claim_on_one_run_tree_gives_no_right_on_another(store: Store) -> None:
    claim = await start_and_claim(store, "mine")
    await start_session(store, "yours")
    with pytest.raises(StoreError, match="only the owner of the run tree"):
        await put(store, "yours", turn(), claim=claim)
    assert len(await store.read("yours")) == 1


async def test_a_claim_covers_the_children_of_its_tree(store: Store) -> None:
    claim = await start_and_claim(store, "top")
    await put(store, "top~1", child_of("top"), turn(), claim=claim)
    await put(store, "top~1~1", child_of("top~1", "top"), turn(), claim=claim)
    assert [e.seq for e in await store.read("top~1~1")] == [1, 2]


async def test_a_refused_append_marks_its_claim_and_every_later_one_fails_too(store: Store) -> None:
    claim = await start_and_claim(store)
    told: list[Exception] = []
    claim.on_failure = told.append
    with pytest.raises(UnknownSession):
        await put(store, "nobody", turn(), claim=claim)
    with pytest.raises(UnknownSession):
        await put(store, "s", turn(), claim=claim)
    assert isinstance(claim.failure, UnknownSession)
    await wait_until(lambda: told)
    assert told == [claim.failure]
    assert len(await store.read("s")) == 1


async def test_a_session_whose_claim_failed_can_be_claimed_again_at_once(store: Store) -> None:
    claim = await start_and_claim(store)
    with pytest.raises(UnknownSession):
        await put(store, "nobody", turn(), claim=claim)
    fresh = await store.claim("s")
    await put(store, "s", turn(), claim=fresh)
    assert len(await store.read("s")) == 2


async def test_a_failed_append_of_one_session_is_no_other_sessions_failure(store: Store) -> None:
    bad, good = await start_and_claim(store, "bad"), await start_and_claim(store, "good")
    tries = [put(store, "bad", SessionStarted("x"), claim=bad), put(store, "good", turn(), claim=good)]
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    assert isinstance(outcomes[0], SessionExists)
    assert good.failure is None
    assert len(await store.read("good")) == 2


async def test_a_body_that_a_hook_replaced_is_no_longer_kept(store: Store) -> None:
    claim = await start_and_claim(store)
    ended = ToolEnded("r1c0", Result("r1c0", "the secret"), pending=True)
    _, stored = await put(store, "s", turn(), ended, claim=claim)
    await put(store, "s", HooksPassed("after_tool", "r1c0", 3, result=Result("r1c0", "nothing")), claim=claim)
    for events in (await store.read("s"), await store.read_all()):
        found = events[2]
        assert isinstance(found, ToolEnded)
        assert (found.dropped, found.result.text, found.seq, found.pos) == (True, "", 3, stored.pos)


async def test_a_body_is_also_dropped_when_it_is_replaced_in_the_same_append_after_a_deletion(store: Store) -> None:
    await start_session(store, "older")
    claim = await start_and_claim(store)
    await store.delete(["older"])
    written = await put(
        store, "s", turn(text="the secret"), HooksPassed("pre_request", "", 2, message=user("hi")), claim=claim
    )
    every = await store.read_all()
    assert [e.pos for e in every[1:]] == [e.pos for e in written]
    assert "the secret" not in repr(every) + repr(await store.read("s"))


async def test_a_large_body_is_kept_once_under_its_hash(store: Store) -> None:
    claim = await start_and_claim(store)
    await put(store, "s", turn(1), claim=claim, blobs={"ab" * 16: b"You are a writer."})
    await put(store, "s", turn(2), claim=claim, blobs={"ab" * 16: b"You are a writer."})
    assert await store.blob("ab" * 16) == b"You are a writer."


async def test_a_body_that_is_not_there_is_an_error_that_names_it(store: Store) -> None:
    with pytest.raises(StoreError, match="cafe"):
        await store.blob("cafe")


async def test_the_body_of_a_refused_append_is_not_kept(store: Store) -> None:
    await start_session(store)
    with pytest.raises(StoreError):
        await put(store, "s", turn(), blobs={"ab" * 16: b"x"})
    with pytest.raises(StoreError):
        await store.blob("ab" * 16)


async def test_a_callback_that_is_settled_is_not_withdrawn_any_more(store: Store) -> None:
    claim = await start_and_claim(store)
    await put(store, "s", turn(), *question_events("q1"), claim=claim)
    await store.settle("q1", {"q1": CallbackAnswered("q1", "yes", "ops")})
    await store.append_all({"s": [CancelRequested(), CallbackWithdrawn("q1", "cancelled")]})
    assert [e.type for e in await store.read("s")][-2:] == ["callback_answered", "cancel_requested"]


async def test_a_callback_that_is_not_there_can_not_be_settled(store: Store) -> None:
    with pytest.raises(UnknownCallback):
        await store.settle("nobody", {"nobody": CallbackAnswered("nobody", "yes", "ops")})


async def test_events_of_several_sessions_are_stored_together_or_not_at_all(store: Store) -> None:
    await start_session(store, "a")
    await start_session(store, "b")
    with pytest.raises(UnknownSession):
        await store.append_all({"a": [Steered("one")], "nobody": [Steered("two")], "b": [Steered("three")]})
    assert [e.type for e in await store.read_all()] == ["session_started"] * 2
    before = await store.last()
    await store.append_all({"a": [Steered("one")], "b": [Steered("two")]})
    assert [(e.session, e.seq) for e in await store.read_all(before)] == [("a", 2), ("b", 2)]
