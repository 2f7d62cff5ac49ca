"""The writes of a store, each done in one transaction: append to one session or to several, settle, and others."""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import abc
import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from upcall.callbacks import Callback
from upcall.contracts import Claim, OnReady
from upcall.events import AnyEvent, SessionStarted, TurnEnded, encode, stamp
from upcall.store.rules import (
    INDEXED_EVENTS,
    Effects,
    all_open,
    check_append,
    check_queued,
    check_room,
    effects_of,
    is_moot,
    queue_record,
    ready_records,
    required_sessions,
    settle_open,
)
from upcall.store.sqlite.queries import find, reopen, stop_waiting, update_callback_rows
from upcall.store.sqlite.queue import count_queued, find_entry, update_queue
from upcall.store.sqlite.tables import SEQ_BITS
from upcall.store.sqlite.transaction import SessionRow, Tx


class Job(abc.ABC):
    """A write for the next transaction. `run` raises before it writes anything, or not at all.

    sync: commit it so that it survives a power cut; otherwise it does with the next job that has `sync`
    releases: it releases its claim
    claim: the claim that it needs; it is marked if the job fails
    """

    sync = True
    releases = False
    claim: Claim | None = None
    error: Exception | None = None
    future: asyncio.Future[Any] | None = None

    @abc.abstractmethod
    def run(self, tx: Tx) -> None:
        """Write to the transaction."""

    def on_committed(self) -> None:  # noqa: B027 (most have nothing to do)
        """Finish on the event loop, after the commit."""

    def notifications(self) -> Sequence[AnyEvent]:
        """Return the events for listeners of the store."""
        return ()

    def result(self) -> Any:
        """Return the value for the code that awaits the job."""
        return None


class Append(Job):
    """Append events to one session."""

    def __init__(
        self,
        session: str,
        events: Sequence[AnyEvent],
        claim: Claim | None,
        blobs: Mapping[str, bytes] | None,
        release: bool,
    ) -> None:
        self.session, self.events, self.claim = session, events, claim
        self.bodies = [encode(e) for e in events]
        self._blobs, self.releases = blobs, release
        self._stamps = (0, 0, 0.0)
        self._queued = False  # it has recorded that its run tree is queued

    def run(self, tx: Tx) -> None:
        """Check that the events may be appended, then write them."""
        self.write(tx, self.check(tx))

    def check(self, tx: Tx) -> SessionRow | None:
        """Raise if the events may not be appended; returns the session, None if they start a new one."""
        first, claim = self.events[0], self.claim
        root = None if claim is None else tx.check_fence(claim)
        row = tx.session(self.session)
        covered = root is not None and row is not None and root.n == row.root
        check_append(tx.where, self.session, self.events, claim, exists=row is not None, covered=covered)
        if claim is None:
            entry = None if row is None else find_entry(tx, row)
            is_root = row is None or row.n == row.root
            check_queued(tx.where, self.session, self.events, entry, is_root=is_root)
        if row is None:
            for one in required_sessions(self.session, cast("SessionStarted", first)):
                tx.existing(one)
        return row

    def write(self, tx: Tx, row: SessionRow | None) -> None:
        """Write the events, after `check`."""
        if row is None:
            row = tx.create(self.session, cast("SessionStarted", self.events[0]))
        seq, pos = tx.add(row, self.bodies)
        self._stamps = (seq, pos, tx.now)
        if self._blobs:
            tx.put_blobs(self._blobs)
        changed = any(type(e) in INDEXED_EVENTS for e in self.events) and self._apply_effects(tx, row, seq)
        if self.releases and self.claim is not None:
            tx.release(self.claim, recorded=self._queued)
            changed = changed and self.claim.root != self.session
        if changed:
            tx.save(row)

    def _apply_effects(self, tx: Tx, row: SessionRow, seq: int) -> bool:
        """Update the callbacks' rows and drop replaced bodies; returns True if the session's row changes."""
        before = (row.status, row.base)
        first_key = row.n << SEQ_BITS
        effects = effects_of(self.events, seq)
        if effects.status is not None:
            if row.status == "waiting":
                stop_waiting(tx, row.root, row.n)
            row.status = effects.status
        if row.n == row.root and (effects.queued or row.in_queue):
            row.status = update_queue(tx, row, before[0], effects)
        if effects.base is not None:
            row.base = effects.base
        for at in effects.replaced:
            tx.drop_body(first_key + at)
        reopen(tx, effects.reopened)
        changed: list[Callback] = []
        if effects.callbacks or effects.waits:
            events = [(first_key + at, event) for at, event in effects.callbacks]
            changed = update_callback_rows(tx, row.root, events, effects.waits)
        if tx.on_ready is not None:
            self._record_ready(tx, tx.on_ready, row, effects, changed, before[0])
        return before != (row.status, row.base)

    def _record_ready(
        self,
        tx: Tx,
        on_ready: OnReady,
        row: SessionRow,
        effects: Effects,
        changed: Sequence[Callback],
        before: str,
    ) -> None:
        """Let the store's user add rows to the transaction if the run tree can be resumed after it."""
        ended = self.releases and row.n != row.root and any(type(e) is TurnEnded for e in self.events)
        root = tx.session_id(row.root)
        for record in ready_records(root, effects, changed, partial(find, tx), child_ended=ended):
            on_ready(tx, record)
        entry = find_entry(tx, row) if row.status == "queued" != before else None
        if entry is not None:
            self._queued = True
            on_ready(tx, queue_record(root, entry.due))

    def notifications(self) -> Sequence[AnyEvent]:
        """Return the events, if they were appended without a claim."""
        return self.events if self.claim is None else ()

    def on_committed(self) -> None:
        """Stamp the events."""
        seq, pos, now = self._stamps
        for i, event in enumerate(self.events):
            stamp(event, self.session, seq + i, pos + i, now)


class Operation(Job):
    """Call any function with the transaction, and return what it returns."""

    def __init__(self, work: Callable[[Tx], Any]) -> None:
        self._work = work
        self._value: Any = None

    def run(self, tx: Tx) -> None:
        """Call the function."""
        tx.flush()
        self._value = self._work(tx)

    def result(self) -> Any:
        """Return the value that the function returned."""
        return self._value


class MultiAppend(Job):
    """Append events to several sessions, all or none. With a claim it parks: it releases the claim.

    A run tree parks only if every callback in `waits` is still open; the result is False if one is not.
    """

    def __init__(
        self,
        events: Mapping[str, Sequence[AnyEvent]],
        claim: Claim | None = None,
        waits: Sequence[str] = (),
        blobs: Mapping[str, bytes] | None = None,
        queue_limit: int | None = None,
    ) -> None:
        self.claim, self.releases, self._waits = claim, claim is not None, waits
        self._queue_limit = queue_limit
        self._blobs = blobs or {}
        self._events, self._root = events, claim.root if claim is not None else ""
        self.parts: list[Append] = []
        self._may_park = True

    def run(self, tx: Tx) -> None:
        """Check all appends, then write all of them."""
        if self.claim is not None:
            tx.check_fence(self.claim)
        self._may_park = all_open(self._waits, partial(find, tx))
        self.parts = []  # a first attempt together with other jobs may have failed
        if not self._may_park:
            return
        if self._queue_limit is not None:
            check_room(self._events, count_queued(tx), self._queue_limit)
        self.parts = [
            Append(session, wanted, self.claim, None, release=self.releases and session == self._root)
            for session, added in self._events.items()
            if (wanted := [e for e in added if not is_moot(e, partial(find, tx))])
        ]
        rows = [part.check(tx) for part in self.parts]  # check all before the first write
        for part, row in zip(self.parts, rows, strict=True):
            part.write(tx, row)
        tx.put_blobs(self._blobs)
        if self.releases and self.claim is not None and not any(part.releases for part in self.parts):
            tx.release(self.claim)

    def notifications(self) -> Sequence[AnyEvent]:
        """Return the events, if they were appended without a claim."""
        return [event for part in self.parts for event in part.notifications()]

    def on_committed(self) -> None:
        """Stamp the events; a tree that may not park keeps its claim."""
        self.releases = self.releases and self._may_park
        for part in self.parts:
            part.on_committed()

    def result(self) -> bool:
        """Return False if the run tree may not park."""
        return self._may_park


class Settle(Job):
    """Settle a callback, and others with it: the first valid attempt wins. This process is notified too."""

    def __init__(self, callback_id: str, events: Mapping[str, AnyEvent], fence: Claim | None) -> None:
        self._id, self._events, self._fence = callback_id, events, fence
        self.parts: list[Append] = []
        self._refused: Callback | None = None

    def run(self, tx: Tx) -> None:
        """Settle the callbacks that are open."""
        if self._fence is not None:
            tx.check_fence(self._fence)
        self.parts = []  # a first attempt together with other jobs may have failed
        self._refused, events = settle_open(self._id, self._events, partial(find, tx), tx.now)
        for session, event in events:
            part = Append(session, [event], None, None, release=False)
            part.run(tx)
            self.parts.append(part)

    def notifications(self) -> Sequence[AnyEvent]:
        """Return all events: the code that waits may be in this process."""
        return [event for part in self.parts for event in part.events]

    def on_committed(self) -> None:
        """Stamp the events."""
        for part in self.parts:
            part.on_committed()

    def result(self) -> Callback | None:
        """Return the callback as it was already settled, or None."""
        return self._refused
