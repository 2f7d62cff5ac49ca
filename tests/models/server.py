"""A loopback HTTP server that sends exactly the bytes it is told, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

Send = Callable[[asyncio.StreamWriter], Awaitable[None]]


class Asked:
    def __init__(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.path, self.headers, self.body = path, headers, body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Server:
    """Plays one answer per request; the last one is repeated."""

    def __init__(self, answers: Sequence[bytes | Send]) -> None:
        self.answers = list(answers)
        self.asked: list[Asked] = []
        self.connections = 0
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self.one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):  # the client may have gone first
                await writer.wait_closed()

    async def one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines) if k}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.asked.append(Asked(first.split()[1], headers, body))
        answer = self.answers[min(len(self.asked), len(self.answers)) - 1]
        if callable(answer):
            await answer(writer)
            return False
        writer.write(answer)
        await writer.drain()
        return b"Connection: close" not in answer


@asynccontextmanager
async def serving(*answers: bytes | Send) -> AsyncGenerator[Server, None]:
    server = Server(answers)
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(server.handle(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    listening = await asyncio.start_server(connected, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# --- bytes ------------------------------------------------------------------------------


def plain(status: int, body: bytes | str, kind: str = "application/json", **headers: str) -> bytes:
    """A whole answer."""
    data = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", f"Content-Length: {len(data)}"]
    lines += [f"{k.replace('_', '-')}: {v}" for k, v in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + data


def head(kind: str = "text/event-stream", *more: str) -> bytes:
    return "\r\n".join(
        ["HTTP/1.1 200 OK", f"Content-Type: {kind}", "Transfer-Encoding: chunked", *more, "", ""]
    ).encode()


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


END = b"0\r\n\r\n"


def stream(*events: bytes) -> bytes:
    """A whole stream, each event its own HTTP chunk."""
    return head() + b"".join(chunk(e) for e in events) + END


def pieces(data: bytes, size: int = 1) -> Send:
    """The body in packets of that size."""

    async def send(writer: asyncio.StreamWriter) -> None:
        writer.write(head())
        for i in range(0, len(data), size):
            writer.write(chunk(data[i : i + size]))
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(END)
        await writer.drain()

    return send


def cut(*events: bytes) -> Send:
    """The socket is closed in the middle of a stream."""

    async def send(writer: asyncio.StreamWriter) -> None:
        writer.write(head() + b"".join(chunk(e) for e in events))
        await writer.drain()

    return send


def hanging(data: bytes) -> Send:
    """Some bytes, then nothing, until the client goes away."""

    async def send(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        await asyncio.Event().wait()

    return send


def gzipped(body: bytes) -> bytes:
    data = gzip.compress(body)
    lines = ["HTTP/1.1 200 OK", "Content-Type: text/event-stream", "Content-Encoding: gzip"]
    return "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data


# --- what both wires' tests use ---------------------------------------------------------


class Sleeps:
    """Stands for asyncio.sleep and remembers instead of waiting."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.waits.append(seconds)


class Heard:
    """An emit that keeps everything."""

    def __init__(self) -> None:
        self.all: list[tuple[str, str]] = []

    def __call__(self, kind: str, text: str) -> None:
        self.all.append((kind, text))

    @property
    def text(self) -> str:
        """What a reader sees in the end."""
        out = ""
        for kind, text in self.all:
            out = "" if kind == "drop" else out + text if kind == "text" else out
        return out

    @property
    def thinking(self) -> str:
        return "".join(t for k, t in self.all if k == "thinking")

    @property
    def drops(self) -> int:
        return sum(k == "drop" for k, _ in self.all)
