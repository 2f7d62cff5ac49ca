"""One SQLite connection that writes, and the thread that commits for many sessions at once."""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import abc
import asyncio
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import apsw

from upcall.contracts import Claim
from upcall.errors import SessionExists, SessionTakenOver, StoreError, StoreUnavailable, UnknownSession, UpcallError
from upcall.events import (
    FOREIGN,
    AnyEvent,
    Compacted,
    HooksPassed,
    Parked,
    SessionAdopted,
    SessionStarted,
    decode,
    encode,
    stamp,
)
from upcall.store.rules import CALLBACK_EVENTS, INDEXED_EVENTS, status_after, without_body
from upcall.store.sqlite.process import Background
from upcall.store.sqlite.queries import EVENTS, SESSION, Rows, note, reopen, stop_waiting
from upcall.store.sqlite.tables import FULL, NORMAL, SEQ_BITS, explain

FAST = 0.002
"""Commits slower than this (seconds, on average) are not made on the event loop."""

_KNOWN = 1000  # sessions

_GIVEN = (
    "SELECT name, value FROM counters UNION ALL SELECT 'last', max(pos) FROM events "
    "UNION ALL SELECT 'newest', max(n) FROM sessions"
)
"""What was ever given: positions, sessions' numbers, and epochs of deleted ones."""

_REPLACED = (
    "the file was removed or replaced while this program had it open, so nothing more can be stored in it; "
    "put it back (from a backup, if it is lost) and start the program again"
)


class Known:
    """A session's row as it is in the file now, with its newest sequence number."""

    __slots__ = ("base", "epoch", "n", "owner", "root", "seq", "status")

    def __init__(self, n: int, root: int, status: str, base: int, epoch: int, owner: str, key: int | None) -> None:
        self.n, self.root, self.status, self.base, self.epoch, self.owner = n, root, status, base, epoch, owner
        self.seq = key - (n << SEQ_BITS) if key else 0


class Tx(Rows):
    """One transaction after the other: numbers rows as they come and writes events with few statements.

    What it has read of the file holds until another connection writes to it; the file says when one has.
    """

    def __init__(self, db: apsw.Connection, where: str) -> None:
        super().__init__(db)
        self.where, self._file = where, _identity(where)
        self.first = self.pos = self._newest = self._epoch = 0
        self._rows: list[Any] = []
        self._known: dict[str, Known] = {}
        self._version = -1
        try:
            self.forget()
            self._version = db.data_version()
        except apsw.CorruptError:  # what is not damaged can be read all the same
            self.pos = self.execute("SELECT max(pos) FROM events").get or 0

    def begin(self, now: float) -> None:
        """Start one; waits for whoever else writes."""
        self.execute("BEGIN IMMEDIATE")
        self.now = now
        self.held.clear()
        if self.db.data_version() != self._version or len(self._known) > _KNOWN:
            self.forget()
        self.first = self.pos

    def commit(self) -> None:
        """Make it true."""
        self.flush()
        self.execute("COMMIT")
        self._version = self.db.data_version()
        self._check_place()

    def _check_place(self) -> None:
        """Call nothing stored that nobody will find: SQLite goes on writing to a file that was removed."""
        if _identity(self.where) != self._file:
            raise StoreUnavailable(self.where, _REPLACED)

    def roll_back(self) -> None:
        """Undo it."""
        self._rows, self._version = [], -1
        with contextlib.suppress(apsw.Error):
            self.execute("ROLLBACK")

    def forget(self) -> None:
        """Sessions may be gone, or other ones than before, and more may have been given: read again."""
        self._known.clear()
        self.numbers.clear()
        given: dict[str, Any] = dict(cast("Any", self.execute(_GIVEN).fetchall()))
        self.pos = max(given["pos"], given["last"] or 0)
        self._newest, self._epoch = max(given["n"], given["newest"] or 0), given["epoch"]

    def session(self, session: str) -> Known | None:
        """A session's row, if it is there; who changes it saves it."""
        found = self._known.get(session)
        if found is None:
            row: Any = self.execute(SESSION, (session,)).get
            if row is not None:
                first = row[0] << SEQ_BITS
                newest: Any = self.execute(EVENTS, (first, first + (1 << SEQ_BITS), 1)).get
                values: tuple[Any, ...] = (*row, newest[0] if newest else None)
                found = self._known[session] = Known(*values)
                self.numbers[session] = found.n
        return found

    def save(self, found: Known) -> None:
        """Write a session's row."""
        sql = "UPDATE sessions SET status = ?, base = ?, epoch = ?, owner = ? WHERE n = ?"
        self.execute(sql, (found.status, found.base, found.epoch, found.owner, found.n))

    def check_fence(self, claim: Claim) -> Known:
        """Refuse whoever no longer owns the tree, or whose earlier append failed; returns the root."""
        if claim.failure is not None:
            raise claim.failure
        root = self.session(claim.root)
        if root is None or root.epoch != claim.epoch:
            raise SessionTakenOver(claim.root)
        return root

    def keep_counting(self) -> None:
        """Something is about to be deleted: remember which positions and numbers were given."""
        self.execute("UPDATE counters SET value = ? WHERE name = 'pos'", (self.pos,))
        for name in ("n", "epoch"):
            sql = f"UPDATE counters SET value = max(value, (SELECT max({name}) FROM sessions)) WHERE name = ?"
            self.execute(sql, (name,))

    def create(self, session: str, event: SessionStarted) -> Known:
        """A new session's row."""
        parent = self._relative(event.parent) if event.parent else None
        n = self._newest = self._newest + 1
        root = self._relative(event.root) if event.root and event.root != session else n
        sql = "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, 'idle', ?, 0, ?, '')"
        self.execute(sql, (n, session, event.agent, parent, root, event.kind, self.now, self._epoch))
        for name, value in event.tags.items():
            self.execute("INSERT INTO tags VALUES (?, ?, ?)", (name, value, root))
        found = self._known[session] = Known(n, root, "idle", 0, self._epoch, "", None)
        return found

    def _relative(self, session: str) -> int:
        found = self.session(session)
        if found is None:
            raise UnknownSession(session)
        return found.n

    def add(self, found: Known, bodies: Sequence[bytes]) -> tuple[int, int]:
        """Number these events; returns the first one's sequence number and position."""
        seq, pos, now = found.seq + 1, self.pos + 1, self.now
        key = (found.n << SEQ_BITS) + seq
        self._rows += [(key + i, pos + i, now, body) for i, body in enumerate(bodies)]
        found.seq += len(bodies)
        self.pos += len(bodies)
        return seq, pos

    def flush(self) -> None:
        """Write the events that were numbered so far."""
        rows, self._rows = self._rows, []
        if rows:
            self.cursor.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", rows)

    def drop_body(self, key: int) -> None:
        """Keep of an event whose body a hook replaced only that it happened."""
        self.flush()
        body = self.execute(EVENTS, (key - 1, key + 1, 1)).get[3]
        slim = encode(without_body(decode(body, "", 0, 0, 0.0)))
        self.execute("UPDATE events SET body = ? WHERE key = ?", (slim, key))

    def release(self, claim: Claim) -> None:
        """Give a claim up; nothing happens if it was lost."""
        root = self.session(claim.root)
        if root is not None and root.epoch == claim.epoch:
            root.owner = ""
            self.save(root)


def _identity(path: str) -> tuple[int, int] | None:
    """Which file is there, if any."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_ino, found.st_dev


class Job(abc.ABC):
    """Something to be done in the next transaction. `run` refuses before it writes, or not at all.

    One without `sync` need not survive a power cut before the next one with it.
    """

    sync = True
    releases = False
    """Whether it gives up the claim."""
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

    def check(self, tx: Tx) -> Known | None:
        """Refuse what may not be written; returns the session if it is there."""
        first, claim = self.events[0], self.claim
        root = None if claim is None else tx.check_fence(claim)
        found = tx.session(self.session)
        if found is None:
            if not isinstance(first, SessionStarted):
                raise UnknownSession(self.session)
            mine = claim is None or claim.root == (first.root or self.session)
        elif isinstance(first, SessionStarted):
            raise SessionExists(self.session)
        elif root is None:
            mine = all(isinstance(e, FOREIGN) for e in self.events)
        else:
            mine = root.n == found.root
        if not mine:
            raise StoreError(tx.where, f"{first.type} needs a claim on the run tree of session {self.session!r}")
        return found

    def write(self, tx: Tx, found: Known | None) -> None:
        """Write what was checked."""
        if found is None:
            found = tx.create(self.session, cast("SessionStarted", self.events[0]))
        seq, pos = tx.add(found, self.bodies)
        self._stamps = (seq, pos, tx.now)
        for name, body in (self._blobs or {}).items():
            tx.execute("INSERT OR IGNORE INTO blobs VALUES (?, ?)", (name, body))
        changed = self._note(tx, found, seq)
        if self.releases and self.claim is not None:
            tx.release(self.claim)
            changed = changed and self.claim.root != self.session
        if changed:
            tx.save(found)

    def _note(self, tx: Tx, found: Known, seq: int) -> bool:
        """Keep the callbacks' rows true, drop replaced bodies; returns whether the session's row changes."""
        before = (found.status, found.base)
        asks: list[tuple[int, AnyEvent]] = []
        waits: tuple[str, ...] = ()
        for at, event in enumerate(self.events, seq):
            if type(event) not in INDEXED_EVENTS:
                continue
            if type(event) in CALLBACK_EVENTS:
                asks.append(((found.n << SEQ_BITS) + at, event))
            else:
                status = status_after(event)
                if status is not None:
                    if found.status == "waiting":
                        stop_waiting(tx, found.root, found.n)
                    found.status = status
                if isinstance(event, Parked):
                    waits = event.waits
                elif isinstance(event, SessionAdopted):
                    reopen(tx, event.reopened)
                elif isinstance(event, Compacted):
                    found.base = event.base or at
                elif isinstance(event, HooksPassed) and event.replaces:
                    tx.drop_body((found.n << SEQ_BITS) + event.replaces)
        if asks or waits:
            note(tx, found.root, asks, waits)
        return before != (found.status, found.base)

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
        self._level = 0  # not known yet
        self.tx = Tx(db, where)
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
        span, jobs = (0, 0), [job]
        self.db.set_busy_timeout(0)
        try:
            with self.lock:
                span = self._commit(jobs, job.sync)
        except apsw.BusyError:
            return False
        except Exception as error:
            self._fail(job, explain(self._where, error))
        finally:
            self.db.set_busy_timeout(self._busy_ms)
        self._settle(span, jobs)
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
                span = self._commit(jobs, any(job.sync for job in jobs))
        except Exception as error:
            if len(jobs) > 1 and not isinstance(error, apsw.BusyError):
                for job in jobs:
                    self._commit_or_fail([job])
                return
            for job in jobs:
                self._fail(job, explain(self._where, error))
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is gone: nobody waits
            self._loop.call_soon_threadsafe(self._settle, span, jobs)

    def _commit(self, jobs: Sequence[Job], sync: bool) -> tuple[int, int]:
        """All jobs in one transaction, or an exception. A job that refuses leaves the others alone."""
        started = time.perf_counter()
        level, tx = FULL if sync else NORMAL, self.tx
        if level != self._level:
            tx.execute(f"PRAGMA synchronous = {level}", can_cache=False)  # it works as it is prepared
            self._level = level
        try:
            tx.begin(self._clock())
            for job in jobs:
                if job.error is None:
                    try:
                        job.run(tx)
                    except UpcallError as error:
                        self._fail(job, error)
            tx.commit()
        except BaseException:
            tx.roll_back()
            raise
        if sync:
            self._cost += (time.perf_counter() - started - self._cost) / 8
        return (tx.first + 1, tx.pos)

    @staticmethod
    def _fail(job: Job, error: Exception) -> None:
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
