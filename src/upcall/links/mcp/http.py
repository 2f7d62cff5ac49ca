"""A server that is reached by streamable HTTP. What it sends is bounded before it is read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec
from mcp.client.streamable_http import streamable_http_client

from upcall.links.mcp.config import ServerConfig
from upcall.links.mcp.stdio import MESSAGE
from upcall.safety.bounds import excess_in_text

_CONNECT, _SILENCE = 10.0, 300.0
"""Seconds for connecting and sending, and seconds without a byte of an answer."""

_SESSION, _BAD_REQUEST, _NOT_FOUND = "mcp-session-id", 400, 404
_SMALL = 10_000


class _Bounded(httpx2.AsyncByteStream):
    """A body of at most MESSAGE bytes, and of a bounded number of values if it is JSON."""

    def __init__(self, body: Any) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = bytearray()
        async for chunk in self._body:
            body += chunk
            if len(body) > MESSAGE:
                raise httpx2.StreamError(f"the server's answer has more than {MESSAGE} bytes")
        if problem := excess_in_text(bytes(body), MESSAGE):
            raise httpx2.StreamError(f"the server's answer is too large: {problem}")
        yield bytes(body)

    async def aclose(self) -> None:
        """Close the body."""
        await self._body.aclose()


class _BoundedTransport(httpx2.AsyncHTTPTransport):
    """Bounds every body but event streams, whose events the library bounds one by one."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and return the answer, with its body bounded."""
        response = await super().handle_async_request(request)
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            response.stream = _Bounded(response.stream)
        if _SESSION in request.headers and await _is_forgotten(response):
            await response.aclose()
            return httpx2.Response(404, request=request)  # the library understands only this form of it
        return response


async def _is_forgotten(response: httpx2.Response) -> bool:
    """Return whether a server does not know the session of a request.

    It answers 404, as the protocol says. Servers made after an example of the TypeScript SDK answer 400, with an
    error that belongs to no request.
    """
    if response.status_code != _BAD_REQUEST:
        return response.status_code == _NOT_FOUND
    try:
        data = await response.aread()
        body: Any = msgspec.json.decode(data) if len(data) <= _SMALL else None
    except (ValueError, RecursionError, httpx2.HTTPError, httpx2.StreamError):
        return False
    match body:
        case {"error": {"message": str(text)}} if body.get("id") is None:
            return "session" in text.lower()
        case _:
            return False


@asynccontextmanager
async def http_streams(config: ServerConfig, auth: httpx2.Auth | None) -> AsyncGenerator[Any]:
    """Yield the streams of a server at an address. Nothing is sent before the first message."""
    timeout = httpx2.Timeout(_CONNECT, read=_SILENCE)
    async with (
        httpx2.AsyncClient(
            headers=dict(config.headers), timeout=timeout, auth=auth, transport=_BoundedTransport(retries=0)
        ) as client,
        streamable_http_client(config.url, http_client=client, max_sse_event_size=MESSAGE) as streams,
    ):
        yield streams
