"""Streams of events: from any position, from any process, to slow clients, through restarts."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any, cast

import aiohttp
import msgspec
import pytest

from upcall import Runtime
from web.office import clerk
from web.serving import Sent, Server, get, post, run_in, sent, serving


async def events_of(folder: Path, session: str | None = None) -> list[tuple[str, int]]:
    async with Runtime(folder / "log.db") as runtime:
        return [(event.session, event.seq) async for event in runtime.events(session)]


async def collect(client: aiohttp.ClientSession, path: str, count: int, after: int | None = None) -> list[Sent]:
    """So many events of a stream, in as many messages as they come."""
    headers = {"Last-Event-ID": str(after)} if after is not None else {}
    found: list[Sent] = []
    async with asyncio.timeout(30), client.get(path, headers=headers) as response:
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        async for one in sent(response):
            found.append(one)
            if sum(len(each.data) for each in found) >= count:
                return found
    return found


def flat(found: list[Sent]) -> list[tuple[str, int]]:
    return [(event["session"], event["seq"]) for one in found for event in one.data]


@pytest.mark.slow
async def test_a_session_is_streamed_from_its_beginning_or_from_where_a_client_left(tmp_path: Path) -> None:
    await run_in(tmp_path, "wait 0", "s1")
    await run_in(tmp_path, "hello", "s2")
    stored = await events_of(tmp_path, "s1")
    async with serving(tmp_path, "--store", "log.db") as server, server.client() as client:
        whole = await collect(client, "/api/sessions/s1/events", len(stored))
        assert flat(whole) == stored
        events = [event for one in whole for event in one.data]
        assert whole[-1].position == events[-1]["pos"]
        assert {"session", "seq", "time", "type"} <= set(events[0])

        middle = events[3]["pos"]
        rest = await collect(client, "/api/sessions/s1/events", len(stored) - 4, middle)
        assert flat(rest) == stored[4:]
        everything = await collect(client, "/api/events", len(stored) + 4, 0)
        assert flat(everything) == await events_of(tmp_path)
        one = await get(client, "/api/sessions/s1/events/2")
        assert one == events[1]


@pytest.mark.slow
async def test_what_another_process_writes_is_streamed_within_a_quarter_of_a_second(tmp_path: Path) -> None:
    await run_in(tmp_path, "hello", "before")
    late: list[float] = []
    async with (
        serving(tmp_path, "--store", "log.db") as server,
        server.client() as client,
        client.get("/api/events") as response,
        Runtime(tmp_path / "log.db", agents=[clerk]) as runtime,
    ):
        stream = sent(response)
        for number in range(20):
            session = await runtime.start("clerk", f"s{number}")
            await session.prompt("hello")
            ended = False
            while not ended:
                one = await asyncio.wait_for(anext(stream), 20)
                late.append(time.time() - one.data[-1]["time"])
                ended = any(event["type"] == "turn_ended" for event in one.data)
            await asyncio.sleep(0.05)
    late.sort()
    assert late[int(len(late) * 0.9)] < 0.25, late


@pytest.mark.slow
async def test_a_server_that_is_killed_and_started_again_leaves_no_gap_and_no_double(tmp_path: Path) -> None:
    server, seen, position = Server(tmp_path, "--store", "log.db"), list[tuple[str, int]](), 0
    async with Runtime(tmp_path / "log.db", agents=[clerk]) as runtime:
        for number in range(4):
            await server.start()
            async with server.client() as client:
                headers = {"Last-Event-ID": str(position)}
                async with client.get("/api/events", headers=headers) as response:
                    stream = sent(response)
                    for turn in range(5):
                        session = await runtime.start("clerk", f"s{number}-{turn}")
                        await session.prompt("wait 0")
                    while len([one for one in seen if one[0].startswith(f"s{number}")]) < 20:
                        one = await asyncio.wait_for(anext(stream), 20)
                        seen += [(event["session"], event["seq"]) for event in one.data]
                        assert one.position is not None
                        position = one.position
                    session = await runtime.start("clerk", f"x{number}")
                    await session.prompt("wait 0")
                    code, _ = await server.stop(signal.SIGKILL)
                    assert code == -9
        await server.start()
        stored = [(event.session, event.seq) async for event in runtime.events()]
    async with server.client() as client:
        seen += flat(await collect(client, "/api/events", len(stored) - len(seen), position))
    await server.stop()
    assert seen == stored


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_client_that_reads_nothing_costs_bounded_memory_and_then_gets_everything(tmp_path: Path) -> None:
    text = "x" * 20_000
    async with serving(tmp_path, "--store", "log.db") as server:
        reader, writer = await _slow_client(server, "/api/events")
        async with Runtime(tmp_path / "log.db", agents=[clerk]) as runtime:
            for number in range(40):
                for _ in range(20):
                    session = await runtime.start("clerk")
                    await session.prompt(f"{text}{number}")
            stored = [(event.session, event.seq) async for event in runtime.events()]
        await asyncio.sleep(1)
        assert server.process is not None
        assert memory(server.process.pid) < 200_000_000
        seen: list[Any] = []
        async with asyncio.timeout(100):
            while len(seen) < len(stored):
                line = await reader.readuntil(b"\n")
                if line.startswith(b"data: "):
                    seen += [(one["session"], one["seq"]) for one in msgspec.json.decode(line[6:])]
        writer.close()
    assert seen == stored


async def _slow_client(server: Server, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=50_000_000)
    head = f"GET {path} HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\n\r\n"
    writer.write(head.encode())
    await reader.readuntil(b"retry: 1000")
    transport = cast("asyncio.Transport", writer.transport)
    transport.pause_reading()
    asyncio.get_running_loop().call_later(8, transport.resume_reading)
    return reader, writer


def memory(pid: int) -> int:
    """Bytes of memory that a process uses."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_thousand_streams_get_the_same_events(tmp_path: Path) -> None:
    async with serving(tmp_path, "--store", "log.db") as server, server.client() as client:
        await get(client, "/api/me")

        async def read(ready: asyncio.Semaphore) -> list[tuple[str, int]]:
            async with ready:
                while (response := await client.get("/api/events")).status == 429:
                    response.close()
                    await asyncio.sleep(float(response.headers["retry-after"]))
            assert response.status == 200
            connected.append(response)
            found: list[tuple[str, int]] = []
            async for one in sent(response):
                found += [(event["session"], event["seq"]) for event in one.data]
                if any(event["type"] == "turn_ended" for event in one.data):
                    response.close()
                    return found
            return found

        limit, connected = asyncio.Semaphore(50), list[aiohttp.ClientResponse]()
        tasks = [asyncio.ensure_future(read(limit)) for _ in range(1000)]
        async with asyncio.timeout(60):
            while len(connected) < 1000:
                await asyncio.sleep(0.05)
        await run_in(tmp_path, "wait 0", "s1")
        results = await asyncio.wait_for(asyncio.gather(*tasks), 60)
        stored = await events_of(tmp_path, "s1")
        assert all(one == stored for one in results)
        assert server.process is not None
        assert memory(server.process.pid) < 300_000_000
        assert await post(client, "/api/sessions/s1/cancel", {})
