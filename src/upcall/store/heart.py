"""The thread that says that this process lives, and notices when it no longer owns what it thinks it does.

May import: contracts, errors, store.process, store.schema.
"""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
from collections.abc import Callable

import apsw

from upcall.contracts import Claim
from upcall.errors import SessionTakenOver, StoreError
from upcall.store.process import LATE, Background, Identity
from upcall.store.schema import connect

BEAT = 1.0
"""Seconds between heartbeats while this process owns something; otherwise the thread sleeps until it does."""

STEP = 0.01
"""Seconds between looks at stores that have owned something for less than a beat."""

BEATS = "INSERT OR REPLACE INTO processes VALUES (?, ?, ?, ?, ?, ?)"


class Pulse:
    """Starts the hearts of stores that own something for a beat: most turns that a command runs are over before.

    One thread for all stores of this process, which ends with the last of them: to start one takes as long as a
    commit. The event loop can't do it: what it runs may block it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._young: dict[Heart, float] = {}  # since when each owns something
        self._runs = False

    def add(self, heart: Heart) -> None:
        """It owns something."""
        with self._lock:
            self._young.setdefault(heart, time.monotonic())
            if not self._runs:
                self._runs = True
                Background(self._run)

    def drop(self, heart: Heart) -> None:
        """It is not to be started any more."""
        with self._lock:
            self._young.pop(heart, None)

    def _run(self) -> None:
        while True:
            time.sleep(STEP)
            with self._lock:
                due = time.monotonic() - BEAT
                for heart in [heart for heart, since in self._young.items() if since <= due]:
                    del self._young[heart]
                    heart.start()
                self._runs = bool(self._young)
                if not self._runs:
                    return


@functools.cache
def _pulse(_: int) -> Pulse:
    """That of a process, by its id: no thread is there in the child of a fork."""
    return Pulse()


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
        self._path, self._me, self._clock, self._claims, self._loop = path, me, clock, claims, loop
        self._bell = threading.Lock()  # rung by its release
        self._bell.acquire()
        self._stopped = self._asleep = self._beating = False
        self._pause = 0.0  # it is started when a beat is due
        self._thread: Background | None = None

    def wake(self) -> None:
        """Something is owned again."""
        if self._thread is None:
            _pulse(self._me.pid).add(self)
        elif self._asleep:
            self._asleep = False
            self._ring()

    def start(self) -> None:
        """Begin to beat, if anything is still owned."""
        if self._claims:
            self._thread = Background(self._run)

    def stop(self) -> None:
        """End the thread, and let go of the file."""
        _pulse(self._me.pid).drop(self)
        self._stopped = True
        if self._thread is None:
            return
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
            if self._bell.acquire(timeout=-1 if self._asleep else self._pause):
                continue
            self._pause = BEAT
            if self._claims:
                self._beating = True
                return not self._stopped
            self._asleep = True  # first this, then look again: whoever claims now sees it and wakes us
            if self._claims:
                self._asleep = False
        return False

    def _connect(self) -> apsw.Connection:
        db = connect(self._path, BEAT)
        db.pragma("synchronous", 1)  # a lost heartbeat is no lost work: no fsync
        db.execute("DELETE FROM processes WHERE beat < ?", (self._clock() - LATE,))  # one that lives comes back
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
