"""Transactions on the connection that writes: numbered events, and the rows of sessions as the file has them."""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

import apsw
import msgspec

from upcall.contracts import Claim, OnReady
from upcall.errors import StoreUnavailable, UnknownSession
from upcall.events import SessionStarted, decode, encode
from upcall.store.rules import check_fence, findable, release_record, without_body
from upcall.store.sqlite.queries import EVENTS, SESSION, Rows
from upcall.store.sqlite.tables import SEQ_BITS

_MAX_ROWS = 1000  # in the cache

_GIVEN = (
    "SELECT name, value FROM counters UNION ALL SELECT 'last', max(pos) FROM events "
    "UNION ALL SELECT 'newest', max(n) FROM sessions"
)
"""The highest numbers ever used: positions, sessions' numbers, and epochs of deleted sessions."""

_REPLACED = (
    "the file was removed or replaced while this program had it open, so nothing more can be stored in it; "
    "put it back (from a backup, if it is lost) and start the program again"
)


class SessionRow:
    """A session's row as it is in the file now, with its newest sequence number.

    `in_queue`: it has a row in the table `queue`.
    """

    __slots__ = ("base", "epoch", "in_queue", "n", "owner", "root", "seq", "status")

    def __init__(
        self, n: int, root: int, status: str, base: int, epoch: int, owner: str, in_queue: int, key: int | None
    ) -> None:
        self.n, self.root, self.status, self.base, self.epoch, self.owner = n, root, status, base, epoch, owner
        self.in_queue = bool(in_queue)
        self.seq = key - (n << SEQ_BITS) if key else 0


class Tx(Rows):
    """One transaction after the other: numbers rows as they come and writes events with few statements.

    What it has read of the file holds until another connection writes to it; the file says when one has.
    """

    def __init__(self, db: apsw.Connection, where: str) -> None:
        super().__init__(db)
        self.where, self._file = where, _identity(where)
        self.first = self.pos = self._newest = self._epoch = 0
        self.on_ready: OnReady | None = None
        self._rows: list[Any] = []
        self._sessions: dict[str, SessionRow] = {}
        self._version = -1
        try:
            self.forget()
            self._version = db.data_version()
        except apsw.CorruptError:  # undamaged parts can still be read
            self.pos = self.execute("SELECT max(pos) FROM events").get or 0

    def begin(self, now: float) -> None:
        """Start a transaction; wait for other writers."""
        self.execute("BEGIN IMMEDIATE")
        self.now = now
        self.callbacks.clear()
        if self.db.data_version() != self._version or len(self._sessions) > _MAX_ROWS:
            self.forget()
        self.first = self.pos

    def commit(self) -> None:
        """Commit the transaction."""
        self.flush()
        self.execute("COMMIT")
        self._version = self.db.data_version()
        self._check_place()

    def _check_place(self) -> None:
        """Raise if the file was deleted or replaced: SQLite would continue to write to the old file."""
        if _identity(self.where) != self._file:
            raise StoreUnavailable(self.where, _REPLACED)

    def roll_back(self) -> None:
        """Undo the transaction."""
        self._rows, self._version = [], -1
        self._events.clear()  # other events may get the same keys
        with contextlib.suppress(apsw.Error):
            self.execute("ROLLBACK")

    def forget(self) -> None:
        """Clear the cache, because other processes may have deleted or added sessions."""
        self._sessions.clear()
        self.numbers.clear()
        given: dict[str, Any] = dict(cast("Any", self.execute(_GIVEN).fetchall()))
        self.pos = max(given["pos"], given["last"] or 0)
        self._newest, self._epoch = max(given["n"], given["newest"] or 0), given["epoch"]

    def session(self, session: str) -> SessionRow | None:
        """Return a session's row, or None. Code that changes it must call `save`."""
        found = self._sessions.get(session)
        if found is None:
            row: Any = self.execute(SESSION, (findable(session),)).get
            if row is not None:
                first = row[0] << SEQ_BITS
                newest: Any = self.execute(EVENTS, (first, first + (1 << SEQ_BITS), 1)).get
                values: tuple[Any, ...] = (*row, newest[0] if newest else None)
                found = self._sessions[session] = SessionRow(*values)
                self.numbers[session] = found.n
        return found

    def save(self, found: SessionRow) -> None:
        """Write a session's row."""
        sql = "UPDATE sessions SET status = ?, base = ?, epoch = ?, owner = ? WHERE n = ?"
        self.execute(sql, (found.status, found.base, found.epoch, found.owner, found.n))

    def check_fence(self, claim: Claim) -> SessionRow:
        """Raise if the claim failed or is not the newest one; returns its root session."""
        root = None if claim.failure is not None else self.session(claim.root)
        check_fence(claim, None if root is None else root.epoch)
        return cast("SessionRow", root)

    def keep_counting(self) -> None:
        """Store the highest numbers used, before sessions are deleted."""
        self.execute("UPDATE counters SET value = ? WHERE name = 'pos'", (self.pos,))
        for name in ("n", "epoch"):
            sql = f"UPDATE counters SET value = max(value, (SELECT max({name}) FROM sessions)) WHERE name = ?"
            self.execute(sql, (name,))

    def create(self, session: str, event: SessionStarted) -> SessionRow:
        """Insert and return a new session's row."""
        parent = self.existing(event.parent).n if event.parent else None
        n = self._newest = self._newest + 1
        root = self.existing(event.root).n if event.root and event.root != session else n
        sql = "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, 'idle', ?, 0, ?, '')"
        self.execute(sql, (n, session, event.agent, parent, root, event.kind, self.now, self._epoch))
        for name, value in event.tags.items():
            self.execute("INSERT INTO tags VALUES (?, ?, ?)", (name, value, root))
        if root == n and (event.title or event.folder or event.roots):
            roots = msgspec.json.encode(event.roots).decode()
            self.execute("INSERT INTO places VALUES (?, ?, ?, ?)", (root, event.title, event.folder, roots))
        found = self._sessions[session] = SessionRow(n, root, "idle", 0, self._epoch, "", 0, None)
        return found

    def existing(self, session: str) -> SessionRow:
        """Return a session's row; raise UnknownSession if there is none."""
        found = self.session(session)
        if found is None:
            raise UnknownSession(session)
        return found

    def add(self, found: SessionRow, bodies: Sequence[bytes]) -> tuple[int, int]:
        """Number these events; returns the first one's sequence number and position."""
        seq, pos, now = found.seq + 1, self.pos + 1, self.now
        key = (found.n << SEQ_BITS) + seq
        self._rows += [(key + i, pos + i, now, body) for i, body in enumerate(bodies)]
        found.seq += len(bodies)
        self.pos += len(bodies)
        return seq, pos

    def flush(self) -> None:
        """Write the events that were numbered so far."""
        rows, self._rows = self._rows, []
        if rows:
            self.cursor.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", rows)

    def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        """Store bodies under their content hashes, those that are new."""
        for name, body in blobs.items():
            self.execute("INSERT OR IGNORE INTO blobs VALUES (?, ?)", (name, body))

    def drop_body(self, key: int) -> None:
        """Drop the body of an event that a hook replaced."""
        self.flush()
        body = self.execute(EVENTS, (key - 1, key + 1, 1)).get[3]
        slim = encode(without_body(decode(body, "", 0, 0, 0.0)))
        self.execute("UPDATE events SET body = ? WHERE key = ?", (slim, key))

    def release(self, claim: Claim, *, recorded: bool = False) -> None:
        """Release a claim; nothing happens if it was lost.

        recorded: the transaction has a record that the run tree is ready
        """
        root = self.session(claim.root)
        if root is not None and root.epoch == claim.epoch:
            root.owner = ""
            self.save(root)
            if self.on_ready is not None and not recorded:
                record = release_record(claim.root, root.status)
                if record is not None:
                    self.on_ready(self, record)


def _identity(path: str) -> tuple[int, int] | None:
    """Return the identity of the file at a path, or None."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_ino, found.st_dev
