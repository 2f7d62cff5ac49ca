"""The contract of stores: which sessions and callbacks are listed when only some are asked for."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

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
from upcall.callbacks import Callback
from upcall.contracts import EVERYTHING, Claim, Selection, Store
from upcall.events import AnyEvent, CallbackAnswered, CallbackAsked, CallbackExpired, Parked, SessionStarted
from upcall.store.sqlite.listing_sql import callbacks_where, sessions_listing

ACME = {"customer": "acme", "tier": "gold"}


async def start(store: Store, session: str, agent: str = "writer", **tags: str) -> Claim:
    """A new session with tags, and the claim on it."""
    await put(store, session, SessionStarted(agent, tags=tags))
    return await store.claim(session)


async def ids(store: Store, limit: int = 1000, **wanted: object) -> list[str]:
    return [row.id for row in await store.rows(which=Selection(**wanted), limit=limit)]  # type: ignore[arg-type]


async def waiting(store: Store, limit: int = 1000, **wanted: object) -> list[str]:
    held: list[Callback] = await store.callbacks(inbox=True, which=Selection(**wanted), limit=limit)  # type: ignore[arg-type]
    return [one.id for one in held]


async def ask(store: Store, session: str, name: str, claim: Claim, expires: float | None = None) -> None:
    await put(store, session, turn(), *question_events(name, expires), claim=claim)


# --- sessions -----------------------------------------------------------------------------


async def test_a_row_has_the_tags_of_its_run_tree(store: Store) -> None:
    claim = await start(store, "top", **ACME)
    await put(store, "top~1", child_of("top"), claim=claim)
    await start_session(store, "plain")
    assert {row.id: dict(row.tags) for row in await store.rows()} == {"top": ACME, "top~1": ACME, "plain": {}}
    assert [dict(r.tags) for r in [await store.row("top~1"), await store.row("plain")] if r] == [ACME, {}]


async def test_sessions_are_found_by_their_tags_newest_first(store: Store) -> None:
    claim = await start(store, "one", **ACME)
    await start(store, "two", customer="acme", tier="silver")
    await start(store, "three", customer="other")
    await put(store, "one~1", child_of("one"), claim=claim)
    assert await ids(store, tags={"customer": "acme"}) == ["one~1", "two", "one"]
    assert await ids(store, tags=ACME) == ["one~1", "one"]
    assert await ids(store, tags={"customer": "gold"}) == []
    assert await ids(store, tags={"acme": "customer"}) == []


async def test_sessions_are_found_by_their_agent(store: Store) -> None:
    await start_session(store, "a", "writer")
    await start_session(store, "b", "editor")
    assert (await ids(store, agent="editor"), await ids(store, agent="edit")) == (["b"], [])


@pytest.mark.parametrize("other", ["to", "top2", "top.1", "top-1", "tp", "Top"])
async def test_a_session_is_found_with_all_below_it_and_no_other(store: Store, other: str) -> None:
    claim = await start_and_claim(store, "top")
    await put(store, "top~r1c0", child_of("top"), claim=claim)
    await put(store, "top~r1c0~r1c1", child_of("top~r1c0", "top"), claim=claim)
    await put(store, "top~r1c01", child_of("top"), claim=claim)
    await start_session(store, other)
    assert await ids(store, session="top") == ["top~r1c01", "top~r1c0~r1c1", "top~r1c0", "top"]
    assert await ids(store, session="top~r1c0") == ["top~r1c0~r1c1", "top~r1c0"]
    assert await ids(store, session="nobody") == []


async def test_sessions_are_found_by_what_they_are_doing(store: Store) -> None:
    await start_session(store, "idle")
    await put(store, "done", turn(), turn_end(), claim=await start_and_claim(store, "done"), release=True)
    await put(store, "running", turn(), claim=await start_and_claim(store, "running"))
    await put(store, "interrupted", turn(), claim=await start_and_claim(store, "interrupted"), release=True)
    parked = await start_and_claim(store, "waiting")
    await ask(store, "waiting", "q", parked)
    assert await store.park(parked, {"waiting": [Parked(("q",))]}, ["q"])
    for status in ("idle", "done", "running", "interrupted", "waiting"):
        assert await ids(store, status=status) == [status]
    assert {row.id: row.current_status for row in await store.rows()} == {
        name: name for name in ("idle", "done", "running", "interrupted", "waiting")
    }


async def test_a_session_whose_process_died_waits_if_a_person_can_answer_all_that_is_open(store: Store) -> None:
    person, mixed = await start_and_claim(store, "person"), await start_and_claim(store, "mixed")
    await put(store, "person", turn(), claim=person)
    await put(store, "person~1", child_of("person"), *question_events("q1"), claim=person)
    await put(store, "mixed", turn(), *question_events("q2"), claim=mixed)
    agent: list[AnyEvent] = [question("q3"), CallbackAsked("q3", "manager")]
    await put(store, "mixed~1", child_of("mixed"), turn(), *agent, claim=mixed)
    assert await ids(store, status="running") == ["mixed~1", "mixed", "person"]
    for claim in (person, mixed):
        await store.release(claim)
    assert await ids(store, status="waiting") == ["person"]
    assert await ids(store, status="interrupted") == ["mixed~1", "mixed"]
    assert [row.current_status for row in await store.rows(which=Selection("mixed"))] == ["interrupted"] * 2


async def test_everything_that_is_asked_for_must_match_and_the_limit_counts_what_matches(store: Store) -> None:
    for number in range(4):
        await start(store, f"s{number}", "writer" if number % 2 else "editor", customer="acme")
    await start(store, "last", "editor")
    assert await ids(store, agent="editor", tags={"customer": "acme"}) == ["s2", "s0"]
    assert await ids(store, limit=1, agent="editor", tags={"customer": "acme"}) == ["s2"]
    assert await ids(store, agent="editor", status="idle", session="s0", tags={"customer": "acme"}) == ["s0"]


async def test_children_are_found_by_agent_oldest_first(store: Store) -> None:
    claim = await start_and_claim(store, "top")
    for number, agent in enumerate(("helper", "clerk", "helper")):
        await put(store, f"top~{number}", child_of("top", agent=agent), claim=claim)
    found = await store.rows(parent="top", which=Selection(agent="helper"))
    assert [row.id for row in found] == ["top~0", "top~2"]


# --- the inbox ----------------------------------------------------------------------------


async def test_callbacks_are_found_by_session_agent_and_tag(factory: StoreFactory, store: Store) -> None:
    one, two = await start(store, "one", **ACME), await start(store, "two", "editor", customer="other")
    await put(store, "one~1", child_of("one", agent="helper"), claim=one)
    await put(store, "one~1", turn(), question("q1").replace(agent="helper"), claim=one)
    await put(store, "one~1", CallbackAsked("q1", "user"), claim=one)
    factory.clock.now += 1
    await put(store, "two", turn(), question("q2").replace(agent="editor"), claim=two)
    await put(store, "two", CallbackAsked("q2", "user"), claim=two)
    assert await waiting(store) == ["q1", "q2"]
    assert (await waiting(store, session="one"), await waiting(store, session="one~1")) == (["q1"], ["q1"])
    assert (await waiting(store, agent="editor"), await waiting(store, agent="writer")) == (["q2"], [])
    assert await waiting(store, tags={"tier": "gold"}) == ["q1"]
    assert await waiting(store, tags={"tier": "gold"}, agent="editor") == []


async def test_a_callback_has_the_tags_of_its_run_tree_wherever_it_is_read(store: Store) -> None:
    claim = await start(store, "top", **ACME)
    await ask(store, "top", "q", claim)
    one = await store.callback("q")
    found = [one, *await store.callbacks(root="top"), *await store.callbacks(inbox=True)]
    assert [dict(held.tags) for held in found if held is not None] == [ACME] * 3


async def test_callbacks_are_found_by_what_became_of_them(factory: StoreFactory, store: Store) -> None:
    claim = await start_and_claim(store)
    names = ("open", "answered", "noticed", "late")
    late = factory.clock.now + 60
    events = [e for name in names for e in question_events(name, None if name == "open" else late)]
    await put(store, "s", turn(), *events, claim=claim)
    await put(store, "s", question("agent"), CallbackAsked("agent", "manager"), claim=claim)
    await store.settle("answered", {"answered": CallbackAnswered("answered", "yes", "ops")})
    assert await waiting(store) == ["open", "noticed", "late"]
    factory.clock.now = late
    await store.settle("noticed", {"noticed": CallbackExpired("noticed")})
    assert (await waiting(store), await waiting(store, status="open")) == (["open"], ["open"])
    assert await waiting(store, status="answered") == ["answered"]
    assert await waiting(store, status="expired") == ["noticed", "late"]
    assert await waiting(store, status="withdrawn") == []


async def test_callbacks_that_expired_or_do_not_match_are_not_counted_by_the_limit(
    factory: StoreFactory, store: Store
) -> None:
    claim = await start(store, "top", customer="acme")
    await put(
        store, "top", turn(), *question_events("q1", factory.clock.now + 1), *question_events("q2"), claim=claim
    )
    await put(store, "other", SessionStarted("writer"))
    other = await store.claim("other")
    await ask(store, "other", "q3", other)
    factory.clock.now += 2
    assert await waiting(store, limit=1) == ["q2"]
    assert await waiting(store, limit=1, session="other") == ["q3"]


# --- SQLite -------------------------------------------------------------------------------


async def test_tags_go_when_their_session_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with open_sqlite(path) as store:
        await store.release(await start(store, "gone", **ACME))
        await store.release(await start(store, "kept", customer="acme"))
        await store.delete(["gone"])
        await put(store, "gone", SessionStarted("writer"))
        assert await ids(store, tags={"customer": "acme"}) == ["kept"]
    with closing(sqlite3.connect(path)) as db, db:
        assert db.execute("SELECT name, value FROM tags").fetchall() == [("customer", "acme")]


async def test_tags_and_sessions_are_looked_up_and_not_searched_for(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with open_sqlite(path) as store:
        await store.release(await start(store, "one", **ACME))
    for which in (
        Selection(tags=ACME),
        Selection("one"),
        Selection(folder="/srv"),
        Selection("one", "writer", "waiting", ACME),
    ):
        for parent in (None, "", "one"):
            assert scanned(path, *sessions_listing(which, parent, lambda: "[]", None, 50)) <= {"json_each"}
            assert scanned(path, *sessions_listing(EVERYTHING, parent, lambda: "[]", "one", 50)) == set()
        where, values = callbacks_where(which.replace(status=None), 0.0)
        sql = f"SELECT id FROM callbacks WHERE {where} ORDER BY rank, created, raised LIMIT 50"
        assert scanned(path, sql, values) <= {"callbacks"}  # those that wait for a person, by their index


def scanned(path: Path, sql: str, values: Sequence[object]) -> set[str]:
    """The tables that a statement reads from beginning to end."""
    with closing(sqlite3.connect(path)) as db, db:
        steps = [step[3] for step in db.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
    assert "SCAN callbacks" not in steps
    return {step.split()[1] for step in steps if step.startswith("SCAN")}
