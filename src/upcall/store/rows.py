"""A callback's row in SQLite: kept in the same transaction as the events it follows from.

May import: contracts, events, store.ledger, store.schema.
"""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

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

    def flush(self) -> None:
        """Write the events that were numbered so far."""
        ...


_MASK = (1 << SEQ_BITS) - 1
_COLUMNS = (
    "c.status, c.target, c.message, c.path, c.expires, c.delivered, s.id, r.id, "
    "e.key, e.pos, e.time, e.body, t.key, t.pos, t.time, t.body "
    "FROM callbacks c JOIN events e ON e.key = c.raised JOIN sessions s ON s.n = c.raised >> 32 "
    "JOIN sessions r ON r.n = c.root LEFT JOIN events t ON t.key = c.settled"
)
BY_ID = f"SELECT {_COLUMNS} WHERE c.id = ?"
OF_TREE = f"SELECT {_COLUMNS} WHERE r.id = ? ORDER BY e.pos LIMIT ?"
WAITING = (
    f"SELECT {_COLUMNS} WHERE c.status = 'open' AND c.target = 'user' ORDER BY c.rank, c.created, c.raised LIMIT ?"
)

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


def held_from(row: Sequence[Any]) -> Held:
    """A callback from its row and its events."""
    status, target, message, path, expires, delivered, session, root = row[:8]
    raised = decode(row[11], session, row[8] & _MASK, row[9], row[10])
    assert isinstance(raised, CallbackRaised)
    settled = decode(row[15], session, row[12] & _MASK, row[13], row[14]) if row[12] is not None else None
    steps = msgspec.json.decode(path, type=tuple[tuple[str, str, str], ...])
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
            held = changed.get(callback_id) or find(tx, callback_id)
            if held is not None and held.status == "open":
                now = changed[callback_id] = after(held, event)
                if now.status != "open":
                    settled[callback_id] = key
    for callback_id, held in changed.items():
        message = held.message if held.message != held.raised.message else None
        path = msgspec.json.encode(held.path).decode()
        values = (held.status, held.target, message, path, held.expires, settled.get(callback_id), callback_id)
        if callback_id in raised:
            tx.db.execute(_INSERT, (*values, root, raised[callback_id], rank(held)[0], tx.now))
        else:
            tx.db.execute(_UPDATE, values)


def find(tx: Open, callback_id: str) -> Held | None:
    """One callback inside a transaction."""
    tx.flush()
    row = tx.db.execute(BY_ID, (callback_id,)).fetchone()
    return held_from(row) if row is not None else None
