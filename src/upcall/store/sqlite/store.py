"""The log in one SQLite file that many processes may share."""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import apsw

from upcall.callbacks import Callback
from upcall.contracts import EVERYTHING, Claim, OnReady, Row, Selection, TakeLimit
from upcall.errors import (
    SessionBusy,
    SessionTakenOver,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
    UnknownSession,
)
from upcall.events import FOREIGN, AnyEvent, decode
from upcall.store.opening import LogFile, open_log
from upcall.store.rules import ENDED, as_of, claim_error, findable, findable_selection
from upcall.store.sqlite.deleting import remove_trees
from upcall.store.sqlite.heartbeat import BEATS, Heartbeat, interval
from upcall.store.sqlite.jobs import Append, Job, MultiAppend, Operation, Settle
from upcall.store.sqlite.listing_sql import (
    COLUMNS,
    COUNTS,
    ENDED_BEFORE,
    TREE_EVENTS,
    callbacks_where,
    row_of,
    sessions_listing,
    tree_values,
)
from upcall.store.sqlite.people import SqlitePeople, adopt
from upcall.store.sqlite.private_copy import PrivateCopy
from upcall.store.sqlite.process import LEASE, Identity, is_gone
from upcall.store.sqlite.queries import DUE, QUEUED, READY, Rows
from upcall.store.sqlite.queue import mark_taken, next_root
from upcall.store.sqlite.tables import BUSY, SEQ_BITS, connect, explain, new_id
from upcall.store.sqlite.transaction import Tx
from upcall.store.sqlite.wakeup import Wakeup
from upcall.store.sqlite.writer import Writer, fail_soon

log = logging.getLogger("upcall")
R = TypeVar("R")

LOOK = 0.2
"""Seconds between checks of the file's change counter while something waits here, in case datagrams are lost."""

SETTLE_IN = 0.05
"""Seconds before a turn opens a socket. Until then, foreign events are seen because our commits skip numbers."""

_PREFIXES = (f'{{"type":"{c.__struct_config__.tag}"'.encode() for c in FOREIGN)
_BY_OTHERS = " OR ".join(f"substr(e.body, 1, {len(p)}) = x'{p.hex()}'" for p in _PREFIXES)
_SEQ = (1 << SEQ_BITS) - 1


class SqliteStore(SqlitePeople):
    """A store in one file. Open it with `await store.open()`; many processes may have it open."""

    durable = True

    def __init__(
        self,
        path: str | Path | LogFile,
        clock: Callable[[], float] = time.time,
        busy: float = BUSY,
        on_ready: OnReady | None = None,
        lease: float = LEASE,
    ) -> None:
        """`on_ready` is called in the transaction that makes a run tree ready: see `upcall.contracts.OnReady`.

        `lease`: seconds without a heartbeat after which an owner counts as dead; the same for all processes that
        share the file.
        """
        self.lease = lease
        file = path if isinstance(path, LogFile) else LogFile(os.fspath(path))
        self.where = file.path if os.path.isabs(file.path) else str(Path(file.path).absolute())  # noqa: PTH117
        self.now = clock
        self._on_ready = on_ready
        self._log_file, self._busy = file._replace(path=self.where), busy
        self._file = self.where
        self._copy: PrivateCopy | None = None
        self._writer: Writer | None = None
        self._reader: Rows | None = None
        self._claims: dict[str, Claim] = {}
        self._claiming: list[str] = []
        self._listeners: list[Callable[[AnyEvent], None]] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._seen = 0
        self._version = -1
        self._look: asyncio.TimerHandle | None = None
        self._heart: Heartbeat | None = None
        self._beaten = self._until = 0.0

    # --- opening and closing --------------------------------------------------------------

    async def open(self) -> None:
        """Open or create the file; raise if it is not an Upcall log, too new or damaged."""
        if self._writer is not None:
            return
        self.where, db, self._copy = open_log(self._log_file, self._busy)
        self._file = self.where if self._copy is None else self._copy.path
        try:
            self._writer = Writer(db, self._file, self.now, self._busy, self._committed)
        except apsw.Error as error:
            db.close()
            self._remove_copy()
            raise explain(self.where, error) from error
        self._seen = self._writer.tx.pos
        self._writer.tx.on_ready = self._on_ready
        self._me = Identity()
        self._wake = Wakeup(self._file, self._me.id, self._log_file.trusted)

    @property
    def private_paths(self) -> tuple[str, ...]:
        """The files that agents must not read or write: the log, and the ids of the user's own logs."""
        noted = self._log_file.known.path if self._log_file.known is not None else ""
        return (self.where, noted) if noted else (self.where,)

    def duplicate(self) -> SqliteStore:
        """Another connection to the same log, for a thread of its own; it is not open yet."""
        return SqliteStore(self._log_file, self.now, self._busy, lease=self.lease)

    @property
    def foreign(self) -> bool:
        """True if this is a read-only copy of a log that is not the user's own."""
        return self._copy is not None

    async def adopt(self) -> None:
        """Make the log the user's own by recording a new id for it; its maker knows the old ones.

        The tokens in it are revoked: its maker knows them, too.
        """
        log_id = new_id()
        if self._log_file.known is not None:
            self._log_file.known.note(log_id)
        await self._operate(lambda tx: adopt(tx, log_id), sync=True)

    def _remove_copy(self) -> None:
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.close()

    async def close(self) -> None:
        """Commit the queued jobs and close the file."""
        writer = self._writer
        if writer is None:
            return
        if self._look is not None:
            self._look.cancel()
            self._unwatch()
        heart, self._heart = self._heart, None
        if heart is not None:
            heart.stop()
        if self._claims:
            with contextlib.suppress(StoreError):  # can't be written; others will see that this process has ended
                await self._operate(lambda tx: tx.execute("DELETE FROM processes WHERE id = ?", (self._me.id,)))
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.db.close()
        await writer.close()
        self._wake.close()
        self._remove_copy()
        if not self._claims:
            self._me.free()
        self._writer = self._look = None
        self._claims.clear()
        self._release_waiters()

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
        lazy: bool = False,
    ) -> asyncio.Future[None] | None:
        """Add events to one session, all or none, and stamp them."""
        writer = self._open_writer()
        if claim is not None and not claim.is_active:
            raise claim_error(claim, self.where)
        try:
            job = Append(session, events, claim, blobs, release)
            job.sync = not lazy
        except (TypeError, ValueError) as error:  # not valid JSON
            failure = explain(self.where, error)
            if claim is not None:
                fail_soon(claim, failure)
            raise failure from error
        if release and claim is not None:
            claim.released = True
        return writer.submit(job, session)

    async def _operate(self, work: Callable[[Tx], Any], root: str = "", *, sync: bool = False) -> Any:
        """Run a function in a transaction. Claims need no fsync: after a power cut no owner is alive."""
        job = Operation(work)
        job.sync = sync
        return await self._do(job, root)

    async def _do(self, job: Job, root: str = "") -> Any:
        future = self._open_writer().submit(job, root)
        return job.result() if future is None else await future

    def _committed(self, first: int, last: int, jobs: Sequence[Job]) -> None:
        """Run after each commit: read what others wrote before, notify waiters here, and wake other processes."""
        for job in jobs:
            if job.releases and job.claim is not None and job.error is None:
                self._forget(job.claim)
        if not last:
            return
        before = self._seen
        if first > before + 1:
            self._catch_up_to(first)
        if last >= first > self._seen:
            self._seen = last
            for job in jobs:
                if job.error is None:
                    self._tell(job.notifications())
        if self._waiters and self._seen > before:
            self._release_waiters()
        if last >= first:
            self._wake.notify()

    # --- owning ---------------------------------------------------------------------------

    async def claim(self, root: str, *, take_over: bool = False) -> Claim:
        """Become the owner of a run tree; SessionBusy if a living process owns it, unless `take_over`."""
        mine = self._claims.get(root)
        if not take_over and (root in self._claiming or (mine is not None and mine.is_active)):
            raise SessionBusy(root, "this program", is_local=True)
        self._claiming.append(root)
        until = time.monotonic() + self.lease
        try:
            claim, beaten = await self._operate(lambda tx: self._take(tx, root, take_over), root)
        finally:
            self._claiming.remove(root)
        return self._hold(claim, beaten, until)

    def _hold(self, claim: Claim, beaten: float, until: float) -> Claim:
        """Keep a new claim alive until it is released; it holds until then if its heartbeat was stored with it."""
        if beaten != self._beaten:  # else the heartbeat before this one still counts
            self._beaten, self._until = beaten, until
        claim.until = self._until
        mine = self._claims.get(claim.root)
        if mine is not None and mine.is_active:
            mine.fail(SessionTakenOver(claim.root))
        self._claims[claim.root] = claim
        if self._heart is None:
            loop = asyncio.get_running_loop()
            self._heart = Heartbeat(self._file, self._me, self.now, self._claims, loop, self.lease)
        self._heart.wake()
        self._watch()
        return claim

    def _take(self, tx: Tx, root: str, take_over: bool) -> tuple[Claim, float]:
        me, beaten = self._me, self._beaten
        found = tx.session(root)
        if found is None:
            raise UnknownSession(root)
        if not take_over and found.owner != me.id:  # else it is a failed claim of this process
            self._refuse_owned(tx, root, found.owner)
        if not 0.0 <= tx.now - beaten < interval(self.lease):  # else its row is there: only late ones are deleted
            tx.execute(BEATS, me.beat(tx.now))
            beaten = tx.now
        orphaned = not take_over and found.owner not in ("", me.id)
        found.epoch, found.owner = found.epoch + 1, me.id
        tx.save(found)
        return Claim(root, found.epoch, found.seq, found.base, orphaned), beaten

    async def take(
        self,
        agents: Collection[str] | None = None,
        *,
        exclude: Collection[str] = (),
        limits: Sequence[TakeLimit] = (),
    ) -> Claim | None:
        """Claim the next run tree that is ready to continue, or return None."""

        def take(tx: Tx) -> tuple[Claim, float] | None:
            busy = [*self._claiming, *[root for root, claim in self._claims.items() if claim.is_active]]
            root = next_root(tx, agents, [*exclude, *busy], limits, self._alive(tx))
            found = None if root is None else tx.session(root)
            if root is None or found is None:
                return None
            taken = self._take(tx, root, take_over=False)
            mark_taken(tx, found, limits)
            return taken

        until = time.monotonic() + self.lease
        taken: tuple[Claim, float] | None = await self._operate(take)
        return None if taken is None else self._hold(taken[0], taken[1], until)

    def _refuse_owned(self, tx: Tx, session: str, owner: str) -> None:
        sql = "SELECT id, name, machine, pid, born, beat FROM processes WHERE id = ?"
        row: Any = tx.execute(sql, (owner,)).get if owner else None
        name = self._living(row) if row else ""
        if name:
            raise SessionBusy(session, name)

    def _living(self, process: Sequence[Any]) -> str:
        """Return a process's name if it is alive, else ""."""
        _, name, machine, pid, born, beat = process
        if self.now() - beat > self.lease or (machine == self._me.machine and is_gone(pid, born)):
            return ""
        return name

    async def confirm(self, claim: Claim) -> None:
        """Return when a new heartbeat has been stored and the claim still holds; raise what it was lost to."""
        while claim.is_active:
            until = time.monotonic() + self.lease
            try:
                await self._operate(lambda tx: self._confirm(tx, claim), claim.root)
            except SessionTakenOver as error:
                claim.fail(error)
            except StoreUnavailable:
                if self._writer is None:
                    raise
                await asyncio.sleep(LOOK)
            else:
                claim.until = max(claim.until, until)
                return
        raise claim_error(claim, self.where)

    def _confirm(self, tx: Tx, claim: Claim) -> None:
        tx.check_fence(claim)
        tx.execute(BEATS, self._me.beat(tx.now))

    async def release(self, claim: Claim) -> None:
        """Stop owning; nothing happens if the claim was lost."""
        if claim.failure is not None or claim.released:
            return
        claim.released = True
        try:
            await self._operate(lambda tx: tx.release(claim), claim.root)
        except StoreError as error:
            claim.fail(error)  # released when the file can be written again
            raise
        self._forget(claim)

    def _forget(self, claim: Claim) -> None:
        if self._claims.get(claim.root) is claim:
            del self._claims[claim.root]

    # --- reading --------------------------------------------------------------------------

    def _query(self, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        return self._look_up(lambda rows: cast("list[Any]", rows.execute(sql, values).fetchall()))

    def _look_up(self, read: Callable[[Rows], R]) -> R:
        """Read through the connection that is free; the reader is opened only when needed."""
        writer = self._open_writer()
        try:
            if writer.lock.acquire(blocking=False):
                try:
                    return read(writer.tx)
                finally:
                    writer.lock.release()
            if self._reader is None:
                self._reader = Rows(connect(self._file, self._busy))
            return read(self._reader)
        except apsw.Error as error:
            raise explain(self.where, error) from error

    async def read(self, session: str, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        """Return the events of one session with `seq` above `after`, oldest first."""
        rows = self._look_up(lambda rows: rows.events(session, after, limit))
        return [self._decode(body, session, key & _SEQ, pos, at) for key, pos, at, body in rows]

    async def read_all(self, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        """Return the events of all sessions with `pos` above `after`, in the order they were stored."""
        return self._between(after, 1 << 62, limit)

    async def read_tree(self, session: str, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        """Return the events of a session and all below it with `pos` above `after`, in order of position."""
        return self._decoded(
            lambda after: self._query(TREE_EVENTS, tree_values(findable(session), after, limit)), after
        )

    def _between(self, after: int, before: int, limit: int, which: str = "1") -> list[AnyEvent]:
        sql = (
            "SELECT s.id, e.key, e.pos, e.time, e.body FROM events e JOIN sessions s ON s.n = e.key >> 32 "
            f"WHERE e.pos > ? AND e.pos < ? AND ({which}) ORDER BY e.pos LIMIT ?"
        )
        return self._decoded(lambda after: self._query(sql, (after, before, limit)), after)

    def _decoded(self, read: Callable[[int], list[Any]], after: int) -> list[AnyEvent]:
        """Return the next events that can be read; an unreadable one is left out, with a warning."""
        found: list[AnyEvent] = []
        while not found and (rows := read(after)):
            for session, key, pos, at, body in rows:
                try:
                    found.append(self._decode(body, session, key & _SEQ, pos, at))
                except StoreDamaged as error:  # only reading that session is refused
                    log.warning("an event is left out: %s", error)
                after = pos
        return found

    def _decode(self, body: bytes, session: str, seq: int, pos: int, at: float) -> AnyEvent:
        try:
            return decode(body, session, seq, pos, at)
        except ValueError as error:
            problem = (
                f"event {seq} of session {session!r} can't be read ({error}); upgrade upcall, or restore a backup"
            )
            raise StoreDamaged(self.where, problem) from error

    async def last(self) -> int:
        """Return the position of the newest event."""
        return self._query("SELECT coalesce(max(pos), 0) FROM events")[0][0]

    async def row(self, session: str) -> Row | None:
        """Return one session's row, or None."""
        rows = self._query(f"SELECT {COLUMNS} WHERE s.id = ?", (findable(session),))
        return row_of(rows[0], self._living) if rows else None

    async def rows(
        self,
        *,
        parent: str | None = None,
        which: Selection = EVERYTHING,
        before: str | None = None,
        limit: int = 1000,
    ) -> list[Row]:
        """Return the sessions that match, newest first; with `parent`, its children, oldest first."""
        which, parent = findable_selection(which), parent and findable(parent)
        found = self._query(*sessions_listing(which, parent, self._alive, before and findable(before), limit))
        return [row_of(values, self._living) for values in found]

    async def blob(self, name: str) -> bytes:
        """Return the body with this content hash."""
        rows = self._query("SELECT body FROM blobs WHERE hash = ?", (findable(name),))
        if not rows:
            raise StoreError(self.where, f"no body is stored as {name!r}")
        return rows[0][0]

    # --- callbacks ------------------------------------------------------------------------

    async def append_all(self, events: Mapping[str, Sequence[AnyEvent]], *, queue_limit: int | None = None) -> None:
        """Add events that need no claim to several sessions, all or none."""
        await self._do(MultiAppend(events, queue_limit=queue_limit))

    async def park(
        self,
        claim: Claim,
        events: Mapping[str, Sequence[AnyEvent]],
        waits: Sequence[str],
        blobs: Mapping[str, bytes] | None = None,
    ) -> bool:
        """Append to several sessions and release the claim, if all these callbacks are still open."""
        parked: bool = await self._do(MultiAppend(events, claim, waits, blobs), claim.root)
        claim.released = claim.released or parked
        return parked

    async def settle(
        self, callback_id: str, events: Mapping[str, AnyEvent], claim: Claim | None = None
    ) -> Callback | None:
        """Settle a callback, and others with it, if it is open and not expired: the first one wins."""
        return await self._do(Settle(callback_id, events, claim))

    async def callback(self, callback_id: str) -> Callback | None:
        """Return one callback, or None."""
        try:
            return self._look_up(lambda rows: rows.callback(callback_id))
        except ValueError as error:
            raise StoreDamaged(self.where, f"{error}; upgrade upcall, or restore a backup") from error

    async def callbacks(
        self,
        *,
        root: str | None = None,
        inbox: bool = False,
        which: Selection = EVERYTHING,
        limit: int = 100_000,
    ) -> list[Callback]:
        """Return a run tree's callbacks, oldest first; or those for a person that match, highest priority first."""
        if not inbox:
            return self._look_up(lambda rows: rows.of_tree(root or "", limit))
        now = self.now()
        where = callbacks_where(findable_selection(which), now)
        return [as_of(one, now) for one in self._look_up(lambda rows: rows.for_person(where, limit))]

    async def unfinished(self, limit: int | None = None) -> list[Row]:
        """Return the root sessions that are ready to continue, oldest first."""
        now = self.now()
        free = (
            "s.status IN ('running', 'waiting', 'queued') AND s.owner NOT IN (SELECT value FROM json_each(:alive))"
        )
        waits = "s.n NOT IN (SELECT value FROM json_each(:held))"
        ready = f"{READY} UNION ALL {QUEUED}"
        sql = f"SELECT {COLUMNS} WHERE s.n IN ({ready}) AND {free} AND {waits} ORDER BY s.n LIMIT :limit"
        held = json.dumps(self._look_up(lambda rows: rows.held_by_hooks(now)))
        most = -1 if limit is None else limit
        found = self._query(sql, {"now": now, "alive": self._alive(), "held": held, "limit": most})
        return [row_of(values, self._living) for values in found]

    async def counts(self) -> Mapping[str, int]:
        """Return how many root sessions have each status."""
        counts: dict[str, int] = dict(self._query(COUNTS, (self._alive(),)))
        return {status: count for status, count in counts.items() if count}

    async def pause(self, name: str, until: float) -> None:
        """Note for all processes that something is not to be used before this time."""
        sql = "INSERT INTO pauses VALUES (?, ?) ON CONFLICT DO UPDATE SET until = max(until, excluded.until)"
        await self._operate(lambda tx: tx.execute(sql, (name, until)))

    async def pauses(self) -> Mapping[str, float]:
        """Return what is paused now, with the time until when."""
        return dict(self._query("SELECT name, until FROM pauses WHERE until > ?", (self.now(),)))

    async def prune(self, before: float, limit: int = 1000) -> int:
        """Delete run trees that ended before this time, oldest first."""
        values = (json.dumps(ENDED), self._alive(), before, limit)
        sessions = [session for (session,) in self._query(ENDED_BEFORE, values)]
        return await self.delete(sessions) if sessions else 0

    def _alive(self, tx: Tx | None = None) -> str:
        """Return the ids of living processes as a JSON list, for queries: the file does not record deaths."""
        sql = "SELECT id, name, machine, pid, born, beat FROM processes"
        processes: list[Any] = self._query(sql) if tx is None else tx.execute(sql).fetchall()
        return json.dumps([process[0] for process in processes if self._living(process)])

    async def next_deadline(self, after: float) -> float | None:
        """Return the first time after `after` at which a parked session's callback expires or a retry is due."""
        expiry = f"SELECT min({DUE}) AS due FROM callbacks WHERE awaited AND {DUE} > ?1"
        retry = "SELECT min(due) FROM queue WHERE ready AND due > 0 AND due > ?1"
        return self._query(f"SELECT min(due) FROM ({expiry} UNION ALL {retry})", (after,))[0][0]

    # --- watching what others write -------------------------------------------------------

    def listen(self, hear: Callable[[AnyEvent], None]) -> Callable[[], None]:
        """Call `hear` on the event loop for every event that any process appends without a claim."""
        self._listeners.append(hear)
        return lambda: self._listeners.remove(hear) if hear in self._listeners else None

    async def wait(self, after: int, timeout: float) -> None:
        """Return when an event with `pos` above `after` may be there, or after `timeout` seconds."""
        self._open_writer()
        self._catch_up()
        if self._seen > after and self._query("SELECT 1 FROM events WHERE pos > ? LIMIT 1", (after,)):
            return
        self._waiters.append(waiter := asyncio.get_running_loop().create_future())
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
        """Open the socket, and check the file at intervals while something waits here."""
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
        """Read what others have written since the last check; if that fails now, try again later."""
        writer = self._writer
        if writer is None or writer.lock.locked():
            return  # this process is committing; skipped numbers will show foreign events
        with contextlib.suppress(StoreError):
            version = self._query("PRAGMA data_version")[0][0]
            if version == self._version:
                return
            last = self._query("SELECT coalesce(max(pos), 0) FROM events")[0][0]
            if last <= self._seen:
                self._version = version
            elif self._catch_up_to(last + 1):
                self._version = version
                self._release_waiters()

    def _catch_up_to(self, before: int) -> bool:
        """Notify listeners of what others appended up to a position."""
        try:
            events = self._between(self._seen, before, -1, _BY_OTHERS) if self._listeners else ()
        except StoreError:
            return False
        self._seen = before - 1
        self._tell(events)
        return True

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
        """Delete whole run trees that nobody owns; return the number of deleted sessions."""
        return await self._operate(lambda tx: remove_trees(tx, sessions, self._refuse_owned), sync=True)
