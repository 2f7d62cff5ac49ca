"""Requests that are meant to break the server: odd, large, many, and from clients that never read."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncGenerator
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

import upcall.web
from upcall import Runtime
from upcall.hosts.http.rates import READS, Rates
from web.office import clerk
from web.serving import Server, codes, get, make_agents, run_in, serving
from web.test_streams import memory

MB = 1_000_000


async def exchange(server: Server, request: bytes) -> bytes:
    """All that comes back for what is sent; "" where the connection is just ended."""
    place = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    found = b""
    with contextlib.suppress(ConnectionError, TimeoutError):
        writer.write(request)
        await writer.drain()
        async with asyncio.timeout(5):
            while piece := await reader.read(100_000):
                found += piece
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return found


def statuses(answer: bytes) -> list[int]:
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d+)", answer)]


@pytest.mark.slow
async def test_odd_requests_get_the_right_code_and_never_a_stack(tmp_path: Path) -> None:
    await run_in(tmp_path, "hello", "s1")
    async with serving(tmp_path, make_agents(tmp_path), "--store", "log.db") as server:
        head = f"Host: localhost\r\nAuthorization: Bearer {server.token}\r\nConnection: close\r\n".encode()
        for line, more, expected in (
            (b"HEAD /api/sessions", b"", [200]),
            (b"HEAD /api/events", b"", [200]),
            (b"HEAD /api/live", b"", [200]),
            (b"HEAD /", b"", [200]),
            (b"OPTIONS /api/sessions", b"", [405]),
            (b"OPTIONS *", b"", [404, 405]),
            (b"TRACE /api/me", b"", [405]),
            (b"CONNECT evil.example:443", b"", [404, 405]),
            (b"DELETE /api/sessions/s1", b"", [405]),
            (b"GET http://evil.example/api/me", b"", [404]),
            (b"GET /api/me", b"Range: bytes=0-3\r\n", [200]),
            (b"GET /", b"Range: bytes=0-3, 2-9, -5\r\n", [200]),
            (b"GET /api/me", b"If-None-Match: *\r\nIf-Range: x\r\n", [200]),
            (b"GET /api/me", b"Upgrade: websocket\r\nConnection: Upgrade\r\n", [200, 400]),
            (b"GET /api/me", b"Authorization: Bearer wrong\r\n", [200, 400, 401]),
            (b"GET /api/me", b"Origin: null\r\n", [403]),
            (b"GET /api/me", b"Origin: http://localhost\r\nOrigin: https://evil.example\r\n", [403]),
            (b"GET /api/me", b"X-Forwarded-Host: evil.example\r\nX-Forwarded-For: 1.2.3.4\r\n", [200]),
            (b"GET /api/sessions/%ff%fe", b"", [404]),
            (b"GET /api/sessions/%00", b"", [404]),
            (b"GET /api/sessions/s1%2fevents%2f1", b"", [200, 404]),
            (b"GET /api/sessions/..%2f..%2fme", b"", [404]),
            (b"GET /api/sessions/%ed%a0%80", b"", [404]),
            (b"GET /api/callbacks/" + b"x" * 20_000, b"", [404]),
            (b"GET /api/sessions?q=" + b"%ff" * 2_000, b"", [200]),
            (b"GET /api/sessions?agent=%00&tag=%00=%00", b"", [200, 422]),
            (b"GET /api/sessions?" + b"&".join(b"tag=a%d=b" % n for n in range(900)), b"", [200, 422]),
            (b"GET /api/sessions?" + b"a" * 400_000, b"", [400]),
            (b"GET /api/sessions?limit=" + b"9" * 5_000, b"", [422]),
            (b"GET /api/sessions?limit=%D9%A3", b"", [422]),
            (b"GET /api/search?q=" + b"%F0%9F%92%A9" * 50, b"", [200]),
            (b"GET /api/search?q=" + b"%22" * 200, b"", [200]),
            (b"GET /api/live?tree=%00", b"", [404]),
            (b"GET /api/events", b"Last-Event-ID: -1\r\n", [422]),
            (b"GET /api/events?after=999999999999999999999", b"", [422]),
        ):
            answer = await exchange(server, line + b" HTTP/1.1\r\n" + head + more + b"\r\n")
            assert [code for code in statuses(answer) if code in expected], (line, answer[:500])
            assert b"Traceback" not in answer, line
            assert b'File "' not in answer, line
        pipelined = b"GET /api/me HTTP/1.1\r\n" + head.replace(b"Connection: close\r\n", b"") + b"\r\n"
        answer = await exchange(server, pipelined * 20 + b"GET /api/me HTTP/1.1\r\n" + head + b"\r\n")
        assert statuses(answer) == [200] * 21
        smuggled = b"POST /api/sessions/s1/steer HTTP/1.1\r\n" + head + b"Content-Length: 4\r\n"
        answer = await exchange(server, smuggled + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + pipelined)
        assert set(statuses(answer)) <= {400, 404, 409, 422}, answer
        async with server.client() as client:
            assert (await get(client, "/api/me"))["agents"] == ["clerk"]


@pytest.mark.slow
async def test_bodies_that_are_large_deep_or_broken_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, make_agents(tmp_path), "--store", "log.db") as server, server.client() as client:
        found = await codes(
            client,
            "/api/sessions",
            [
                b"x" * 10 * MB,
                b'{"agent": "clerk", "text": "' + b"x" * 10 * MB + b'"}',
                b"[" * 100_000,
                b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
                b"[" + b"{}," * 600_000 + b"{}]",
                b'{"agent": "clerk", "text": "\xff\xfe"}',
                b'{"agent": "clerk", "text": "\\ud800"}',
                b'{"agent": "clerk", "text": 1e999}',
                b'{"agent": "clerk", "text": NaN}',
                b"\x00" * 1000,
                b'{"agent": "clerk", "text": "x", "id": "../../etc"}',
                b'{"agent": "clerk", "text": "x", "title": "' + b"t" * 10_000 + b'"}',
            ],
        )
        assert [code for code, _ in found] == [413] * 2 + [422] * 10, found
        assert all(len(str(answer)) < 3000 for _, answer in found)
        assert (await get(client, "/api/sessions"))["sessions"] == []
        assert server.process is not None
        assert memory(server.process.pid) < 250 * MB


async def test_a_mounted_application_lets_nobody_around_its_authentication(tmp_path: Path) -> None:
    asked: list[str] = []

    def authenticate(request: object) -> str | None:
        asked.append(str(request))
        return None

    async with Runtime(tmp_path / "log.db") as runtime:
        for root in ("/agents", "/api", "/a/b"):
            service = Starlette(routes=[Mount(root, upcall.web.app(runtime, authenticate))])
            with TestClient(service, base_url="http://anything.example") as client:
                for path in ("/api/me", "/api/sessions", "/api/nothing", "/%61pi/me", "/api/./me"):
                    answer = await asyncio.to_thread(client.get, root + path)
                    assert answer.status_code == 401, (root, path)
                for path in ("//api/me", "/x/api/me", "/API/me", "/api", "/;/api/me", "/api%2fme"):
                    answer = await asyncio.to_thread(client.get, root + path)
                    assert answer.status_code in (401, 404), (root, path)
                    assert "version" not in answer.text
                assert (await asyncio.to_thread(client.get, root + "/")).status_code == 200
    assert asked


def test_the_limiter_remembers_a_thousand_principals_and_not_more() -> None:
    rates = Rates(lambda: 0.0)
    for number in range(5000):
        assert rates.wait(f"user-{number}", READS) == 0
    assert len(rates) <= 1000


# --- clients that never read ------------------------------------------------------------


@contextlib.asynccontextmanager
async def silent(server: Server, path: str, count: int) -> AsyncGenerator[None]:
    """So many clients that ask for a path and read nothing of the answer."""
    place = urlsplit(server.url)
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\n\r\n"
    made: list[socket.socket] = []
    try:
        for _ in range(count):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.setblocking(False)
            made.append(one)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(one, (place.hostname or "", place.port or 0))
            await loop.sock_sendall(one, head.encode())
        yield
    finally:
        for one in made:
            one.close()


async def largest_memory(server: Server, client: aiohttp.ClientSession, seconds: float) -> int:
    """The most memory that a server uses for some time, while it answers others."""
    assert server.process is not None
    most, until = 0, asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < until:
        async with client.get("/") as response:  # the page, which no rate limits: a thousand clients use up the API
            assert response.status == 200
        most = max(most, memory(server.process.pid))
        await asyncio.sleep(0.05)
    return most


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("path", "count"),
    [
        ("/api/sessions/s1/conversation", 100),
        ("/api/events?after=0", 400),
        ("/api/sessions/s1/events", 400),
        ("/api/live?tree=s1&after=0", 1000),
        ("/api/sessions/s1/export?format=jsonl", 100),
    ],
)
async def test_clients_that_never_read_cost_bounded_memory(path: str, count: int, tmp_path: Path) -> None:
    async with Runtime(tmp_path / "log.db", agents=[clerk]) as runtime:
        session = await runtime.start("clerk", "s1")
        for number in range(10):
            await session.prompt(f"{number}{'text ' * 200_000}")
        for number in range(300):
            await session.prompt(f"{number}{'text ' * 2_000}")
    async with serving(tmp_path, "--store", "log.db") as server, server.client() as client:
        await get(client, "/api/sessions/s1/nodes")
        assert server.process is not None
        before = memory(server.process.pid)
        async with silent(server, path, count):
            most = await largest_memory(server, client, 8)
        print(f"{path}: {before // MB} MB before, {most // MB} MB with {count} clients")
        assert most < before + 350 * MB
