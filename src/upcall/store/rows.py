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


def held_from(row: Sequence[Any]) -> Held:
    """A callback from its row and its events."""
    status, target, message, path, expires, delivered, session, root = row[:8]
    raised = decode(row[11], session, row[8] & _MASK, row[9], row[10])
    assert isinstance(raised, CallbackRaised)
    settled = decode(row[15], session, row[12] & _MASK, row[13], row[14]) if row[12] is not None else None
    steps = msgspec.json.decode(path, type=tuple[tuple[str, str, str], ...])
    return Held(raised, root, status, target, message or raised.message, steps, expires, settled, bool(delivered))


def note(tx: Open, root: int, key: int, event: AnyEvent) -> None:
    """Take one event of a callback into its row."""
    if isinstance(event, CallbackRaised):
        sql = (
            "INSERT INTO callbacks (id, root, raised, status, target, path, rank, created, expires) "
            "VALUES (?, ?, ?, 'open', '', '[]', ?, ?, ?)"
        )
        place = rank(Held(event, ""))[0]
        tx.db.execute(sql, (event.callback_id, root, key, place, tx.now, event.expires))
        return
    if isinstance(event, CallbackDelivered):
        tx.db.execute("UPDATE callbacks SET delivered = 1 WHERE id = ?", (event.callback_id,))
        return
    tx.flush()
    held = find(tx, event.callback_id)  # pyright: ignore[reportAttributeAccessIssue]
    if held is None or held.status != "open":
        return
    now = after(held, event)
    settled = key if now.status != "open" else None
    message = now.message if now.message != now.raised.message else None
    sql = (
        "UPDATE callbacks SET status = ?, target = ?, message = ?, path = ?, expires = ?, settled = ? WHERE id = ?"
    )
    path = msgspec.json.encode(now.path).decode()
    values = (now.status, now.target, message, path, now.expires, settled, held.raised.callback_id)
    tx.db.execute(sql, values)


def find(tx: Open, callback_id: str) -> Held | None:
    """One callback inside a transaction."""
    row = tx.db.execute(BY_ID, (callback_id,)).fetchone()
    return held_from(row) if row is not None else None
