"""A callback's row in SQLite: kept in the same transaction as the events it follows from.

May import: contracts, events, store.ledger, store.schema.
"""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import apsw
import msgspec

from upcall.contracts import Held
from upcall.events import AnyEvent, CallbackDelivered, CallbackRaised, decode
from upcall.store.ledger import after, rank
from upcall.store.schema import SEQ_BITS


class Open(Protocol):
    """A transaction under way."""

    db: apsw.Connection
    now: float
    held: dict[str, Held]

    def flush(self) -> None:
        """Write the events that were numbered so far."""
        ...


_MASK = (1 << SEQ_BITS) - 1
_path = msgspec.json.Decoder(list[tuple[str, str, str]])
_BY_ID = (
    "SELECT c.status, c.target, c.message, c.path, c.expires, c.delivered, c.settled, e.key, e.pos, e.time, "
    "e.body, (SELECT id FROM sessions WHERE n = c.raised >> 32), (SELECT id FROM sessions WHERE n = c.root) "
    "FROM callbacks c JOIN events e ON e.key = c.raised WHERE c.id = ?"
)
OF_TREE = "SELECT c.id FROM sessions r JOIN callbacks c ON c.root = r.n WHERE r.id = ? ORDER BY c.rowid LIMIT ?"
WAITING = (
    "SELECT id FROM callbacks WHERE status = 'open' AND target = 'user' ORDER BY rank, created, raised LIMIT ?"
)
"""These two give ids only: every statement is planned anew by a program that opens the store for one answer."""

MAY_GO_ON = (
    "EXISTS (SELECT 1 FROM callbacks c WHERE c.root = s.n AND CASE c.status WHEN 'open' "
    "THEN c.target <> 'user' OR c.expires <= ? ELSE NOT c.delivered END)"
)
"""Whether a parked tree has anything settled or expired, or an agent to ask."""

_INSERT = (
    "INSERT INTO callbacks (status, target, message, path, expires, settled, id, root, raised, rank, created) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_UPDATE = (
    "UPDATE callbacks SET status = ?, target = ?, message = ?, path = ?, expires = ?, settled = ? WHERE id = ?"
)


def held(db: apsw.Connection, callback_id: str) -> Held | None:
    """A callback from its row and its events, or None."""
    row: Any = db.execute(_BY_ID, (callback_id,)).fetchone()
    if row is None:
        return None
    status, target, message, path, expires, delivered, ended, key, pos, at, body, session, root = row
    raised, settled = decode(body, session, key & _MASK, pos, at), None
    assert isinstance(raised, CallbackRaised)
    if ended is not None:
        pos, at, body = cast(
            "Any", db.execute("SELECT pos, time, body FROM events WHERE key = ?", (ended,)).fetchone()
        )
        settled = decode(body, session, ended & _MASK, pos, at)
    steps = _path.decode(path)
    return Held(raised, root, status, target, message or raised.message, steps, expires, settled, bool(delivered))


def note(tx: Open, root: int, events: Sequence[tuple[int, AnyEvent]]) -> None:
    """Take the callback events of one append, with their keys, into the callbacks' rows: each is written once."""
    changed: dict[str, Held] = {}
    raised: dict[str, int] = {}
    settled: dict[str, int] = {}
    for key, event in events:
        callback_id: str = event.callback_id  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(event, CallbackRaised):
            changed[callback_id] = Held(event, "", message=event.message, expires=event.expires)
            raised[callback_id] = key
        elif isinstance(event, CallbackDelivered):
            tx.db.execute("UPDATE callbacks SET delivered = 1 WHERE id = ?", (callback_id,))
        else:
            before = changed.get(callback_id) or find(tx, callback_id)
            if before is not None and before.status == "open":
                now = changed[callback_id] = after(before, event)
                if now.status != "open":
                    settled[callback_id] = key
    for callback_id, now in changed.items():
        message = now.message if now.message != now.raised.message else None
        path = msgspec.json.encode(now.path).decode()
        values = (now.status, now.target, message, path, now.expires, settled.get(callback_id), callback_id)
        if callback_id in raised:
            tx.db.execute(_INSERT, (*values, root, raised[callback_id], rank(now)[0], tx.now))
        else:
            tx.db.execute(_UPDATE, values)
            tx.held[callback_id] = now


def find(tx: Open, callback_id: str) -> Held | None:
    """One callback inside a transaction, read once in it."""
    found = tx.held.get(callback_id)
    if found is None:
        tx.flush()
        found = held(tx.db, callback_id)
        if found is not None:
            tx.held[callback_id] = found
    return found
