"""The table `queue`: root sessions with queued turns, and which of them a worker takes next."""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from upcall.contracts import TakeLimit
from upcall.store.rules import (
    TAKE_WINDOW,
    Candidate,
    Effects,
    QueueEntry,
    counts_takes,
    queue_after,
    take_order,
)
from upcall.store.sqlite.queries import READY
from upcall.store.sqlite.transaction import SessionRow, Tx

_PLACE = "SELECT agent, tenant, rank, turn, queued, due, taken FROM queue WHERE root = ?"
_PUT = "INSERT OR REPLACE INTO queue VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_AGENT = "SELECT agent FROM sessions WHERE n = ?"
_FREE = "s.owner NOT IN (SELECT value FROM json_each(:alive)) AND s.id NOT IN (SELECT value FROM json_each(:skip))"

_NEXT_GROUP = (
    "rank = :rank AND tenant = :tenant AND agent > :agent",
    "rank = :rank AND tenant > :tenant",
    "rank > :rank",
)
"""Where the next group of the index begins, nearest first.

Each is one search in the index, so that it costs the same whatever the number of queued sessions. SQLite would read
all sessions of a group for a comparison of the three columns at once.
"""

_FIRST = (
    "SELECT rank, agent, tenant, root FROM queue WHERE ready AND due = 0 AND {} "
    "ORDER BY rank, tenant, agent, root LIMIT 1"
)

_OLDEST = (
    "SELECT q.root FROM queue q CROSS JOIN sessions s ON s.n = q.root "
    f"WHERE q.ready AND q.due = 0 AND q.rank = :rank AND q.tenant = :tenant AND q.agent = :agent AND {_FREE} "
    "ORDER BY q.root LIMIT 1"
)
"""The oldest session of a group that nobody owns."""

_OTHERS = (
    "SELECT coalesce(q.rank, -1), s.agent, coalesce(q.tenant, ''), s.n FROM sessions s "
    f"LEFT JOIN queue q ON q.root = s.n WHERE s.n IN ({READY}) AND s.status IN ('running', 'waiting', 'queued') "
    f"AND {_FREE}"
)
"""The roots that are ready for another reason than that a turn is queued."""

_RUNNING = (
    "SELECT q.agent, q.tenant, count(*) FROM queue q CROSS JOIN sessions s ON s.n = q.root "
    "WHERE q.taken AND s.owner IN (SELECT value FROM json_each(?)) GROUP BY 1, 2"
)
_TAKEN = "SELECT agent, tenant, count(*) FROM takes WHERE at > ? GROUP BY 1, 2"


def find_entry(tx: Tx, row: SessionRow) -> QueueEntry | None:
    """Return a session's entry in the queue, or None."""
    found: Any = tx.execute(_PLACE, (row.n,)).get if row.in_queue else None
    if found is None:
        return None
    agent, tenant, rank, turn, queued, due, taken = found
    return QueueEntry(agent, tenant, rank, turn, queued, due, bool(taken))


def _put_entry(tx: Tx, row: SessionRow, entry: QueueEntry, status: str) -> None:
    row.in_queue = True
    values = (entry.agent, entry.tenant, entry.rank, entry.turn, entry.queued, entry.due)
    tx.execute(_PUT, (row.n, *values, status == "queued", entry.taken))


def _entry_of(tx: Tx, row: SessionRow) -> QueueEntry:
    """Return a session's entry in the queue, a new one if it has none."""
    return find_entry(tx, row) or QueueEntry(str(tx.execute(_AGENT, (row.n,)).get))


def update_queue(tx: Tx, row: SessionRow, before: str, effects: Effects) -> str:
    """Apply an append to a root's entry in the queue; returns the session's new status."""
    entry = _entry_of(tx, row)
    status = queue_after(entry, before, effects)
    _put_entry(tx, row, entry, status)
    return status


def count_queued(tx: Tx) -> int:
    """Return how many sessions are queued."""
    return tx.execute("SELECT count(*) FROM queue WHERE ready").get


def mark_taken(tx: Tx, row: SessionRow, limits: Sequence[TakeLimit]) -> None:
    """Record that a worker took a run tree."""
    entry = _entry_of(tx, row)
    entry.taken = True
    _put_entry(tx, row, entry, row.status)
    if counts_takes(limits):
        tx.execute("INSERT INTO takes VALUES (?, ?, ?)", (tx.now, entry.agent, entry.tenant))


def next_root(
    tx: Tx, agents: Collection[str] | None, exclude: Collection[str], limits: Sequence[TakeLimit], alive: str
) -> str | None:
    """Return the id of the run tree that is taken next. `alive`: the ids of living processes as a JSON list."""
    tx.execute("DELETE FROM takes WHERE at <= ?", (tx.now - TAKE_WINDOW,))
    taken: list[Any] = tx.execute(_TAKEN, (tx.now - TAKE_WINDOW,)).fetchall() if counts_takes(limits) else []
    running: list[Any] = tx.execute(_RUNNING, (alive,)).fetchall()
    values = {"now": tx.now, "alive": alive, "skip": json.dumps([*exclude])}
    held = set(tx.held_by_hooks(tx.now))
    others: list[Any] = tx.execute(_OTHERS, values).fetchall()
    single = {Candidate(*one) for one in others if one[3] not in held}
    in_order = take_order(
        [*_groups(tx), *single],
        agents,
        limits,
        {(a, t): n for a, t, n in running},
        {(a, t): n for a, t, n in taken},
    )
    for one in in_order:
        if one in single:
            return tx.session_id(one.oldest)
        oldest: Any = tx.execute(_OLDEST, {**values, **one._asdict()}).get
        if oldest is not None:
            return tx.session_id(oldest)
    return None


def _groups(tx: Tx) -> Iterator[Candidate]:
    """The queued sessions, by rank, tenant and agent, each with the oldest of its group."""
    last: dict[str, Any] | None = {"rank": -100, "tenant": "", "agent": ""}
    while last is not None:
        searches = (tx.execute(_FIRST.format(where), last).get for where in _NEXT_GROUP)
        found: Any = next((one for one in searches if one is not None), None)
        if found is not None:
            yield Candidate(*found)
        last = None if found is None else {"rank": found[0], "agent": found[1], "tenant": found[2]}
