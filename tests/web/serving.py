"""Starts `upcall serve` in a process of its own, and clients of it."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from cli.command import environment
from upcall import Runtime
from web.office import clerk


def make_agents(folder: Path) -> str:
    """A module with the agent `clerk`, in this folder; returns its name for the command."""
    shutil.copy(Path(__file__).with_name("office.py"), folder / "office.py")
    return "office:clerk"


class Server:
    """One process of `upcall serve`, and its address with the token."""

    def __init__(self, folder: Path, *args: str) -> None:
        self.folder, self._args = folder, args
        self.url = self.token = ""
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it and wait for the address that it prints."""
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", "-m", "upcall", "serve", "--port", "0", *self._args),
            cwd=self.folder,
            env=environment(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self.process.stdout is not None
        line = (await asyncio.wait_for(self.process.stdout.readline(), 60)).decode().strip()
        if not line:
            _, errors = await asyncio.wait_for(self.process.communicate(), 60)
            raise AssertionError(errors.decode())
        self.url, _, self.token = line.partition("/#token=")

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal and wait until it has ended; returns the exit code and what it printed as errors."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        _, errors = await asyncio.wait_for(self.process.communicate(), 60)
        assert self.process.returncode is not None
        return self.process.returncode, errors.decode()

    def client(self, token: str | None = None, **headers: str) -> aiohttp.ClientSession:
        """A client with the token, or with another one."""
        given = {"Authorization": f"Bearer {self.token if token is None else token}", **headers}
        return aiohttp.ClientSession(self.url, headers=given, connector=aiohttp.TCPConnector(limit=0))


@asynccontextmanager
async def serving(folder: Path, *args: str) -> AsyncGenerator[Server]:
    """A server over the log in a folder; it ends cleanly and says nothing that nobody asked for."""
    server = Server(folder, *args)
    await server.start()
    try:
        yield server
    finally:
        code, errors = await server.stop()
        assert "Traceback" not in errors, errors
        assert code in (143, -9), (code, errors)


async def get(client: aiohttp.ClientSession, path: str, code: int = 200) -> Any:
    """The JSON at a path; the status is checked."""
    async with client.get(path) as response:
        body = await response.read()
        assert response.status == code, (response.status, body)
        return msgspec.json.decode(body)


async def post(client: aiohttp.ClientSession, path: str, body: Any, code: int = 200) -> Any:
    """The JSON answer to a request; the status is checked."""
    async with client.post(path, data=msgspec.json.encode(body)) as response:
        answer = await response.read()
        assert response.status == code, (response.status, answer)
        return msgspec.json.decode(answer)


async def codes(client: aiohttp.ClientSession, path: str, bodies: Sequence[Any]) -> list[tuple[int, Any]]:
    """The status and the JSON of the answers to requests with these bodies, one by one."""
    found: list[tuple[int, Any]] = []
    for body in bodies:
        data = BytesIO(body if isinstance(body, bytes) else msgspec.json.encode(body))
        async with client.post(path, data=data) as response:
            found.append((response.status, msgspec.json.decode(await response.read())))
    return found


async def until(client: aiohttp.ClientSession, path: str, true: Callable[[Any], Any], seconds: float = 20.0) -> Any:
    """The JSON at a path once something is true of it."""
    async with asyncio.timeout(seconds):
        while not true(found := await get(client, path)):
            await asyncio.sleep(0.03)
    return found


class Sent:
    """One server-sent event."""

    def __init__(self, name: str, data: Any, position: int | None) -> None:
        self.name, self.data, self.position = name, data, position


async def sent(response: aiohttp.ClientResponse) -> AsyncGenerator[Sent]:
    """The events of a stream, as they come."""
    name, position, data = "message", None, b""
    async for line in response.content:
        field, _, value = line.rstrip(b"\n").partition(b": ")
        if field == b"event":
            name = value.decode()
        elif field == b"id":
            position = int(value)
        elif field == b"data":
            data = value
        elif not field and data:
            yield Sent(name, msgspec.json.decode(data), position)
            name, position, data = "message", None, b""


async def run_in(folder: Path, text: str, session: str) -> str:
    """Run a turn of the clerk in this process, over the folder's log; returns its status."""
    async with Runtime(folder / "log.db", agents=[clerk]) as runtime:
        started = await runtime.start("clerk", session)
        return (await started.prompt(text)).status
