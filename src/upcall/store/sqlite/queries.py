"""A callback's row in SQLite: kept in the same transaction as the events it follows from."""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import apsw
import msgspec

from upcall.callbacks import Held
from upcall.events import AnyEvent, CallbackRaised, decode
from upcall.store.rules import callback_changes, rank, reopened
from upcall.store.sqlite.listing_sql import Condition
from upcall.store.sqlite.tables import SEQ_BITS

log = logging.getLogger("upcall")

_MOST = 100  # events and names that are kept
_MASK = (1 << SEQ_BITS) - 1
_path = msgspec.json.Decoder(list[tuple[str, str, str]])
_tags = msgspec.json.Decoder(dict[str, str])
_SELECT = (
    "SELECT raised, root, status, target, message, path, expires, settled, delivered, awaited FROM callbacks WHERE "
)
_BY_ID = f"{_SELECT}id = ?"
_OF_TREE = f"{_SELECT}root = ? ORDER BY rowid LIMIT ?"
_TAGS = "SELECT json_group_object(name, value) FROM tags WHERE root = ?"
SESSION = "SELECT n, root, status, base, epoch, owner FROM sessions WHERE id = ?"
EVENTS = "SELECT key, pos, time, body FROM events WHERE key > ? AND key < ? ORDER BY key DESC LIMIT ?"
"""One for all that is asked of events: a program that opens the store for one answer plans every statement anew."""

DUE = "CASE WHEN status = 'open' AND target = 'user' THEN expires ELSE 0 END"
"""When an awaited callback lets its session continue, as the index `callbacks_due` has it."""

READY = (
    "SELECT n FROM sessions WHERE parent IS NULL AND status = 'running' "
    f"UNION ALL SELECT root FROM callbacks WHERE awaited AND {DUE} <= ?"
)
"""The roots with something to continue with, by two indexes; some may be owned, or not parked as a whole."""

_INSERT = "INSERT INTO callbacks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?)"
_UPDATE = (
    "UPDATE callbacks SET status = ?, target = ?, message = ?, path = ?, expires = ?, settled = ? WHERE id = ?"
)
_UNMARK = "UPDATE callbacks SET awaited = 0 WHERE root = ? AND raised > ? AND raised < ? AND awaited"
_MARK = "UPDATE callbacks SET awaited = 1 WHERE id = ?"


class Rows:
    """Reads callbacks through one connection; what never changes once it is written is read once."""

    def __init__(self, db: apsw.Connection) -> None:
        self.db, self.now = db, 0.0
        self.cursor = db.cursor()  # one for everything: to make one costs as much as most statements
        self.execute = self.cursor.execute
        self.held: dict[str, Held] = {}  # as they are in a transaction under way
        self._events: dict[int, AnyEvent] = {}
        self._names: dict[int, str] = {}
        self._tags_of: dict[int, dict[str, str]] = {}
        self.numbers: dict[str, int] = {}
        self._told: set[int] = set()  # the keys of callbacks that can't be read

    def flush(self) -> None:
        """Write the events that were numbered so far."""

    def callback(self, callback_id: str) -> Held | None:
        """One callback, or None."""
        row: Any = self.execute(_BY_ID, (callback_id,)).get
        return None if row is None else self._held(row)

    def for_person(self, where: Condition, limit: int) -> list[Held]:
        """The callbacks that match, highest priority first."""
        sql = f"{_SELECT}{where.sql} ORDER BY rank, created, raised LIMIT ?"
        return self._readable(self.execute(sql, (*where.values, limit)).fetchall())

    def of_tree(self, root: str, limit: int) -> list[Held]:
        """The callbacks of a run tree, oldest first."""

        def read(n: int) -> list[Any]:
            return self.execute(_OF_TREE, (n, limit)).fetchall()

        return self._readable(self._of(root, read))

    def events(self, session: str, after: int, limit: int) -> list[Any]:
        """The rows of a session's events, oldest first."""

        def read(n: int) -> list[Any]:
            first = (n << SEQ_BITS) + after  # there are no gaps
            return self.execute(EVENTS, (first, min(first + limit, n << SEQ_BITS | _MASK) + 1, limit)).fetchall()

        return self._of(session, read)[::-1]

    def _of(self, session: str, read: Callable[[int], list[Any]]) -> list[Any]:
        """What is found by a session's number; one that was deleted and made anew has another than was known."""
        n = self.numbers.get(session)
        found = [] if n is None else read(n)
        if not found:
            row: Any = self.execute(SESSION, (session,)).get
            if row is not None and row[0] != n:
                found = read(row[0])
        return found

    def _readable(self, rows: Sequence[Any]) -> list[Held]:
        """The callbacks that can be read: one that can't be, is told of once, and hides no other."""
        found: list[Held] = []
        for row in rows:
            try:
                found.append(self._held(row))
            except ValueError as error:
                if row[0] not in self._told:
                    self._told.add(row[0])
                    log.warning("a callback is left out: %s", error)
        return found

    def _held(self, row: Any) -> Held:
        """A callback from its row and its events; ValueError where one of them can't be read."""
        key, tree, status, target, message, path, expires, ended, delivered, awaited = row
        raised, settled = self._event(key), None if ended is None else self._event(ended)
        try:
            steps = _path.decode(path)
        except msgspec.MsgspecError as error:
            raise ValueError(f"its path can't be read ({error})") from None
        if not isinstance(raised, CallbackRaised):
            wrong = f"event {raised.seq} of session {raised.session!r} does not raise a callback"
            raise ValueError(wrong)  # noqa: TRY004 - of the log, not of an argument
        message = message or raised.message
        more = (steps, expires, settled, bool(delivered), bool(awaited), self._tags(tree))
        return Held(raised, self.session_id(tree), status, target, message, *more)

    def _tags(self, root: int) -> dict[str, str]:
        """The tags of a run tree."""
        found = self._tags_of.get(root)
        if found is None:
            if len(self._tags_of) > _MOST:
                self._tags_of.clear()
            found = self._tags_of[root] = _tags.decode(self.execute(_TAGS, (root,)).get)
        return found

    def _event(self, key: int) -> AnyEvent:
        found = self._events.get(key)
        if found is None:
            if len(self._events) > _MOST:
                self._events.clear()
            _, pos, at, body = self.execute(EVENTS, (key - 1, key + 1, 1)).get
            session, seq = self.session_id(key >> SEQ_BITS), key & _MASK
            try:
                found = self._events[key] = decode(body, session, seq, pos, at)
            except ValueError as error:
                raise ValueError(f"event {seq} of session {session!r} can't be read ({error})") from None
        return found

    def session_id(self, n: int) -> str:
        """The id of the session with this number."""
        found = self._names.get(n)
        if found is None:
            if len(self._names) > _MOST:
                self._names.clear()
                self.numbers.clear()
            found = self._names[n] = self.execute("SELECT id FROM sessions WHERE n = ?", (n,)).get
            self.numbers[found] = n
        return found


def stop_waiting(tx: Rows, root: int, session: int) -> None:
    """Clear the mark on the callbacks of a session that no longer waits for them."""
    tx.execute(_UNMARK, (root, session << SEQ_BITS, (session + 1) << SEQ_BITS))


def update_callback_rows(
    tx: Rows, root: int, events: Sequence[tuple[int, AnyEvent]], waits: Sequence[str] = ()
) -> list[Held]:
    """Apply the callback events of one append, each with its key, to the rows; returns the callbacks that changed.

    waits: the callbacks for which the same append parks its session
    """
    changes = callback_changes([event for _, event in events], partial(find, tx))
    for callback_id, held in changes.raised.items():
        first = (callback_id, root, next(key for key, event in events if event is held.raised))
        awaited = callback_id in waits
        created = (rank(held)[0], tx.now, held.expires, _settled_key(held, events), awaited)
        tx.execute(_INSERT, (*first, *_row_values(held), *created))
    for callback_id, held in changes.changed.items():
        values = (*_row_values(held), held.expires, _settled_key(held, events))
        tx.execute(_UPDATE, (*values, callback_id))
        tx.held[callback_id] = held
    for callback_id in changes.delivered:
        tx.execute("UPDATE callbacks SET delivered = 1 WHERE id = ?", (callback_id,))
    for callback_id in waits:
        if callback_id not in changes.raised:
            tx.execute(_MARK, (callback_id,))
    return list(changes.changed.values())


def _row_values(held: Held) -> tuple[str, str, str | None, str]:
    """The columns `status`, `target`, `message` and `path` of a callback."""
    message = held.message if held.message != held.raised.message else None
    return held.status, held.target, message, msgspec.json.encode(held.path).decode()


def _settled_key(held: Held, events: Sequence[tuple[int, AnyEvent]]) -> int | None:
    """The key of the event that settled a callback, if it is one of these."""
    return next((key for key, event in events if event is held.settled), None)


def reopen(tx: Rows, callback_ids: Sequence[str]) -> None:
    """Ask a person these callbacks again."""
    for callback_id in callback_ids:
        before = find(tx, callback_id)
        if before is None or before.status == "open":
            continue
        held = tx.held[callback_id] = reopened(before)
        tx.execute(_UPDATE, (*_row_values(held), held.expires, None, callback_id))
        tx.execute("UPDATE callbacks SET delivered = 0 WHERE id = ?", (callback_id,))


def find(tx: Rows, callback_id: str) -> Held | None:
    """One callback inside a transaction, read once in it."""
    found = tx.held.get(callback_id)
    if found is None:
        tx.flush()
        found = tx.callback(callback_id)
        if found is not None:
            tx.held[callback_id] = found
    return found
