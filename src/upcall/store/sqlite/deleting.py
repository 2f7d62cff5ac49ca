"""Delete whole run trees from the file, with the bodies that nothing else uses."""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from upcall.errors import UnknownSession
from upcall.store.sqlite.tables import SEQ_BITS
from upcall.store.sqlite.transaction import Tx

_HASH = re.compile(rb'"([0-9a-f]{32})"')


def remove_trees(tx: Tx, sessions: Sequence[str], refuse_owned: Callable[[Tx, str, str], None]) -> int:
    """Delete the run trees of these sessions; return how many sessions that were.

    refuse_owned: raises if the owner of a session is alive
    """
    roots: set[int] = set()
    for session in sessions:
        found = tx.session(session)
        if found is None:
            raise UnknownSession(session)
        owner: str = tx.execute("SELECT owner FROM sessions WHERE n = ?", (found.root,)).get
        refuse_owned(tx, session, owner)
        roots.add(found.root)
    tx.keep_counting()
    gone, names = 0, set[str]()
    for root in roots:
        tx.execute("DELETE FROM tags WHERE root = ?", (root,))
        tx.execute("DELETE FROM places WHERE root = ?", (root,))
        tx.execute("DELETE FROM queue WHERE root = ?", (root,))
        numbers: list[Any] = tx.execute("SELECT n FROM sessions WHERE n = ? OR root = ?", (root, root)).fetchall()
        for (n,) in numbers:
            names |= _remove_one(tx, n)
            gone += 1
    tx.forget()
    for name in names:  # only bodies of these sessions can have become unused
        used = "SELECT 1 FROM events WHERE instr(body, CAST(? AS BLOB))"
        tx.execute(f"DELETE FROM blobs WHERE hash = ? AND NOT EXISTS ({used})", (name, name))
    tx.execute("PRAGMA incremental_vacuum").fetchall()
    return gone


def _remove_one(tx: Tx, n: int) -> set[str]:
    """Delete one session; return the content hashes that its events used."""
    span = (n << SEQ_BITS, (n + 1) << SEQ_BITS)
    names: set[str] = set()
    bodies: list[Any] = tx.execute("SELECT body FROM events WHERE key > ? AND key < ?", span).fetchall()
    for (body,) in bodies:
        names.update(name.decode() for name in _HASH.findall(body))
    tx.execute("DELETE FROM callbacks WHERE raised > ? AND raised < ?", span)
    tx.execute("DELETE FROM events WHERE key > ? AND key < ?", span)
    tx.execute("DELETE FROM sessions WHERE n = ?", (n,))
    return names
