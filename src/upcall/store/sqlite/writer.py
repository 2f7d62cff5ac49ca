"""The connection that writes, and the thread that commits for many sessions at once."""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import apsw

from upcall.contracts import Claim
from upcall.errors import StoreUnavailable, UpcallError
from upcall.store.sqlite.jobs import Job
from upcall.store.sqlite.process import Background
from upcall.store.sqlite.tables import FULL, NORMAL, explain
from upcall.store.sqlite.transaction import Tx

FAST = 0.002
"""Commits slower than this (seconds, on average) are not made on the event loop."""


def fail_soon(claim: Claim, error: Exception) -> None:
    """Mark a claim as failed now, and notify its holder after the appender got the error; both may be one task."""
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
        self.lock = threading.Lock()  # held while the connection is used
        self._jobs: deque[Job] = deque()
        self._ready = threading.Condition()
        self._pending = 0
        self._last: tuple[str, int] | None = None
        self._cost = 0.0
        self._level = 0  # unknown
        self.tx = Tx(db, where)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Background | None = None
        self._closing = False
        self._ended = asyncio.Event()

    def submit(self, job: Job, session: str) -> asyncio.Future[Any] | None:
        """Submit a job; return None if it was committed at once (then its error is raised)."""
        if self._closing:
            raise StoreUnavailable(self._where, "the store is closed")
        before, here = self._last, id(asyncio.current_task())
        self._last = (session, here)
        # a single session or program waits: commit at once; else gather jobs of others for one commit
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
        """Commit on the event loop, unless another process is writing: the loop must not wait for it."""
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
        """Commit jobs together; if that fails, one by one, so that one failure does not affect the others."""
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
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._settle, span, jobs)

    def _commit(self, jobs: Sequence[Job], sync: bool) -> tuple[int, int]:
        """Run all jobs in one transaction, or raise. A job that is refused does not affect the others."""
        started = time.perf_counter()
        level, tx = FULL if sync else NORMAL, self.tx
        if level != self._level:
            tx.execute(f"PRAGMA synchronous = {level}", can_cache=False)  # takes effect when it is prepared
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
                job.on_committed()
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
                job.future.exception()  # retrieved, so that asyncio does not warn about it
            else:
                job.future.set_result(job.result())

    async def close(self) -> None:
        """Commit the queued jobs, end the thread and close the connection."""
        self._closing = True
        thread = self._thread
        if thread is not None:
            with self._ready:
                self._ready.notify()
            await self._ended.wait()
            thread.join()
        with self.lock:
            self.db.close()
