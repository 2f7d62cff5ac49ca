"""One SQLite connection that writes, and the thread that commits for many sessions at once.

May import: contracts, errors, events, store.ledger, store.process, store.rows, store.schema.
"""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import abc
import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import apsw

from upcall.contracts import Claim, Held
from upcall.errors import SessionExists, SessionTakenOver, StoreError, StoreUnavailable, UnknownSession, UpcallError
from upcall.events import (
    FOREIGN,
    AnyEvent,
    Compacted,
    HooksPassed,
    SessionStarted,
    decode,
    encode,
    hollow,
    stamp,
    status_after,
)
from upcall.store.ledger import CALLBACK_EVENTS
from upcall.store.process import Background
from upcall.store.rows import note
from upcall.store.schema import FULL, NORMAL, SEQ_BITS, explain

FAST = 0.002
"""Commits slower than this (seconds, on average) are not made on the event loop."""

_KNOWN = 5000  # sessions

_LAST = "SELECT max(coalesce((SELECT max(pos) FROM events), 0), (SELECT value FROM counters WHERE name = 'pos'))"
"""The newest position that was ever given."""

_FREE = (
    "SELECT 1 + max(coalesce((SELECT max(n) FROM sessions), 0), c.value), e.value "
    "FROM counters c, counters e WHERE c.name = 'n' AND e.name = 'epoch'"
)
"""A session's number and its first epoch that no session ever had, not even a deleted one."""

SESSION = "SELECT n, root, epoch, owner, base FROM sessions WHERE id = ?"


class Tx:
    """One transaction after the other: numbers rows as they come and writes events with few statements.

    What it has read of the file holds until another connection writes to it; the file says when one has.
    """

    def __init__(self, db: apsw.Connection, where: str) -> None:
        self.db, self.where, self.now = db, where, 0.0
        self.first = self.pos = 0
        self._rows: list[Any] = []
        self._numbers: dict[str, tuple[int, int]] = {}
        self._seqs: dict[int, int] = {}
        self._epochs: dict[str, int] = {}
        self._version = -1
        self.held: dict[str, Held] = {}  # callbacks as they are in this one

    def begin(self, now: float) -> None:
        """Start one; waits for whoever else writes."""
        self.db.execute("BEGIN IMMEDIATE")
        self.now = now
        self.held.clear()
        if self.db.data_version() != self._version or len(self._numbers) > _KNOWN:
            self.forget()
            self.pos = self.db.execute(_LAST).get
        self.first = self.pos

    def commit(self) -> None:
        """Make it true."""
        self.flush()
        self.db.execute("COMMIT")
        self._version = self.db.data_version()

    def roll_back(self) -> None:
        """Undo it."""
        self._rows, self._version = [], -1
        with contextlib.suppress(apsw.Error):
            self.db.execute("ROLLBACK")

    def forget(self) -> None:
        """Sessions may be gone, or other ones than before: read again."""
        for known in (self._numbers, self._seqs, self._epochs):
            known.clear()

    def number(self, session: str) -> tuple[int, int] | None:
        """A session's own number and its root's."""
        found = self._numbers.get(session)
        if found is None:
            row = self.db.execute(SESSION, (session,)).fetchone()
            if row is not None:
                found = self._numbers[session] = row[:2]
        return found

    def check_fence(self, claim: Claim) -> None:
        """Refuse whoever no longer owns the tree, or whose earlier append failed."""
        if claim.failure is not None:
            raise claim.failure
        epoch = self._epochs.get(claim.root)
        if epoch is None:
            row = self.db.execute(SESSION, (claim.root,)).fetchone()
            epoch = self._epochs[claim.root] = row[2] if row is not None else -1
        if epoch != claim.epoch:
            raise SessionTakenOver(claim.root)

    def keep_counting(self) -> None:
        """Something is about to be deleted: remember which positions and numbers were given."""
        self.db.execute("UPDATE counters SET value = ? WHERE name = 'pos'", (self.pos,))
        for name in ("n", "epoch"):
            sql = f"UPDATE counters SET value = max(value, (SELECT max({name}) FROM sessions)) WHERE name = ?"
            self.db.execute(sql, (name,))

    def take(self, session: str, n: int, owner: str) -> int:
        """Make somebody the owner of a tree; returns the epoch that fences all earlier ones."""
        sql = "UPDATE sessions SET epoch = epoch + 1, owner = ? WHERE n = ? RETURNING epoch"
        epoch: int = self.db.execute(sql, (owner, n)).get
        self._epochs[session] = epoch
        return epoch

    def create(self, session: str, event: SessionStarted) -> tuple[int, int]:
        """A new session's row; returns its number and its root's."""
        parent = self._relative(event.parent) if event.parent else None
        root = self._relative(event.root) if event.root and event.root != session else None
        n, epoch = cast("tuple[int, int]", self.db.execute(_FREE).fetchone())
        found = (n, n if root is None else root)
        sql = (
            "INSERT INTO sessions (n, id, agent, parent, root, kind, status, created, epoch) "
            "VALUES (?, ?, ?, ?, ?, ?, 'idle', ?, ?)"
        )
        self.db.execute(sql, (n, session, event.agent, parent, found[1], event.kind, self.now, epoch))
        self._numbers[session] = found
        self._seqs[n] = 0
        return found

    def _relative(self, session: str) -> int:
        found = self.number(session)
        if found is None:
            raise UnknownSession(session)
        return found[0]

    def last_seq(self, n: int) -> int:
        """The newest sequence number of a session."""
        seq = self._seqs.get(n)
        if seq is None:
            low = n << SEQ_BITS
            sql = "SELECT max(key) FROM events WHERE key > ? AND key < ?"
            seq = self._seqs[n] = (self.db.execute(sql, (low, low + (1 << SEQ_BITS))).get or low) - low
        return seq

    def add(self, n: int, bodies: Sequence[bytes]) -> tuple[int, int]:
        """Number these events; returns the first one's sequence number and position."""
        seq = self.last_seq(n)
        first = (seq + 1, self.pos + 1)
        for body in bodies:
            seq, self.pos = seq + 1, self.pos + 1
            self._rows.append(((n << SEQ_BITS) + seq, self.pos, self.now, body))
        self._seqs[n] = seq
        return first

    def flush(self) -> None:
        """Write the events that were numbered so far."""
        rows, self._rows = self._rows, []
        if rows:
            self.db.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", rows)

    def list_as(self, n: int, status: str | None, *, release: bool) -> None:
        """What is listed of a session now, and that nobody owns it any more."""
        if status is not None or release:
            sql = "UPDATE sessions SET status = coalesce(?, status), owner = iif(?, '', owner) WHERE n = ?"
            self.db.execute(sql, (status, release, n))

    def release(self, claim: Claim) -> None:
        """Give a claim up; nothing happens if it was lost."""
        sql = "UPDATE sessions SET owner = '' WHERE id = ? AND epoch = ?"
        self.db.execute(sql, (claim.root, claim.epoch))


class Job(abc.ABC):
    """Something to be done in the next transaction. `run` refuses before it writes, or not at all.

    One without `sync` need not survive a power cut before the next one with it.
    """

    sync = True
    claim: Claim | None = None
    error: Exception | None = None
    future: asyncio.Future[Any] | None = None

    @abc.abstractmethod
    def run(self, tx: Tx) -> None:
        """Do it."""

    def settle(self) -> None:  # noqa: B027 (most have nothing to do)
        """Committed, and back on the event loop."""

    def told(self) -> Sequence[AnyEvent]:
        """The events that whoever listens should hear of."""
        return ()

    def result(self) -> Any:
        """What the future gets."""
        return None


class Append(Job):
    """Events of one session."""

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

    def run(self, tx: Tx) -> None:
        """Check the right to write, then write."""
        self.write(tx, self.check(tx))

    def check(self, tx: Tx) -> tuple[int, int] | None:
        """Refuse what may not be written; returns the session's number and its root's if it is there."""
        if self.claim is not None:
            tx.check_fence(self.claim)
        found = tx.number(self.session)
        self._refuse(tx, found)
        return found

    def write(self, tx: Tx, found: tuple[int, int] | None) -> None:
        """Write what was checked."""
        new = found is None
        n, root = found or tx.create(self.session, cast("SessionStarted", self.events[0]))
        seq, pos = tx.add(n, self.bodies)
        self._stamps = (seq, pos, tx.now)
        for name, body in (self._blobs or {}).items():
            tx.db.execute("INSERT OR IGNORE INTO blobs VALUES (?, ?)", (name, body))
        status = self._note(tx, n, seq, root)
        mine = self.releases and n == root  # the claim was checked in this transaction, and is one on the root
        tx.list_as(n, None if new and status == "idle" else status, release=mine)
        if self.releases and not mine and self.claim is not None:
            tx.release(self.claim)

    def _refuse(self, tx: Tx, found: tuple[int, int] | None) -> None:
        first, claim = self.events[0], self.claim
        if found is None:
            if not isinstance(first, SessionStarted):
                raise UnknownSession(self.session)
            mine = claim is None or claim.root == (first.root or self.session)
        elif isinstance(first, SessionStarted):
            raise SessionExists(self.session)
        elif claim is None:
            mine = all(isinstance(e, FOREIGN) for e in self.events)
        else:
            root = tx.number(claim.root)
            mine = root is not None and root[0] == found[1]
        if not mine:
            raise StoreError(tx.where, f"{first.type} needs a claim on the run tree of session {self.session!r}")

    def _note(self, tx: Tx, n: int, seq: int, root: int) -> str | None:
        """Keep the callbacks' rows true, and drop bodies that were replaced; returns the session's new status."""
        status = None
        asks: list[tuple[int, AnyEvent]] = []
        for at, event in enumerate(self.events, seq):
            status = status_after(event) or status
            if isinstance(event, Compacted):
                tx.db.execute("UPDATE sessions SET base = ? WHERE n = ?", (event.base or at, n))
            elif isinstance(event, HooksPassed) and event.replaces:
                tx.flush()
                key = (n << SEQ_BITS) + event.replaces
                body = tx.db.execute("SELECT body FROM events WHERE key = ?", (key,)).get
                slim = encode(hollow(decode(body, "", 0, 0, 0.0)))
                tx.db.execute("UPDATE events SET body = ? WHERE key = ?", (slim, key))
            elif type(event) in CALLBACK_EVENTS:
                asks.append(((n << SEQ_BITS) + at, event))
        if asks:
            note(tx, root, asks)
        return status

    def told(self) -> Sequence[AnyEvent]:
        """What was appended without a claim."""
        return self.events if self.claim is None else ()

    def settle(self) -> None:
        """Stamp the events: now they are facts."""
        seq, pos, now = self._stamps
        for i, event in enumerate(self.events):
            stamp(event, self.session, seq + i, pos + i, now)


class Operation(Job):
    """Any other function of a transaction."""

    def __init__(self, work: Callable[[Tx], Any]) -> None:
        self._work = work
        self._value: Any = None

    def run(self, tx: Tx) -> None:
        """Call it."""
        tx.flush()
        self._value = self._work(tx)

    def result(self) -> Any:
        """What it returned."""
        return self._value


def fail_soon(claim: Claim, error: Exception) -> None:
    """Mark a claim now, and tell its holder when whoever appended has had the error: it may be the same task."""
    claim.failure = claim.failure or error
    asyncio.get_running_loop().call_soon(claim.fail, error)


class Writer:
    """Commits jobs in the order they came: many in one transaction, or one at once on the event loop.

    `done(first, last, jobs)` is called on the event loop after each commit, with the positions it took; it must
    not raise.
    """

    def __init__(
        self,
        db: apsw.Connection,
        where: str,
        clock: Callable[[], float],
        busy: float,
        done: Callable[[int, int, Sequence[Job]], None],
    ) -> None:
        self.db, self._where, self._clock, self._done = db, where, clock, done
        self._busy_ms = int(busy * 1000)
        self.lock = threading.Lock()  # whoever holds it may use the connection
        self._jobs: deque[Job] = deque()
        self._ready = threading.Condition()
        self._pending = 0
        self._last: tuple[str, int] | None = None
        self._cost = 0.0
        self._level = FULL
        self._tx = Tx(db, where)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Background | None = None
        self._closing = False
        self._ended = asyncio.Event()

    def submit(self, job: Job, session: str) -> asyncio.Future[Any] | None:
        """Have a job done; None means it is done already (its error is raised)."""
        if self._closing:
            raise StoreUnavailable(self._where, "the store is closed")
        before, here = self._last, id(asyncio.current_task())
        self._last = (session, here)
        # one session's next step, or one program's: else more may come from others, to be committed together
        alone = before is None or before[0] == session or (before[1] == here and job.claim is None)
        if alone and not self._pending and (self._cost < FAST or not job.sync) and self._inline(job):
            if job.error is not None:
                raise job.error
            return None
        self._loop = asyncio.get_running_loop()
        job.future = self._loop.create_future()
        self._pending += 1
        with self._ready:
            self._jobs.append(job)
            if self._thread is None:
                self._thread = Background(self._work)
            self._ready.notify()
        return job.future

    def _inline(self, job: Job) -> bool:
        """Commit here and now, unless another process is writing: the loop must not wait for it."""
        span = (0, 0)
        self.db.set_busy_timeout(0)
        try:
            with self.lock:
                span = self._commit([job])
        except apsw.BusyError:
            return False
        except Exception as error:
            self._fail([job], explain(self._where, error))
        finally:
            self.db.set_busy_timeout(self._busy_ms)
        self._settle(span, [job])
        return True

    def _work(self) -> None:
        while True:
            with self._ready:
                while not self._jobs and not self._closing:
                    self._ready.wait()
                if not self._jobs:
                    break
                jobs = list(self._jobs)
                self._jobs.clear()
            self._commit_or_fail(jobs)
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ended.set)

    def _commit_or_fail(self, jobs: Sequence[Job]) -> None:
        """What can't be stored together is tried one by one, so that one job's failure is no other's."""
        span = (0, 0)
        try:
            with self.lock:
                span = self._commit(jobs)
        except Exception as error:
            if len(jobs) > 1 and not isinstance(error, apsw.BusyError):
                for job in jobs:
                    self._commit_or_fail([job])
                return
            self._fail(jobs, explain(self._where, error))
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is gone: nobody waits
            self._loop.call_soon_threadsafe(self._settle, span, jobs)

    def _commit(self, jobs: Sequence[Job]) -> tuple[int, int]:
        """All jobs in one transaction, or an exception. A job that refuses leaves the others alone."""
        started = time.perf_counter()
        level = FULL if any(job.sync for job in jobs) else NORMAL
        if level != self._level:
            self.db.pragma("synchronous", level)
            self._level = level
        tx = self._tx
        try:
            tx.begin(self._clock())
            for job in jobs:
                if job.error is None:
                    self._run(job, tx)
            tx.commit()
        except BaseException:
            tx.roll_back()
            raise
        if level == FULL:
            self._cost += (time.perf_counter() - started - self._cost) / 8
        return (tx.first + 1, tx.pos)

    def _run(self, job: Job, tx: Tx) -> None:
        try:
            job.run(tx)
        except UpcallError as error:
            self._fail([job], error)

    @staticmethod
    def _fail(jobs: Sequence[Job], error: Exception) -> None:
        for job in jobs:
            job.error = job.error or error
            if job.claim is not None and job.claim.failure is None:
                job.claim.failure = job.error  # at once: nothing of this claim may be written after a gap

    def _settle(self, span: tuple[int, int], jobs: Sequence[Job]) -> None:
        for job in jobs:
            if job.error is None:
                job.settle()
        self._done(*span, jobs)
        for job in jobs:
            if job.error is not None and job.claim is not None:
                fail_soon(job.claim, job.error)
            if job.future is None:
                continue
            self._pending -= 1
            if job.future.done():
                continue
            if job.error is not None:
                job.future.set_exception(job.error)
                job.future.exception()  # whoever awaits it is told; nobody is warned about the rest
            else:
                job.future.set_result(job.result())

    async def close(self) -> None:
        """Commit what is queued, end the thread, close the connection."""
        self._closing = True
        thread = self._thread
        if thread is not None:
            with self._ready:
                self._ready.notify()
            await self._ended.wait()
            thread.join()
        with self.lock:
            self.db.close()
