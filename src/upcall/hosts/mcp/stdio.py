"""The protocol on standard input and output: one message a line, and nothing else.

Standard output is taken away from everybody else before agents are loaded: what a tool, an import or a child
process prints goes to standard error, and what reads standard input finds its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import queue
import sys
import threading
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple

import anyio
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError
from mcp_types.jsonrpc import jsonrpc_message_adapter
from pydantic import ValidationError

from upcall.errors import SetupError
from upcall.safety.bounds import excess_in_text

LARGEST_LINE = 4_000_000
"""Bytes of a message."""

_CHUNK = 65_536


class Wire(NamedTuple):
    """The descriptors that carry the protocol."""

    read: int
    write: int


def claim_stdio() -> Wire:
    """Take standard input and output for the protocol alone; SetupError where one of them is closed."""
    sys.stdout.flush()
    try:
        wire = Wire(fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3), fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3))
    except OSError:
        raise SetupError(
            "standard input or output is closed; an MCP client talks to this command over them"
        ) from None
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # there is no standard error
        os.dup2(nothing, 1)
    os.close(nothing)
    return wire


async def serve_stdio(server: Server[Any], wire: Wire) -> None:
    """Serve one client until it closes its end."""
    async with _streams(wire) as (read, write):
        await server.run(read, write, server.create_initialization_options())


@contextlib.asynccontextmanager
async def _streams(wire: Wire) -> AsyncGenerator[tuple[Any, Any]]:
    arriving, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, leaving = anyio.create_memory_object_stream[SessionMessage](0)
    writer = _Writer(wire.write)
    reader = _Reader(wire.read, asyncio.get_running_loop(), arriving, writer)
    reader.start()
    writer.start()
    writing = asyncio.ensure_future(_write_all(leaving, writer, arriving))
    try:
        yield read, write
    finally:
        writing.cancel()
        for stream in (arriving, read, write, leaving):
            stream.close()
        await asyncio.wait({writing})


async def _write_all(leaving: Any, writer: _Writer, arriving: Any) -> None:
    """Write messages until the client no longer reads; then it has left."""
    try:
        async for message in leaving:
            body = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            await writer.write(body.encode() + b"\n")
    except OSError:
        arriving.close()


class _Writer(threading.Thread):
    """Writes lines in a thread of its own: a client that does not read must block nothing but the protocol."""

    def __init__(self, file: int) -> None:
        super().__init__(name="upcall-mcp-writer", daemon=True)
        self._file = file
        self._lines: queue.SimpleQueue[tuple[bytes, asyncio.Future[None], asyncio.AbstractEventLoop]] = (
            queue.SimpleQueue()
        )

    async def write(self, line: bytes) -> None:
        """Write a line; OSError where nobody reads it."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._lines.put((line, done, loop))
        await done

    def run(self) -> None:
        """Write whatever is queued, for as long as the process lives."""
        while True:
            line, done, loop = self._lines.get()
            problem: OSError | None = None
            try:
                left = memoryview(line)
                while left:
                    left = left[os.write(self._file, left) :]
            except OSError as error:
                problem = error
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(_finish, done, problem)


def _finish(done: asyncio.Future[None], problem: OSError | None) -> None:
    if done.done():
        return
    if problem is None:
        done.set_result(None)
    else:
        done.set_exception(problem)


class _Reader(threading.Thread):
    """Reads lines in a thread of its own, and hands over one message at a time."""

    def __init__(self, file: int, loop: asyncio.AbstractEventLoop, arriving: Any, writer: _Writer) -> None:
        super().__init__(name="upcall-mcp-reader", daemon=True)
        self._file, self._loop, self._arriving, self._writer = file, loop, arriving, writer
        self._line = bytearray()
        self._skips = False

    def run(self) -> None:
        """Read until the client closes its end or this process stops."""
        with contextlib.suppress(RuntimeError, OSError, anyio.ClosedResourceError, anyio.BrokenResourceError):
            while chunk := os.read(self._file, _CHUNK):
                for part in _lines(chunk):
                    self._take(part)
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._arriving.close)

    def _take(self, part: bytes) -> None:
        ends = part.endswith(b"\n")
        if not self._skips:
            self._line += part
        if len(self._line) > LARGEST_LINE:
            self._line.clear()
            self._skips = True
        if ends and self._skips:
            self._skips = False
            self._refuse(INVALID_REQUEST, f"a message may have at most {LARGEST_LINE} bytes")
        elif ends:
            line = bytes(self._line).strip()
            self._line.clear()
            if line:
                self._hand_over(line)

    def _hand_over(self, line: bytes) -> None:
        if problem := excess_in_text(line, LARGEST_LINE):
            self._refuse(INVALID_REQUEST, f"the message is too large: {problem}")
            return
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValidationError as error:
            broken = any(one["type"] == "json_invalid" for one in error.errors(include_url=False))
            if broken:
                self._refuse(PARSE_ERROR, "the line is not valid JSON")
            else:
                self._refuse(INVALID_REQUEST, "the line is not a JSON-RPC message")
            return
        self._wait_for(self._arriving.send(SessionMessage(message)))

    def _refuse(self, code: int, problem: str) -> None:
        error = JSONRPCError(jsonrpc="2.0", id=None, error=ErrorData(code=code, message=problem))
        self._wait_for(self._writer.write(error.model_dump_json(by_alias=True).encode() + b"\n"))

    def _wait_for(self, work: Any) -> None:
        try:
            asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except RuntimeError:
            work.close()
            raise


def _lines(chunk: bytes) -> list[bytes]:
    """The lines of a chunk, ended by line feeds only."""
    parts = chunk.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
