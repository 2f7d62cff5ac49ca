"""A SQLite file of an older format is opened as it is: nothing in it is lost, and what waits in it can continue."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from store.factories import open_sqlite
from store.golden.make_v1_file import AGENTS, NOW
from upcall import Runtime
from upcall.store.sqlite.store import SqliteStore
from upcall.store.sqlite.tables import VERSION

FOLDER = Path(__file__).parent / "golden"


@pytest.fixture(params=["v1.sql", "v2.sql", "v3.sql", "v4.sql"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file of an older format."""
    path = tmp_path / "log.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA journal_mode = wal")
        db.executescript((FOLDER / str(request.param)).read_text())
    return path


def runtime(path: Path, now: float = NOW) -> Runtime:
    return Runtime(SqliteStore(path, lambda: now), agents=AGENTS)


def log_of(path: Path) -> list[tuple[int, bytes]]:
    with closing(sqlite3.connect(path)) as db, db:
        return db.execute("SELECT key, body FROM events ORDER BY key").fetchall()


async def test_opening_an_older_file_keeps_every_event_as_it_was(path: Path) -> None:
    before = log_of(path)
    async with open_sqlite(path) as store:
        read = await store.read_all(limit=1000)
    assert (log_of(path), len(read)) == (before, len(before))


async def test_an_older_file_is_brought_to_the_newest_format_once(path: Path) -> None:
    async with open_sqlite(path), open_sqlite(path):
        pass
    with closing(sqlite3.connect(path)) as db, db:
        assert db.execute("PRAGMA user_version").fetchone() == (VERSION,)


async def test_two_that_open_an_older_file_at_once_both_can_use_it(path: Path) -> None:
    async with runtime(path) as one, runtime(path) as other:
        listed = await asyncio.gather(one.rows(), other.rows())
    assert [len(rows) for rows in listed] == [11, 11]


async def test_an_upgraded_file_has_the_same_tables_as_a_new_one(path: Path, tmp_path: Path) -> None:
    async with open_sqlite(path), open_sqlite(tmp_path / "new.db"):
        pass
    shapes: list[object] = []
    for file in (path, tmp_path / "new.db"):
        with closing(sqlite3.connect(file)) as db, db:
            names = sorted(name for (name,) in db.execute("SELECT name FROM sqlite_schema"))
            tables = [n for (n,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")]
            shapes.append((names, [db.execute(f"PRAGMA table_info({name})").fetchall() for name in tables]))
    assert shapes[0] == shapes[1]


async def test_what_waits_in_an_older_file_is_ready_when_it_can_continue(path: Path) -> None:
    async with runtime(path) as now:
        ready = await now.ready()
        waiting = {callback.session_id for callback in await now.inbox()}
    async with runtime(path, NOW + 61) as later:
        expired = await later.ready()
    assert (ready, waiting) == (["answered", "family", "interrupted"], {"waiting", "approved", "expiring"})
    assert expired == ["answered", "expiring", "family", "interrupted"]


async def test_what_waits_in_an_older_file_is_answered_and_continues(path: Path) -> None:
    async with runtime(path) as now:
        for callback in await now.inbox():
            await now.answer(callback.id, "here", by="ops")
        replies = {session: (await now.resume(session)).text for session in await now.ready()}
        assert await now.ready() == []
    assert replies == {
        "waiting": "it is here",
        "answered": "it is blue",
        "approved": "deployed to here",
        "expiring": "it is here",
        "family": "it is red",
        "interrupted": "hello",
    }


async def test_sessions_of_an_older_file_have_no_tags_and_new_ones_do(path: Path) -> None:
    async with runtime(path) as now:
        await now.start("worker", id="new", tags={"customer": "acme"}, data={"order": 17})
        tagged = await now.rows(tags={"customer": "acme"})
        old = await now.load("family~r1c0")
        kept = await now.load("new")
    assert ([row.id for row in tagged], old.data, old.tags) == (["new"], {}, {})
    assert (kept.data, kept.tags) == ({"order": 17}, {"customer": "acme"})


async def test_sessions_of_an_older_file_have_no_place_and_new_ones_do(path: Path) -> None:
    async with runtime(path) as now:
        await now.start("worker", id="new", title="Orders", folder="/srv/shop", roots=["/srv/docs"])
        (new,) = await now.rows(folder="/srv/shop")
        listed = await now.rows()
        old = await now.load("family~r1c0")
    assert (new.id, new.title, new.folder, new.roots) == ("new", "Orders", "/srv/shop", ("/srv/docs",))
    assert {(row.title, row.folder, row.roots) for row in listed if row.id != "new"} == {("", "", ())}
    assert (old.title, old.folder, old.roots) == ("", None, ())
