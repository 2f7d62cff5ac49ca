"""Read and write callbacks' rows in SQLite, in the same transaction as their events."""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import apsw
import msgspec
from msgspec.structs import replace

from upcall.callbacks import Callback, callback_raised, can_continue, reopened, settled, steps_taken, with_step
from upcall.events import SETTLING, AnyEvent, CallbackRaised, decode
from upcall.store.rules import callback_changes, findable, rank
from upcall.store.sqlite.listing_sql import Condition
from upcall.store.sqlite.tables import SEQ_BITS

log = logging.getLogger("upcall")

_MOST = 100  # events and names that are kept
_MASK = (1 << SEQ_BITS) - 1
_steps = msgspec.json.Decoder(list[tuple[str, str, str]])
_tags = msgspec.json.Decoder(dict[str, str])
_SELECT = (
    "SELECT raised, root, status, target, message, path, expires, settled, delivered, awaited FROM callbacks WHERE "
)
_BY_ID = f"{_SELECT}id = ?"
_OF_TREE = f"{_SELECT}root = ? ORDER BY rowid LIMIT ?"
_TAGS = "SELECT json_group_object(name, value) FROM tags WHERE root = ?"
SESSION = (
    "SELECT n, root, status, base, epoch, owner, EXISTS (SELECT 1 FROM queue WHERE queue.root = n) "
    "FROM sessions WHERE id = ?"
)
EVENTS = "SELECT key, pos, time, body FROM events WHERE key > ? AND key < ? ORDER BY key DESC LIMIT ?"
"""One statement for all reads of events: a program that opens the store once must plan every statement."""

DUE = "CASE WHEN status = 'open' AND target = 'user' THEN expires ELSE 0 END"
"""The time at which an awaited callback lets its session continue, as in the index `callbacks_due`."""

READY = (
    "SELECT n FROM sessions WHERE parent IS NULL AND status = 'running' "
    f"UNION ALL SELECT root FROM callbacks WHERE awaited AND {DUE} <= :now "
    "UNION ALL SELECT root FROM queue WHERE ready AND due > 0 AND due <= :now"
)
"""The roots that may be ready to continue, by an index each; some may be owned, or only partly parked.

Queued ones are not among them, except those that are tried again: there may be many.
"""

QUEUED = "SELECT root FROM queue WHERE ready AND due = 0"
"""The other queued roots."""

_AGENT_IS_NEXT = f"SELECT DISTINCT root FROM callbacks WHERE awaited AND {DUE} = 0 AND status = 'open'"
_ALL = 100_000
_INSERT = "INSERT INTO callbacks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?)"
_UPDATE = (
    "UPDATE callbacks SET status = ?, target = ?, message = ?, path = ?, expires = ?, settled = ? WHERE id = ?"
)
_UNMARK = "UPDATE callbacks SET awaited = 0 WHERE root = ? AND raised > ? AND raised < ? AND awaited"
_MARK = "UPDATE callbacks SET awaited = 1 WHERE id = ?"


class Rows:
    """Reads callbacks through one connection, and caches values that never change."""

    def __init__(self, db: apsw.Connection) -> None:
        self.db, self.now = db, 0.0
        self.cursor = db.cursor()  # one for all: creating a cursor costs as much as most statements
        self.execute = self.cursor.execute
        self.callbacks: dict[str, Callback] = {}  # as they are in a transaction under way
        self._events: dict[int, AnyEvent] = {}
        self._names: dict[int, str] = {}
        self._tags_of: dict[int, dict[str, str]] = {}
        self.numbers: dict[str, int] = {}
        self._told: set[int] = set()  # the keys of callbacks that can't be read

    def flush(self) -> None:
        """Write the events that were numbered so far."""

    def callback(self, callback_id: str) -> Callback | None:
        """One callback, or None."""
        row: Any = self.execute(_BY_ID, (findable(callback_id),)).get
        return None if row is None else self._callback(row)

    def for_person(self, where: Condition, limit: int) -> list[Callback]:
        """The callbacks that match, highest priority first."""
        sql = f"{_SELECT}{where.sql} ORDER BY rank, created, raised LIMIT ?"
        return self._readable(self.execute(sql, (*where.values, limit)).fetchall())

    def of_tree(self, root: str, limit: int) -> list[Callback]:
        """The callbacks of a run tree, oldest first."""

        def read(n: int) -> list[Any]:
            return self.execute(_OF_TREE, (n, limit)).fetchall()

        return self._readable(self._of(root, read))

    def held_by_hooks(self, now: float) -> list[int]:
        """Return the roots that can't continue though an agent is next: one of its hooks waits for an answer."""
        roots: list[Any] = self.execute(_AGENT_IS_NEXT).fetchall()
        return [n for (n,) in roots if not can_continue(self.of_tree(self.session_id(n), _ALL), now)]

    def events(self, session: str, after: int, limit: int) -> list[Any]:
        """The rows of a session's events, oldest first."""

        def read(n: int) -> list[Any]:
            first = (n << SEQ_BITS) + after  # there are no gaps
            return self.execute(EVENTS, (first, min(first + limit, n << SEQ_BITS | _MASK) + 1, limit)).fetchall()

        return self._of(session, read)[::-1]

    def _of(self, session: str, read: Callable[[int], list[Any]]) -> list[Any]:
        """Return what `read` finds by a session's number.

        If the cached number is outdated, it is looked up again.
        """
        n = self.numbers.get(session)
        found = [] if n is None else read(n)
        if not found:
            row: Any = self.execute(SESSION, (findable(session),)).get
            if row is not None and row[0] != n:
                found = read(row[0])
        return found

    def _readable(self, rows: Sequence[Any]) -> list[Callback]:
        """The callbacks that can be read: one that can't be, is told of once, and hides no other."""
        found: list[Callback] = []
        for row in rows:
            try:
                found.append(self._callback(row))
            except ValueError as error:
                if row[0] not in self._told:
                    self._told.add(row[0])
                    log.warning("a callback is left out: %s", error)
        return found

    def _callback(self, row: Any) -> Callback:
        """A callback from its row and its events; ValueError where one of them can't be read."""
        key, tree, status, target, reworded, steps, expires, ended, delivered, awaited = row
        raised = self._event(key)
        if not isinstance(raised, CallbackRaised):
            wrong = f"event {raised.seq} of session {raised.session!r} does not raise a callback"
            raise ValueError(wrong)  # noqa: TRY004 - of the log, not of an argument
        end = None if ended is None else self._event(ended)
        try:
            callback = callback_raised(raised, raised.session, self.session_id(tree), self._tags(tree))
            path = callback.path
            for agent, step, reason in _steps.decode(steps):
                path = with_step(path, callback.route, agent, step, reason)
            callback = callback if end is None else settled(callback, end)
        except (msgspec.MsgspecError, AttributeError, LookupError, TypeError) as error:
            raise ValueError(f"the callback's path or answer can't be read ({error})") from None
        return replace(
            callback, status=status, target=target, reworded=reworded or "", path=path, expires=expires,
            delivered=bool(delivered), awaited=bool(awaited),
        )  # fmt: skip

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
) -> list[Callback]:
    """Apply the callback events of one append, each with its key, to the rows; returns the callbacks that changed.

    waits: the callbacks for which the same append parks its session
    """
    changes = callback_changes([event for _, event in events], partial(find, tx))
    for callback_id, callback in changes.raised.items():
        first = (callback_id, root, _key(callback_id, events, CallbackRaised))
        awaited = callback_id in waits
        created = (rank(callback)[0], tx.now, callback.expires, _key(callback_id, events, SETTLING), awaited)
        tx.execute(_INSERT, (*first, *_row_values(callback), *created))
    for callback_id, callback in changes.changed.items():
        values = (*_row_values(callback), callback.expires, _key(callback_id, events, SETTLING))
        tx.execute(_UPDATE, (*values, callback_id))
        del tx.callbacks[callback_id]  # its newest events have no stamps yet; from the row it has them
    for callback_id in changes.delivered:
        tx.execute("UPDATE callbacks SET delivered = 1 WHERE id = ?", (callback_id,))
    for callback_id in waits:
        if callback_id not in changes.raised:
            tx.execute(_MARK, (callback_id,))
    return list(changes.changed.values())


def _row_values(callback: Callback) -> tuple[str, str, str | None, str]:
    """The columns `status`, `target`, `message` and `path` of a callback."""
    steps = msgspec.json.encode(steps_taken(callback)).decode()
    return callback.status, callback.target, callback.reworded or None, steps


def _key(callback_id: str, events: Sequence[tuple[int, Any]], kind: Any) -> int | None:
    """The key of the first of these events that is of that kind and of that callback."""
    return next((key for key, e in events if isinstance(e, kind) and e.callback_id == callback_id), None)


def reopen(tx: Rows, callback_ids: Sequence[str]) -> None:
    """Ask a person these callbacks again."""
    for callback_id in callback_ids:
        before = find(tx, callback_id)
        if before is None or before.status == "open":
            continue
        callback = tx.callbacks[callback_id] = reopened(before)
        tx.execute(_UPDATE, (*_row_values(callback), callback.expires, None, callback_id))
        tx.execute("UPDATE callbacks SET delivered = 0 WHERE id = ?", (callback_id,))


def find(tx: Rows, callback_id: str) -> Callback | None:
    """One callback inside a transaction, read once in it."""
    found = tx.callbacks.get(callback_id)
    if found is None:
        tx.flush()
        found = tx.callback(callback_id)
        if found is not None:
            tx.callbacks[callback_id] = found
    return found
