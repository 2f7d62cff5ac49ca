"""The thread that says that this process lives, and notices when it no longer owns what it thinks it does."""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

import apsw

from upcall.contracts import Claim
from upcall.errors import SessionTakenOver, StoreError
from upcall.store.sqlite.process import LEASE_TIMEOUT, Background, Identity
from upcall.store.sqlite.tables import connect

HEARTBEAT_INTERVAL = 1.0
"""Seconds between heartbeats while this process owns something; otherwise the thread sleeps until it does."""

BEATS = "INSERT OR REPLACE INTO processes VALUES (?, ?, ?, ?, ?, ?)"


class Heartbeat:
    """Beats for one open store. `claims` is what the store owns now, by root."""

    def __init__(
        self,
        path: str,
        me: Identity,
        clock: Callable[[], float],
        claims: dict[str, Claim],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._path, self._me, self._clock, self._claims, self._loop = path, me, clock, claims, loop
        self._bell = threading.Lock()  # rung by its release
        self._bell.acquire()
        self._stopped = self._asleep = self._beating = False
        self._thread = Background(self._run)

    def wake(self) -> None:
        """Something is owned again."""
        if self._asleep:
            self._asleep = False
            self._ring()

    def stop(self) -> None:
        """End the thread, and let go of the file."""
        self._stopped = True
        self._ring()
        if self._beating:  # else it has nothing open, and ends by itself
            self._thread.join()

    def _ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # it was rung and not heard yet
            self._bell.release()

    def _run(self) -> None:
        db: apsw.Connection | None = None
        while self._is_due():
            with contextlib.suppress(apsw.Error, StoreError):  # the next beat may succeed; late ones cost the claim
                db = db or self._connect()
                db.execute(BEATS, self._me.beat(self._clock()))
                self._check(db)
        if db is not None:
            db.close()

    def _is_due(self) -> bool:
        """Wait for the next beat; False at the end."""
        while not self._stopped:
            if self._bell.acquire(timeout=-1 if self._asleep else HEARTBEAT_INTERVAL):
                continue
            if self._claims:
                self._beating = True
                return not self._stopped
            self._asleep = True  # first this, then look again: whoever claims now sees it and wakes us
            if self._claims:
                self._asleep = False
        return False

    def _connect(self) -> apsw.Connection:
        db = connect(self._path, HEARTBEAT_INTERVAL)
        db.pragma("synchronous", 1)  # a lost heartbeat is no lost work: no fsync
        db.execute(
            "DELETE FROM processes WHERE beat < ?", (self._clock() - LEASE_TIMEOUT,)
        )  # one that lives comes back
        return db

    def _check(self, db: apsw.Connection) -> None:
        """Tell who lost a claim, and give up for good those that failed here: others may go on with them."""
        for root, claim in tuple(self._claims.items()):
            epoch = db.execute("SELECT epoch FROM sessions WHERE id = ?", (root,)).get
            if claim.failure is not None:
                db.execute("UPDATE sessions SET owner = '' WHERE id = ? AND epoch = ?", (root, claim.epoch))
                self._on_loop(self._forget, claim)
            elif epoch != claim.epoch:
                self._on_loop(claim.fail, SessionTakenOver(root))

    def _forget(self, claim: Claim) -> None:
        if self._claims.get(claim.root) is claim:
            del self._claims[claim.root]

    def _on_loop(self, work: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(work, *args)
