"""The body of one HTTP response, unpacked piece by piece, and the bounds of what a server may send.

A server is not trusted to end. Bytes are counted as they come and again once they are unpacked, before anything is
made of them.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING, Any

from upcall.errors import ResponseTooLarge
from upcall.models.sse import EVENT_BYTES

if TYPE_CHECKING:
    from aiohttp import ClientResponse

RESPONSE_BYTES = 64_000_000
"""Bytes of one response, unpacked, unless a model is given another bound."""

EVENTS = 500_000
"""Events in one stream: each of them is kept as a piece of text."""

_PIECE = 65_536  # bytes that are unpacked at a time
_TURN = 1_000_000  # unpacked bytes after which other tasks run
_PACKED = ("gzip", "x-gzip", "deflate")


class UnknownEncoding(ValueError):
    """A body is packed in a way that was not asked for."""


class Body:
    """Reads a response's body. `model` and `most` are what an error names."""

    __slots__ = ("_content", "_left", "_model", "_most", "_packed_left", "_rest", "_unpacked", "_unpacker")

    def __init__(self, answer: ClientResponse, model: str, most: int) -> None:
        self._content, self._model, self._most = answer.content, model, most
        self._left = self._packed_left = most
        self._rest, self._unpacked = b"", 0
        self._unpacker: Any = None
        encoding = answer.headers.get("Content-Encoding", "").strip().lower()
        if encoding in _PACKED:
            self._unpacker = zlib.decompressobj(47)  # gzip or zlib, by the first bytes
        elif encoding not in ("", "identity"):
            raise UnknownEncoding(f"answered in the encoding {encoding[:40]!r}, which it was not asked for")

    async def read(self) -> bytes:
        """Return the next bytes, or b"" at the end. ResponseTooLarge once there are too many."""
        data = await (self._content.readany() if self._unpacker is None else self._unpack())
        self._left -= len(data)
        if self._left < 0 or self._packed_left < 0:
            text = f"{self._most:,} bytes; give the model a larger response_bytes if it may send as much"
            raise ResponseTooLarge(self._model, f"more than {text}")
        return data

    async def read_all(self, begin: bytes) -> bytes:
        """Return the whole body, of which `begin` was read before; ResponseTooLarge above the bound of an event."""
        parts, size = [begin], len(begin)
        while size <= EVENT_BYTES and (data := await self.read()):
            parts.append(data)
            size += len(data)
        if size > EVENT_BYTES:
            raise ResponseTooLarge(self._model, f"more than {EVENT_BYTES:,} bytes in one piece")
        return b"".join(parts)

    async def read_beginning(self, most: int) -> bytes:
        """Return as many bytes as there are, and no more than `most` and one piece."""
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
