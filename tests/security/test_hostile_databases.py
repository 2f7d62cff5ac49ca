"""What SQLite would do for a hostile file: run what its schema says, roll back a journal, take over a -wal."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest

from upcall import Agent, NotAStore, Runtime, StoreUnavailable
from upcall.app import open_store
from upcall.models import Script

AGENT = Agent("a", model=Script(lambda _: "said"))

HOSTILE = {
    "a trigger": "CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM sessions; END",
    "a view": "CREATE VIEW v AS SELECT * FROM events",
    "a view in place of a table": "DROP TABLE blobs; CREATE VIEW blobs AS SELECT 1 AS hash, 1 AS body",
    "a virtual table": "CREATE VIRTUAL TABLE words USING fts5(text)",
    "one more table": "CREATE TABLE more (x)",
    "an index with an expression": "CREATE INDEX i ON sessions (lower(id))",
    "a table with a check": "DROP TABLE blobs; CREATE TABLE blobs (hash TEXT PRIMARY KEY, body CHECK (1))",
    "a generated column": "ALTER TABLE processes ADD COLUMN more TEXT AS (upper(id))",
    "a default that is an expression": "DROP TABLE counters; "
    "CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL DEFAULT (abs(1)))",
}


async def prompted(path: Path) -> str:
    """One turn over the log at a path."""
    async with Runtime(path, agents=[AGENT]) as runtime:
        return (await (await runtime.start(AGENT)).prompt("go")).text


@pytest.fixture
async def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.db"
    await prompted(path)
    return path


@pytest.mark.parametrize("what", HOSTILE)
async def test_a_log_with_anything_but_our_own_tables_is_refused_unchanged(what: str, log: Path) -> None:
    with closing(sqlite3.connect(log)) as db, db:
        db.executescript(HOSTILE[what])
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    before = log.read_bytes()

    with pytest.raises(NotAStore, match="was not created by upcall; it was not changed"):
        await prompted(log)
    assert log.read_bytes() == before


async def test_a_log_that_was_analyzed_or_vacuumed_is_still_ours(log: Path) -> None:
    db = sqlite3.connect(log, isolation_level=None)
    db.execute("ANALYZE")
    db.execute("VACUUM")
    db.close()
    assert await prompted(log) == "said"


def hot_journal(log: Path, names: Path) -> bytes:
    """A rollback journal of one page that names another file: SQLite deletes that one after it has rolled back."""
    page_size = struct.unpack(">H", log.read_bytes()[16:18])[0]
    header = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + struct.pack(">IIIII", 1, 0, 1, 512, page_size)
    page = b"\0" * page_size
    record = struct.pack(">I", 2) + page + struct.pack(">I", 0)
    name = str(names).encode()
    checksum = sum(struct.unpack(f"{len(name)}b", name)) & 0xFFFFFFFF
    tail = struct.pack(">I", 0x40000000 // page_size + 1) + name + struct.pack(">II", len(name), checksum)
    return header.ljust(512, b"\0") + record + tail + b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"


async def test_a_journal_beside_a_log_is_refused_before_sqlite_sees_it(log: Path, tmp_path: Path) -> None:
    precious = tmp_path / "thesis.txt"
    precious.write_text("precious")
    journal = Path(f"{log}-journal")
    journal.write_bytes(hot_journal(log, precious))
    journal.chmod(0o600)
    victim = tmp_path / "victim" / "log.db"
    shutil.copytree(tmp_path, victim.parent, ignore=shutil.ignore_patterns("victim"))
    db = sqlite3.connect(victim)  # what SQLite itself does with it
    with contextlib.suppress(sqlite3.DatabaseError):
        db.execute("SELECT count(*) FROM sessions").fetchall()
    db.close()
    assert not precious.exists()
    precious.write_text("precious")
    before = log.read_bytes()

    with pytest.raises(StoreUnavailable, match=r"log\.db-journal exists; .* Remove that file: rm "):
        await prompted(log)
    assert (log.read_bytes(), precious.read_text()) == (before, "precious")


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
async def test_a_file_beside_the_log_that_is_more_open_than_the_log_was_not_made_by_us(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store(".upcall/log.db", found=True)
    async with Runtime(store, agents=[AGENT]) as runtime:
        await runtime.start(AGENT)
    log = Path(".upcall/log.db")
    # a checkout writes files of mode 644 over what it ignores
    other = tmp_path / "other.db"
    db = sqlite3.connect(other, isolation_level=None)
    db.execute("PRAGMA journal_mode = wal")
    db.execute("CREATE TABLE sessions (id)")
    planted = Path(f"{log}{suffix}")
    shutil.copyfile(f"{other}-wal", planted)
    db.close()
    planted.chmod(0o644)

    with pytest.raises(StoreUnavailable, match=rf"log\.db{suffix} was not created by upcall"):
        await store.open()


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
async def test_a_pipe_or_a_folder_beside_the_log_is_refused(suffix: str, log: Path) -> None:
    beside = Path(f"{log}{suffix}")
    beside.unlink(missing_ok=True)
    os.mkfifo(beside, 0o600)
    with pytest.raises(StoreUnavailable, match="is not a regular file"):
        await prompted(log)
    beside.unlink()
    beside.mkdir(mode=0o700)
    with pytest.raises(StoreUnavailable, match="is not a regular file"):
        await prompted(log)
