"""The contract of stores: turns that are queued, and which run tree a worker takes next."""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from store.factories import (
    StoreFactory,
    child_of,
    open_sqlite,
    put,
    question_events,
    start_and_claim,
    start_session,
    turn,
    turn_end,
)
from upcall.contracts import Claim, Selection, Store, TakeLimit
from upcall.errors import QueueFull, SessionBusy, SessionTakenOver, StoreError, TurnExists
from upcall.events import (
    CallbackAnswered,
    CancelRequested,
    Parked,
    SessionStarted,
    TurnEnded,
    TurnQueued,
    TurnResumed,
    TurnStarted,
)
from upcall.messages import Priority, user


def queued(number: int = 1, priority: Priority = "normal", tenant: str = "") -> TurnQueued:
    return TurnQueued(number, user("go"), priority, tenant)


def begun(number: int = 1, seq: int = 2) -> TurnStarted:
    return TurnStarted(number, user("go"), queued=seq)


async def submit(
    store: Store, session: str = "s", priority: Priority = "normal", tenant: str = "", agent: str = "writer"
) -> None:
    """Start a session with a queued turn."""
    await store.append_all({session: [SessionStarted(agent), queued(1, priority, tenant)]})


async def status(store: Store, session: str = "s") -> str:
    row = await store.row(session)
    assert row is not None
    return row.current_status


async def ready(store: Store) -> list[str]:
    return [row.id for row in await store.unfinished()]


async def take_all(store: Store, *agents: str, limits: tuple[TakeLimit, ...] = ()) -> list[str]:
    """Take until nothing is left, and keep all claims."""
    taken: list[str] = []
    while (claim := await store.take(agents or None, limits=limits)) is not None:
        taken.append(claim.root)
    return taken


async def take(store: Store) -> Claim:
    claim = await store.take()
    assert claim is not None
    return claim


async def run_queued(store: Store, claim: Claim, *end: TurnEnded, seq: int = 2) -> None:
    """Start the queued turn of a tree, and end it."""
    await put(store, claim.root, begun(seq=seq), claim=claim)
    await put(store, claim.root, *end, claim=claim, release=True)


# --- queued turns -------------------------------------------------------------------------


async def test_a_submitted_session_is_queued_and_ready(store: Store, other: Store) -> None:
    await submit(store)
    assert (await status(other), await ready(other)) == ("queued", ["s"])


async def test_a_queued_turn_that_started_is_no_longer_queued(store: Store) -> None:
    await submit(store)
    claim = await take(store)
    while_taken = await status(store)
    await put(store, "s", begun(), claim=claim)
    running = await status(store)
    await put(store, "s", turn_end(), claim=claim, release=True)
    assert (while_taken, running, await status(store)) == ("queued", "running", "done")
    assert await ready(store) == []


async def test_a_turn_that_is_queued_during_another_one_is_ready_when_that_one_has_ended(store: Store) -> None:
    claim = await start_and_claim(store)
    await put(store, "s", turn(), claim=claim)
    await store.append_all({"s": [queued(2)]})
    meanwhile = await status(store)
    await put(store, "s", turn_end(), claim=claim, release=True)
    assert (meanwhile, await status(store), await ready(store)) == ("running", "queued", ["s"])


async def test_a_turn_that_is_queued_for_a_waiting_session_does_not_make_it_ready(store: Store) -> None:
    claim = await start_and_claim(store)
    await put(store, "s", turn(), *question_events("q"), claim=claim)
    await store.park(claim, {"s": [Parked(("q",))]}, ["q"])
    await store.append_all({"s": [queued(2)]})
    assert (await status(store), await ready(store)) == ("waiting", [])


async def test_the_same_turn_is_queued_once(store: Store, other: Store) -> None:
    await submit(store)
    with pytest.raises(TurnExists):
        await other.append_all({"s": [queued(1)]})
    await other.append_all({"s": [queued(2)]})
    with pytest.raises(TurnExists):
        await store.append_all({"s": [queued(2)]})
    assert [event.type for event in await store.read("s")] == ["session_started", "turn_queued", "turn_queued"]


async def test_of_several_that_submit_the_same_turn_at_once_one_does(store: Store, other: Store) -> None:
    await start_session(store)
    attempts = [one.append_all({"s": [queued(1)]}) for one in (store, other, store, other)]
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    assert sorted(type(one).__name__ for one in outcomes) == ["NoneType", "TurnExists", "TurnExists", "TurnExists"]


async def test_past_the_queue_limit_nothing_is_queued(store: Store) -> None:
    for name in ("a", "b"):
        await store.append_all({name: [SessionStarted("writer"), queued()]}, queue_limit=2)
    two = {name: [SessionStarted("writer"), queued()] for name in ("c", "d")}
    with pytest.raises(QueueFull):
        await store.append_all(two, queue_limit=3)
    with pytest.raises(QueueFull):
        await store.append_all({"c": two["c"]}, queue_limit=2)
    await store.append_all({"c": two["c"]}, queue_limit=3)
    assert await ready(store) == ["a", "b", "c"]


async def test_a_running_session_does_not_count_for_the_queue_limit(store: Store) -> None:
    await submit(store)
    await put(store, "s", begun(), claim=await take(store))
    await store.append_all({"t": [SessionStarted("writer"), queued()]}, queue_limit=1)
    assert await ready(store) == ["t"]


async def test_a_cancelled_queued_turn_is_never_ready_again(store: Store) -> None:
    await submit(store)
    await store.append_all({"s": [CancelRequested("ops")]})
    assert (await status(store), await ready(store), await store.take()) == ("cancelled", [], None)


async def test_cancelling_a_running_turn_drops_the_queued_ones(store: Store) -> None:
    await submit(store)
    claim = await take(store)
    await put(store, "s", begun(), claim=claim)
    await store.append_all({"s": [queued(2)]})
    await store.append_all({"s": [CancelRequested("ops")]})
    await put(store, "s", TurnEnded(1, "cancelled"), claim=claim, release=True)
    assert (await status(store), await ready(store)) == ("cancelled", [])


async def test_a_failed_turn_with_a_retry_is_queued_and_ready_once_it_is_due(
    factory: StoreFactory, store: Store
) -> None:
    await submit(store)
    due = factory.clock.now + 30
    await run_queued(store, await take(store), TurnEnded(1, "failed", retry=due))
    before = (await status(store), await ready(store), await store.take())
    deadline = await store.next_deadline(factory.clock.now)
    factory.clock.now = due
    assert (before, deadline) == (("queued", [], None), due)
    assert (await ready(store), (await take(store)).root) == (["s"], "s")


async def test_a_failed_turn_without_a_retry_is_not_ready(store: Store) -> None:
    await submit(store)
    await run_queued(store, await take(store), TurnEnded(1, "failed"))
    assert (await status(store), await ready(store)) == ("failed", [])


async def test_a_retry_that_is_cancelled_is_never_due(factory: StoreFactory, store: Store) -> None:
    await submit(store)
    await run_queued(store, await take(store), TurnEnded(1, "failed", retry=factory.clock.now + 30))
    await store.append_all({"s": [CancelRequested("ops")]})
    factory.clock.now += 60
    assert (await status(store), await ready(store)) == ("cancelled", [])


# --- taking -------------------------------------------------------------------------------


async def test_taking_gives_a_claim_with_which_its_holder_can_append(store: Store, other: Store) -> None:
    await submit(store)
    claim = await take(store)
    await put(store, "s", begun(), claim=claim)
    with pytest.raises(SessionBusy):
        await other.claim("s")
    assert (claim.root, claim.seq, await other.take()) == ("s", 2, None)


async def test_nothing_is_taken_where_nothing_is_ready(store: Store) -> None:
    await start_session(store, "idle")
    claim = await start_and_claim(store, "done")
    await put(store, "done", turn(), turn_end(), claim=claim, release=True)
    assert await store.take() is None


async def test_of_several_that_take_at_once_each_gets_another_tree(store: Store, other: Store) -> None:
    for name in "abcd":
        await submit(store, name)
    taken = await asyncio.gather(*[one.take() for one in (store, other, store, other, store)])
    assert sorted(claim.root if claim else "" for claim in taken) == ["", "a", "b", "c", "d"]


async def test_interrupted_answered_and_queued_trees_are_taken(store: Store) -> None:
    claim = await start_and_claim(store, "interrupted")
    await put(store, "interrupted", turn(), claim=claim)
    await store.release(claim)
    claim = await start_and_claim(store, "answered")
    await put(store, "answered", turn(), *question_events("q"), claim=claim)
    await store.park(claim, {"answered": [Parked(("q",))]}, ["q"])
    await store.settle("q", {"q": CallbackAnswered("q", "yes", "ops")})
    await submit(store, "queued")
    assert await take_all(store) == ["interrupted", "answered", "queued"]


async def test_a_parked_tree_is_taken_once_its_question_has_expired(factory: StoreFactory, store: Store) -> None:
    claim = await start_and_claim(store)
    await put(store, "s", turn(), *question_events("q", factory.clock.now + 60), claim=claim)
    await store.park(claim, {"s": [Parked(("q",))]}, ["q"])
    before = await store.take()
    factory.clock.now += 60
    assert (before, (await take(store)).root) == (None, "s")


async def test_the_highest_priority_is_taken_first_then_the_oldest(store: Store) -> None:
    order: list[Priority] = ["normal", "low", "critical", "high", "normal"]
    for number, priority in enumerate(order):
        await submit(store, f"{priority}{number}", priority)
    assert await take_all(store) == ["critical2", "high3", "normal0", "normal4", "low1"]


async def test_the_priority_of_the_newest_queued_turn_counts(store: Store) -> None:
    await submit(store, "a", "low")
    await submit(store, "b")
    await store.append_all({"a": [queued(2, "high")]})
    assert await take_all(store) == ["a", "b"]


async def test_a_tree_keeps_its_priority_when_it_continues_later(store: Store) -> None:
    await submit(store, "b", "high")
    claim = await take(store)
    await submit(store, "a")
    await put(store, "b", begun(), claim=claim)
    await store.release(claim)
    assert await take_all(store) == ["b", "a"]


async def test_the_tenant_with_the_fewest_running_comes_first(store: Store) -> None:
    for name in ("a1", "a2", "a3", "b1", "b2", "c1"):
        await submit(store, name, tenant=name[0])
    assert await take_all(store) == ["a1", "b1", "c1", "a2", "b2", "a3"]


async def test_a_tenant_whose_tree_has_ended_or_waits_has_one_running_less(store: Store) -> None:
    for name in ("a1", "a2", "b1", "b2"):
        await submit(store, name, tenant=name[0])
    first, second = await take(store), await take(store)
    await run_queued(store, second, turn_end())
    assert (first.root, second.root) == ("a1", "b1")
    assert await take_all(store) == ["b2", "a2"]


async def test_only_trees_of_the_named_agents_are_taken(store: Store) -> None:
    for name, agent in (("a", "other"), ("b", "writer"), ("c", "third")):
        await submit(store, name, agent=agent)
    assert await take_all(store, "writer", "third") == ["b", "c"]
    assert (await status(store, "a"), await ready(store)) == ("queued", ["a"])


async def test_excluded_trees_are_skipped(store: Store) -> None:
    for name in ("a", "b"):
        await submit(store, name)
    claim = await store.take(exclude=["a"])
    assert claim is not None
    assert (claim.root, await store.take(exclude={"a"})) == ("b", None)


async def test_a_tree_that_is_released_without_a_word_is_taken_again(store: Store) -> None:
    await submit(store)
    first = await take(store)
    await store.release(first)
    second = await take(store)
    assert (second.root, second.epoch > first.epoch, second.orphaned) == ("s", True, False)


async def test_a_limit_on_running_trees_holds_until_one_is_released(store: Store, other: Store) -> None:
    for name in ("a", "b", "c"):
        await submit(store, name)
    limits = (TakeLimit(agents=("writer",), running=2),)
    first = await store.take(limits=limits)
    assert first is not None
    assert await other.take(limits=limits) is not None
    assert await other.take(limits=limits) is None
    await run_queued(store, first, turn_end())
    third = await other.take(limits=limits)
    assert third is not None
    assert third.root == "c"


async def test_a_limit_counts_only_its_agents_and_its_tenant(store: Store) -> None:
    await submit(store, "a", tenant="x", agent="one")
    await submit(store, "b", tenant="y", agent="one")
    await submit(store, "c", tenant="x", agent="two")
    limits = (TakeLimit(agents=("one",), running=1), TakeLimit(tenant="y", running=0))
    assert await take_all(store, limits=limits) == ["a", "c"]


async def test_a_limit_per_minute_holds_for_a_minute(factory: StoreFactory, store: Store, other: Store) -> None:
    for name in ("a", "b", "c"):
        await submit(store, name)
    limits = (TakeLimit(per_minute=2),)
    for _ in range(2):
        claim = await store.take(limits=limits)
        assert claim is not None
        await run_queued(store, claim, turn_end())
    factory.clock.now += 59
    still = await other.take(limits=limits)
    factory.clock.now += 2
    assert (still, await take_all(other, limits=limits)) == (None, ["c"])


async def test_a_deleted_tree_is_not_taken(store: Store) -> None:
    await submit(store)
    await store.delete(["s"])
    assert (await store.take(), await store.counts()) == (None, {})


# --- counting, pausing, pruning -----------------------------------------------------------


async def test_roots_are_counted_by_what_they_are_doing_now(store: Store) -> None:
    await submit(store, "queued1")
    await submit(store, "queued2")
    await start_session(store, "idle")
    claim = await start_and_claim(store, "done")
    await put(store, "done", turn(), turn_end(), claim=claim, release=True)
    claim = await start_and_claim(store, "running")
    await put(store, "running", turn(), claim=claim)
    await put(store, "running~1", child_of("running"), turn(), claim=claim)
    claim = await start_and_claim(store, "interrupted")
    await put(store, "interrupted", turn(), claim=claim)
    await store.release(claim)
    claim = await start_and_claim(store, "waiting")
    await put(store, "waiting", turn(), *question_events("q"), claim=claim)
    await store.park(claim, {"waiting": [Parked(("q",))]}, ["q"])
    expected = {"queued": 2, "idle": 1, "done": 1, "running": 1, "interrupted": 1, "waiting": 1}
    assert dict(await store.counts()) == expected


async def test_queued_sessions_are_listed_by_their_status(store: Store) -> None:
    await submit(store, "a")
    await start_session(store, "b")
    assert [row.id for row in await store.rows(which=Selection(status="queued"))] == ["a"]


async def test_a_pause_is_seen_by_all_until_it_is_over(factory: StoreFactory, store: Store, other: Store) -> None:
    until = factory.clock.now + 10
    await store.pause("model:a", until)
    await other.pause("model:a", until - 5)
    seen = await other.pauses()
    factory.clock.now = until
    assert (seen, await store.pauses()) == ({"model:a": until}, {})


async def test_pruning_deletes_what_ended_before_and_nothing_else(factory: StoreFactory, store: Store) -> None:
    for name in ("old", "queued", "idle", "waiting", "interrupted"):
        claim = await start_and_claim(store, name)
        if name == "waiting":
            await put(store, name, turn(), *question_events("q"), claim=claim)
            await store.park(claim, {name: [Parked(("q",))]}, ["q"])
        elif name == "interrupted":
            await put(store, name, turn(), claim=claim)
            await store.release(claim)
        elif name != "idle":
            await put(store, name, turn(), claim=claim)
            await put(store, f"{name}~1", child_of(name), turn(), claim=claim)
            await put(store, name, turn_end(), claim=claim, release=True)
        else:
            await store.release(claim)
    await store.append_all({"queued": [queued(2)]})
    factory.clock.now += 100
    claim = await start_and_claim(store, "new")
    await put(store, "new", turn(), turn_end(), claim=claim, release=True)
    assert await store.prune(factory.clock.now - 50) == 2
    left = [row.id for row in await store.rows(parent="")]
    assert sorted(left) == ["idle", "interrupted", "new", "queued", "waiting"]


async def test_pruning_deletes_the_oldest_first_up_to_its_limit(factory: StoreFactory, store: Store) -> None:
    for name in ("a", "b", "c"):
        claim = await start_and_claim(store, name)
        await put(store, name, turn(), turn_end(), claim=claim, release=True)
    factory.clock.now += 1
    assert await store.prune(factory.clock.now, limit=2) == 2
    assert [row.id for row in await store.rows()] == ["c"]


# --- in one file --------------------------------------------------------------------------


async def test_a_claim_on_a_tree_whose_owner_died_says_so(tmp_path: Path) -> None:
    now = [1000.0]
    async with open_sqlite(tmp_path / "log.db", lambda: now[0]) as one:
        await submit(one)
        lost = await take(one)
        await put(one, "s", begun(), claim=lost)
        async with open_sqlite(tmp_path / "log.db", lambda: now[0] + 60) as another:
            taken = await take(another)
            assert (taken.root, taken.orphaned) == ("s", True)
            with pytest.raises(SessionTakenOver):
                await put(one, "s", TurnResumed(1), claim=lost)


@pytest.mark.parametrize("count", [10, 3000])
async def test_taking_reads_as_much_of_the_file_however_many_are_queued(count: int, tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "log.db") as store:
        await store.append_all({f"s{n:05}": [SessionStarted("writer"), queued()] for n in range(count)})
        steps = 0

        def count_steps() -> bool:
            nonlocal steps
            steps += 1
            return False

        writer = store._open_writer()  # pyright: ignore[reportPrivateUsage]
        writer.db.set_progress_handler(count_steps, 100)
        claim = await take(store)
        writer.db.set_progress_handler(None)
    assert claim.root == "s00000"
    assert steps < 20


async def test_a_queued_turn_of_a_child_is_refused(store: Store) -> None:
    claim = await start_and_claim(store)
    await put(store, "s", turn(), claim=claim)
    await put(store, "s~1", child_of("s"), turn(), claim=claim)
    with pytest.raises(StoreError):
        await store.append_all({"s~1": [queued(2)]})
