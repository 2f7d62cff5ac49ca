"""A live session's log: buffer events, append them to the store, show them to those who watch."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from upcall import events
from upcall.contracts import Claim, Delta, Store
from upcall.core.log.state import FOLDS, SessionState
from upcall.errors import UpcallError

Sink = Callable[[events.AnyEvent | Delta], None]

JOIN_DELAY = 0.001
"""Seconds that events which another append is likely to follow wait for it: one commit instead of two."""


class SessionLog:
    """One session's log in the hands of its owner.

    `add` folds an event into the state and buffers it. `flush` appends the buffered events, in order, all or none,
    and returns once they are stored. `flush_soon` is for events that nobody waits for. `sinks` are those who watch
    the run tree. `on_foreign_event` is called with events that others appended.
    """

    __slots__ = (
        "_acknowledged",
        "_blob_names",
        "_blobs",
        "_buffer",
        "_in_flight",
        "_scheduled",
        "claim",
        "on_foreign_event",
        "sinks",
        "state",
        "store",
        "watchers",
    )  # fmt: skip

    def __init__(
        self,
        store: Store,
        claim: Claim | None,
        state: SessionState,
        sinks: list[Sink],
        watchers: Sequence[Sink] = (),
    ) -> None:
        self.store = store
        self.claim = claim
        self.state = state
        self.sinks = sinks
        self.watchers = watchers  # like sinks, but they don't change when anything is written
        self.on_foreign_event: Callable[[events.AnyEvent], None] | None = None
        self._buffer: list[events.AnyEvent] = []
        self._blobs: dict[str, bytes] = {}
        self._blob_names: set[str] = set()  # appended or buffered
        self._in_flight: list[tuple[asyncio.Future[None], list[events.AnyEvent]]] = []
        self._acknowledged: asyncio.Future[None] | None = None  # of the newest append in flight
        self._scheduled = False

    def add(self, event: events.AnyEvent) -> None:
        """Fold an event and buffer it for the next append."""
        self._buffer.append(event)
        FOLDS[type(event)](self.state, event)  # not `apply`: the store stamps the event later

    def put_blob(self, name: str, body: bytes) -> None:
        """Buffer a body for the next append, once per name."""
        if name not in self._blob_names:
            self._blob_names.add(name)
            self._blobs[name] = body

    async def flush(self, *, release: bool = False, lazy: bool = False) -> None:
        """Append the buffered events and return once all appended events are stored; raise what prevented it.

        `release` gives the claim up in the same transaction. What is `lazy` survives the death of this process, and
        a power cut only with the next append that is not lazy.
        """
        self._append(release, lazy)
        if self._acknowledged is not None:
            await self._wait_acknowledged()

    async def _wait_acknowledged(self) -> None:
        last = self._acknowledged
        if last is not None:
            await asyncio.shield(last)
            if self._acknowledged is last:
                self._acknowledged = None

    async def confirm(self) -> None:
        """Return once the claim is known to hold; call it before an effect, if `is_overdue`."""
        assert self.claim is not None
        await self.store.confirm(self.claim)

    @property
    def is_overdue(self) -> bool:
        """True if the claim's lease may have run out: another process may own the run tree."""
        claim = self.claim
        return claim is not None and monotonic() >= claim.until

    def flush_soon(self, delay: float = 0.0) -> None:
        """Append the buffered events lazily, without waiting until they are stored.

        With a `delay` in seconds they join the append that comes next, if one comes before it is over. Where
        somebody watches there is no delay: deltas never overtake events.
        """
        if not self._buffer:
            return
        if not delay or self.sinks or not self.store.durable:
            self._append(release=False, lazy=True)
        elif not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_later(delay, self._flush_scheduled)

    def _flush_scheduled(self) -> None:
        if self._scheduled and self.claim is not None:
            with contextlib.suppress(UpcallError):  # the store has marked the claim: the next flush raises it
                self._append(release=False, lazy=True)

    def _append(self, release: bool, lazy: bool) -> None:
        """Hand the buffered events to the store."""
        claim = self.claim
        if claim is not None and claim.failure is not None:
            raise claim.failure
        if not self._buffer:
            return
        added, blobs = self._buffer, self._blobs
        self._buffer = []
        self._scheduled = False
        if blobs:
            self._blobs = {}
        future = self.store.append(self.state.id, added, claim, blobs=blobs, release=release, lazy=lazy)
        if future is not None:
            self._acknowledged = future
            self._in_flight.append((future, added))
            future.add_done_callback(self._on_acknowledged)
            return
        if self._in_flight:
            self._on_acknowledged()
        self._on_stored(added)

    async def park(
        self, parked: Mapping[str, events.Parked], waits: Sequence[str]
    ) -> Sequence[events.AnyEvent] | None:
        """Park the run tree of this root session, and append its buffered events in the same transaction.

        `waits` are the callbacks that the tree waits for. Return the events that were buffered; None where a
        callback was settled meanwhile: then those events are appended, and the tree is neither parked nor released.
        """
        await self._wait_acknowledged()
        assert self.claim is not None
        buffered, blobs = self._buffer, self._blobs
        self._buffer, self._blobs, self._scheduled = [], {}, False
        new = {e.callback_id for e in buffered if type(e) is events.CallbackRaised}
        added: dict[str, list[events.AnyEvent]] = {session: [event] for session, event in parked.items()}
        added[self.state.id][:0] = buffered
        can_be_settled = [callback_id for callback_id in waits if callback_id not in new]
        if await self.store.park(self.claim, added, can_be_settled, blobs):
            if buffered:
                self._on_stored(buffered)
            return buffered
        self._buffer[:0] = buffered
        self._blobs |= blobs
        await self.flush()
        return None

    def publish(self, item: events.AnyEvent | Delta) -> None:
        """Show an event or a delta to everybody who watches."""
        for sink in self.sinks:
            sink(item)
        for watcher in self.watchers:
            watcher(item)

    def _on_acknowledged(self, _: object = None) -> None:
        """Note which appends are stored by now, in the order in which they were made."""
        while self._in_flight and self._in_flight[0][0].done():
            future, added = self._in_flight.pop(0)
            if not future.cancelled() and future.exception() is None:
                self._on_stored(added)

    def _on_stored(self, added: Sequence[events.AnyEvent]) -> None:
        """Bring the state's position up to date with events that are in the store now, and publish them."""
        state, first, last = self.state, added[0], added[-1]
        if first.seq > state.seq + 1:
            self._read_gap(state.seq, first.seq)
        if last.seq > state.seq:
            state.seq, state.last_time = last.seq, last.time
        if state.turn.callbacks:
            for event in added:
                if type(event) is events.CallbackRaised:
                    state.callback_stored(event)
        if self.sinks or self.watchers:
            for event in added:
                self.publish(event)

    def _read_gap(self, after: int, before: int) -> None:
        """Read what others appended in between. The store has told of most of it; folding it twice is harmless."""
        task = asyncio.ensure_future(self.store.read(self.state.id, after, before - after - 1))

        def read(done: asyncio.Future[list[events.AnyEvent]]) -> None:
            if not done.cancelled() and done.exception() is None:
                for event in done.result():
                    if isinstance(event, events.FOREIGN):  # an own event was only overtaken, and arrives by itself
                        (self.on_foreign_event or self.state.absorb)(event)

        task.add_done_callback(read)
