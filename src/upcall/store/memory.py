"""The log as lists in memory: same promises as on disk, gone with the process.

May import: contracts, errors, events.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from upcall.contracts import Claim, Row
from upcall.errors import SessionBusy, SessionExists, SessionTakenOver, StoreError, UnknownSession
from upcall.events import (
    FOREIGN,
    AnyEvent,
    Compacted,
    HooksPassed,
    SessionStarted,
    TurnEnded,
    TurnResumed,
    TurnStarted,
    hollow,
    status_after,
)

_put = msgspec.structs.force_setattr
_NOTED = {SessionStarted, TurnStarted, TurnResumed, TurnEnded, HooksPassed, Compacted}


class _Log:
    """One session's events and what is listed of it."""

    __slots__ = ("base", "epoch", "events", "header", "owner", "status", "updated")

    def __init__(self, header: SessionStarted) -> None:
        self.header = header
        self.events: list[AnyEvent] = []
        self.status = "idle"
        self.base = 0
        self.updated = 0.0
        self.epoch = 0
        self.owner: Claim | None = None


class MemoryStore:
    """A store that lives as long as the program."""

    where = ":memory:"
    durable = False

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.now = clock
        self._logs: dict[str, _Log] = {}
        self._order: list[AnyEvent] = []
        self._blobs: dict[str, bytes] = {}
        self._listeners: list[Callable[[AnyEvent], None]] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._pos = 0

    async def open(self) -> None:
        """Nothing to get ready."""

    def append(
        self,
        session: str,
        events: Sequence[AnyEvent],
        claim: Claim | None,
        *,
        blobs: Mapping[str, bytes] | None = None,
        release: bool = False,
    ) -> None:
        """Add events to one session, all or none, and stamp them."""
        if claim is not None and claim.failure is not None:
            raise claim.failure  # a take-over has set it: in one process nothing comes in between
        log = self._logs.get(session)
        if log is None:
            log = self._create(session, events)
        elif claim is None:
            self._check_claimless(session, events)
        if blobs:
            self._blobs.update(blobs)
        now, seq, pos = self.now(), len(log.events), self._pos
        for event in events:
            seq, pos = seq + 1, pos + 1
            _put(event, "session", session)
            _put(event, "seq", seq)
            _put(event, "pos", pos)
            _put(event, "time", now)
            if type(event) in _NOTED:
                self._note(log, event)
        log.events += events
        self._order += events
        self._pos, log.updated = pos, now
        if release and claim is not None:
            self._logs[claim.root].owner = None
            claim.released = True
        if self._waiters or claim is None:
            self._tell(events if claim is None else ())

    def _check_claimless(self, session: str, events: Sequence[AnyEvent]) -> None:
        if type(events[0]) is SessionStarted:
            raise SessionExists(session)
        if not all(isinstance(e, FOREIGN) for e in events):
            raise StoreError(self.where, f"{events[0].type} needs a claim on session {session!r}")

    def _create(self, session: str, events: Sequence[AnyEvent]) -> _Log:
        if not events or not isinstance(events[0], SessionStarted):
            raise UnknownSession(session)
        log = self._logs[session] = _Log(events[0])
        return log

    def _note(self, log: _Log, event: AnyEvent) -> None:
        status = status_after(event)
        if status is not None:
            log.status = status
        if type(event) is HooksPassed and event.replaces:
            old = log.events[event.replaces - 1]
            log.events[event.replaces - 1] = self._order[old.pos - 1] = hollow(old)
        elif type(event) is Compacted:
            log.base = event.base or event.seq

    def _tell(self, foreign: Sequence[AnyEvent]) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()
        for event in foreign:
            if isinstance(event, FOREIGN):
                for hear in tuple(self._listeners):
                    hear(event)

    async def claim(self, root: str, *, take_over: bool = False) -> Claim:
        """Become the owner of a run tree."""
        log = self._logs.get(root)
        if log is None:
            raise UnknownSession(root)
        if log.owner is not None:
            if not take_over:
                raise SessionBusy(root, "this program")
            log.owner.fail(SessionTakenOver(root))
        log.epoch += 1
        log.owner = Claim(root, log.epoch)
        return log.owner

    async def release(self, claim: Claim) -> None:
        """Stop owning; nothing happens if the claim was lost."""
        log = self._logs.get(claim.root)
        claim.released = True
        if log is not None and log.epoch == claim.epoch:
            log.owner = None

    async def read(self, session: str, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        """Events of one session with `seq` above `after`."""
        log = self._logs.get(session)
        return log.events[after : after + limit] if log else []

    async def read_all(self, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        """Events of all sessions with `pos` above `after`."""
        if len(self._order) == self._pos:  # nothing was ever deleted: positions are indexes
            return self._order[after : after + limit]
        return [e for e in self._order if e.pos > after][:limit]

    async def last(self) -> int:
        """The position of the newest event."""
        return self._pos

    async def row(self, session: str) -> Row | None:
        """One session as listed, or None."""
        log = self._logs.get(session)
        if log is None:
            return None
        h, root = log.header, self._logs.get(log.header.root or session, log)
        owner = "this program" if root.owner is not None else ""
        return Row(
            session, h.agent, log.status, h.parent, h.root or session, h.kind, h.time, log.updated,
            len(log.events), log.base, owner,
        )  # fmt: skip

    async def rows(self, *, parent: str | None = None, limit: int = 1000) -> list[Row]:
        """Sessions, newest first; with `parent`, its children, oldest first."""
        if parent is None:
            ids = list(reversed(self._logs))
        else:
            ids = [i for i, log in self._logs.items() if log.header.parent == parent]
        found = [await self.row(i) for i in ids[:limit]]
        return [r for r in found if r is not None]

    async def blob(self, name: str) -> bytes:
        """A body stored once under its content hash."""
        try:
            return self._blobs[name]
        except KeyError:
            raise StoreError(self.where, f"no body is stored as {name}") from None

    async def wait(self, after: int, timeout: float) -> None:
        """Return when an event with `pos` above `after` may be there, or after `timeout` seconds."""
        if self._pos > after:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await asyncio.wait({waiter}, timeout=timeout)

    def listen(self, hear: Callable[[AnyEvent], None]) -> Callable[[], None]:
        """Call `hear` for every event appended without a claim; returns a stop."""
        self._listeners.append(hear)
        return lambda: self._listeners.remove(hear)

    async def delete(self, sessions: Sequence[str]) -> int:
        """Remove whole run trees that nobody owns; returns how many sessions went."""
        gone: set[str] = set()
        for root in sessions:
            log = self._logs.get(root)
            if log is None:
                raise UnknownSession(root)
            if log.owner is not None:
                raise SessionBusy(root, "this program")
            gone |= {i for i, one in self._logs.items() if i == root or one.header.root == root}
        for session in gone:
            del self._logs[session]
        self._order = [e for e in self._order if e.session not in gone]
        return len(gone)

    async def close(self) -> None:
        """Nothing to let go of."""
