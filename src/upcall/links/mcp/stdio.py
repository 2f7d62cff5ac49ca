"""A server that is a program of ours: messages by its standard input and output, one JSON text per line.

The library's own transport joins what a program prints without a bound and hands its stderr to ours. Here a line
has a bound, stderr is read and only its end is kept, and the program ends with us: its input is closed, then its
process group is told to end, then it is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from upcall.links.mcp.config import ServerConfig
from upcall.links.mcp.failures import ServerFailed
from upcall.safety.agent_commands import VARIABLE
from upcall.safety.bounds import excess_in_text

MESSAGE = 16_000_000
"""Bytes of one message of a server."""

_CHUNK, _TAIL = 65536, 4000
_GRACE = 0.5
"""Seconds that a program has to end after its input was closed, and again after it was told to end."""

Streams = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
]  # fmt: skip


class Tail:
    """The end of what a program wrote to stderr, for error messages."""

    def __init__(self) -> None:
        self._bytes = b""

    def add(self, chunk: bytes) -> None:
        """Keep the end of what was kept and of this."""
        self._bytes = (self._bytes + chunk)[-_TAIL:]

    @property
    def text(self) -> str:
        """The text, with its first and perhaps incomplete line."""
        return self._bytes.decode("utf-8", "replace").strip()


def _environment(config: ServerConfig) -> dict[str, str]:
    """The variables of a server's process, with the mark of what agents run.

    An agent calls the tools of its servers: a server that is `upcall mcp` must not take its answers for a person's.
    """
    return {**get_default_environment(), **config.env, VARIABLE: " mcp"}


@asynccontextmanager
async def stdio_streams(config: ServerConfig, tail: Tail) -> AsyncGenerator[Streams]:
    """Start the program and yield its streams; ServerFailed says why it can't be started."""
    try:
        process = await asyncio.create_subprocess_exec(
            config.command, *config.args, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, env=_environment(config),
            cwd=config.cwd or None, start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise ServerFailed(f"{config.command!r} can't be started: {_reason(error, config)}") from None
    incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    tasks = [
        asyncio.ensure_future(_read_messages(process, incoming)),
        asyncio.ensure_future(_write_messages(process, outgoing)),
        asyncio.ensure_future(_read_errors(process, tail)),
    ]
    try:
        yield read, write
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for stream in (incoming, read, write, outgoing):
                stream.close()


def _reason(error: OSError | ValueError, config: ServerConfig) -> str:
    if isinstance(error, FileNotFoundError) and not (config.cwd and not os.path.isdir(config.cwd)):  # noqa: PTH112
        return "there is no such program"
    return str(getattr(error, "strerror", None) or error)


async def _read_messages(
    process: asyncio.subprocess.Process, incoming: MemoryObjectSendStream[SessionMessage | Exception]
) -> None:
    assert process.stdout is not None
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async with incoming:
            pending: list[bytes] = []
            size = 0
            while chunk := await process.stdout.read(_CHUNK):
                *lines, rest = chunk.split(b"\n")
                for line in lines:
                    whole, pending, size = b"".join([*pending, line]), [], 0
                    if problem := excess_in_text(whole, MESSAGE):
                        await incoming.send(ServerFailed(f"it sent a message that is too large: {problem}"))
                        return
                    await _hand_on(whole, incoming)
                if rest:
                    pending.append(rest)
                    size += len(rest)
                if size > MESSAGE:
                    await incoming.send(ServerFailed(f"it sent a message of more than {MESSAGE} bytes"))
                    return


async def _hand_on(line: bytes, incoming: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
    """Send a message on. A line that is not one is left out: some programs print what belongs into a log."""
    if not line.strip():
        return
    try:
        message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        return
    await incoming.send(SessionMessage(message))


async def _write_messages(
    process: asyncio.subprocess.Process, outgoing: MemoryObjectReceiveStream[SessionMessage]
) -> None:
    assert process.stdin is not None
    with suppress(OSError, anyio.ClosedResourceError):
        async with outgoing:
            async for one in outgoing:
                process.stdin.write(one.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await process.stdin.drain()


async def _read_errors(process: asyncio.subprocess.Process, tail: Tail) -> None:
    assert process.stderr is not None
    while chunk := await process.stderr.read(_CHUNK):
        tail.add(chunk)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a program and all that it started in its process group."""
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()
    if not await _has_ended(process):
        _signal(process, signal.SIGTERM)
        await _has_ended(process)
    _signal(process, signal.SIGKILL)  # also what it left behind in its group
    await _has_ended(process)
    close: Callable[[], None] | None = getattr(getattr(process, "_transport", None), "close", None)
    if close is not None:  # a program that outlives it may hold its pipes open
        with suppress(OSError):
            close()


async def _has_ended(process: asyncio.subprocess.Process) -> bool:
    """Return whether it ended within the grace period. Its pipes may stay open, so `wait()` may not return."""
    clock = asyncio.get_running_loop().time
    until = clock() + _GRACE
    while process.returncode is None and clock() < until:  # noqa: ASYNC110 - there is nothing else to wait for
        await asyncio.sleep(0.01)
    return process.returncode is not None


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(OSError):
        os.killpg(process.pid, number)
