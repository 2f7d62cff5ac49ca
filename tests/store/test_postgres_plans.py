"""PostgreSQL: what taking reads does not grow with what is queued or parked, whatever the planner knows."""

from __future__ import annotations

import psycopg
import pytest

from postgres import server
from store.factories import put, question_events, start_and_claim, turn
from upcall.events import AnyEvent, CallbackAnswered, Parked, SessionStarted, TurnQueued
from upcall.messages import user
from upcall.store.postgres.store import PostgresStore

MANY = 100_000
TAKES = 8
"""More than the five calls after which the planner may keep a plan for all further ones."""

TAKE = (
    "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "
    "SELECT * FROM upcall.take('me', 'test', 'here', 1, '', 60, true, NULL, '{}', '[]', false)"
)


def queued_session() -> list[AnyEvent]:
    return [SessionStarted("writer"), TurnQueued(1, user("go"))]


async def parked_tree(store: PostgresStore, session: str, expires: float | None = None) -> None:
    """Start a run tree that waits for an answer."""
    claim = await start_and_claim(store, session)
    await put(store, session, turn(), *question_events(f"q-{session}", expires=expires), claim=claim)
    assert await store.park(claim, {session: [Parked((f"q-{session}",))]}, [f"q-{session}"])


async def answered_tree(store: PostgresStore, session: str) -> None:
    """Start a run tree that waited for an answer and can continue."""
    await parked_tree(store, session)
    answer = CallbackAnswered(f"q-{session}", "yes", "ops")
    assert await store.settle(answer.callback_id, {answer.callback_id: answer}) is None


def pages_read(url: str) -> list[int]:
    """Take some trees, and return how many pages of tables and indexes each attempt has read."""
    pages: list[int] = []
    with psycopg.connect(url, autocommit=True) as db:
        for _ in range(TAKES):
            (found,) = db.execute(TAKE).fetchone() or ([],)
            plan = found[0]["Plan"]
            assert plan["Actual Rows"] == 1
            pages.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
    return pages


COPY = """
INSERT INTO upcall.sessions (n, root, id, agent, kind, created, updated, status, in_queue, seq)
OVERRIDING SYSTEM VALUE SELECT n + i, n + i, id || i, agent, kind, created, updated, status, in_queue, seq
FROM upcall.sessions, generate_series(1, %(copies)s) i WHERE id = 'one';
INSERT INTO upcall.queue (root, due, rank, turn, queued, ready, agent, tenant)
SELECT root + i, due, rank, turn, queued, ready, agent, tenant FROM upcall.queue, generate_series(1, %(copies)s) i;
INSERT INTO upcall.callbacks (root, n, raised, pos, created, expires, rank, awaited, id, status, target, path)
SELECT root + i, n + i, raised, pos + i, created, expires + i, rank, awaited, id || i, status, target, path
FROM upcall.callbacks, generate_series(1, %(copies)s) i;
SELECT setval('upcall.sessions_n_seq', (SELECT max(n) FROM upcall.sessions))
"""
"""Copies the only session with its place in the queue and its question: quicker than to make so many."""


async def pages_of_taking(kind: str, copies: int, analyzed: tuple[str, ...]) -> list[int]:
    """Queue or park so many beside answered trees and a taken one, and return what taking reads."""
    url = server().database(fresh=True)
    store = PostgresStore(url)
    await store.open()
    if kind == "queued":
        await store.append_all({"one": queued_session()})
    else:
        await parked_tree(store, "one", expires=store.now() + 86_400)
    with psycopg.connect(url, autocommit=True) as db:
        psycopg.ClientCursor(db).execute(COPY, {"copies": copies})
    for number in range(2 if kind == "queued" else TAKES + 1):
        await answered_tree(store, f"a{number}")
    assert await store.take() is not None
    with psycopg.connect(url, autocommit=True) as db:
        for table in analyzed:
            db.execute(f"ANALYZE upcall.{table}".encode())
    pages = pages_read(url)
    await store.close()
    server().drop(url)
    return pages


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["queued", "parked"])
@pytest.mark.parametrize("analyzed", [(), ("queue",), ("queue", "sessions", "callbacks")])
async def test_taking_reads_about_the_same_pages_however_many_are_queued_or_parked(
    kind: str, analyzed: tuple[str, ...]
) -> None:
    few, many = [await pages_of_taking(kind, copies, analyzed) for copies in (20, MANY)]
    later = slice(3, None)  # the first ones read the catalogue too
    assert max(many[later]) < 2 * max(few[later]), (few, many)  # indexes are one level deeper
    print(f"\n{kind}, {analyzed}: {few[later]} pages with 20, {many[later]} with {MANY}")
