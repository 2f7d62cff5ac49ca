"""A file that the first version wrote: programs, approvals, children, hooks and teams that wait in it continue."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from store.golden.make_v1_parked import AGENTS, NOW, SESSIONS, TEAM
from upcall import Approve, Runtime
from upcall.store.sqlite.store import SqliteStore

DUMP = Path(__file__).parent / "golden" / "v1.parked.sql"
REPLIES = {
    "program": "'saw a, saw b, red, saw c'",
    "approval": "paid 250",
    "children": "it is red / it is red",
    "pair": "red and red",
    "hook": "begun",
    "team": "reviewed: ",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The stored file, as its owner's own."""
    path = tmp_path / "log.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA journal_mode = wal")
        db.executescript(DUMP.read_text())
    path.chmod(0o600)
    return path


def runtime(path: Path) -> Runtime:
    return Runtime(SqliteStore(path, lambda: NOW + 1), agents=[*AGENTS, TEAM])


@pytest.mark.parametrize("session_id", SESSIONS)
async def test_what_the_first_version_parked_is_answered_and_continues(path: Path, session_id: str) -> None:
    async with runtime(path) as now:
        mine = [c for c in await now.inbox() if c.session_id.split("~")[0] == session_id]
        for callback in mine:
            await now.answer(callback.id, Approve() if callback.tool else "red", by="ops")
        reply = await now.resume(session_id)

    assert mine
    assert (reply.status, reply.text[: len(REPLIES[session_id])]) == ("done", REPLIES[session_id])
