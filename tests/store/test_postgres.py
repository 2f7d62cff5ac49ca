"""The log in PostgreSQL: lost connections, restarts, dumps, newer schemas, and addresses with passwords."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import subprocess
import sys
import traceback
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from postgres import Server, server
from store.agents import worker
from store.factories import (
    child_of,
    put,
    question_events,
    start_and_claim,
    start_session,
    turn,
    turn_end,
    wait_until,
)
from upcall import Agent, Context, Runtime, tool
from upcall.contracts import Store
from upcall.errors import NotAStore, SetupError, StoreTooNew, StoreUnavailable
from upcall.events import AnyEvent, CallbackAnswered, ContextSet, Parked, SessionStarted, Steered
from upcall.models import Script, call
from upcall.store.postgres import tables
from upcall.store.postgres.store import PostgresStore


@pytest.fixture
def url() -> Generator[str]:
    """The URL of an empty log."""
    made = server().database()
    yield made
    server().drop(made)


@contextlib.asynccontextmanager
async def opened(url: str, lease: float = 5.0) -> AsyncGenerator[PostgresStore]:
    store = PostgresStore(url, lease)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


# --- round trips --------------------------------------------------------------------------


async def test_a_turn_with_one_tool_call_takes_five_round_trips_at_most(url: str) -> None:
    store = PostgresStore(url)
    async with Runtime(store, agents=[worker()]) as runtime:
        session = await runtime.start("worker", id="s")
        await session.prompt("go")
        before = store.statements
        await session.prompt("go")
        assert store.statements - before <= 5


async def test_a_process_has_four_connections_at_most(url: str) -> None:
    async with Runtime(url, agents=[worker()]) as runtime:
        sessions = [await runtime.start("worker") for _ in range(20)]
        await asyncio.gather(*[session.prompt("go") for session in sessions], runtime.store.wait(2**62, 0.3))
        assert 0 < connections(url) <= 4


def connections(url: str) -> int:
    with psycopg.connect(url) as db:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        (number,) = db.execute(sql).fetchone() or (0,)
    return number


# --- connections that break ---------------------------------------------------------------

KILL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


async def kill_connections(url: str, done: asyncio.Event) -> int:
    """End all connections of the log's database, again and again, until told to stop."""
    dice, kills = random.Random(11), 0
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as db:
        while not done.is_set():
            await asyncio.sleep(dice.uniform(0.05, 0.4))
            kills += len(await (await db.execute(KILL)).fetchall())
    return kills


@pytest.mark.slow
async def test_appends_whose_connections_break_are_stored_once_and_in_order(url: str) -> None:
    done = asyncio.Event()
    async with opened(url) as store:
        claims = [await start_and_claim(store, f"s{number}") for number in range(4)]
        killing = asyncio.ensure_future(kill_connections(url, done))

        async def write(number: int) -> None:
            for value in range(25):
                await put(store, f"s{number}", ContextSet("n", value), ContextSet("m", value), claim=claims[number])
                await put(store, f"s{number}", Steered(str(value)))

        await asyncio.gather(*[write(number) for number in range(4)])
        done.set()
        assert await killing > 2
        for number in range(4):
            events = await store.read(f"s{number}")
            assert [event.seq for event in events] == list(range(1, 77))
            assert [e.value for e in events if isinstance(e, ContextSet) and e.key == "n"] == list(range(25))
            assert [e.value for e in events if isinstance(e, ContextSet) and e.key == "m"] == list(range(25))
            assert [e.text for e in events if isinstance(e, Steered)] == [str(value) for value in range(25)]


@pytest.mark.slow
async def test_parking_and_answering_over_connections_that_break_happen_once(url: str) -> None:
    done = asyncio.Event()
    async with opened(url) as store:
        killing = asyncio.ensure_future(kill_connections(url, done))
        for number in range(15):
            session, name = f"s{number}", f"q{number}"
            claim = await start_and_claim(store, session)
            await put(store, session, turn(), *question_events(name), claim=claim)
            assert await store.park(claim, {session: [Parked((name,))]}, [name])
            assert await store.settle(name, {name: CallbackAnswered(name, "yes", "ops")}) is None
            taken = await store.take()
            assert taken is not None
            assert taken.root == session
            await put(store, session, turn_end(), claim=taken, release=True)
            types = [event.type for event in await store.read(session)]
            assert types[2:] == ["callback_raised", "callback_asked", "parked", "callback_answered", "turn_ended"]
            await store.append_all({session: [Steered("end")]})
        done.set()
        await killing


@pytest.mark.slow
async def test_a_database_that_restarts_amid_work_makes_nobody_dead_and_loses_nothing(url: str) -> None:
    store = PostgresStore(url, lease=2.0)
    async with Runtime(store, agents=[worker()]) as runtime, opened(url) as other:
        sessions = [await runtime.start("worker", id=f"s{number}") for number in range(10)]

        async def talk(number: int) -> None:
            for _ in range(8):
                await sessions[number].prompt("go")
                await asyncio.sleep(0.05)

        talking = asyncio.gather(*[talk(number) for number in range(10)])
        held = await start_and_claim(store, "held")
        for _ in range(2):
            await asyncio.sleep(0.2)
            await asyncio.to_thread(restart, server())
            row = await other.row("held")
            assert row is not None
            assert row.owner
        await talking
        await put(store, "held", turn(), claim=held)
        for session in sessions:
            events = await store.read(session.id)
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            assert sum(event.type == "tool_ended" for event in events) == 8


def restart(one: Server) -> None:
    one.engine.stop()
    one.engine.ensure_postgres_running()


async def test_a_claim_is_not_confirmed_before_the_server_can_be_reached(url: str) -> None:
    async with opened(url) as store:
        claim = await start_and_claim(store)
        claim.until = 0.0
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(KILL)
        await store.confirm(claim)
        assert claim.until > 0


async def test_what_is_taken_for_somebody_who_stopped_waiting_is_released(url: str) -> None:
    async with opened(url, lease=600.0) as store, opened(url, lease=600.0) as other:
        held = await start_and_claim(store, "held")  # so that its process sends heartbeats
        claim = await start_and_claim(store, "s")
        await put(store, "s", turn(), claim=claim)
        await store.release(claim)
        taking = asyncio.ensure_future(store.take())
        await asyncio.sleep(0)
        taking.cancel()
        await asyncio.wait({taking})
        assert taking.cancelled()
        await store.append_all({"held": [Steered("written after it")]})
        taken = None
        async with asyncio.timeout(60):
            while taken is None:
                taken = await other.take()
        assert taken.root == "s"
        assert held.is_active


# --- order --------------------------------------------------------------------------------

WRITER = """
import asyncio, sys
from upcall.events import ContextSet, SessionStarted, Steered
from upcall.store.postgres.store import PostgresStore

async def main(url, session):
    store = PostgresStore(url)
    await store.open()
    await store.append(session, [SessionStarted("writer")], None)
    claim = await store.claim(session)
    for number in range(40):
        stored = [store.append(session, [ContextSet("n", number)], claim) for _ in range(number % 4 + 1)]
        if number % 10 == 0:
            stored.append(store.append("shared", [Steered(f"{session} {number}")], None))
        await asyncio.gather(*stored)
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.slow
async def test_a_follower_of_eight_writers_sees_each_event_once_and_in_order(url: str) -> None:
    async with opened(url) as store:
        await start_session(store, "shared")
        heard: list[AnyEvent] = []
        store.listen(heard.append)
        writers = [
            await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, url, f"s{number}")
            for number in range(8)
        ]
        ended = asyncio.gather(*[writer.wait() for writer in writers])
        seen: list[AnyEvent] = []
        while not ended.done() or await store.last() > (seen[-1].pos if seen else 0):
            seen += await store.read_all(seen[-1].pos if seen else 0, 50)
            await store.wait(seen[-1].pos if seen else 0, 0.05)
        assert await ended == [0] * 8
        every = await store.read_all(0, 100_000)
        await store.wait(await store.last(), 0.3)
        await wait_until(lambda: len(heard) >= 32)
    assert len(every) == 1 + 32 + 8 * 101
    assert [(e.pos, e.session, e.seq) for e in seen] == [(e.pos, e.session, e.seq) for e in every]
    for name in ["shared", *[f"s{number}" for number in range(8)]]:
        seqs = [event.seq for event in seen if event.session == name]
        assert seqs == list(range(1, len(seqs) + 1))
    assert [event.seq for event in heard] == list(range(2, 34))


async def test_a_transaction_that_is_under_way_delays_followers_and_nobody_else(url: str) -> None:
    async with opened(url) as store, await psycopg.AsyncConnection.connect(url) as db:
        await db.execute("SELECT pg_current_xact_id()")
        heard: list[AnyEvent] = []
        store.listen(heard.append)
        claim = await start_and_claim(store)
        await put(store, "s", turn(), claim=claim)
        await put(store, "s", Steered("hello"))
        await wait_until(lambda: heard)
        assert (len(await store.read("s")), len(await store.read_tree("s")), await store.read_all()) == (3, 3, [])
        await db.rollback()
        assert len(await store.read_all()) == 3
    assert len(heard) == 1


_UNDER_WAY = """
INSERT INTO upcall.events (n, pos, time, seq, by_others, body)
SELECT n, (pg_current_xact_id()::text::bigint << 16) + 1, time, seq + 1, gen_random_uuid(), body
FROM upcall.events WHERE n = (SELECT n FROM upcall.sessions WHERE id = 's') ORDER BY seq DESC LIMIT 1
"""
_HELD_UP = """
ALTER FUNCTION upcall.horizon() RENAME TO true_horizon;
CREATE FUNCTION upcall.horizon() RETURNS bigint LANGUAGE plpgsql STABLE AS $$ BEGIN
    PERFORM pg_advisory_xact_lock_shared(42);
    RETURN upcall.true_horizon();
END $$
"""
_IS_HELD_UP = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 42 AND NOT granted"


@pytest.mark.parametrize("reads", ["read_all", "last"])
async def test_what_is_committed_while_a_follower_reads_is_not_passed_over(url: str, reads: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(_HELD_UP)
    async with (
        opened(url) as store,
        opened(url) as follower,
        await psycopg.AsyncConnection.connect(url) as older,
        await psycopg.AsyncConnection.connect(url, autocommit=True) as other,
    ):
        await start_session(store, "s")
        await put(store, "s", Steered("an event to copy"))
        await older.execute(_UNDER_WAY.encode())
        await start_session(store, "t")
        await other.execute("SELECT pg_advisory_lock(42)")  # holds up the follower's statement after it has begun
        reading = asyncio.ensure_future(follower.read_all() if reads == "read_all" else follower.last())
        while await (await other.execute(_IS_HELD_UP)).fetchone() == (0,):
            await asyncio.sleep(0.01)
        await older.commit()
        await other.execute("SELECT pg_advisory_unlock(42)")
        found = await reading
        last = found if isinstance(found, int) else found[-1].pos
        every = [event.pos for event in await follower.read_all()]
    assert len(every) == 4
    assert last == every[1]  # neither the event that was under way nor the one above it


# --- dumps and schemas --------------------------------------------------------------------


@tool
async def choose(ctx: Context) -> str:
    """Ask which one."""
    return f"took {await ctx.raise_callback('Which one?', 'blocker')}"


def asker() -> Agent:
    def says(request: Any) -> Any:
        return request.messages[-1].results[0].text if request.messages[-1].role == "tool" else call("choose")

    return Agent("asker", model=Script(says), tools=[choose])


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_waiting_runs_continue_in_a_restored_dump_and_positions_too(url: str, tmp_path: Path) -> None:
    async with Runtime(url, agents=[asker()], hold=0.0) as runtime:
        sessions = [await runtime.start("asker", id=f"s{number}") for number in range(100)]
        await asyncio.gather(*[session.prompt("go") for session in sessions])
        with psycopg.connect(url, autocommit=True) as db:  # positions are above a new server's transaction ids
            db.execute("DO $$ BEGIN FOR i IN 1..3000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")
        await runtime.start("asker", id="the last one before the dump".replace(" ", "-"))
        last = await runtime.store.last()
        dump = tmp_path / "dump.sql"
        await asyncio.to_thread(run_tool, "pg_dump", "--file", str(dump), url)
    restored = Server()
    try:
        restored.execute("CREATE DATABASE restored")
        there = restored.url("restored")
        await asyncio.to_thread(run_tool, "psql", "--quiet", "--set", "ON_ERROR_STOP=1", "--file", str(dump), there)
        async with Runtime(there, agents=[asker()], hold=0.0) as runtime:
            assert await runtime.store.last() == last
            waiting = await runtime.inbox()
            assert len(waiting) == 100
            for callback in waiting:
                await runtime.answer(callback.id, "this one")
            replies = await asyncio.gather(*[runtime.resume(f"s{number}") for number in range(100)])
            fresh = await runtime.store.read_all(last, 100_000)
        assert {reply.text for reply in replies} == {"took this one"}
        assert len({event.pos for event in fresh}) == len(fresh) > 300
        assert min(event.pos for event in fresh) > last
    finally:
        restored.engine.cleanup()


def run_tool(name: str, *arguments: str) -> None:
    subprocess.run([server().engine.bin_path / name, *arguments], check=True, capture_output=True)


async def test_a_newer_schema_is_refused(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("UPDATE upcall.meta SET value = 99 WHERE name = 'version'")
    with pytest.raises(StoreTooNew, match="schema version 99"):
        await PostgresStore(url).open()


async def test_an_older_schema_gets_the_functions_of_this_version(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("UPDATE upcall.meta SET value = 1 WHERE name = 'version'")
        db.execute("CREATE OR REPLACE FUNCTION upcall.horizon() RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint'")
    async with opened(url) as store:
        await start_session(store, "s")
        assert [event.session for event in await store.read_all()] == ["s"]


def test_a_change_of_the_tables_or_functions_has_a_version_of_its_own() -> None:
    digest = hashlib.sha256(f"{tables.TABLES}{tables.FUNCTIONS}".encode()).hexdigest()[:16]
    assert (tables.VERSION, digest) == (3, "a23df3a6f33eae03"), (
        "raise tables.VERSION, add to UPGRADES, and note the digest here"
    )


async def test_a_schema_of_another_program_is_not_touched() -> None:
    server().execute("DROP DATABASE IF EXISTS others", "CREATE DATABASE others")
    url = server().url("others")
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("CREATE SCHEMA upcall; CREATE TABLE upcall.mine (id int)")
    with pytest.raises(NotAStore):
        await PostgresStore(url).open()
    server().drop(url)


async def test_of_several_that_open_an_empty_database_one_creates_the_schema() -> None:
    server().execute("DROP DATABASE IF EXISTS fresh", "CREATE DATABASE fresh")
    url = server().url("fresh")
    stores = [PostgresStore(url) for _ in range(5)]
    await asyncio.gather(*[store.open() for store in stores])
    await start_session(stores[0])
    assert [row.id for row in await stores[4].rows()] == ["s"]
    for store in stores:
        await store.close()
    server().drop(url)


async def test_everything_that_a_model_words_is_stored_with_the_character_zero(url: str) -> None:
    text = "a\0b"
    async with opened(url) as store:
        started = SessionStarted("writer", tags={"k": text}, title=text, folder=text, roots=(text,))
        claim = await start_tagged(store, started)
        await put(store, "s", turn(text=text), ContextSet(text, text), claim=claim)
        await put(store, "s~1", child_of("s"), turn(text=text), *question_events("q"), claim=claim)
        row = await store.row("s")
        assert row is not None
        assert (row.tags, row.title, row.folder, row.roots) == ({"k": text}, text, text, (text,))
        assert (await store.read("s"))[-1] == ContextSet(text, text).replace(
            session="s", seq=3, pos=(await store.read("s"))[-1].pos, time=(await store.read("s"))[-1].time
        )


async def start_tagged(store: Store, started: SessionStarted) -> Any:
    await put(store, "s", started)
    return await store.claim("s")


# --- addresses ----------------------------------------------------------------------------


async def test_no_error_has_the_password() -> None:
    urls = [
        "postgresql://ada:hunter22@127.0.0.1:1/log",
        "postgresql://ada:hunter22@no-such-host.invalid/log",
        "postgresql://ada:hun@ter22@127.0.0.1:1/log",
        "postgresql://ada:hunter22@127.0.0.1:port/log",
        "postgresql://127.0.0.1:1/log?user=ada&password=hunter22",
    ]
    for one in urls:
        with pytest.raises((StoreUnavailable, SetupError)) as caught:
            await PostgresStore(one).open()
        shown = "".join(traceback.format_exception(caught.value))
        assert "hunter22" not in shown
        assert "ter22" not in shown


def test_a_store_shows_its_address_without_the_password() -> None:
    store = PostgresStore("postgresql://ada:hunter22@db.example/log")
    assert (store.where, "hunter22" in repr(store)) == ("postgresql://ada@db.example/log", False)
    assert "hunter22" not in repr(vars(store)["_address"])


async def test_a_database_that_is_not_there_is_named_with_advice() -> None:
    with pytest.raises(StoreUnavailable, match="createdb"):
        await PostgresStore(server().url("nowhere")).open()
