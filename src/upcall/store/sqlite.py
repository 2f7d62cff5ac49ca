"""The log in one SQLite file that many processes may share.

May import: contracts, errors, events, store.process, store.schema, store.wake, store.writer.
"""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import apsw

from upcall.contracts import Claim, Row
from upcall.errors import (
    SessionBusy,
    SessionTakenOver,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
    UnknownSession,
)
from upcall.events import FOREIGN, AnyEvent, decode
from upcall.store.process import BEAT, LATE, Identity, is_gone
from upcall.store.schema import SEQ_BITS, explained, open_database, open_reader
from upcall.store.wake import Wake
from upcall.store.writer import Append, Job, Operation, Tx, Writer

LOOK = 0.2
"""Seconds between looks at the file's change counter while something waits here: for lost datagrams."""

SETTLE_IN = 0.05
"""A turn shorter than this never opens a socket: what others wrote is seen when its own commits skip numbers."""

_COLUMNS = (
    "s.id, s.agent, s.status, coalesce(p.id, ''), r.id, s.kind, s.created, s.updated, s.n, s.base, r.owner "
    "FROM sessions s JOIN sessions r ON r.n = s.root LEFT JOIN sessions p ON p.n = s.parent"
)
_OTHERS = tuple(f'{{"type":"{c.__struct_config__.tag}"'.encode() for c in FOREIGN)


class SqliteStore:
    """A store in one file. Open it with `await store.open()`; many processes may have it open."""

    durable = True

    def __init__(self, path: str | Path, clock: Callable[[], float] = time.time) -> None:
        self.where = str(Path(path).absolute())
        self.now = clock
        self._me = Identity()
        self._wake = Wake(self.where, self._me.id)
        self._writer: Writer | None = None
        self._reader: apsw.Connection | None = None
        self._claims: dict[str, Claim] = {}
        self._listeners: list[Callable[[AnyEvent], None]] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._seen = 0
        self._version = -1
        self._look: asyncio.TimerHandle | None = None
        self._heart: _Heart | None = None

    # --- opening and closing --------------------------------------------------------------

    async def open(self) -> None:
        """Open the file, or make it; refuses what is not ours, newer or damaged."""
        if self._writer is None:
            db = open_database(self.where)
            self._writer = Writer(db, self.where, self.now, self._committed)
            with explained(self.where):
                self._seen = db.execute("SELECT coalesce(max(pos), 0) FROM events").get

    async def close(self) -> None:
        """Commit what is queued and let go of the file."""
        if self._writer is None:
            return
        if self._heart is not None:
            self._heart.stop()
            await self._operate(lambda tx: tx.db.execute("DELETE FROM processes WHERE id = ?", (self._me.id,)))
        if self._look is not None:
            self._look.cancel()
            self._unwatch()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        if self._reader is not None:
            self._reader.close()
        await self._writer.close()
        self._wake.close()
        self._writer = self._reader = None

    def _open_writer(self) -> Writer:
        if self._writer is None:
            raise StoreUnavailable(self.where, "the store is not open; use `async with Runtime(...)`")
        return self._writer

    # --- writing --------------------------------------------------------------------------

    def append(
        self,
        session: str,
        events: Sequence[AnyEvent],
        claim: Claim | None,
        *,
        blobs: Mapping[str, bytes] | None = None,
        release: bool = False,
    ) -> asyncio.Future[None] | None:
        """Add events to one session, all or none, and stamp them."""
        if claim is not None and claim.failure is not None:
            raise claim.failure
        job = Append(session, events, claim, blobs, release)
        if release and claim is not None:
            self._claims.pop(claim.root, None)
            claim.released = True
        return self._open_writer().submit(job, session)

    async def _operate(self, work: Callable[[Tx], Any]) -> Any:
        job = Operation(work)
        future = self._open_writer().submit(job, "")
        return job.result() if future is None else await future

    def _committed(self, first: int, last: int, jobs: Sequence[Job]) -> None:
        """After each commit of this process: see what others wrote before it, tell who waits, wake the others."""
        if not last:
            return
        if first > self._seen + 1:
            self._hear(self._seen, first)
        self._seen = max(self._seen, last)
        for job in jobs:
            if isinstance(job, Append) and job.claim is None and job.error is None:
                self._tell(job.events)
        if last >= first:
            self._release_waiters()
            self._wake.call()

    # --- owning ---------------------------------------------------------------------------

    async def claim(self, root: str, *, take_over: bool = False) -> Claim:
        """Become the owner of a run tree; SessionBusy if a living process owns it, unless `take_over`."""
        mine = self._claims.get(root)
        if mine is not None and mine.failure is None and not take_over:
            raise SessionBusy(root, "this program")
        epoch: int = await self._operate(lambda tx: self._take(tx, root, take_over))
        if mine is not None:
            mine.fail(SessionTakenOver(root))
        claim = self._claims[root] = Claim(root, epoch)
        if self._heart is None:
            self._heart = _Heart(self.where, self._me.id, self.now, self._claims, asyncio.get_running_loop())
        self._watch()
        return claim

    def _take(self, tx: Tx, root: str, take_over: bool) -> int:
        row = tx.db.execute("SELECT n, owner FROM sessions WHERE id = ?", (root,)).fetchone()
        if row is None:
            raise UnknownSession(root)
        n, owner = row
        name = self._living(tx.db, owner) if owner and not take_over else ""
        if name:
            raise SessionBusy(root, name)
        me = self._me
        beat = "INSERT OR REPLACE INTO processes VALUES (?, ?, ?, ?, ?, ?)"
        tx.db.execute(beat, (me.id, me.name, me.machine, me.pid, me.born, tx.now))
        take = "UPDATE sessions SET epoch = epoch + 1, owner = ? WHERE n = ? RETURNING epoch"
        return tx.db.execute(take, (me.id, n)).get

    def _living(self, db: apsw.Connection, owner: str) -> str:
        """The owner's name if it lives, else ""."""
        sql = "SELECT name, machine, pid, born, beat FROM processes WHERE id = ?"
        row = db.execute(sql, (owner,)).fetchone()
        if row is None:
            return ""
        name, machine, pid, born, beat = row
        if self.now() - beat > LATE or (machine == self._me.machine and is_gone(pid, born)):
            return ""
        return name

    async def release(self, claim: Claim) -> None:
        """Stop owning; nothing happens if the claim was lost."""
        if self._claims.get(claim.root) is claim:
            del self._claims[claim.root]
        if claim.failure is None and not claim.released:
            claim.released = True
            await self._operate(lambda tx: tx.release(claim))

    # --- reading --------------------------------------------------------------------------

    def _query(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """Rows, through whichever connection is free: the reader is only opened when it is needed."""
        writer = self._open_writer()
        with explained(self.where):
            if writer.lock.acquire(blocking=False):
                try:
                    return writer.db.execute(sql, values).fetchall()
                finally:
                    writer.lock.release()
            if self._reader is None:
                self._reader = open_reader(self.where)
            return self._reader.execute(sql, values).fetchall()

    def _number(self, session: str) -> int | None:
        rows = self._query("SELECT n FROM sessions WHERE id = ?", (session,))
        return rows[0][0] if rows else None

    async def read(self, session: str, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        """Events of one session with `seq` above `after`, oldest first."""
        n = self._number(session)
        if n is None:
            return []
        low = n << SEQ_BITS
        sql = "SELECT key, pos, time, body FROM events WHERE key > ? AND key < ? ORDER BY key LIMIT ?"
        rows = self._query(sql, (low + after, low + (1 << SEQ_BITS), limit))
        return [self._decode(body, session, key - low, pos, at) for key, pos, at, body in rows]

    async def read_all(self, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        """Events of all sessions with `pos` above `after`, in the order they were stored."""
        return self._between(after, 1 << 62, limit)

    def _between(self, after: int, before: int, limit: int, only: tuple[bytes, ...] = ()) -> list[AnyEvent]:
        sql = (
            "SELECT s.id, e.key, e.pos, e.time, e.body FROM events e JOIN sessions s ON s.n = e.key >> 32 "
            "WHERE e.pos > ? AND e.pos < ? ORDER BY e.pos LIMIT ?"
        )
        rows = self._query(sql, (after, before, limit))
        mask = (1 << SEQ_BITS) - 1
        return [
            self._decode(body, session, key & mask, pos, at)
            for session, key, pos, at, body in rows
            if not only or body.startswith(only)
        ]

    def _decode(self, body: bytes, session: str, seq: int, pos: int, at: float) -> AnyEvent:
        try:
            return decode(body, session, seq, pos, at)
        except ValueError as error:
            problem = (
                f"event {seq} of session {session!r} can't be read ({error}); upgrade upcall, or restore a backup"
            )
            raise StoreDamaged(self.where, problem) from error

    async def last(self) -> int:
        """The position of the newest event."""
        return self._query("SELECT coalesce(max(pos), 0) FROM events")[0][0]

    async def row(self, session: str) -> Row | None:
        """One session as listed, or None."""
        rows = self._query(f"SELECT {_COLUMNS} WHERE s.id = ?", (session,))
        return self._row(rows[0]) if rows else None

    async def rows(self, *, parent: str | None = None, limit: int = 1000) -> list[Row]:
        """Sessions, newest first; with `parent`, its children, oldest first."""
        if parent is None:
            found = self._query(f"SELECT {_COLUMNS} ORDER BY s.n DESC LIMIT ?", (limit,))
        else:
            sql = f"SELECT {_COLUMNS} WHERE p.id = ? ORDER BY s.n LIMIT ?"
            found = self._query(sql, (parent, limit))
        return [self._row(r) for r in found]

    def _row(self, values: Sequence[Any]) -> Row:
        *head, n, base, owner = values
        low = n << SEQ_BITS
        sql = "SELECT max(key) FROM events WHERE key > ? AND key < ?"
        last = self._query(sql, (low, low + (1 << SEQ_BITS)))[0][0]
        name = self._living_now(owner) if owner else ""
        return Row(*head, seq=(last or low) - low, base=base, owner=name)

    def _living_now(self, owner: str) -> str:
        writer = self._open_writer()
        with explained(self.where), writer.lock:
            return self._living(writer.db, owner)

    async def blob(self, name: str) -> bytes:
        """A body stored once under its content hash."""
        rows = self._query("SELECT body FROM blobs WHERE hash = ?", (name,))
        if not rows:
            raise StoreError(self.where, f"no body is stored as {name}")
        return rows[0][0]

    # --- watching what others write -------------------------------------------------------

    def listen(self, hear: Callable[[AnyEvent], None]) -> Callable[[], None]:
        """Call `hear` on the event loop for every event that any process appends without a claim."""
        self._listeners.append(hear)
        return lambda: self._listeners.remove(hear)

    async def wait(self, after: int, timeout: float) -> None:
        """Return when an event with `pos` above `after` may be there, or after `timeout` seconds."""
        self._catch_up()
        if self._seen > after:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._watch()
        try:
            await asyncio.wait({waiter}, timeout=timeout)
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _watch(self) -> None:
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(SETTLE_IN, self._begin_watch)

    def _begin_watch(self) -> None:
        """Open the socket, and look at the file now and then while something waits here."""
        loop = asyncio.get_running_loop()
        socket = self._wake.listen()
        if socket is not None:
            loop.add_reader(socket, self._called)
        self._look_again()

    def _look_again(self) -> None:
        if not self._claims and not self._waiters:
            self._unwatch()
            self._look = None
            return
        self._catch_up()
        self._look = asyncio.get_running_loop().call_later(LOOK, self._look_again)

    def _unwatch(self) -> None:
        socket = self._wake.socket
        if socket is not None:
            asyncio.get_running_loop().remove_reader(socket)
        self._wake.stop()

    def _called(self) -> None:
        self._wake.drain()
        self._catch_up()

    def _catch_up(self) -> None:
        """See what others have written since the last look."""
        writer = self._open_writer()
        if writer.lock.locked():
            return  # this process is committing: the numbers it skips will tell
        version = self._query("PRAGMA data_version")[0][0]
        if version == self._version:
            return
        self._version = version
        last = self._query("SELECT coalesce(max(pos), 0) FROM events")[0][0]
        if last > self._seen:
            self._hear(self._seen, last + 1)
            self._seen = last
            self._release_waiters()

    def _hear(self, after: int, before: int) -> None:
        if self._listeners:
            with contextlib.suppress(StoreDamaged):  # whoever reads that session is told
                self._tell(self._between(after, before, 1 << 30, _OTHERS))

    def _tell(self, events: Sequence[AnyEvent]) -> None:
        for event in events:
            if isinstance(event, FOREIGN):
                for hear in tuple(self._listeners):
                    hear(event)

    def _release_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # --- deleting -------------------------------------------------------------------------

    async def delete(self, sessions: Sequence[str]) -> int:
        """Remove whole run trees that nobody owns; returns how many sessions went."""
        gone: int = await self._operate(lambda tx: self._remove(tx, sessions))
        with explained(self.where):
            await self._operate(lambda tx: None)
            self._query("PRAGMA incremental_vacuum")
        return gone

    def _remove(self, tx: Tx, sessions: Sequence[str]) -> int:
        roots: set[int] = set()
        for session in sessions:
            found = tx.number(session)
            if found is None:
                raise UnknownSession(session)
            owner = tx.db.execute("SELECT owner FROM sessions WHERE n = ?", (found[1],)).get
            name = self._living(tx.db, owner) if owner else ""
            if name:
                raise SessionBusy(session, name)
            roots.add(found[1])
        tx.db.execute("UPDATE counters SET value = ? WHERE name = 'pos'", (tx.pos,))
        gone = 0
        for root in roots:
            numbers: list[Any] = tx.db.execute(
                "SELECT n FROM sessions WHERE n = ? OR root = ?", (root, root)
            ).fetchall()
            for (n,) in numbers:
                low = n << SEQ_BITS
                tx.db.execute("DELETE FROM events WHERE key > ? AND key < ?", (low, low + (1 << SEQ_BITS)))
                tx.db.execute("DELETE FROM sessions WHERE n = ?", (n,))
                gone += 1
        tx.numbers.clear()
        tx.db.execute(
            "DELETE FROM blobs WHERE hash NOT IN (SELECT e.value FROM events, json_tree(CAST(body AS TEXT)) e "
            "WHERE e.key IN ('instructions', 'tools') AND e.type = 'text')"
        )
        return gone


class _Heart:
    """A thread that says every second that this process lives, and notices when a claim was lost."""

    def __init__(
        self,
        path: str,
        me: str,
        clock: Callable[[], float],
        claims: dict[str, Claim],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._path, self._me, self._clock, self._claims, self._loop = path, me, clock, claims, loop
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upcall-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        db: apsw.Connection | None = None
        while not self._stop.wait(BEAT):
            if not self._claims:
                continue
            with contextlib.suppress(apsw.Error, StoreError):  # the next beat may succeed; late ones cost the claim
                db = db or self._connect()
                db.execute("UPDATE processes SET beat = ? WHERE id = ?", (self._clock(), self._me))
                self._check(db)
        if db is not None:
            db.close()

    def _connect(self) -> apsw.Connection:
        db = open_reader(self._path)
        db.pragma("synchronous", 1)  # a lost heartbeat is no lost work: no fsync
        return db

    def _check(self, db: apsw.Connection) -> None:
        for root, claim in tuple(self._claims.items()):
            epoch = db.execute("SELECT epoch FROM sessions WHERE id = ?", (root,)).get
            if epoch != claim.epoch and claim.failure is None:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(claim.fail, SessionTakenOver(root))
