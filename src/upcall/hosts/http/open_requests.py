"""End the requests of a token that is revoked while they are handled: streams above all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from upcall.errors import StoreError

CHECK = 0.4
"""Seconds between two looks whether the tokens of open requests are still valid."""

_LEFT: Message = {"type": "http.disconnect"}


class _Exchange:
    """The channels of one request. Once it is ended, the application sees a client that has left."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._sending = asyncio.Lock()
        self._left = asyncio.Event()
        self._begun = self._done = False

    @property
    def has_left(self) -> bool:
        """True once it is ended."""
        return self._left.is_set()

    async def receive(self) -> Message:
        """The next message of the client, or that it has left."""
        if self.has_left:
            return _LEFT
        receiving, leaving = asyncio.ensure_future(self._receive()), asyncio.ensure_future(self._left.wait())
        try:
            await asyncio.wait({receiving, leaving}, return_when="FIRST_COMPLETED")
            return receiving.result() if receiving.done() else _LEFT
        finally:
            for one in (receiving, leaving):
                one.cancel()

    async def send(self, message: Message) -> None:
        """Send a part of the answer; nothing after the end."""
        async with self._sending:
            if self.has_left:
                return
            self._begun = True
            self._done = message["type"] == "http.response.body" and not message.get("more_body", False)
            await self._send(message)

    async def end(self) -> None:
        """End the answer, or refuse the request if it has not begun."""
        self._left.set()
        async with self._sending:
            if self._done:
                return
            self._done = True
            if self._begun:
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
            else:
                refused = JSONResponse({"error": "the token was revoked"}, 401, {"www-authenticate": "Bearer"})
                await refused(self._scope, self._receive, self._send)


class OpenRequests:
    """The requests that are being handled, by the digest of their token."""

    def __init__(self, is_valid: Callable[[str], Awaitable[bool]]) -> None:
        self._is_valid = is_valid
        self._open: dict[str, set[_Exchange]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()

    async def run(self, digest: str, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Let an application handle a request, as long as the token is valid."""
        exchange = _Exchange(scope, receive, send)
        self._open.setdefault(digest, set()).add(exchange)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.ensure_future(self._watch())
        try:
            await app(scope, exchange.receive, exchange.send)
        finally:
            self._open[digest].discard(exchange)
            if not self._open[digest]:
                del self._open[digest]
        if exchange.has_left:
            await exchange.end()

    async def _watch(self) -> None:
        while self._open:
            await asyncio.sleep(CHECK)
            for digest in tuple(self._open):
                try:
                    valid = await self._is_valid(digest)
                except StoreError:  # it can't be read right now: a stream gets nothing new either
                    continue
                for exchange in () if valid else tuple(self._open.get(digest, ())):
                    self._end(exchange)

    def _end(self, exchange: _Exchange) -> None:
        """End a request without waiting for its client, which may be slow."""
        if not exchange.has_left:
            ending = asyncio.ensure_future(exchange.end())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
