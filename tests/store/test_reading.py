"""The contract of stores: what is listed and read."""

from __future__ import annotations

import pytest

from store.factories import StoreFactory, child_of, put, start_and_claim, start_session, turn, turn_end
from upcall.contracts import Selection, Store
from upcall.events import Carried, Compacted, ContextSet, Steered, TurnEnded, TurnResumed
from upcall.messages import user


async def test_a_session_that_is_not_there_has_no_row_and_no_events(store: Store) -> None:
    assert await store.row("nobody") is None
    assert await store.read("nobody") == []


async def test_a_row_says_what_a_session_is(factory: StoreFactory, store: Store) -> None:
    factory.clock.now = 100.0
    claim = await start_and_claim(store, "top")
    factory.clock.now = 105.0
    await put(store, "top~1", child_of("top"), ContextSet("k", 1), claim=claim)
    row = await store.row("top~1")
    assert row is not None
    assert (row.id, row.agent, row.parent, row.root, row.kind) == ("top~1", "helper", "top", "top", "agent")
    assert (row.created, row.updated, row.seq, row.base, row.status) == (105.0, 105.0, 2, 0, "idle")


async def test_a_row_is_as_new_as_the_newest_event_of_its_session(factory: StoreFactory, store: Store) -> None:
    factory.clock.now = 100.0
    claim = await start_and_claim(store)
    factory.clock.now = 107.0
    await put(store, "s", ContextSet("k", 1), claim=claim)
    row = await store.row("s")
    assert row is not None
    assert (row.created, row.updated) == (100.0, 107.0)


@pytest.mark.parametrize("status", ["done", "cancelled", "limit", "failed"])
async def test_the_listed_status_follows_the_turn(store: Store, status: str) -> None:
    claim = await start_and_claim(store)
    seen: list[str] = []
    ended = TurnEnded(1, status)  # pyright: ignore[reportArgumentType]
    for event in (turn(), ContextSet("k", 1), ended, TurnResumed(1), ended.replace()):
        await put(store, "s", event, claim=claim)
        row = await store.row("s")
        assert row is not None
        seen.append(row.status)
    assert seen == ["running", "running", status, "running", status]


async def test_a_fold_may_begin_at_the_last_compaction_or_where_it_says(store: Store) -> None:
    claim = await start_and_claim(store)
    await put(store, "s", turn(), Compacted((user("hi"),), carried=Carried()), claim=claim)
    here = await store.row("s")
    await put(store, "s", turn(2), Compacted((user("hi"),), base=4), claim=claim)
    there = await store.row("s")
    assert here is not None
    assert there is not None
    assert (here.base, there.base) == (3, 4)


async def test_sessions_are_listed_newest_first_and_only_so_many(store: Store) -> None:
    for name in ("a", "b", "c"):
        await start_session(store, name)
    assert [r.id for r in await store.rows()] == ["c", "b", "a"]
    assert [r.id for r in await store.rows(limit=2)] == ["c", "b"]


async def test_children_are_listed_oldest_first_and_without_their_own(store: Store) -> None:
    claim = await start_and_claim(store, "top")
    await start_session(store, "stranger")
    for name, parent in (("top~1", "top"), ("top~2", "top"), ("top~1~1", "top~1")):
        await put(store, name, child_of(parent, "top"), claim=claim)
    assert [r.id for r in await store.rows(parent="top")] == ["top~1", "top~2"]
    assert [r.id for r in await store.rows(parent="top~1")] == ["top~1~1"]
    assert await store.rows(parent="stranger") == []


async def test_a_session_is_read_in_pages(store: Store) -> None:
    claim = await start_and_claim(store)
    await put(store, "s", *[ContextSet("n", n) for n in range(9)], claim=claim)
    pages: list[list[int]] = []
    after = 0
    while page := await store.read("s", after, 4):
        pages.append([e.seq for e in page])
        after = page[-1].seq
    assert pages == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]


async def test_one_session_is_read_without_the_others(store: Store) -> None:
    a, b = await start_and_claim(store, "a"), await start_and_claim(store, "b")
    await put(store, "a", turn(text="of a"), claim=a)
    await put(store, "b", turn(text="of b"), claim=b)
    assert {e.session for e in await store.read("a")} == {"a"}
    assert {e.session for e in await store.read("b")} == {"b"}


async def test_everything_is_read_from_any_position_in_the_order_it_was_stored(store: Store) -> None:
    a, b = await start_and_claim(store, "a"), await start_and_claim(store, "b")
    for number in range(1, 6):
        await put(store, "a", turn(number), claim=a)
        await put(store, "b", turn(number), turn_end(number), claim=b)
    every = await store.read_all()
    for number, after in enumerate([0, *[event.pos for event in every]]):
        assert await store.read_all(after) == every[number:]
        assert await store.read_all(after, 2) == every[number : number + 2]


async def test_the_last_position_is_the_newest_events(store: Store) -> None:
    assert await store.last() == 0
    await start_session(store)
    _, newest = await put(store, "s", Steered("hi"), Steered("ho"))
    assert await store.last() == newest.pos


async def test_another_process_reads_at_once_what_was_stored(store: Store, other: Store) -> None:
    claim = await start_and_claim(store)
    for number in range(1, 4):
        await put(store, "s", turn(number), claim=claim)
        assert (await other.read("s"))[-1] == (await store.read("s"))[-1]


async def test_the_clock_is_the_one_that_was_given(factory: StoreFactory, store: Store) -> None:
    factory.clock.now = 42.0
    assert store.now() == 42.0


# --- pages and run trees ------------------------------------------------------------------


async def test_the_last_id_of_one_page_gives_the_next_page(store: Store) -> None:
    for number in range(5):
        await start_session(store, f"s{number}")
    pages: list[list[str]] = []
    before = None
    while page := await store.rows(before=before, limit=2):
        pages.append([row.id for row in page])
        before = page[-1].id
    assert pages == [["s4", "s3"], ["s2", "s1"], ["s0"]]
    assert [row.id for row in await store.rows(before="s3", which=Selection(session="s1"))] == ["s1"]
    assert await store.rows(before="nobody") == []


async def test_sessions_without_a_parent_are_listed_newest_first(store: Store) -> None:
    claim = await start_and_claim(store, "a")
    await put(store, "a~1", child_of("a"), claim=claim)
    await start_session(store, "b")
    assert [row.id for row in await store.rows(parent="")] == ["b", "a"]
    assert [row.id for row in await store.rows(parent="", limit=1, before="b")] == ["a"]
    assert [row.id for row in await store.rows(parent="a")] == ["a~1"]


async def test_the_events_of_a_run_tree_are_read_in_the_order_of_their_positions(store: Store) -> None:
    claim = await start_and_claim(store, "top")
    await start_session(store, "top2")
    for number in range(4):
        child = f"top~{number % 2}"
        new = [child_of("top")] if number < 2 else []
        await put(store, child, *new, *[ContextSet("n", n) for n in range(number)], claim=claim)
        await put(store, "top", ContextSet("n", number), claim=claim)
    await put(store, "top~1~1", child_of("top~1", "top"), claim=claim)
    every = await store.read_all()
    for session in ("top", "top~1", "top2", "nobody"):
        wanted = [e for e in every if f"{e.session}~".startswith(f"{session}~")]
        assert await store.read_tree(session) == wanted
        for after in range(len(every) + 1):
            later = [e for e in wanted if e.pos > after]
            assert await store.read_tree(session, after) == later
            assert await store.read_tree(session, after, 3) == later[:3]
