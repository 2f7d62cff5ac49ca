"""Connections whose client is too slow, or sends what is not HTTP, with limits that a test can wait for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncGenerator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from upcall.hosts.http.connections import Limits, bounded_protocol

LARGE = b"x" * 20_000_000


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with a large body at /large, and else with a small one once it has the request's."""
    large = scope["path"] == "/large"
    while not large and (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": LARGE if large else b"small"})


@contextlib.asynccontextmanager
async def served(limits: Limits) -> AsyncGenerator[tuple[str, int]]:
    """A server with these limits; its address."""
    config = uvicorn.Config(app, log_level="error", lifespan="off", ws="none", http=bounded_protocol(limits))
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        task = asyncio.ensure_future(server._serve([listening]))  # pyright: ignore[reportPrivateUsage]
        try:
            while not server.started:
                await asyncio.sleep(0.01)
            yield listening.getsockname()
        finally:
            server.should_exit = server.force_exit = True
            await task


async def connect(address: tuple[str, int]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    with socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 200_000)
        made.connect(address)
        return await asyncio.open_connection(sock=made.dup(), limit=100_000)


async def rest(reader: asyncio.StreamReader) -> bytes:
    """What comes until the connection ends, however it ends."""
    found = b""
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(100_000):
                found += piece
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /small HTT",
        b"GET /small HTTP/1.1\r\nHost: x\r\nX-Long: ",
        b"GET /small HTTP/1.1\r\nHost: x\r\n\r\nGET /small HTTP/1.1\r\nHos",
    ],
)
async def test_a_request_that_never_ends_is_given_up(begun: bytes) -> None:
    async with served(Limits(request=0.3)) as address:
        reader, writer = await connect(address)
        writer.write(begun)
        said = await rest(reader)
        assert b"408" in said or begun.startswith(b"GET /small HTTP/1.1\r\nHost: x\r\n\r\n")
        writer.close()


@pytest.mark.slow
async def test_a_body_that_never_ends_is_given_up_however_steadily_it_comes() -> None:
    async with served(Limits(request=0.5)) as address:
        reader, writer = await connect(address)
        writer.write(b"POST /small HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        ended = asyncio.ensure_future(rest(reader))
        with contextlib.suppress(ConnectionError):
            while not ended.done():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.02)
        assert await ended == b""
        writer.close()


async def test_requests_that_are_sent_in_one_piece_are_answered_one_after_the_other() -> None:
    async with served(Limits()) as address:
        reader, writer = await connect(address)
        writer.write(b"GET /small HTTP/1.1\r\nHost: x\r\n\r\n" * 50 + b"GET / HTTP/1.0\r\n\r\n")
        assert (await rest(reader)).count(b"small") == 51
        writer.close()


@pytest.mark.slow
async def test_an_answer_that_nobody_reads_is_given_up_and_one_that_is_read_slowly_is_not() -> None:
    async with served(Limits(stall=0.5)) as address:
        reader, writer = await connect(address)
        slow_reader, slow_writer = await connect(address)
        for one in (writer, slow_writer):
            one.write(b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        got = 0
        async with asyncio.timeout(60):
            while piece := await slow_reader.read(400_000):
                got += len(piece)
                if got < 3_000_000:
                    await asyncio.sleep(0.05)
        assert got > len(LARGE)
        assert len(await rest(reader)) < len(LARGE)
        writer.close()
        slow_writer.close()


@pytest.mark.slow
async def test_of_all_that_nobody_reads_only_so_much_is_kept() -> None:
    async with served(Limits(unread=50_000_000)) as address:
        clients = [await connect(address) for _ in range(6)]
        for _, writer in clients:
            writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            await asyncio.sleep(0.1)
        lengths = [len(await rest(reader)) for reader, _ in clients]
        assert 1 <= sum(length > len(LARGE) for length in lengths) <= 3
        for _, writer in clients:
            writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /small HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /sm\x00all HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /small HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /small HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /large HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nnothex\r\n",
        b"GET /small HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
    ],
)
async def test_what_is_not_http_ends_the_connection_and_nothing_else(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(Limits(request=1.0)) as address:
        reader, writer = await connect(address)
        with contextlib.suppress(ConnectionError):
            writer.write(sent)
            await writer.drain()
        said = await rest(reader)
        assert b"Traceback" not in said
        writer.close()
        reader, writer = await connect(address)
        writer.write(b"GET /small HTTP/1.0\r\n\r\n")
        assert (await rest(reader)).endswith(b"small")
        writer.close()
    assert [one for one in caplog.records if one.levelno >= logging.ERROR] == []


@pytest.mark.slow
async def test_garbage_behind_a_request_whose_answer_was_begun_only_ends_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served(Limits(request=1.0)) as address:
        reader, writer = await connect(address)
        writer.write(b"POST /large HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert await reader.readexactly(1000)
        writer.write(b"this is not a chunk\r\n")
        await rest(reader)
        writer.close()
    assert [one for one in caplog.records if one.levelno >= logging.ERROR] == []
