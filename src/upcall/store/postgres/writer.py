"""The queue of writes: those of one run tree are written in order, many trees in one statement.

An answer that never came because the connection broke is settled here: the same statement is sent again, and the
database finds by the number of the append in its claim, or by its id, whether it was already done.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from psycopg import errors

from upcall.contracts import Claim
from upcall.errors import StoreError, StoreUnavailable, UpcallError
from upcall.store.postgres.connection import LONGEST, SHORTEST, Connection, ConnectionLost, values_of
from upcall.store.postgres.jobs import NOTHING, Bodies, Claiming, Job, Known, Operation, Stamps
from upcall.store.postgres.queries import BODIES, CALLBACKS_BY_ID, callback_of
from upcall.store.postgres.url import Address, explain
from upcall.store.rules import findable

MOST_TREES = 64
"""Run trees that one statement locks at most."""

MOST_EVENTS = 5000
"""Events of one statement, unless one append has more."""

MOST_IN_ONE = 60_000
"""Events of one append: a transaction has 65,536 positions."""

_WRITE = "SELECT * FROM upcall.write(%s::jsonb, %s::bytea[], %s)"
_CLAIM = "SELECT * FROM upcall.claim_all(%s::text[], %s, %s, %s, %s, %s, %s, %s, %s::boolean[], %s::text[])"
_CLOSING = 5.0


def fail_soon(claim: Claim, error: Exception) -> None:
    """Mark a claim as failed now, and notify its holder after the appender got the error; both may be one task."""
    claim.failure = claim.failure or error
    asyncio.get_running_loop().call_soon(claim.fail, error)


class Retry:
    """The waits between the attempts of one statement."""

    def __init__(self, patience: float) -> None:
        self._end, self._delay = time.monotonic() + patience, SHORTEST

    @property
    def is_late(self) -> bool:
        """True once the server could not be reached for too long."""
        return time.monotonic() >= self._end

    async def wait(self) -> None:
        """Wait a little longer each time."""
        await asyncio.sleep(self._delay)
        self._delay = min(LONGEST, self._delay * 2)


class Writer:
    """Writes jobs. `done(jobs)` is called on the event loop after each commit, before the jobs' futures end."""

    def __init__(self, address: Address, connection: Connection, done: Callable[[Sequence[Job]], None]) -> None:
        self._address, self._connection, self._done = address, connection, done
        self._jobs: deque[Job] = deque()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._written: list[Job] = []  # being written now

    def submit(self, job: Job) -> asyncio.Future[Any]:
        """Queue a job; the future ends when it is stored, or known not to be."""
        if self._closing:
            raise StoreUnavailable(self._address.shown, "the store is closed")
        if values_of([job]) > MOST_IN_ONE:
            raise StoreError(self._address.shown, f"at most {MOST_IN_ONE} events can be stored at once")
        self._jobs.append(job)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())
        return job.future

    async def close(self) -> None:
        """Write the queued jobs, and fail those that can't be written in a few seconds."""
        self._closing = True
        task = self._task
        if task is not None:
            await asyncio.wait({task}, timeout=_CLOSING)
            task.cancel()
            await asyncio.wait({task})
        for job in (*self._written, *self._jobs):
            if not job.future.done():
                self._fail(
                    job, StoreUnavailable(self._address.shown, "the store was closed before this was stored")
                )

    async def _work(self) -> None:
        try:
            while self._jobs:
                self._written = self._next()
                await self._write(self._written)
        finally:
            self._task = None

    def _next(self) -> list[Job]:
        """Take the next jobs that may share a statement: what must be read first is the last of its run tree."""
        chosen: list[Job] = []
        last: set[str] = set()  # trees of which nothing more may be chosen
        trees: set[str] = set()
        left: deque[Job] = deque()
        size = 0
        while self._jobs:
            job = self._jobs.popleft()
            tree = job.tree
            looks_up = any(job.needs())
            size += values_of([job])
            alone = isinstance(job, Operation | Claiming)
            if alone and not chosen and not left:
                return [job, *self._more_claims()] if isinstance(job, Claiming) else [job]
            full = chosen and (size > MOST_EVENTS or (len(trees) >= MOST_TREES and tree not in trees))
            if alone or full or tree in last or (looks_up and tree in trees):
                left.append(job)
                last.add(tree)
                if full:
                    break
                continue
            chosen.append(job)
            trees.add(tree)
            if looks_up:
                last.add(tree)
        left.extend(self._jobs)
        self._jobs = left
        return chosen

    def _more_claims(self) -> list[Job]:
        """Take the other claims from the queue that no write of the same run tree comes before."""
        others: set[str] = set()
        claims: list[Job] = []
        left: deque[Job] = deque()
        for job in self._jobs:
            if isinstance(job, Claiming) and job.tree not in others and len(claims) < MOST_TREES:
                claims.append(job)
            else:
                others.add(job.tree)
                left.append(job)
        self._jobs = left
        return claims

    async def _write(self, jobs: list[Job]) -> None:
        """Write jobs, again and again until each is stored or known not to be."""
        retry = Retry(self._connection.patience)
        if isinstance(jobs[0], Operation):
            await self._operate(jobs[0], retry)
            return
        if isinstance(jobs[0], Claiming):
            await self._claim([job for job in jobs if isinstance(job, Claiming)], retry)
            return
        while jobs := self._without_failed(jobs):
            try:
                jobs = await self._attempt(jobs, retry)
            except ConnectionLost as lost:  # while something was read: nothing was written
                self._give_up(jobs, lost, retry, sent=False)
                await retry.wait()
            except (errors.SerializationFailure, errors.DeadlockDetected):
                continue
            except Exception as error:
                if len(jobs) > 1:  # one failure does not affect the others
                    for job in jobs:
                        await self._write([job])
                    return
                self._fail(jobs[0], explain(self._address, error))

    async def _operate(self, job: Operation, retry: Retry) -> None:
        """Run a statement; what may have been done is repaired before it is tried again."""
        while not job.future.done():
            try:
                if job.lost and job.repair is not None:
                    await self._connection.run(*job.repair())
                job.rows = await self._connection.run(*(job.again if job.lost and job.again else job.statement))
                self._finish([job])
            except ConnectionLost as error:
                job.lost = True
                self._give_up([job], error, retry, sent=True)
                await retry.wait()
            except (errors.SerializationFailure, errors.DeadlockDetected):
                continue
            except Exception as error:
                self._fail(job, explain(self._address, error))

    async def _claim(self, jobs: Sequence[Claiming], retry: Retry) -> None:
        """Claim run trees; doing that twice harms nothing."""
        beat = any(job.beat for job in jobs)
        lists = ([job.root for job in jobs], [job.take_over for job in jobs], [job.gone for job in jobs])
        while not all(job.future.done() for job in jobs):
            try:
                values = (lists[0], *jobs[0].who, beat, *lists[1:])
                for place, *row in await self._connection.run(_CLAIM, values):
                    jobs[place - 1].row = row
                self._finish(jobs)
            except ConnectionLost as error:
                self._give_up(jobs, error, retry, sent=False)
                await retry.wait()
            except (errors.SerializationFailure, errors.DeadlockDetected):
                continue
            except Exception as error:
                for job in jobs:
                    self._fail(job, explain(self._address, error))

    def _without_failed(self, jobs: Sequence[Job]) -> list[Job]:
        """Fail the jobs of claims that were lost meanwhile; return the others that are not done."""
        for job in jobs:
            if job.claim is not None and job.claim.failure is not None and not job.future.done():
                self._fail(job, job.claim.failure)
        return [job for job in jobs if not job.future.done()]

    def _give_up(self, jobs: Sequence[Job], lost: ConnectionLost, retry: Retry, *, sent: bool) -> None:
        """Fail jobs that no claim depends on, if the server could not be reached for too long."""
        for job in jobs if retry.is_late else ():
            if job.claim is None and not job.future.done():
                error = explain(self._address, lost.error)
                unknown = "; whether this was stored is not known" if sent else ""
                self._fail(job, type(error)(error.where, f"{error.problem}{unknown}"))

    async def _attempt(self, jobs: Sequence[Job], retry: Retry) -> list[Job]:
        """Send one statement; return the jobs that have to be tried again."""
        known = await self._read(jobs)
        bodies = Bodies()
        planned: list[dict[str, Any]] = []
        sent: list[Job] = []
        for job in jobs:
            try:
                job.check_ids(self._address.shown)
                plan = job.plan(known, bodies)
            except UpcallError as error:
                self._fail(job, error)
                continue
            if plan is None:
                self._finish([job])
            else:
                planned.append(plan)
                sent.append(job)
        return self._settle(sent, await self._send(sent, planned, bodies, retry)) if sent else []

    async def _send(
        self, jobs: Sequence[Job], planned: Sequence[dict[str, Any]], bodies: Bodies, retry: Retry
    ) -> list[Any]:
        """Send the statement until its outcome is known."""
        lazy = all(job.lazy for job in jobs)
        while True:
            text = msgspec.json.encode(planned).decode()
            try:
                return await self._connection.run(_WRITE, (text, bodies.values, lazy))
            except ConnectionLost as lost:
                for plan in planned:
                    plan["again"] = True
                self._give_up(jobs, lost, retry, sent=True)
                if not self._without_failed(jobs):
                    raise
            except (errors.SerializationFailure, errors.DeadlockDetected):  # nothing was written
                if not any("again" in plan for plan in planned):
                    raise
            await retry.wait()

    def _settle(self, jobs: Sequence[Job], rows: Sequence[Any]) -> list[Job]:
        """Take in what the database says of each job; return those that have to be tried again."""
        stamps: dict[int, list[Stamps]] = {}
        problems: dict[int, tuple[str, int, str]] = {}
        for number, part, first, start, at, problem, detail in rows:
            if problem is None:
                stamps.setdefault(number, []).append(Stamps(part, first, start, at))
            else:
                problems[number] = (problem, part, detail or "")
        stored: list[Job] = []
        stale: list[Job] = []
        for number, job in enumerate(jobs):
            if number not in problems:
                job.stamp(stamps.get(number, ()))
                stored.append(job)
            elif problems[number][0] == "stale":
                stale.append(job)
            else:
                self._fail(job, job.refusal(self._address.shown, *problems[number]))
        self._finish(stored)
        return stale

    async def _read(self, jobs: Sequence[Job]) -> Known:
        """Read what these jobs need to know."""
        callbacks: set[str] = set()
        bodies: set[tuple[str, int]] = set()
        for job in jobs:
            needs = job.needs()
            callbacks |= needs.callbacks
            bodies |= needs.bodies
        if not callbacks and not bodies:
            return NOTHING
        found: dict[str, Any] = {}
        now = 0.0
        if callbacks:
            for values in await self._connection.run(CALLBACKS_BY_ID, ([*map(findable, callbacks)],)):
                found[values[0]] = (callback_of(values), values[1])
                now = values[2]
        stored: dict[tuple[str, int], bytes] = {}
        seqs: dict[str, int] = {}
        if bodies:
            wanted = list(bodies)
            values = ([findable(session) for session, _ in wanted], [seq for _, seq in wanted])
            for session, newest, seq, body in await self._connection.run(BODIES, values):
                seqs[session] = newest
                if seq is not None:
                    stored[session, seq] = body
        return Known(found, stored, seqs, now)

    def _finish(self, jobs: Sequence[Job]) -> None:
        """End the futures of jobs that are done."""
        self._done(jobs)
        for job in jobs:
            if not job.future.done():
                job.future.set_result(job.result())

    def _fail(self, job: Job, error: Exception) -> None:
        job.error = error
        if job.claim is not None:
            fail_soon(job.claim, error)
        if not job.future.done():
            job.future.set_exception(error)
            job.future.exception()  # retrieved, so that asyncio does not warn about it
