"""PostgreSQL: what taking reads does not grow with the queue, whatever the planner knows of the tables."""

from __future__ import annotations

import psycopg
import pytest

from postgres import server
from store.factories import put, question_events, start_and_claim, turn
from upcall.events import AnyEvent, CallbackAnswered, Parked, SessionStarted, TurnQueued
from upcall.messages import user
from upcall.store.postgres.store import PostgresStore

QUEUED = 4000
TAKES = 8
"""More than the five calls after which the planner may keep a plan for all further ones."""

TAKE = (
    "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "
    "SELECT * FROM upcall.take('me', 'test', 'here', 1, '', 60, true, NULL, '{}', '[]', false)"
)


def queued_session() -> list[AnyEvent]:
    return [SessionStarted("writer"), TurnQueued(1, user("go"))]


async def answered_tree(store: PostgresStore, session: str) -> None:
    """Start a run tree that waited for an answer and can continue."""
    claim = await start_and_claim(store, session)
    await put(store, session, turn(), *question_events(f"q-{session}"), claim=claim)
    assert await store.park(claim, {session: [Parked((f"q-{session}",))]}, [f"q-{session}"])
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


async def pages_of_taking(queued: int, analyzed: tuple[str, ...]) -> list[int]:
    """Queue so many turns beside two answered trees and a taken one, and return what taking reads."""
    url = server().database(fresh=True)
    store = PostgresStore(url)
    await store.open()
    await store.append_all({f"s{number:05}": queued_session() for number in range(queued)})
    for number in range(2):
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
@pytest.mark.parametrize("analyzed", [(), ("queue",), ("queue", "sessions", "callbacks")])
async def test_taking_reads_about_the_same_pages_however_many_are_queued(analyzed: tuple[str, ...]) -> None:
    few, many = [await pages_of_taking(queued, analyzed) for queued in (20, QUEUED)]
    later = slice(3, None)  # the first ones read the catalogue too
    assert max(many[later]) < 2 * max(few[later]), (few, many)  # indexes are one level deeper
