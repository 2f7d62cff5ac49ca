"""A live session's log: buffer events, append them, tell those who watch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from upcall import events
from upcall.contracts import Claim, Delta, Store
from upcall.core.log.state import FOLDS, SessionState

Sink = Callable[[events.AnyEvent | Delta], None]


class SessionLog:
    """One session's log in the hands of its owner: every event is folded as it is written.

    `add` may be called anywhere: what it adds goes out with the next `send` or `commit`, in order, all or none.
    `sinks` are those who watch the run tree; `absorb` takes what others wrote; `held`: what is added is as good as
    stored, in memory.
    """

    __slots__ = (
        "_blobs",
        "_kept",
        "_last",
        "_new",
        "_sent",
        "_soon",
        "claim",
        "held",
        "on_foreign_event",
        "sinks",
        "state",
        "store",
    )  # fmt: skip

    def __init__(self, store: Store, claim: Claim | None, state: SessionState, sinks: list[Sink]) -> None:
        self.store, self.claim, self.state, self.sinks = store, claim, state, sinks
        self._soon = self.held = False
        self.on_foreign_event: Callable[[events.AnyEvent], None] | None = None
        self._new: list[events.AnyEvent] = []
        self._blobs: dict[str, bytes] = {}
        self._kept: set[str] = set()  # what is on its way already, or there
        self._last: asyncio.Future[None] | None = None
        self._sent: list[tuple[asyncio.Future[None], list[events.AnyEvent]]] = []  # and not heard of since

    def add(self, event: events.AnyEvent) -> None:
        """Write an event down with the next ones."""
        self._new.append(event)
        FOLDS[type(event)](self.state, event)  # its stamps are not there yet, so no `apply`

    def put_blob(self, name: str, body: bytes) -> None:
        """Store a body once, with the next events."""
        if name not in self._kept:
            self._kept.add(name)
            self._blobs[name] = body

    def send(self, release: bool = False, lazy: bool = False) -> bool:
        """Hand over what was added; whether all of it is stored by now. If not, `stored` is to be waited for.

        In two steps because mostly there is nothing to wait for, and awaiting nothing costs more than asking.
        `lazy` is for what nobody waits for: it need not survive a power cut before what is added next.
        """
        if not release:
            claim = self.claim
            if self._new and not (self.held or self.sinks or claim is None or claim.failure or claim.released):
                self.held = self.store.hold(self.flush)
            if self.held:  # as good as stored: it is, before anybody can look
                return True
        return self.flush(release, lazy)

    def flush(self, release: bool = False, lazy: bool = False) -> bool:
        """Hand over what was added, now; whether all of it is stored by now."""
        if self.claim is not None and self.claim.failure is not None:
            raise self.claim.failure
        added, blobs, self.held = self._new, self._blobs, False
        if not added:
            return self._last is None
        self._new, self._blobs, self._soon = [], {}, False
        future = self.store.append(self.state.id, added, self.claim, blobs=blobs, release=release, lazy=lazy)
        if future is not None:
            self._last = future
            self._sent.append((future, added))
            future.add_done_callback(self._on_acknowledged)
            return False
        if self._sent:
            self._on_acknowledged()
        self.on_stored(added)
        return self._last is None

    def send_soon(self) -> None:
        """Send what nobody waits for: with the next append, or by itself a moment later."""
        if self.sinks or not self.store.durable:  # who watches sees it in order
            self.send(lazy=True)
        elif self._new and not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_later(0.001, self._send_late)

    def _send_late(self) -> None:
        if self._soon and self.claim is not None and self.claim.failure is None:
            self.send(lazy=True)

    def take(self, asked: Sequence[str]) -> list[events.AnyEvent]:
        """What was not sent yet, for the parking to write, if it raises all these callbacks; else nothing."""
        left = self._blobs or {*asked} - {e.callback_id for e in self._new if type(e) is events.CallbackRaised}
        added, self._new = ([], self._new) if left else (self._new, [])
        return added

    async def stored(self) -> None:
        """Return when everything that was sent is stored; raises what kept any of it from being."""
        last = self._last
        if last is not None:
            await asyncio.shield(last)
            if self._last is last:
                self._last = None

    async def commit(self, release: bool = False) -> None:
        """Write what was added and return when it is stored; raises what kept any of it from being."""
        if not self.flush(release):
            await self.stored()

    async def write(self, event: events.AnyEvent) -> None:
        """Add an event and return when it is stored."""
        self.add(event)
        await self.commit()

    def publish(self, item: events.AnyEvent | Delta) -> None:
        """Show it to everybody who watches."""
        for sink in self.sinks:
            sink(item)

    def _on_acknowledged(self, _: object = None) -> None:
        """Take note of what is stored by now, in the order in which it was sent."""
        while self._sent and self._sent[0][0].done():
            future, added = self._sent.pop(0)
            if not future.cancelled() and future.exception() is None:
                self.on_stored(added)

    def on_stored(self, added: Sequence[events.AnyEvent]) -> None:
        """These are in the store."""
        state = self.state
        if added[0].seq > state.seq + 1:
            self._read_gap(state.seq, added[0].seq)
        if added[-1].seq > state.seq:
            state.seq, state.last_time = added[-1].seq, added[-1].time
        if self.sinks:
            for event in added:
                self.publish(event)

    def _read_gap(self, after: int, before: int) -> None:
        """Others wrote in between: read it. The store has told of most of it already; folding twice is harmless."""
        task = asyncio.ensure_future(self.store.read(self.state.id, after, before - after - 1))

        def read(done: asyncio.Future[list[events.AnyEvent]]) -> None:
            if not done.cancelled() and done.exception() is None:
                for event in done.result():
                    if isinstance(event, events.FOREIGN):  # an own one is on its way here, it was only overtaken
                        (self.on_foreign_event or self.state.absorb)(event)

        task.add_done_callback(read)
