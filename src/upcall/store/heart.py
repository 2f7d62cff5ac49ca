"""The thread that says that this process lives, and notices when it no longer owns what it thinks it does.

May import: contracts, errors, store.process, store.schema.
"""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable

import apsw

from upcall.contracts import Claim
from upcall.errors import SessionTakenOver
from upcall.store.process import Background, Identity
from upcall.store.schema import connect

BEAT = 1.0
"""Seconds between heartbeats while this process owns something; otherwise the thread sleeps until it does."""

BEATS = "INSERT OR REPLACE INTO processes VALUES (?, ?, ?, ?, ?, ?)"


class Heart:
    """Beats for one open store. `claims` is what the store owns now, by root."""

    def __init__(
        self,
        path: str,
        me: Identity,
        clock: Callable[[], float],
        claims: dict[str, Claim],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.claims = claims
        self._path, self._me, self._clock, self._loop = path, me, clock, loop
        self._lock = threading.Lock()  # whoever holds it may use the connection
        self._db: apsw.Connection | None = None
        self._stopped = False

    def wake(self) -> None:
        """Something is owned again."""
        _pulse().add(self)

    def stop(self) -> None:
        """Beat no more, and let go of the file."""
        _pulse().drop(self)
        with self._lock:
            self._stopped = True
            if self._db is not None:
                self._db.close()

    def beat(self, patience: float) -> None:
        """Say that this process lives, waiting so many seconds for whoever has the file locked."""
        with self._lock:
            if self._stopped:
                return
            if self._db is None:
                self._db = connect(self._path, patience)
                self._db.pragma("synchronous", 1)  # a lost heartbeat is no lost work: no fsync
            self._db.set_busy_timeout(int(patience * 1000))
            self._db.execute(BEATS, self._me.beat(self._clock()))
            self._check(self._db)

    def _check(self, db: apsw.Connection) -> None:
        """Tell who lost a claim, and give up for good those that failed here: others may go on with them."""
        for root, claim in tuple(self.claims.items()):
            epoch = db.execute("SELECT epoch FROM sessions WHERE id = ?", (root,)).get
            if claim.failure is not None:
                db.execute("UPDATE sessions SET owner = '' WHERE id = ? AND epoch = ?", (root, claim.epoch))
                self._on_loop(self._forget, claim)
            elif epoch != claim.epoch:
                self._on_loop(claim.fail, SessionTakenOver(root))

    def _forget(self, claim: Claim) -> None:
        if self.claims.get(claim.root) is claim:
            del self.claims[claim.root]

    def _on_loop(self, work: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(work, *args)


class _Pulse:
    """One thread for all stores of this process: to start one costs more than most stores live."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._hearts: set[Heart] = set()
        self._bell = threading.Lock()  # rung by its release
        self._bell.acquire()
        self._asleep = False
        Background(self._run)

    def add(self, heart: Heart) -> None:
        """Beat for it too."""
        self._hearts.add(heart)
        if self._asleep:
            self._asleep = False
            with contextlib.suppress(RuntimeError):  # it was rung and not heard yet
                self._bell.release()

    def drop(self, heart: Heart) -> None:
        """Beat for it no more."""
        self._hearts.discard(heart)

    def _run(self) -> None:
        while True:
            if self._bell.acquire(timeout=-1 if self._asleep else BEAT):
                continue
            due = self._due()
            for heart in due:
                with contextlib.suppress(Exception):  # the next beat may succeed; late ones cost the claim
                    heart.beat(BEAT / len(due))
            if not due:
                self._asleep = True  # first this, then look again: whoever claims now sees it and wakes us
                if self._due():
                    self._asleep = False

    def _due(self) -> list[Heart]:
        return [heart for heart in tuple(self._hearts) if heart.claims]


_pulses: list[_Pulse] = []


def _pulse() -> _Pulse:
    if not _pulses or _pulses[-1].pid != os.getpid():  # a fork has no thread of its parent's
        _pulses[:] = [_Pulse()]
    return _pulses[-1]
