"""The contract of stores: deleting run trees, and closing."""

from __future__ import annotations

import pytest

from store.factories import StoreFactory, child_of, put, start_and_claim, start_session, turn
from upcall.contracts import Store
from upcall.errors import SessionBusy, StoreError, UnknownSession
from upcall.events import Change, ModelStarted, Steered

SHARED, OWN, CHANGED = "aa" * 16, "bb" * 16, "cc" * 16


async def tree(store: Store, root: str) -> None:
    """A session with a child and a grandchild that nobody owns."""
    claim = await start_and_claim(store, root)
    await put(store, f"{root}~1", child_of(root), turn(), claim=claim)
    await put(store, f"{root}~1~1", child_of(f"{root}~1", root), turn(), claim=claim)
    await store.release(claim)


async def test_a_deleted_tree_is_gone_with_all_its_children_and_others_stay(store: Store) -> None:
    await tree(store, "old")
    await tree(store, "kept")
    assert await store.delete(["old"]) == 3
    assert {r.id for r in await store.rows()} == {"kept", "kept~1", "kept~1~1"}
    assert {e.session for e in await store.read_all()} == {"kept", "kept~1", "kept~1~1"}
    assert await store.read("old~1") == []


async def test_deleting_a_child_deletes_the_whole_tree_it_belongs_to(store: Store) -> None:
    await tree(store, "old")
    assert await store.delete(["old~1"]) == 3
    assert await store.rows() == []


async def test_a_tree_named_twice_is_deleted_once(store: Store) -> None:
    await tree(store, "old")
    assert await store.delete(["old", "old", "old~1"]) == 3


async def test_positions_are_never_given_twice(store: Store, other: Store) -> None:
    await tree(store, "old")
    last = await store.last()
    await store.delete(["old"])
    assert await store.read_all() == []
    await start_session(other, "new")
    (event,) = await store.read_all()
    assert event.pos > last
    assert event.seq == 1


async def test_a_tree_with_a_living_owner_is_not_deleted(store: Store, other: Store) -> None:
    claim = await start_and_claim(store, "top")
    await put(store, "top~1", child_of("top"), claim=claim)
    await start_session(store, "free")
    for one in (store, other):
        for name in ("top", "top~1"):
            with pytest.raises(SessionBusy):
                await one.delete(["free", name])
    assert {r.id for r in await store.rows()} == {"top", "top~1", "free"}


async def test_when_one_of_many_is_unknown_none_is_deleted(store: Store) -> None:
    await start_session(store, "a")
    with pytest.raises(UnknownSession, match="nobody"):
        await store.delete(["a", "nobody"])
    assert [r.id for r in await store.rows()] == ["a"]


async def test_bodies_are_deleted_with_the_last_session_that_uses_them(store: Store) -> None:
    for name in ("old", "kept"):
        claim = await start_and_claim(store, name)
        blobs = {SHARED: b"shared", OWN if name == "old" else CHANGED: b"own"}
        change = Change(instructions=CHANGED) if name == "kept" else None
        tools = OWN if name == "old" else ""
        event = ModelStarted(1, instructions=SHARED, tools=tools, change=change)
        await put(store, name, turn(), event, claim=claim, blobs=blobs)
        await store.release(claim)
    await store.delete(["old"])
    assert await store.blob(SHARED) == b"shared"
    assert await store.blob(CHANGED) == b"own"
    with pytest.raises(StoreError):
        await store.blob(OWN)


async def test_what_is_said_to_a_deleted_session_reaches_no_other(store: Store, other: Store) -> None:
    await start_session(store, "old")
    await put(other, "old", Steered("for the old one"))
    await store.delete(["old"])
    await start_session(store, "new")
    with pytest.raises(UnknownSession):
        await put(other, "old", Steered("for the old one"))
    assert [e.type for e in await store.read_all()] == ["session_started"]


async def test_a_deleted_name_may_be_used_again(store: Store) -> None:
    await tree(store, "s")
    await store.delete(["s"])
    claim = await start_and_claim(store, "s")
    await put(store, "s", turn(), claim=claim)
    assert [e.seq for e in await store.read("s")] == [1, 2]
    assert await store.rows(parent="s") == []


async def test_who_owned_a_deleted_session_does_not_own_the_next_one_of_its_name(store: Store) -> None:
    old = await start_and_claim(store, "s")
    await store.release(old)
    await store.delete(["s"])
    assert (await start_and_claim(store, "s")).epoch > old.epoch


async def test_closing_twice_is_as_good_as_once(factory: StoreFactory, store: Store) -> None:
    await start_and_claim(store)
    await store.close()
    await store.close()
