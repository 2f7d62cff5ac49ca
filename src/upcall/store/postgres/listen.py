"""A thread with a connection of its own: sends heartbeats, detects lost claims, and hears what others write."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import time
from collections.abc import Callable
from typing import Any

import psycopg

from upcall.contracts import Claim
from upcall.errors import SessionTakenOver
from upcall.store.postgres.url import Address
from upcall.store.sqlite.heartbeat import interval
from upcall.store.sqlite.process import Background, Identity, is_gone

SETTLE_IN = 0.05
"""Seconds before the thread connects: a short command is done by then."""

RENEW = "SELECT upcall.renew(%s, %s, %s, %s, %s, %s, %s::text[], %s::bigint[]), upcall.clock()"
"""The values are the process's, then the roots and epochs of its claims."""

_RELEASE = "SELECT upcall.release(%s, %s)"
_NEIGHBOURS = "SELECT id, pid, born FROM upcall.processes WHERE machine = %s AND id <> %s"
_FORGET = "DELETE FROM upcall.processes WHERE id = ANY (%s) OR beat < upcall.clock() - 86400"


def columns(me: Identity, lease: float) -> tuple[Any, ...]:
    """Return the values of a process for the functions in the database."""
    return (me.id, me.name, me.machine, me.pid, me.born, lease)


class Pulse:
    """Keeps the claims of one open store alive. It is idle while there are none and nothing is watched.

    `news` is called on the event loop when another process has written something that concerns all; `clock` is
    called in the thread with the difference of the server's clock to this machine's.
    """

    def __init__(
        self,
        address: Address,
        me: Identity,
        lease: float,
        claims: dict[str, Claim],
        news: Callable[[], None],
        clock: Callable[[float], None],
    ) -> None:
        self._address, self._me, self._lease, self._claims = address, me, lease, claims
        self._news, self._clock, self._loop = news, clock, asyncio.get_running_loop()
        self._watched = self._stopped = self._asleep = False
        self._interval = interval(lease)
        self._beat_at = time.monotonic() + self._interval
        self._db: psycopg.Connection[Any] | None = None
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._thread = Background(self._run)

    def wake(self, *, watch: bool) -> None:
        """Tell the thread that there is a claim, or whether anything is watched."""
        changed, self._watched = watch != self._watched, watch
        if self._asleep or (changed and watch):
            self._asleep = False
            self._signal()

    def stop(self) -> None:
        """End the thread, and close its connection."""
        self._stopped = True
        self._signal()
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def _signal(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"!")

    # --- in the thread --------------------------------------------------------------------

    def _run(self) -> None:
        self._wait(SETTLE_IN, hear=False)
        while not self._stopped:
            if not self._claims and not self._watched:
                self._sleep()
                continue
            try:
                self._work()
            except (psycopg.Error, OSError):  # the next heartbeat may succeed; until then, effects wait
                self._drop()
                self._wait(min(self._interval, 0.25), hear=False)
        self._drop()

    def _sleep(self) -> None:
        self._asleep = True  # set before checking again: a new claim sees it and wakes the thread
        if not self._claims and not self._watched and not self._stopped:
            self._wait(None, hear=True)
        self._asleep = False

    def _work(self) -> None:
        """Send a heartbeat if it is due, and listen until the next one."""
        self._connect()
        now = time.monotonic()
        if self._claims and now >= self._beat_at:
            self._beat_at = now + self._interval
            self._beat()
        self._wait(max(0.0, self._beat_at - now) if self._claims else self._interval, hear=True)

    def _connect(self) -> psycopg.Connection[Any]:
        if self._db is not None:
            return self._db
        db = self._db = psycopg.connect(autocommit=True, prepare_threshold=None, **self._address.options)
        row = db.execute("SELECT pg_backend_pid()").fetchone()
        if row is not None and row[0] == db.info.backend_pid:  # behind a pooler nothing would be heard
            db.execute("LISTEN upcall")
        self._tell()  # what was written meanwhile
        return db

    def _beat(self) -> None:
        db, held = self._connect(), tuple(self._claims.values())
        active = [claim for claim in held if claim.failure is None]
        until, before = time.monotonic() + self._lease, time.time()
        values = ([claim.root for claim in active], [claim.epoch for claim in active])
        row = db.execute(RENEW, (*columns(self._me, self._lease), *values)).fetchone()
        assert row is not None
        self._clock(row[1] - (before + time.time()) / 2)
        for claim in active:
            if claim.root in row[0]:
                self._on_loop(claim.fail, SessionTakenOver(claim.root))
            else:
                claim.until = until
        for claim in held:
            if claim.failure is not None:
                db.execute(_RELEASE, (claim.root, claim.epoch))
                self._on_loop(self._forget, claim)
        neighbours = db.execute(_NEIGHBOURS, (self._me.machine, self._me.id)).fetchall()
        gone = [one for one, pid, born in neighbours if is_gone(pid, born)]
        if gone:
            db.execute(_FORGET, (gone,))

    def _wait(self, seconds: float | None, *, hear: bool) -> None:
        """Wait so long, until `wake` is called, or until another process notifies this one."""
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        if hear and self._db is not None:
            poll.register(self._db.fileno(), select.POLLIN)
        ready = {file for file, _ in poll.poll(None if seconds is None else 1000 * seconds)}
        if self._reader in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._reader, 1024)
        if self._db is not None and hear and self._db.fileno() in ready:
            try:
                self._db.pgconn.consume_input()
            except psycopg.Error:
                self._drop()
                return
            heard = False
            while self._db.pgconn.notifies() is not None:
                heard = True
            if heard:
                self._tell()

    def _drop(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                db.close()

    def _forget(self, claim: Claim) -> None:
        if self._claims.get(claim.root) is claim:
            del self._claims[claim.root]

    def _tell(self) -> None:
        self._on_loop(self._news)

    def _on_loop(self, work: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(work, *args)
