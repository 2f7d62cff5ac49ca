"""The heartbeat thread: reports that this process is alive, and detects lost claims."""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable

import apsw

from upcall.contracts import Claim
from upcall.errors import SessionTakenOver, StoreError
from upcall.store.sqlite.process import Background, Identity
from upcall.store.sqlite.tables import connect

HEARTBEAT_INTERVAL = 1.0
"""Most seconds between heartbeats while this process has claims; otherwise the thread sleeps."""

BEATS = "INSERT OR REPLACE INTO processes VALUES (?, ?, ?, ?, ?, ?)"


def interval(lease: float) -> float:
    """Return the seconds between heartbeats: several fit into a lease."""
    return min(HEARTBEAT_INTERVAL, lease / 5)


class Heartbeat:
    """Sends heartbeats for one open store. `claims`: the store's current claims, by root."""

    def __init__(
        self,
        path: str,
        me: Identity,
        clock: Callable[[], float],
        claims: dict[str, Claim],
        loop: asyncio.AbstractEventLoop,
        lease: float,
    ) -> None:
        self._path, self._me, self._clock, self._claims, self._loop = path, me, clock, claims, loop
        self._lease, self._interval = lease, interval(lease)
        self._wake_lock = threading.Lock()  # releasing it wakes the thread
        self._wake_lock.acquire()
        self._stopped = self._asleep = self._beating = False
        self._thread = Background(self._run)

    def wake(self) -> None:
        """Wake the thread, because there is a claim again."""
        if self._asleep:
            self._asleep = False
            self._wake()

    def stop(self) -> None:
        """End the thread, and close its connection."""
        self._stopped = True
        self._wake()
        if self._beating:  # else it has no connection, and ends by itself
            self._thread.join()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # already released, and not yet acquired by the thread
            self._wake_lock.release()

    def _run(self) -> None:
        db: apsw.Connection | None = None
        while self._is_due():
            with contextlib.suppress(
                apsw.Error, StoreError
            ):  # the next heartbeat may succeed; if they are late, the claim is lost
                db = db or self._connect()
                until = time.monotonic() + self._lease
                db.execute(BEATS, self._me.beat(self._clock()))
                self._check(db, until)
        if db is not None:
            db.close()

    def _is_due(self) -> bool:
        """Wait for the next heartbeat; return False to end the thread."""
        while not self._stopped:
            if self._wake_lock.acquire(timeout=-1 if self._asleep else self._interval):
                continue
            if self._claims:
                self._beating = True
                return not self._stopped
            self._asleep = True  # set before checking again: a new claim sees it and wakes the thread
            if self._claims:
                self._asleep = False
        return False

    def _connect(self) -> apsw.Connection:
        db = connect(self._path, HEARTBEAT_INTERVAL)
        db.pragma("synchronous", 1)  # no fsync: a lost heartbeat loses no work
        db.execute(
            "DELETE FROM processes WHERE beat < ?", (self._clock() - self._lease,)
        )  # one that lives comes back
        return db

    def _check(self, db: apsw.Connection, until: float) -> None:
        """Renew the claims that still hold, fail lost ones, and release for good those that failed here."""
        for root, claim in tuple(self._claims.items()):
            epoch = db.execute("SELECT epoch FROM sessions WHERE id = ?", (root,)).get
            if claim.failure is not None:
                db.execute("UPDATE sessions SET owner = '' WHERE id = ? AND epoch = ?", (root, claim.epoch))
                self._on_loop(self._forget, claim)
            elif epoch != claim.epoch:
                self._on_loop(claim.fail, SessionTakenOver(root))
            else:
                claim.until = until

    def _forget(self, claim: Claim) -> None:
        if self._claims.get(claim.root) is claim:
            del self._claims[claim.root]

    def _on_loop(self, work: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(work, *args)
