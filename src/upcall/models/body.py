"""Read the body of one HTTP response, decompress it piece by piece, and limit its size.

A server may never stop sending. Bytes are counted as they arrive and again after decompression, before they are
used.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING, Any

from upcall.errors import ResponseTooLarge
from upcall.models.sse import EVENT_BYTES

if TYPE_CHECKING:
    from aiohttp import ClientResponse

    from upcall.wire import TappedExchange

RESPONSE_BYTES = 64_000_000
"""The default limit of one response, in bytes after decompression."""

EVENTS = 500_000
"""The most events in one stream; each is kept as a piece of text."""

_PIECE = 65_536  # bytes to decompress at a time
_TURN = 262_144  # decompressed bytes after which other tasks may run: many short lines take long to read
_PACKED = ("gzip", "x-gzip", "deflate")


class UnknownEncoding(ValueError):
    """Raised for a body with an encoding that was not requested."""


class Body:
    """Reads the body of a response. Errors name `model` and `most`. `exchange` is told what is read."""

    __slots__ = (
        "_content", "_exchange", "_left", "_model", "_most", "_packed_left", "_rest", "_unpacked", "_unpacker",
    )  # fmt: skip

    def __init__(
        self, answer: ClientResponse, model: str, most: int, exchange: TappedExchange | None = None
    ) -> None:
        self._exchange = exchange
        if exchange is not None:
            exchange.status = answer.status
        self._content, self._model, self._most = answer.content, model, most
        self._left = self._packed_left = most
        self._rest, self._unpacked = b"", 0
        self._unpacker: Any = None
        encoding = answer.headers.get("Content-Encoding", "").strip().lower()
        if encoding in _PACKED:
            self._unpacker = zlib.decompressobj(47)  # gzip or zlib, depending on the first bytes
        elif encoding not in ("", "identity"):
            raise UnknownEncoding(f"answered with the encoding {encoding[:40]!r}, which was not requested")

    async def read(self) -> bytes:
        """Return the next bytes, or b"" at the end. Raises ResponseTooLarge above the limit."""
        data = await (self._content.readany() if self._unpacker is None else self._unpack())
        self._left -= len(data)
        if self._exchange is not None:
            self._exchange.received(data)
        if self._left < 0 or self._packed_left < 0:
            text = f"{self._most:,} bytes; if the model may send more, give it a larger response_bytes"
            raise ResponseTooLarge(self._model, f"more than {text}")
        return data

    async def read_all(self, begin: bytes) -> bytes:
        """Return the whole body after `begin`. Raises ResponseTooLarge above the limit of an event."""
        parts, size = [begin], len(begin)
        while size <= EVENT_BYTES and (data := await self.read()):
            parts.append(data)
            size += len(data)
        if size > EVENT_BYTES:
            raise ResponseTooLarge(self._model, f"more than {EVENT_BYTES:,} bytes in one body")
        return b"".join(parts)

    async def read_beginning(self, most: int) -> bytes:
        """Return the available bytes, at most about `most`."""
        body = b""
        while len(body) < most and (data := await self.read()):
            body += data
        return body

    async def _unpack(self) -> bytes:
        while not self._unpacker.eof and self._packed_left >= 0:
            packed = self._rest
            if not packed:
                packed = await self._content.readany()
                self._packed_left -= len(packed)
            if not packed:
                return self._unpacker.flush()
            data = self._unpacker.decompress(packed, _PIECE)
            self._rest = self._unpacker.unconsumed_tail
            if data:
                self._unpacked += len(data)
                if self._unpacked > _TURN:
                    self._unpacked = 0
                    await asyncio.sleep(0)
                return data
        return b""
