"""New events for all streams: read once, redacted once, encoded once.

One follower reads the log where it is read best, in the reader's thread. Every 50 ms it hands what is new to the
event loop as a batch. Each stream has a short queue of references to such batches. A stream that does not keep up
loses its queue and catches up from the log, so memory stays bounded however slow its client is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import msgspec

from upcall.app import Runtime
from upcall.errors import RuntimeClosed, StoreError, UpcallError
from upcall.events import SETTLING, AnyEvent, CallbackAsked, CallbackPassed, CallbackRaised, SessionAdopted
from upcall.hosts.web.listing import FactsCache, root_of
from upcall.hosts.web.log_reader import LogReader
from upcall.observe.redact import Redactor
from upcall.observe.shown_events import passed_in, shown_event

log = logging.getLogger("upcall")

INTERVAL = 0.05
"""Seconds between two batches."""

PAGE = 500
"""Events that are read at once."""

MOST_QUEUED, MOST_QUEUED_BYTES = 200, 4_000_000
"""Batches, and bytes of them, that wait for one slow client."""

_WAIT, _AGAIN = 2.0, 0.5
_ABOUT_CALLBACKS = (CallbackRaised, CallbackAsked, CallbackPassed, *SETTLING)

Take = Callable[[Sequence[AnyEvent]], None]


class Piece(NamedTuple):
    """The events of one session, or of all, in a batch: `data` is a JSON array, `last` its newest position."""

    last: int
    data: bytes


class Batch(NamedTuple):
    """Events that were read at once. If nobody streams, `everything` is None and there are no `pieces`."""

    last: int
    roots: frozenset[str]
    callbacks: tuple[str, ...]
    everything: Piece | None
    pieces: dict[str, Piece]


class Tap:
    """One stream's place in the feed. `behind` is set when its queue was full: then it has to read the log."""

    def __init__(self, key: str | None) -> None:
        self.key, self.behind, self.ended = key, False, False
        self._queue: deque[Piece] = deque()
        self._bytes = 0
        self._more = asyncio.Event()

    def put(self, piece: Piece) -> None:
        """Queue a piece; drop everything where there is no room."""
        if self.behind:
            return
        if len(self._queue) >= MOST_QUEUED or self._bytes + len(piece.data) > MOST_QUEUED_BYTES:
            self.fall_behind()
        else:
            self._queue.append(piece)
            self._bytes += len(piece.data)
            self._more.set()

    def fall_behind(self) -> None:
        """Drop what is queued: the stream reads it from the log."""
        self.behind = True
        self._clear()
        self._more.set()

    def end(self) -> None:
        """Let the stream end."""
        self.ended = True
        self._more.set()

    @property
    def has_more(self) -> bool:
        """Tell whether something is queued."""
        return bool(self._queue)

    def take(self) -> list[Piece]:
        """Empty the queue and return its pieces, oldest first."""
        found = list(self._queue)
        self._clear()
        return found

    async def wait(self, seconds: float) -> None:
        """Return when there is something to take, or after so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._more.wait()
        self._more.clear()

    def _clear(self) -> None:
        self._queue.clear()
        self._bytes = 0


class Feed:
    """The newest events of a log, for any number of taps. `start` begins to follow the log, once."""

    def __init__(self, reader: LogReader, redactor: Redactor, facts: FactsCache) -> None:
        self._reader, self._redactor, self._facts = reader, redactor, facts
        self.position = 0
        """The position up to which everything was handed to the taps."""
        self.begin_takers: list[Callable[[int], None]] = []
        """Called with the position after which the log is followed, where it is read."""
        self.takers: list[Take] = []
        """Called with what was read, where the log is read."""
        self.listeners: list[Callable[[Batch], None]] = []
        """Called with every batch, on the event loop."""
        self._taps: dict[str | None, list[Tap]] = {}
        self._task: asyncio.Task[None] | None = None
        self._started: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wants_events = 0

    async def start(self) -> None:
        """Follow the log from now on; returns when that has begun."""
        if self._task is None:
            self._loop = asyncio.get_running_loop()
            self._started = self._loop.create_future()
            self._task = asyncio.ensure_future(self._reader.run(self._follow))
            self._task.add_done_callback(self._ended)
        assert self._started is not None
        await asyncio.shield(self._started)

    def close(self) -> None:
        """End all streams."""
        for taps in self._taps.values():
            for tap in taps:
                tap.end()
        if self._task is not None:
            self._task.cancel()

    @contextlib.contextmanager
    def tap(self, key: str | None) -> Generator[Tap]:
        """Join the feed: a session's events, or all where the key is None."""
        tap = Tap(key)
        self._taps.setdefault(key, []).append(tap)
        self._wants_events += 1
        try:
            yield tap
        finally:
            self._wants_events -= 1
            self._taps[key].remove(tap)
            if not self._taps[key]:
                del self._taps[key]

    def _ended(self, task: asyncio.Task[None]) -> None:
        assert self._started is not None
        if not self._started.done():
            failed = None if task.cancelled() else task.exception()
            self._started.set_exception(failed or UpcallError("the log is not followed any more"))
            self._started.exception()
        elif not task.cancelled() and not isinstance(task.exception(), RuntimeClosed | None):
            log.error("the log is not followed any more", exc_info=task.exception())
        for taps in self._taps.values():
            for tap in taps:
                tap.end()

    # --- where the log is read ------------------------------------------------------------

    async def _follow(self, runtime: Runtime) -> None:
        position = await runtime.store.last()
        for begin in self.begin_takers:
            begin(position)
        self._call(self._begin, position)
        while True:
            try:
                events = await runtime.store.read_all(position, PAGE)
                if not events:
                    await runtime.store.wait(position, _WAIT)
                    continue
            except StoreError as error:  # locked, or being restored: what was written is still there
                log.warning("the log can't be read right now: %s", error)
                await asyncio.sleep(_AGAIN)
                continue
            position = events[-1].pos
            self._call(self._publish, self._batch(events))
            if len(events) < PAGE:
                await asyncio.sleep(INTERVAL)

    def _batch(self, events: Sequence[AnyEvent]) -> Batch:
        for event in events:
            self._facts.take(event)
        for take in self.takers:
            take(events)
        roots = frozenset(root_of(event.session) for event in events)
        callbacks = dict.fromkeys(i for event in events for i in callback_ids(event))
        last = events[-1].pos
        if not self._wants_events:
            return Batch(last, roots, tuple(callbacks), None, {})
        encoded, passed = list[tuple[AnyEvent, bytes]](), passed_in(events)
        for event in events:
            encoded.append((event, msgspec.json.encode(shown_event(event, self._redactor, passed))))
        by_session: dict[str, list[tuple[AnyEvent, bytes]]] = {}
        for event, body in encoded:
            by_session.setdefault(event.session, []).append((event, body))
        pieces = {session: _piece(found) for session, found in by_session.items()}
        return Batch(last, roots, tuple(callbacks), _piece(encoded), pieces)

    def _call(self, work: Callable[..., None], *values: Any) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(work, *values)

    # --- on the event loop ----------------------------------------------------------------

    def _begin(self, position: int) -> None:
        self.position = position
        assert self._started is not None
        if not self._started.done():
            self._started.set_result(None)

    def _publish(self, batch: Batch) -> None:
        self.position = batch.last
        for key, taps in self._taps.items():
            piece = batch.everything if key is None else batch.pieces.get(key)
            if piece is not None:
                for tap in taps:
                    tap.put(piece)
            if batch.everything is None:  # they joined after the batch was made
                for tap in taps:
                    tap.fall_behind()
        for listen in self.listeners:
            listen(batch)


def _piece(found: Sequence[tuple[AnyEvent, bytes]]) -> Piece:
    return Piece(found[-1][0].pos, b"[" + b",".join(body for _, body in found) + b"]")


def callback_ids(event: AnyEvent) -> Sequence[str]:
    """The callbacks that an event is about."""
    if isinstance(event, _ABOUT_CALLBACKS):
        return (event.callback_id,)
    return event.reopened if isinstance(event, SessionAdopted) else ()
