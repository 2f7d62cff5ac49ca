"""The log in a PostgreSQL database that many machines share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from functools import partial
from typing import Any

from upcall.callbacks import Callback
from upcall.contracts import EVERYTHING, Claim, Row, Selection, TakeLimit
from upcall.errors import (
    SessionBusy,
    SessionTakenOver,
    StoreDamaged,
    StoreError,
    UnknownSession,
)
from upcall.events import AnyEvent
from upcall.store.postgres import queries as sql
from upcall.store.postgres.connection import PATIENCE, SHORTEST, Connection, ConnectionLost, closed
from upcall.store.postgres.follower import Follower
from upcall.store.postgres.jobs import Append, Claiming, Job, MultiAppend, Operation, Settle, limits_json, plain
from upcall.store.postgres.listen import RENEW, Pulse, columns
from upcall.store.postgres.people import PostgresPeople
from upcall.store.postgres.url import Address, explain, parse
from upcall.store.postgres.writer import Writer, fail_soon
from upcall.store.rules import (
    ENDED,
    NOBODY,
    as_of,
    claim_error,
    counts_takes,
    findable,
    findable_selection,
)
from upcall.store.sqlite.heartbeat import interval
from upcall.store.sqlite.process import LEASE, Identity, is_gone

log = logging.getLogger("upcall")

_TAKE = "SELECT * FROM upcall.take(%s, %s, %s, %s, %s, %s, %s, %s::text[], %s::text[], %s::jsonb, %s)"
_STRAYS = "UPDATE upcall.sessions SET owner = '' WHERE owner = %s AND id <> ALL (%s)"
_REMOVE = "SELECT * FROM upcall.remove(%s::text[], %s::text[], %s)"
_NEIGHBOURS = "SELECT id, pid, born FROM upcall.processes WHERE machine = %s AND id <> %s"


class PostgresStore(PostgresPeople):
    """A store in a PostgreSQL database. Open it with `await store.open()`; many processes may have it open."""

    durable = True

    def __init__(
        self,
        url: str,
        lease: float = LEASE,
        clock: Callable[[], float] | None = None,
        *,
        patience: float = PATIENCE,
    ) -> None:
        """`lease`: seconds without a heartbeat after which this process counts as dead.

        `patience`: seconds for which reading, starting and answering wait while the server can't be reached.
        `clock` replaces this process's estimate of the server's clock, for tests.
        """
        self._address: Address = parse(url)
        self.where, self.lease, self._own_clock = self._address.shown, lease, clock
        self._patience = patience
        self._delta = 0.0
        self._url = url
        self._reader: Connection | None = None
        self._writer: Writer | None = None
        self._connection: Connection | None = None
        self._claims: dict[str, Claim] = {}
        self._claiming: list[str] = []
        self._taking, self._owns_strays = asyncio.Lock(), False
        self._follower = Follower(self.where, self._read, self._claims, self._watch)
        self._pulse: Pulse | None = None
        self._beaten = self._until = 0.0

    def __repr__(self) -> str:
        return f"PostgresStore({self.where!r})"

    def now(self) -> float:
        """The server's clock, as far as this process knows it."""
        return self._own_clock() if self._own_clock is not None else time.time() + self._delta

    # --- opening and closing --------------------------------------------------------------

    async def open(self) -> None:
        """Connect, and create or upgrade the schema; raise if it is not ours or too new."""
        if self._writer is not None:
            return
        connection, reader = (Connection(self._address, self._patience) for _ in range(2))
        try:
            await connection.open()
            before = time.time()
            horizon, clock, last, _ = (await connection.read(sql.NEWS))[0]
        except BaseException:
            await connection.close()
            raise
        self._note_clock(clock - (before + time.time()) / 2)
        self._connection, self._reader = connection, reader
        self._me = Identity()
        self._writer = Writer(self._address, connection, self._committed)
        self._follower.open(horizon, last)

    def duplicate(self) -> PostgresStore:
        """Another store on the same log, for a thread of its own; it is not open yet."""
        return PostgresStore(self._url, self.lease, self._own_clock, patience=self._patience)

    async def close(self) -> None:
        """Write what is queued, and close the connections."""
        writer, reader, connection = self._writer, self._reader, self._connection
        if writer is None or reader is None or connection is None:
            return
        await writer.close()
        self._writer = None
        await self._follower.close()
        pulse, self._pulse = self._pulse, None
        if pulse is not None:
            await asyncio.get_running_loop().run_in_executor(None, pulse.stop)
        if self._claims:
            with contextlib.suppress(Exception):  # others will see that this process has ended
                await connection.run("DELETE FROM upcall.processes WHERE id = %s", (self._me.id,))
        await connection.close()
        await reader.close()
        if not self._claims:
            self._me.free()
        self._reader = self._connection = None
        self._claims.clear()
        self._follower.release_all()

    def _note_clock(self, delta: float) -> None:
        self._delta = delta

    def _open_writer(self) -> Writer:
        if self._writer is None:
            raise closed(self._address)
        return self._writer

    async def _read(self, statement: str, values: Any = ()) -> list[Any]:
        if self._reader is None:
            raise closed(self._address)
        return await self._reader.read(statement, values)

    @property
    def statements(self) -> int:
        """The number of round trips to the server so far, without heartbeats and looks at what others wrote."""
        sent = sum(one.statements for one in (self._connection, self._reader) if one is not None)
        return sent - self._follower.looks

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
    ) -> asyncio.Future[None]:
        """Add events to one session, all or none, and stamp them."""
        writer = self._open_writer()
        if claim is not None and not claim.is_active:
            raise claim_error(claim, self.where)
        try:
            job = Append(session, events, claim, blobs, release)
        except (TypeError, ValueError) as error:  # not valid JSON
            failure = explain(self._address, error)
            if claim is not None:
                fail_soon(claim, failure)
            raise failure from error
        job.lazy = lazy
        self._number(job)
        if release and claim is not None:
            claim.released = True
        return writer.submit(job)

    @contextlib.contextmanager
    def _as_ours(self) -> Generator[None]:
        """Raise a StoreError for events that are not valid JSON."""
        try:
            yield
        except (TypeError, ValueError) as error:
            raise explain(self._address, error) from error

    def _number(self, job: Job) -> None:
        """Give an append of a claim its number, by which it is found if its connection breaks."""
        if job.claim is not None:
            job.number = secrets.randbits(62)

    async def _do(self, job: Job) -> Any:
        self._number(job)
        return await asyncio.shield(self._open_writer().submit(job))

    def _committed(self, jobs: Sequence[Job]) -> None:
        """Run after each commit: look for what others wrote before, and tell those who wait here."""
        newest, foreign = 0, False
        for job in jobs:
            if job.releases and job.claim is not None:
                self._forget(job.claim)
            for part in job.parts:
                newest = max(newest, part.events[-1].pos)
            foreign = foreign or bool(job.notifications())
        self._follower.note_own(newest, foreign=foreign)

    async def append_all(self, events: Mapping[str, Sequence[AnyEvent]], *, queue_limit: int | None = None) -> None:
        """Add events that need no claim to several sessions, all or none."""
        with self._as_ours():
            job = MultiAppend(events, queue_limit=queue_limit)
        await self._do(job)

    async def park(
        self,
        claim: Claim,
        events: Mapping[str, Sequence[AnyEvent]],
        waits: Sequence[str],
        blobs: Mapping[str, bytes] | None = None,
    ) -> bool:
        """Append to several sessions and release the claim, if all these callbacks are still open."""
        if claim.failure is not None:
            raise claim.failure
        parked: bool = await self._do(MultiAppend(events, claim, waits, blobs))
        claim.released = claim.released or parked
        return parked

    async def settle(
        self, callback_id: str, events: Mapping[str, AnyEvent], claim: Claim | None = None
    ) -> Callback | None:
        """Settle a callback, and others with it, if it is open and not expired: the first one wins."""
        if claim is not None and claim.failure is not None:
            raise claim.failure
        with self._as_ours():
            job = Settle(callback_id, events, claim)
        return await self._do(job)

    # --- owning ---------------------------------------------------------------------------

    async def claim(self, root: str, *, take_over: bool = False) -> Claim:
        """Become the owner of a run tree; SessionBusy if a living process owns it, unless `take_over`."""
        mine = self._claims.get(root)
        if not take_over and (root in self._claiming or (mine is not None and mine.is_active)):
            raise SessionBusy(root, "this program", is_local=True)
        self._claiming.append(root)
        try:
            return await self._claim(root, take_over)
        finally:
            self._claiming.remove(root)

    async def _claim(self, root: str, take_over: bool, gone: str = "") -> Claim:
        until, beat = time.monotonic() + self.lease, self._is_beat_due()
        job = Claiming(findable(root), columns(self._me, self.lease), beat=beat, take_over=take_over, gone=gone)
        problem, epoch, seq, base, orphaned, owner, name, machine, pid, born = await self._do(job)
        if problem == "busy":
            if machine == self._me.machine and is_gone(pid, born):
                return await self._claim(root, take_over, gone=owner)
            raise SessionBusy(root, name)
        if problem is not None:
            raise UnknownSession(root)
        return self._hold(Claim(root, epoch, seq, base, orphaned), until if beat else None)

    def _is_beat_due(self) -> bool:
        return not 0.0 <= time.monotonic() - self._beaten < interval(self.lease)

    def _hold(self, claim: Claim, until: float | None) -> Claim:
        """Keep a new claim alive until it is released. `until`: its heartbeat was stored with it."""
        if until is not None:
            self._beaten, self._until = until - self.lease, until
        mine = self._claims.get(claim.root)
        if mine is not None and mine.is_active:
            mine.fail(SessionTakenOver(claim.root))
        claim.until = self._until
        self._claims[claim.root] = claim
        self._follower.follow()
        return claim

    async def take(
        self,
        agents: Collection[str] | None = None,
        *,
        exclude: Collection[str] = (),
        limits: Sequence[TakeLimit] = (),
    ) -> Claim | None:
        """Claim the next run tree that is ready to continue, or return None."""
        async with self._taking:  # what one take returns is held before the next may look for strays
            return await self._take(agents, exclude, limits)

    async def _take(
        self, agents: Collection[str] | None, exclude: Collection[str], limits: Sequence[TakeLimit]
    ) -> Claim | None:
        until, beat = time.monotonic() + self.lease, self._is_beat_due()
        active = [root for root, claim in self._claims.items() if claim.is_active]
        skip = [*map(findable, exclude), *self._claiming, *active]
        job = Operation(
            _TAKE,
            (*columns(self._me, self.lease), beat, None if agents is None else [*map(findable, agents)], skip,
             limits_json(limits), counts_takes(limits)),
            repair=self._strays, lost=self._owns_strays,
        )  # fmt: skip
        try:
            rows = await self._do(job)
        except asyncio.CancelledError:  # it may be taken all the same
            job.future.add_done_callback(partial(self._give_back, job))
            raise
        except StoreError:  # it may be taken, and its answer was lost
            self._owns_strays |= job.lost
            raise
        self._owns_strays &= not job.lost  # else it was repaired
        if not rows:
            return None
        root, epoch, seq, base, orphaned = rows[0]
        return self._hold(Claim(root, epoch, seq, base, orphaned), until if beat else None)

    def _strays(self) -> tuple[str, tuple[Any, ...]]:
        """Return the statement that releases what takes gave this process whose answers were lost."""
        held = [root for root, claim in self._claims.items() if claim.failure is None]
        return _STRAYS, (self._me.id, [*self._claiming, *held])

    def _give_back(self, job: Operation, taken: asyncio.Future[Any]) -> None:
        """Release what was taken for somebody who no longer waits for it."""
        if taken.cancelled() or taken.exception() is not None:
            self._owns_strays |= job.lost
            return
        for root, epoch, *_ in taken.result():
            with contextlib.suppress(StoreError):  # it is closed: this process does not own it for long
                self._open_writer().submit(Operation("SELECT upcall.release(%s, %s)", (root, epoch), root))

    async def confirm(self, claim: Claim) -> None:
        """Return when a new heartbeat has been stored and the claim still holds; raise what it was lost to."""
        while claim.is_active and self._reader is not None:
            until = time.monotonic() + self.lease
            try:
                values = (*columns(self._me, self.lease), [claim.root], [claim.epoch])
                ((lost, _),) = await self._reader.run(RENEW, values)
            except ConnectionLost:
                await asyncio.sleep(SHORTEST * 2)
                continue
            if not lost:
                claim.until = max(claim.until, until)
                return
            claim.fail(SessionTakenOver(claim.root))
        if self._reader is None:
            raise closed(self._address)
        raise claim_error(claim, self.where)

    async def release(self, claim: Claim) -> None:
        """Stop owning; nothing happens if the claim was lost."""
        if claim.failure is not None or claim.released:
            return
        claim.released = True
        try:
            await self._do(Operation("SELECT upcall.release(%s, %s)", (claim.root, claim.epoch), claim.root))
        except StoreError as error:
            claim.fail(error)  # released when the server can be reached again
            raise
        self._forget(claim)

    def _forget(self, claim: Claim) -> None:
        if self._claims.get(claim.root) is claim:
            del self._claims[claim.root]

    def _living(self, process: Sequence[Any]) -> str:
        """Return a process's name if it is alive, else "". Of other machines, only the heartbeat is known."""
        _, name, machine, pid, born = process
        return "" if machine == self._me.machine and is_gone(pid, born) else name

    async def _gone(self) -> list[str]:
        """Return the ids of processes of this machine that have ended. Only those who write delete their rows."""
        neighbours = await self._read(_NEIGHBOURS, (self._me.machine, self._me.id))
        return [one for one, pid, born in neighbours if is_gone(pid, born)]

    async def _forget_dead(self) -> list[str]:
        """Delete the rows of processes of this machine that have ended; return their ids."""
        gone = await self._gone()
        if gone:
            await self._read("DELETE FROM upcall.processes WHERE id = ANY (%s)", (gone,))
        return gone

    # --- reading --------------------------------------------------------------------------

    async def read(self, session: str, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        """Return the events of one session with `seq` above `after`, oldest first."""
        rows = await self._read(sql.EVENTS, (findable(session), after, limit))
        return [sql.event_of(self.where, row) for row in rows]

    async def read_all(self, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        """Return the events of all sessions with `pos` above `after`, in the order of their positions."""
        await self._follower.wait_for_own()
        return await self._readable(lambda after: self._read(sql.ALL_EVENTS, (after, limit)), after)

    async def read_tree(self, session: str, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        """Return the events of a session and all below it with `pos` above `after`, in order of position."""

        def page(after: int) -> Any:
            return self._read(sql.TREE_EVENTS, {"session": findable(session), "after": after, "limit": limit})

        return await self._readable(page, after)

    async def _readable(self, read: Callable[[int], Any], after: int) -> list[AnyEvent]:
        """Return the next events that can be read; an unreadable one is left out, with a warning."""
        found: list[AnyEvent] = []
        while not found and (rows := await read(after)):
            for row in rows:
                with sql.left_out("an event"):  # only reading that session is refused
                    found.append(sql.event_of(self.where, row))
                after = row[2]
        return found

    async def last(self) -> int:
        """Return the position of the newest event."""
        await self._follower.wait_for_own()
        return (await self._read(sql.LAST))[0][0]

    async def row(self, session: str) -> Row | None:
        """Return one session's row, or None."""
        rows = await self._read(sql.ROW, (findable(session),))
        return sql.row_of(rows[0], self._living) if rows else None

    async def rows(
        self,
        *,
        parent: str | None = None,
        which: Selection = EVERYTHING,
        before: str | None = None,
        limit: int = 1000,
    ) -> list[Row]:
        """Return the sessions that match, newest first; with `parent`, its children, oldest first."""
        gone = await self._gone() if which.status in ("running", "interrupted", "waiting") else []
        which, parent, before = findable_selection(which), parent and findable(parent), before and findable(before)
        found = await self._read(*sql.sessions_listing(which, gone, parent, before, limit))
        return [sql.row_of(values, self._living) for values in found]

    async def blob(self, name: str) -> bytes:
        """Return the body with this content hash."""
        rows = await self._read("SELECT body FROM upcall.blobs WHERE hash = %s", (findable(name),))
        if not rows:
            raise StoreError(self.where, f"no body is stored as {name!r}")
        return rows[0][0]

    async def callback(self, callback_id: str) -> Callback | None:
        """Return one callback, or None."""
        rows = await self._read(sql.CALLBACKS_BY_ID, ([findable(callback_id)],))
        return self._callback(rows[0]) if rows else None

    def _callback(self, row: Sequence[Any]) -> Callback:
        try:
            return sql.callback_of(row)
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
        if inbox:
            rows = await self._read(*sql.inbox_listing(findable_selection(which), limit))
        else:
            rows = await self._read(sql.CALLBACKS_OF_TREE, (findable(root or ""), limit))
        found: list[Callback] = []
        for row in rows:
            with sql.left_out("a callback"):
                found.append(as_of(self._callback(row), row[2]) if inbox else self._callback(row))
        return found

    async def unfinished(self, limit: int | None = None) -> list[Row]:
        """Return the root sessions that are ready to continue, oldest first."""
        found = await self._read(sql.UNFINISHED, (await self._gone(), limit))
        return [sql.row_of(values, self._living) for values in found]

    async def next_deadline(self, after: float) -> float | None:
        """Return the first time after `after` at which a parked session's callback expires or a retry is due."""
        return (await self._read(sql.NEXT_DEADLINE, (after, after)))[0][0]

    async def counts(self) -> Mapping[str, int]:
        """Return how many root sessions have each status."""
        return dict(await self._read(sql.COUNTS, (await self._gone(),)))

    async def pause(self, name: str, until: float) -> None:
        """Note for all processes that something is not to be used before this time."""
        await self._do(Operation(sql.PAUSE, (plain(name), until)))

    async def pauses(self) -> Mapping[str, float]:
        """Return what is paused now, with the time until when."""
        return dict(await self._read(sql.PAUSES))

    # --- watching what others write -------------------------------------------------------

    def listen(self, hear: Callable[[AnyEvent], None]) -> Callable[[], None]:
        """Call `hear` on the event loop for every event that any process appends without a claim."""
        return self._follower.listen(hear)

    async def wait(self, after: int, timeout: float) -> None:
        """Return when an event with `pos` above `after` may be there, or after `timeout` seconds."""
        self._open_writer()
        await self._follower.wait(after, timeout)

    def _watch(self, waits: bool) -> None:
        """Have the thread send heartbeats for claims, and listen for notifications if something waits here."""
        if self._pulse is None and not waits and not self._claims:
            return
        if self._pulse is None:
            look = self._follower.look_soon
            self._pulse = Pulse(self._address, self._me, self.lease, self._claims, look, self._note_clock)
        self._pulse.wake(watch=waits)

    # --- deleting -------------------------------------------------------------------------

    async def delete(self, sessions: Sequence[str]) -> int:
        """Delete whole run trees that nobody owns; return the number of deleted sessions."""
        if unknown := next((one for one in sessions if findable(one) == NOBODY), None):
            raise UnknownSession(unknown)
        gone = await self._forget_dead()
        job = Operation(_REMOVE, ([*sessions], gone, False), again=(_REMOVE, ([*sessions], gone, True)))
        ((problem, session, owner, deleted),) = await self._do(job)
        if problem == "unknown":
            raise UnknownSession(session)
        if problem == "busy":
            names = await self._read("SELECT name FROM upcall.processes WHERE id = %s", (owner,))
            raise SessionBusy(session, names[0][0] if names else owner, is_local=owner == self._me.id)
        return deleted

    async def prune(self, before: float, limit: int = 1000) -> int:
        """Delete run trees that ended before this time, oldest first; return the number of deleted sessions."""
        values = (list(ENDED), await self._forget_dead(), before, limit)
        found = [one for (one,) in await self._read(sql.ENDED_BEFORE, values)]
        deleted = 0
        for start in range(0, len(found), 100):  # a few at a time: meanwhile nobody stores bodies
            with contextlib.suppress(UnknownSession, SessionBusy):  # somebody was faster
                deleted += await self.delete(found[start : start + 100])
        return deleted
