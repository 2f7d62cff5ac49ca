"""Server-sent events: what was written after a position, then what is written from now on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from upcall.contracts import Store
from upcall.errors import StoreDamaged
from upcall.events import AnyEvent
from upcall.hosts.web.exchange import Refusal
from upcall.hosts.web.feed import Piece, Tap
from upcall.hosts.web.log import Log
from upcall.hosts.web.service import Service, answering_errors, path_id
from upcall.hosts.web.session_reads import check_session
from upcall.observe.shown_events import shown_events

MOST_STREAMS = 1200
PING = 15.0
"""Seconds of silence after which a comment is sent."""

SEND_LIMIT = 90.0
"""Seconds that a client may take to accept a piece of a stream."""

PAGE = 500
"""Events that are read at once for a client that catches up."""

LARGEST_PIECE = 128_000
"""Bytes that are made for a client that catches up before it accepts them; one event may be larger."""

_RETRY = b"retry: 1000\n\n"


def frame(data: bytes, position: int | None = None, name: str = "") -> bytes:
    """One server-sent event."""
    head = (b"id: %d\n" % position if position is not None else b"") + (
        f"event: {name}\n".encode() if name else b""
    )
    return head + b"data: " + data + b"\n\n"


class Streamed(Response):
    """A response that is sent piece by piece, and gives up a client that accepts nothing."""

    def __init__(self, pieces: AsyncIterator[bytes], media_type: str, headers: Mapping[str, str]) -> None:
        self._pieces, self._begun = pieces, False
        super().__init__(b"", 200, {"cache-control": "no-store", **headers}, media_type)
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the pieces end or the client leaves."""
        if scope["method"] == "HEAD":
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        left = asyncio.ensure_future(_disconnected(receive))
        sending = asyncio.ensure_future(self._send(send))
        stopped = False
        try:
            await asyncio.wait({left, sending}, return_when="FIRST_COMPLETED")
        except asyncio.CancelledError:  # a server that stops cancels what is still open: that is a stream's end
            stopped = True
        finally:
            for task in (left, sending):
                task.cancel()
            await asyncio.gather(left, sending, return_exceptions=True)
            await self._pieces.aclose()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        if stopped and self._begun:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        self._begun = True
        async for body in self._pieces:
            async with asyncio.timeout(SEND_LIMIT):
                await send({"type": "http.response.body", "body": body, "more_body": True})
            del body  # the next one may be long in coming
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Streams:
    """Handles the paths that stream events."""

    def __init__(self, service: Service) -> None:
        self._service, self._feed = service, service.feed
        self.open = 0

    def routes(self) -> list[Route]:
        """The paths with their handlers."""
        return [
            Route("/api/events", answering_errors(self.everything), methods=["GET"]),
            Route("/api/sessions/{id}/events", answering_errors(self.session), methods=["GET"]),
        ]

    async def everything(self, request: Request) -> Response:
        """The events of all sessions: after Last-Event-ID, or from now on."""
        await self._feed.start()
        return self.response(self._events(None, last_event_id(request)))

    async def session(self, request: Request) -> Response:
        """The events of one session: after Last-Event-ID, or from its beginning."""
        session_id = path_id(request)
        await self._feed.start()

        await self._service.read(lambda log: check_session(log, session_id))
        return self.response(self._events(session_id, last_event_id(request) or 0))

    def response(self, frames: AsyncIterator[bytes]) -> Response:
        """A response that streams; Refusal 429 where there are too many."""
        if self.open >= MOST_STREAMS:
            raise Refusal(429, f"{MOST_STREAMS} streams are already open; close one", retry_after=5.0)
        return Streamed(self._counted(frames), "text/event-stream", {"x-accel-buffering": "no"})

    async def _counted(self, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        self.open += 1
        try:
            yield _RETRY
            async for one in frames:
                yield one
                del one
        finally:
            self.open -= 1

    async def _events(self, session: str | None, after: int | None) -> AsyncIterator[bytes]:
        with self._feed.tap(session) as tap:
            position, target = self._feed.position if after is None else after, self._feed.position
            pages = _Pages(self._service, session)
            while not tap.ended:
                if tap.behind:
                    tap.behind, target = False, self._feed.position
                while position < target:
                    piece, position = await pages.next(position, target)
                    if piece is not None:
                        yield frame(piece.data, piece.last)
                for piece in tap.take():
                    yield frame(piece.data, piece.last)
                    position = piece.last
                if not tap.behind:
                    async for ping in _silence(tap):
                        yield ping


class _Pages:
    """Reads the log for a stream that catches up: as much at once as makes a piece of the right size."""

    def __init__(self, service: Service, session: str | None) -> None:
        self._service, self._session, self._limit = service, session, PAGE

    async def next(self, after: int, target: int) -> tuple[Piece | None, int]:
        """The next events up to a position, and the position up to which there are no others."""
        piece, last, count, left = await self._read(after, target)
        self._limit = max(1, count) if left else min(PAGE, self._limit * 2)
        return piece, last

    async def _read(self, after: int, target: int) -> tuple[Piece | None, int, int, bool]:
        session, limit = self._session, self._limit
        return await self._service.read(lambda log: _read_page(log, session, after, target, limit))


async def _read_page(
    log: Log, session: str | None, after: int, target: int, limit: int
) -> tuple[Piece | None, int, int, bool]:
    """The next piece, the position up to which it is complete, its number of events, and whether some are left."""
    events, last = await _events_between(log.store, session, after, target, limit)
    if not events:
        return None, last, 0, False
    made, size = list[bytes](), 0
    for one in await shown_events(log.store, events, log.kept.redactor):
        body = msgspec.json.encode(one)
        if made and size + len(body) > LARGEST_PIECE:
            break
        made.append(body)
        size += len(body)
    left = len(made) < len(events)
    newest = events[len(made) - 1].pos
    return Piece(newest, b"[" + b",".join(made) + b"]"), newest if left else last, len(made), left


async def _silence(tap: Tap) -> AsyncIterator[bytes]:
    """Wait for something to send; a comment shows after a while that the stream lives."""
    if not tap.has_more and not tap.ended:
        await tap.wait(PING)
        if not tap.has_more and not tap.behind and not tap.ended:
            yield b": ping\n\n"


async def _events_between(
    store: Store, session: str | None, after: int, target: int, limit: int
) -> tuple[Sequence[AnyEvent], int]:
    """The next events after a position, none beyond another, and the position up to which that is all."""
    if session is None:
        events = await store.read_all(after, limit)
    else:
        try:
            events = await store.read(session, await seq_at(store, session, after), limit)
        except StoreDamaged:  # one of them can't be read: those around it can
            found = await store.read_tree(session, after, limit)
            events = [event for event in found if event.session == session]
    kept = [event for event in events if event.pos <= target]
    whole = len(events) < limit or len(kept) < len(events)
    return kept, target if whole else kept[-1].pos


async def seq_at(store: Store, session: str, position: int) -> int:
    """The sequence number of a session's last event at or before a position; 0 if it has none.

    Sequence numbers have no gaps and positions rise with them, so a binary search finds it.
    """
    row = await store.row(session)
    low, high = 0, row.seq if row is not None and position else 0
    while low < high:
        middle = (low + high + 1) // 2
        found = await store.read(session, middle - 1, 1)
        if found and found[0].pos <= position:
            low = middle
        else:
            high = middle - 1
    return low


def last_event_id(request: Request) -> int | None:
    """The position that a client has seen; Refusal 422 where it is not one."""
    text = request.headers.get("last-event-id", "") or request.query_params.get("after", "")
    if not text:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise Refusal(422, "Last-Event-ID must be a position: a whole number of 0 or more")
    return int(text)
