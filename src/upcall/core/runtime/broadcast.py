"""Subscriptions to everything that this runtime runs: events, deltas and questions to the person.

A subscriber never slows a turn: each has a bounded buffer, and one that does not keep up is told what it missed.
Watching does not change how the log is written, so events arrive when they are stored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Self

from upcall.callbacks import Callback
from upcall.contracts import Delta, Missed
from upcall.core.log.session_log import Sink
from upcall.errors import SetupError
from upcall.events import AnyEvent, CallbackRaised

Item = AnyEvent | Delta | Callback | Missed

_MOST_EARLY = 10_000


class Broadcast:
    """The subscriptions of one runtime. `sinks` is shared with every log that is written here."""

    def __init__(self) -> None:
        self.sinks: list[Sink] = []
        self._subscriptions: list[Subscription] = []
        self._early: dict[str, Callback] = {}  # questions that are not stored yet, so that nobody could answer them

    def add(self, subscription: Subscription) -> None:
        """Send everything from now on to a subscription."""
        self._subscriptions.append(subscription)
        if len(self._subscriptions) == 1:
            self.sinks.append(self._publish)

    def remove(self, subscription: Subscription) -> None:
        """Send nothing more to a subscription."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            if not self._subscriptions:
                self.sinks.remove(self._publish)
                self._early.clear()

    def publish_all(self, events: Iterable[AnyEvent]) -> None:
        """Send stored events that no session's log publishes."""
        if self._subscriptions:
            for event in events:
                self._publish(event)

    def ask(self, callback: Callback) -> None:
        """Send a question to the person, once it is stored."""
        if not self._subscriptions:
            return
        if callback.created:
            self._send(callback)
        elif len(self._early) < _MOST_EARLY:
            self._early[callback.id] = callback

    def close(self) -> None:
        """End every subscription; what they have buffered can still be read."""
        for subscription in tuple(self._subscriptions):
            subscription.end()

    def _publish(self, item: AnyEvent | Delta) -> None:
        self._send(item)
        if self._early and isinstance(item, CallbackRaised):
            early = self._early.pop(item.callback_id, None)
            if early is not None:
                self._send(early.replace(session_id=item.session, created=item.time))

    def _send(self, item: AnyEvent | Delta | Callback) -> None:
        for subscription in self._subscriptions:
            subscription.put(item)


class Subscription:
    """A subscription to everything that happens in a runtime: `async with runtime.subscribe() as items`.

    An async iterator. It ends when it is left, by `aclose()`, or when the runtime is closed.
    """

    def __init__(self, broadcast: Broadcast, session: str | None = None, buffer: int = 10_000) -> None:
        if type(buffer) is not int or buffer < 1:
            raise SetupError(f"buffer={buffer!r} is not a valid number of items: use 1 or more")
        self._broadcast, self._session, self._buffer = broadcast, session, buffer
        self._items: deque[AnyEvent | Delta | Callback] = deque()
        self._more = asyncio.Event()
        self._entered = self._ended = False
        self._missed, self._missed_from = (
            0,
            0,
        )  # items dropped since the buffer was full; the lowest position of them

    def put(self, item: AnyEvent | Delta | Callback) -> None:
        """Buffer an item; while the buffer is full, or what was missed is not told yet, only count it."""
        if self._session is not None and not self._is_wanted(item):
            return
        if self._missed or len(self._items) >= self._buffer:
            self._missed += 1
            position = getattr(item, "pos", 0)
            if position and (not self._missed_from or position < self._missed_from):
                self._missed_from = position
        else:
            self._items.append(item)
        self._more.set()

    def _is_wanted(self, item: AnyEvent | Delta | Callback) -> bool:
        session = item.session_id if isinstance(item, Callback) else item.session
        return f"{session}~".startswith(f"{self._session}~")

    def end(self) -> None:
        """Take nothing more; what is buffered can still be read."""
        self._ended = True
        self._broadcast.remove(self)
        self._more.set()

    async def aclose(self) -> None:
        """Leave it."""
        self.end()
        self._items.clear()
        self._missed = 0

    async def __aenter__(self) -> Self:
        """Subscribe."""
        self._enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave it."""
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    def _enter(self) -> None:
        if not self._entered:
            self._entered = True
            if not self._ended:
                self._broadcast.add(self)

    async def __anext__(self) -> Item:
        """The next item; Missed where the buffer was full."""
        self._enter()
        while True:
            if self._items:
                return self._items.popleft()
            if self._missed:
                after = self._missed_from - 1 if self._missed_from else None
                missed, self._missed, self._missed_from = Missed(self._missed, after), 0, 0
                return missed
            if self._ended:
                raise StopAsyncIteration
            self._more.clear()
            await self._more.wait()
