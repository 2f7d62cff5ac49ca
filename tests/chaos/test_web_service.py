"""The web service of the examples as real processes: restarts lose nothing and repeat nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from house.measure import ROOT
from upcall import Runtime

SERVICE = ROOT / "examples" / "web_service"
SLOW_AGENTS = Path(__file__).with_name("slow_agents")
SESSIONS = [f"s{number}" for number in range(60)]
ORDERS = [f"{session}{part}" for session in SESSIONS for part in ("a", "b")]
BROKEN = (aiohttp.ClientError, ConnectionError)
"""What a client sees of a service that stops, or is not there."""

UNWANTED = ("outcome unknown", "upcall.errors", "can't be resumed", "never retrieved", "destroyed")
"""Words that nobody finds in the log of a service that is restarted while all is well.

The server itself logs a CancelledError for each stream that a client still watches when its time is up.
"""


class Service:
    """One process of the service, behind a socket in the folder that it works in.

    `agents` is the folder from which it imports `refunds`.
    """

    def __init__(self, folder: Path, name: str, agents: Path) -> None:
        self._folder, self._name, self._agents = folder, name, agents
        self._process: asyncio.subprocess.Process | None = None
        self.log = folder / f"{name}.log"

    async def start(self) -> None:
        """Start it and wait until it answers."""
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "uvicorn", "service:app", "--app-dir", str(self._agents)),
                *("--uds", f"{self._name}.sock", "--timeout-graceful-shutdown", "2"),
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": str(SERVICE)},
                stdout=log,
                stderr=log,
            )
        while True:
            try:
                async with self.client() as client, client.get("/inbox"):
                    return
            except BROKEN:
                assert self._process.returncode is None, self.log.read_text()
                await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """Send SIGTERM and wait until it has ended, as it should."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(self._process.wait(), 40) == -signal.SIGTERM, self.log.read_text()

    async def kill(self) -> None:
        """Don't let it outlive the test."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def client(self) -> aiohttp.ClientSession:
        """A client of this process."""
        connector = aiohttp.UnixConnector(str(self._folder / f"{self._name}.sock"), limit=0)
        return aiohttp.ClientSession("http://service", connector=connector)


class Clients:
    """Everybody who uses the two processes: whatever breaks is tried again with the other one."""

    def __init__(self, *services: Service) -> None:
        self._services = services
        self.accepted: dict[str, list[str]] = {}
        self.refused = self.breaks = 0

    async def start_session(self, session: str) -> None:
        """Give one session its orders, and watch it to its end; every event comes once."""
        seen, at = 0, SESSIONS.index(session)
        while True:
            service = self._services[at % 2]
            try:
                async with service.client() as client:
                    last = {"Last-Event-ID": str(seen)}
                    given = f"{session}a {session}b"
                    async with client.post(f"/sessions/{session}", data=given, headers=last) as response:
                        assert response.status == 200, await response.text()
                        async for event in server_sent(response):
                            if event["session"] == session and "seq" in event:  # else it is a delta
                                assert event["seq"] == seen + 1 or not seen  # a stream begins with its turn
                                seen = event["seq"]
                                if event["type"] == "turn_ended":
                                    assert event["status"] == "done"
                                    return
            except BROKEN:
                self.breaks += 1
            at += 1
            await asyncio.sleep(0.05)

    async def answer_everything(self) -> None:
        """Answer what is in the inbox, each question by two people at once, until all orders were answered."""
        while len(self.accepted) < len(ORDERS):
            for service in self._services:
                try:
                    async with service.client() as client, client.get("/inbox") as response:
                        waiting = await response.json()
                except BROKEN:
                    self.breaks += 1
                    continue
                await asyncio.gather(*[self._answer(one, by) for one in waiting for by in (0, 1)])
            await asyncio.sleep(0.02)

    async def _answer(self, callback: dict[str, Any], by: int) -> None:
        given = {"id": callback["id"], "value": by, "by": f"person {by}"}
        try:
            async with self._services[by].client() as client, client.post("/inbox", json=given) as response:
                status = response.status
        except BROKEN:  # nobody knows whether it was taken
            self.breaks += 1
            return
        assert status in (200, 409)
        order = callback["message"].split()[-1].rstrip("?")
        self.accepted.setdefault(order, [])
        if status == 200:
            self.accepted[order].append(f"{order} {by}")
        else:
            self.refused += 1


async def server_sent(response: aiohttp.ClientResponse) -> AsyncGenerator[dict[str, Any]]:
    """The events of a stream, as they come."""
    async for line in response.content:
        if line.startswith(b"data: "):
            yield msgspec.json.decode(line[6:])


@asynccontextmanager
async def serving(folder: Path, agents: Path) -> AsyncGenerator[tuple[Service, Service]]:
    """Two processes of the service over one log."""
    services = Service(folder, "one", agents), Service(folder, "two", agents)
    try:
        await asyncio.gather(*[service.start() for service in services])
        yield services
    finally:
        for service in services:
            await service.kill()


def payments(folder: Path) -> list[str]:
    file = folder / "payments.txt"
    return file.read_text().splitlines() if file.exists() else []


async def restart_when(folder: Path, count: int, *services: Service) -> None:
    """Restart processes once so many effects have happened."""
    while len(payments(folder)) < count:
        await asyncio.sleep(0.01)
    await asyncio.gather(*[service.stop() for service in services])
    await asyncio.gather(*[service.start() for service in services])


def test_the_service_has_fewer_than_sixty_lines() -> None:
    assert len((SERVICE / "service.py").read_text(encoding="utf-8").splitlines()) < 60


@pytest.mark.timeout(300)
@pytest.mark.parametrize("agents", [SERVICE, SLOW_AGENTS], ids=["as it is", "calls take a while"])
async def test_two_processes_that_are_restarted_lose_nothing_and_do_nothing_twice(
    agents: Path, tmp_path: Path
) -> None:
    async with serving(tmp_path, agents) as (one, two), asyncio.timeout(280):
        clients = Clients(one, two)
        async with asyncio.TaskGroup() as tasks:
            for session in SESSIONS:
                tasks.create_task(clients.start_session(session))
            tasks.create_task(clients.answer_everything())
            await restart_when(tmp_path, len(ORDERS) // 4, one)
            await restart_when(tmp_path, len(ORDERS) // 2, one, two)
        await asyncio.gather(one.stop(), two.stop())

    paid = payments(tmp_path)
    assert Counter(line.split()[0] for line in paid) == Counter(ORDERS)
    assert all(clients.accepted[line.split()[0]] in ([], [line]) for line in paid)
    async with Runtime(tmp_path / "work.db") as runtime:
        assert {await runtime.status(session) for session in SESSIONS} == {"done"}
        assert (await runtime.ready(), await runtime.inbox()) == ([], [])
        stored = [str(event) async for event in runtime.events()]
    lines = [*one.log.read_text().splitlines(), *two.log.read_text().splitlines()]
    assert [line for line in [*lines, *stored] if any(word in line for word in UNWANTED)] == []
