"""Connections of clients that are too slow: to send a request, or to accept an answer.

A server must not wait for ever for the rest of a request, nor keep an answer that nobody reads. Uvicorn has no
limits for either, so its protocol gets them here. A service that mounts the application chooses its own server.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class Limits(NamedTuple):
    """The limits of a server: how long it waits, and how much it keeps.

    request: seconds from the connection, or from a request's first byte, to the end of the request's body
    stall: seconds in which a client has to accept something of what was sent to it
    unread: bytes that may wait for all clients together; above that, the client with the most is disconnected
    """

    request: float = 45.0
    stall: float = 60.0
    unread: int = 128_000_000


MOST_CONNECTIONS = 2000
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class SlowClients:
    """The connections that have not accepted everything that was sent to them, and the limits of all."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._stalled: set[asyncio.Transport] = set()

    def add(self, transport: asyncio.Transport) -> None:
        """Note a connection, and make room where too much waits."""
        self._stalled.add(transport)
        unread = sum(one.get_write_buffer_size() for one in self._stalled)
        if unread > self.limits.unread:
            largest = max(self._stalled, key=lambda one: one.get_write_buffer_size())
            self._stalled.discard(largest)
            largest.abort()

    def discard(self, transport: asyncio.Transport) -> None:
        """Forget a connection that has accepted everything, or is gone."""
        self._stalled.discard(transport)


class BoundedProtocol(H11Protocol):
    """One connection, with limits for clients that send or accept too little."""

    slow: SlowClients
    """The slow ones of all connections of one server; `bounded_protocol` sets it."""

    _request_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(1, 0)  # so that whatever is not accepted is noticed
        self._watch_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """End all limits."""
        self._request_timer = _cancelled(self._request_timer)
        self._end_stall()
        super().connection_lost(exc)

    # --- requests ---------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take in a part of a request."""
        super().data_received(data)
        self._watch_request()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP; where an answer was begun already, only end the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _watch_request(self) -> None:
        """Wait for the rest of a request, where some of it is missing."""
        if self.transport.is_closing() or self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._request_timer = _cancelled(self._request_timer)
        elif self._request_timer is None:
            self._request_timer = self.loop.call_later(self.slow.limits.request, self._end_request)

    def _end_request(self) -> None:
        self._request_timer = None
        if self.conn.our_state is h11.IDLE and not self.transport.get_write_buffer_size():
            self.transport.write(_TOO_SLOW)
            self.transport.close()
        else:
            self.transport.abort()

    # --- answers ----------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Wait until the client has accepted what was sent."""
        super().pause_writing()
        self._await_client()
        self.slow.add(self.transport)

    def resume_writing(self) -> None:
        """Continue: the client has accepted everything."""
        self._end_stall()
        super().resume_writing()

    def _await_client(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(self.slow.limits.stall, self._check_stall, unread)

    def _check_stall(self, unread: int) -> None:
        if self.transport.get_write_buffer_size() >= unread:
            self.transport.abort()
        else:
            self._await_client()

    def _end_stall(self) -> None:
        self._stall_timer = _cancelled(self._stall_timer)
        self.slow.discard(self.transport)


def bounded_protocol(limits: Limits = Limits()) -> type[asyncio.Protocol]:  # noqa: B008
    """The protocol of a new server."""
    made: Any = type("ServedProtocol", (BoundedProtocol,), {"slow": SlowClients(limits)})
    return cast("type[asyncio.Protocol]", made)


def _cancelled(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
