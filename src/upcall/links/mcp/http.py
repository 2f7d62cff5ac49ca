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
from upcall.safety.bounds import PARTS, ValueCount, excess_in_text

_CONNECT, _SILENCE = 10.0, 300.0
"""Seconds for connecting and sending, and seconds without a byte of an answer."""

_SESSION, _BAD_REQUEST, _NOT_FOUND = "mcp-session-id", 400, 404
_EVENTS, _DATA = "text/event-stream", b"data:"
_SMALL = 10_000


class _Bounded(httpx2.AsyncByteStream):
    """A body in one piece: at most MESSAGE bytes, and a bounded number of values if it is JSON."""

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


class _BoundedEvents(httpx2.AsyncByteStream):
    """A stream of events, each of a bounded number of values. The library bounds their bytes.

    Values are counted as they arrive, so that too many of them are never parsed. Lines are read exactly as the
    library reads them.
    """

    def __init__(self, body: Any) -> None:
        self._body, self._count = body, ValueCount()
        self._begin, self._is_data = b"", False  # of the line that has not ended
        self._ends_with_return = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._body:
            self._read(chunk)
            yield chunk

    def _read(self, chunk: bytes) -> None:
        text = b"\r" + chunk if self._ends_with_return else chunk
        self._ends_with_return = text.endswith(b"\r")
        text = text[: len(text) - self._ends_with_return].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *ended, rest = text.split(b"\n")
        for part in ended:
            self._add(part)
            if not self._begin:
                self._count = ValueCount()
            self._begin, self._is_data = b"", False
        self._add(rest)

    def _add(self, part: bytes) -> None:
        """Read the next part of a line."""
        missing = len(_DATA) - len(self._begin)
        if missing > 0:
            self._begin, part = self._begin + part[:missing], part[missing:]
            self._is_data = self._begin == _DATA
        if self._is_data and part and self._count.add(part):
            raise httpx2.SSEError(f"the server's answer is too large: it has more than {PARTS} values")

    async def aclose(self) -> None:
        """Close the stream."""
        await self._body.aclose()


class _BoundedTransport(httpx2.AsyncHTTPTransport):
    """Bounds every body. A compressed one is refused: its size and its values are not known before it is read."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and return the answer, with its body bounded."""
        request.headers["accept-encoding"] = "identity"
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            await response.aclose()
            raise httpx2.RemoteProtocolError(
                "the server compressed its answer, although the request did not allow compression"
            )
        if response.headers.get("content-type", "").lower().startswith(_EVENTS):
            response.headers["content-type"] = _EVENTS  # without a charset: events are UTF-8, whatever it says
            response.stream = _BoundedEvents(response.stream)
        else:
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
