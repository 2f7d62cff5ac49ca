"""A queue of run trees that can be resumed, in the log's own file: `SqliteStore(path, on_ready=add)`."""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from upcall.contracts import Ready
from upcall.store.sqlite.queries import Rows
from upcall.store.sqlite.tables import READY_QUEUE


def add(tx: Rows, record: Ready) -> None:
    """Add a record to the queue in the same transaction."""
    tx.execute(READY_QUEUE.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"))
    sql = "INSERT INTO ready_queue (root, reason, due) VALUES (?, ?, ?)"
    tx.execute(sql, (record.root, record.reason, record.due))
