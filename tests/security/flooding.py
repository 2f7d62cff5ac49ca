"""A server in a thread of its own that sends more than anybody asked for, and floods for both wires as data."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

Parts = Sequence[tuple[bytes, int]]
"""Pieces of bytes, and how often each is sent."""

_PACKET = 65_536


class Flooding:
    """Where the server is, how often it was asked, and how many bytes it could send."""

    url = ""
    asked = 0
    sent = 0


@contextmanager
def flooding(*answers: Parts) -> Generator[Flooding]:
    """Serve these answers one after the other, the last one again and again. Each ends its connection."""
    listening = socket.create_server(("127.0.0.1", 0))
    out = Flooding()
    out.url = f"http://127.0.0.1:{listening.getsockname()[1]}"

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.settimeout(20)
                _take_request(connection)
                out.asked += 1
                for piece, times in answers[min(out.asked, len(answers)) - 1]:
                    out.sent += _send(connection, piece, times)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield out
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(20)


def _take_request(connection: socket.socket) -> None:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(_PACKET)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(int(h.split(b":")[1]) for h in head.split(b"\r\n") if h.lower().startswith(b"content-length"))
    while len(body) < length:
        body += connection.recv(_PACKET)


def _send(connection: socket.socket, piece: bytes, times: int) -> int:
    """Send a piece again and again, several at a time; stop where the client has gone."""
    together = max(1, min(times, _PACKET // max(1, len(piece))))
    sent = 0
    for _ in range(times // together):
        connection.sendall(piece * together)
        sent += len(piece) * together
    connection.sendall(piece * (times % together))
    return sent + len(piece) * (times % together)


# --- answers ----------------------------------------------------------------------------


def head(status: int = 200, *lines: str) -> bytes:
    """The head of an answer that ends with its connection."""
    return "\r\n".join([f"HTTP/1.1 {status} X", "Connection: close", *lines, "", ""]).encode()


class Speech(NamedTuple):
    """How one wire says things."""

    text: bytes
    """An event with a few letters of text."""
    line: tuple[bytes, bytes]
    """What stands before and after a text in an event of any length."""
    body: tuple[bytes, bytes]
    """What stands before and after a text in a whole answer."""
    call: bytes
    """An event that begins another tool call; `%d` is its index."""
    more: bytes
    """An event with more of the first call, its name and an opening and a closing brace."""
    begin: bytes
    """What a stream begins with."""
    end: bytes
    """What a stream ends with."""


OPENAI = Speech(
    text=b'data: {"choices":[{"delta":{"content":"abc"}}]}\n\n',
    line=(b'data: {"choices":[{"delta":{"content":"', b'"}}]}\n\n'),
    body=(b'{"choices":[{"message":{"content":"', b'"}}]}'),
    call=b'data: {"choices":[{"delta":{"tool_calls":[{"index":%d,"function":{"name":"f"}}]}}]}\n\n',
    more=(
        b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"{}"}}]}}]}\n\n'
    ),
    begin=b'data: {"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{\\"a\\":\\"}"},"index":0}]}}]}'
    b"\n\n",
    end=b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
)

_DELTA = b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"'
_START = (
    b'data: {"type":"content_block_start","index":%d,"content_block":{"type":"tool_use","id":"i","name":"f"}}\n\n'
)

ANTHROPIC = Speech(
    text=_DELTA + b'abc"}}\n\n',
    line=(_DELTA, b'"}}\n\n'),
    body=(b'{"type":"message","content":[{"type":"text","text":"', b'"}]}'),
    call=_START,
    more=b'data: {"type":"content_block_delta","index":0,"delta":{"partial_json":"{}"}}\n\n',
    begin=b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n',
    end=(b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}\n\ndata: {"type":"message_stop"}\n\n'),
)


def letters(size: int) -> list[tuple[bytes, int]]:
    """That many letters."""
    return [(b"a" * _PACKET, size // _PACKET), (b"a" * (size % _PACKET), 1)]


def packed(*parts: tuple[bytes, int]) -> bytes:
    """The parts as gzip."""
    return gzip.compress(b"".join(piece * times for piece, times in parts), compresslevel=1)


def options(**more: Any) -> dict[str, Any]:
    """Arguments of a model that does not wait between its tries."""

    async def at_once(_: float) -> None:
        pass

    return {"_sleep": at_once, "retries": 2, **more}
