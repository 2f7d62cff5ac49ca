"""A store in memory, with the same guarantees as on disk, except that it ends with the process."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import cast

import msgspec

from upcall.callbacks import Callback, can_continue
from upcall.contracts import EVERYTHING, Claim, OnReady, Ready, Row, Selection, TakeLimit
from upcall.errors import SessionBusy, SessionTakenOver, StoreError, UnknownSession, UpcallError
from upcall.events import FOREIGN, AnyEvent, SessionStarted, TurnEnded, encode
from upcall.store.callback_index import CallbackIndex
from upcall.store.memory_tokens import MemoryTokens
from upcall.store.rules import (
    ENDED,
    INDEXED_EVENTS,
    TAKE_WINDOW,
    Candidate,
    Effects,
    QueueEntry,
    all_open,
    check_append,
    check_queued,
    check_room,
    claim_error,
    counts_takes,
    effects_of,
    is_moot,
    matches,
    queue_after,
    queue_record,
    ready_records,
    release_record,
    required_sessions,
    settle_open,
    take_order,
    without_body,
)

_position = attrgetter("pos")
_put = msgspec.structs.force_setattr


class _Log(msgspec.Struct, eq=False):
    """One session's events and the values for its row."""

    header: SessionStarted
    root: str
    events: list[AnyEvent] = []
    status: str = "idle"
    children: tuple[str, ...] = ()
    base: int = 0
    owner: Claim | None = None
    entry: QueueEntry | None = None

    @property
    def is_owned(self) -> bool:
        """True if there is a claim that has not failed."""
        return self.owner is not None and self.owner.failure is None


class _Stored(msgspec.Struct, eq=False):
    """All stored data."""

    logs: dict[str, _Log] = {}
    order: list[AnyEvent] = []
    blobs: dict[str, bytes] = {}
    callbacks: CallbackIndex = msgspec.field(default_factory=CallbackIndex)
    pos: int = 0
    takes: list[tuple[float, str, str]] = []
    pauses: dict[str, float] = {}


class MemoryStore(MemoryTokens):
    """A store that lives as long as the program."""

    where = ":memory:"
    durable = False
    lease = 0.0

    def __init__(self, clock: Callable[[], float] = time.time, on_ready: OnReady | None = None) -> None:
        """`on_ready` is called as a run tree becomes ready, with None for a transaction."""
        super().__init__(clock)
        self._on_ready = on_ready
        self._stored = _Stored()
        self._listeners: list[Callable[[AnyEvent], None]] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._epoch = 0

    async def open(self) -> None:
        """Do nothing: a store in memory is always open."""

    def append(
        self,
        session: str,
        events: Sequence[AnyEvent],
        claim: Claim | None,
        *,
        blobs: Mapping[str, bytes] | None = None,
        release: bool = False,
        lazy: bool = False,
    ) -> None:
        """Add events to one session, all or none, and stamp them."""
        if claim is not None and (claim.failure is not None or claim.released):
            raise claim_error(claim, self.where)  # a take-over marks the claim: that is the fence here
        stored = self._stored
        log = stored.logs.get(session)
        if log is None:
            log = self._create(session, events, claim)
        elif claim is None or claim.root != log.root or type(events[0]) is SessionStarted:
            self._check_append(session, events, claim)
        if blobs:
            stored.blobs.update(blobs)
        now, seq, pos, put = self.now(), len(log.events), stored.pos, _put
        first, indexed = seq + 1, False
        for event in events:
            seq += 1
            pos += 1
            put(event, "session", session)
            put(event, "seq", seq)
            put(event, "pos", pos)
            put(event, "time", now)
            if type(event) in INDEXED_EVENTS:
                indexed = True
        log.events.extend(events)
        stored.order.extend(events)
        stored.pos = pos
        recorded = indexed and self._apply(session, log, effects_of(events, first), releases=release)
        if release and claim is not None:
            self._disown(claim, recorded=recorded)
        if self._waiters:
            self._release_waiters()
        if claim is None and first > 1:
            self._notify(events)

    def _check_append(self, session: str, events: Sequence[AnyEvent], claim: Claim | None) -> None:
        log = self._stored.logs.get(session)
        covered = log is not None and claim is not None and claim.root == log.root
        try:
            check_append(self.where, session, events, claim, exists=log is not None, covered=covered)
            if claim is None:
                is_root = log is None or not log.header.parent
                check_queued(self.where, session, events, None if log is None else log.entry, is_root=is_root)
        except UpcallError as error:
            raise _fail_claim(claim, error) from None

    def _create(self, session: str, events: Sequence[AnyEvent], claim: Claim | None) -> _Log:
        self._check_append(session, events, claim)
        first, logs = cast("SessionStarted", events[0]), self._stored.logs
        if first.parent or first.root:
            for one in required_sessions(session, first):
                if one not in logs:
                    raise _fail_claim(claim, UnknownSession(one))
        log = logs[session] = _Log(first, first.root or session)
        if first.parent:
            logs[first.parent].children += (session,)
        return log

    def _apply(self, session: str, log: _Log, effects: Effects, *, releases: bool) -> bool:
        """Update the session and its callbacks; returns True if the session is queued now, and was not before."""
        stored = self._stored
        changed: list[Callback] = []
        if effects.callbacks or effects.reopened or effects.waits or log.status == "waiting":
            changed = stored.callbacks.update(session, log.root, effects, stored.logs[log.root].header.tags)
        before = log.status
        if effects.status is not None:
            log.status = effects.status
        if log.root == session and (effects.queued or log.entry is not None):
            log.entry = log.entry or QueueEntry(log.header.agent)
            log.status = queue_after(log.entry, before, effects)
        if effects.base is not None:
            log.base = effects.base
        for seq in effects.replaced:
            old, order = log.events[seq - 1], stored.order
            slim = log.events[seq - 1] = without_body(old)
            order[bisect_left(order, old.pos, key=_position)] = slim
        if self._on_ready is not None:
            ended = releases and session != log.root and type(log.events[-1]) is TurnEnded
            for record in ready_records(log.root, effects, changed, stored.callbacks.get, child_ended=ended):
                self._on_ready(None, record)
        queued = log.entry is not None and log.status == "queued" != before
        if queued and log.entry is not None:
            self._record(queue_record(session, log.entry.due))
        return queued

    def _disown(self, claim: Claim, *, recorded: bool = False) -> None:
        """End a claim. `recorded`: there is a record that the run tree is ready."""
        log = self._stored.logs.get(claim.root)
        claim.released = True
        if log is not None and log.owner is not None and log.owner.epoch == claim.epoch:
            log.owner = None
            if not recorded:
                self._record(release_record(claim.root, log.status))

    def _record(self, record: Ready | None) -> None:
        if record is not None and self._on_ready is not None:
            self._on_ready(None, record)

    def _release_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _notify(self, events: Sequence[AnyEvent]) -> None:
        for event in events:
            if isinstance(event, FOREIGN):
                for hear in tuple(self._listeners):
                    hear(event)

    async def claim(self, root: str, *, take_over: bool = False) -> Claim:
        """Become the owner of a run tree."""
        log = self._stored.logs.get(root)
        if log is None:
            raise UnknownSession(root)
        if log.owner is not None and log.is_owned:
            if not take_over:
                raise SessionBusy(root, "this program", is_local=True)
            log.owner.fail(SessionTakenOver(root))
        self._epoch += 1
        log.owner = Claim(root, self._epoch, len(log.events), log.base)
        return log.owner

    async def confirm(self, claim: Claim) -> None:
        """Raise what the claim was lost to, if it was: only a take-over in this process ends it."""
        if not claim.is_active:
            raise claim_error(claim, self.where)

    async def release(self, claim: Claim) -> None:
        """Stop owning; nothing happens if the claim was lost."""
        if not claim.released:
            self._disown(claim)

    async def read(self, session: str, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        """Return the events of one session with `seq` above `after`."""
        log = self._stored.logs.get(session)
        return log.events[after : after + limit] if log else []

    async def read_all(self, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        """Return the events of all sessions with `pos` above `after`."""
        if len(self._stored.order) == self._stored.pos:  # nothing was ever deleted: positions are indexes
            return self._stored.order[after : after + limit]
        start = bisect_right(self._stored.order, after, key=_position)
        return self._stored.order[start : start + limit]

    async def read_tree(self, session: str, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        """Return the events of a session and all below it with `pos` above `after`."""
        logs = self._stored.logs
        ids = [session] if session in logs else []
        for one in ids:  # the list grows during the loop
            ids += logs[one].children
        starts = [bisect_right(logs[one].events, after, key=_position) for one in ids]
        pages = [logs[one].events[start : start + limit] for one, start in zip(ids, starts, strict=True)]
        return list(islice(merge(*pages, key=_position), limit))

    async def last(self) -> int:
        """Return the position of the newest event."""
        return self._stored.order[-1].pos if self._stored.order else 0

    async def row(self, session: str) -> Row | None:
        """Return one session's row, or None."""
        log = self._stored.logs.get(session)
        if log is None:
            return None
        return self._row(session, log)

    def _row(self, session: str, log: _Log) -> Row:
        h, root = log.header, self._stored.logs.get(log.root, log)
        owner = "this program" if root.is_owned else ""
        return Row(
            session, h.agent, log.status, h.parent, h.root or session, h.kind, h.time, log.events[-1].time,
            len(log.events), log.base, owner, root.header.tags, not owner and self._asks_person(session, log),
            root.header.title, root.header.folder, root.header.roots,
        )  # fmt: skip

    def _asks_person(self, session: str, log: _Log) -> bool:
        """Return whether all open callbacks of a running session and below it wait for a person."""
        if log.status != "running":
            return False
        raised = self._stored.callbacks.of_tree(log.root)
        below = [one for one in raised if one.status == "open" and f"{one.session_id}~".startswith(f"{session}~")]
        return bool(below) and all(one.target == "user" for one in below)

    async def rows(
        self,
        *,
        parent: str | None = None,
        which: Selection = EVERYTHING,
        before: str | None = None,
        limit: int = 1000,
    ) -> list[Row]:
        """Return the sessions that match, newest first; with `parent`, its children, oldest first."""
        logs = self._stored.logs
        if parent:
            ids: Iterable[str] = logs[parent].children if parent in logs else ()
        else:
            ids = (i for i in reversed(logs) if parent is None or not logs[i].header.parent)
        if before is not None:
            position = logs[before].events[0].pos if before in logs else 0
            ids = (i for i in ids if logs[i].events[0].pos < position)
        found = (
            row
            for row in (self._row(i, logs[i]) for i in ids)
            if matches(which, row.id, row.agent, row.tags)
            and which.status in (None, row.current_status)
            and which.folder in (None, row.folder)
        )
        return list(islice(found, limit))

    async def blob(self, name: str) -> bytes:
        """Return the body with this content hash."""
        try:
            return self._stored.blobs[name]
        except KeyError:
            raise StoreError(self.where, f"no body is stored as {name!r}") from None

    async def wait(self, after: int, timeout: float) -> None:
        """Return when an event with `pos` above `after` may be there, or after `timeout` seconds."""
        if await self.last() > after:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await asyncio.wait({waiter}, timeout=timeout)
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    async def append_all(self, events: Mapping[str, Sequence[AnyEvent]], *, queue_limit: int | None = None) -> None:
        """Add events that need no claim to several sessions, all or none."""
        queued = sum(log.status == "queued" for log in self._stored.logs.values()) if queue_limit is not None else 0
        check_room(events, queued, queue_limit)
        needed = self._without_moot(events)
        for session, added in needed.items():  # all of them before the first is written
            self._check_append(session, added, None)
        for session, added in needed.items():
            self.append(session, added, None)

    def _without_moot(self, events: Mapping[str, Sequence[AnyEvent]]) -> dict[str, list[AnyEvent]]:
        find = self._stored.callbacks.get
        remaining = {session: [e for e in added if not is_moot(e, find)] for session, added in events.items()}
        return {session: added for session, added in remaining.items() if added}

    async def park(
        self,
        claim: Claim,
        events: Mapping[str, Sequence[AnyEvent]],
        waits: Sequence[str],
        blobs: Mapping[str, bytes] | None = None,
    ) -> bool:
        """Append to several sessions and release the claim, if all these callbacks are still open."""
        if claim.failure is not None:
            raise claim.failure
        if not all_open(waits, self._stored.callbacks.get):
            return False
        for session, added in self._without_moot(events).items():
            self.append(session, added, claim, blobs=blobs)
            blobs = None
        await self.release(claim)
        return True

    async def settle(
        self, callback_id: str, events: Mapping[str, AnyEvent], claim: Claim | None = None
    ) -> Callback | None:
        """Settle a callback, and others with it, if it is open and not expired: the first one wins."""
        if claim is not None and claim.failure is not None:
            raise claim.failure
        settlement = settle_open(callback_id, events, self._stored.callbacks.get, self.now())
        for session, event in settlement.events:
            self.append(session, [event], None)
        return settlement.refused

    async def callback(self, callback_id: str) -> Callback | None:
        """Return one callback, or None."""
        return self._stored.callbacks.get(callback_id)

    async def callbacks(
        self,
        *,
        root: str | None = None,
        inbox: bool = False,
        which: Selection = EVERYTHING,
        limit: int = 100_000,
    ) -> list[Callback]:
        """Return a run tree's callbacks, oldest first; or those for a person that match, highest priority first."""
        if inbox:
            return self._stored.callbacks.for_person(which, self.now(), limit)
        return self._stored.callbacks.of_tree(root or "")[:limit]

    async def unfinished(self, limit: int | None = None) -> list[Row]:
        """Return the root sessions that are ready to continue, oldest first."""
        rows = [await self.row(session) for session in islice(self._ready(), limit)]
        return [r for r in rows if r is not None]

    def _ready(self) -> Iterable[str]:
        """The ids of the roots that are ready to continue, oldest first."""
        stored, now = self._stored, self.now()
        for session, log in stored.logs.items():
            if log.header.parent or log.is_owned:
                continue
            if log.status == "waiting":
                if can_continue(stored.callbacks.of_tree(session), now):
                    yield session
            elif log.status == "running" or (
                log.status == "queued" and (log.entry is None or log.entry.due <= now)
            ):
                yield session

    async def take(
        self,
        agents: Collection[str] | None = None,
        *,
        exclude: Collection[str] = (),
        limits: Sequence[TakeLimit] = (),
    ) -> Claim | None:
        """Claim the next run tree that is ready to continue, or return None."""
        stored, now = self._stored, self.now()
        stored.takes = [one for one in stored.takes if one[0] > now - TAKE_WINDOW]
        taken = Counter((agent, tenant) for _, agent, tenant in stored.takes)
        busy = [log.entry for log in stored.logs.values() if log.entry and log.entry.taken and log.is_owned]
        running = Counter((entry.agent, entry.tenant) for entry in busy)
        ready: dict[Candidate, str] = {}
        for order, root in enumerate(self._ready()):
            if root not in exclude:
                entry = stored.logs[root].entry or QueueEntry(stored.logs[root].header.agent)
                ready[Candidate(entry.rank, entry.agent, entry.tenant, order)] = root
        for chosen in take_order(ready, agents, limits, running, taken):
            log = stored.logs[ready[chosen]]
            log.entry = log.entry or QueueEntry(log.header.agent)
            log.entry.taken = True
            if counts_takes(limits):
                stored.takes.append((now, log.entry.agent, log.entry.tenant))
            return await self.claim(ready[chosen])
        return None

    async def counts(self) -> Mapping[str, int]:
        """Return how many root sessions have each status."""
        roots = (i for i, log in self._stored.logs.items() if not log.header.parent)
        return Counter(self._row(i, self._stored.logs[i]).current_status for i in roots)

    async def pause(self, name: str, until: float) -> None:
        """Note for all processes that something is not to be used before this time."""
        self._stored.pauses[name] = max(until, self._stored.pauses.get(name, 0.0))

    async def pauses(self) -> Mapping[str, float]:
        """Return what is paused now, with the time until when."""
        now = self.now()
        self._stored.pauses = {name: until for name, until in self._stored.pauses.items() if until > now}
        return dict(self._stored.pauses)

    async def prune(self, before: float, limit: int = 1000) -> int:
        """Delete run trees that ended before this time, oldest first."""
        logs = self._stored.logs
        ended = (
            session
            for session, log in logs.items()
            if not log.header.parent and not log.is_owned and log.status in ENDED and log.events[-1].time < before
        )
        return await self.delete(list(islice(ended, limit)))

    async def next_deadline(self, after: float) -> float | None:
        """Return the first time after `after` at which a parked session's callback expires or a retry is due."""
        retries = [
            log.entry.due
            for log in self._stored.logs.values()
            if log.status == "queued" and log.entry is not None and log.entry.due > after
        ]
        expiry = self._stored.callbacks.next_deadline(after)
        return min(retries if expiry is None else [*retries, expiry], default=None)

    def listen(self, hear: Callable[[AnyEvent], None]) -> Callable[[], None]:
        """Call `hear` for every event appended without a claim; return a function that stops it."""
        self._listeners.append(hear)
        return lambda: self._listeners.remove(hear) if hear in self._listeners else None

    async def delete(self, sessions: Sequence[str]) -> int:
        """Delete whole run trees that nobody owns; return the number of deleted sessions."""
        deleted: set[str] = set()
        for session in sessions:
            log = self._stored.logs.get(session)
            if log is None:
                raise UnknownSession(session)
            if self._stored.logs[log.root].is_owned:
                raise SessionBusy(session, "this program", is_local=True)
            deleted |= {i for i, one in self._stored.logs.items() if one.root == log.root}
        for session in deleted:
            del self._stored.logs[session]
        self._stored.callbacks.forget(deleted)
        stored = self._stored
        stored.order = [e for e in stored.order if e.session not in deleted]
        bodies = [encode(e) for e in stored.order] if stored.blobs else []
        stored.blobs = {n: b for n, b in stored.blobs.items() if any(n.encode() in body for body in bodies)}
        return len(deleted)

    async def close(self) -> None:
        """End every `wait`."""
        self._release_waiters()


def _fail_claim(claim: Claim | None, error: Exception) -> Exception:
    """Mark a claim as failed, and return the error. The holder is notified after the appender gets the error."""
    if claim is not None:
        claim.failure = error
        asyncio.get_running_loop().call_soon(claim.fail, error)
    return error
