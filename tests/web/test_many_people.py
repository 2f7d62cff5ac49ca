"""Several people list, open and answer questions at the same time, over a log in a file and one in PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from yarl import URL

from postgres import server as database_server
from upcall import Runtime
from upcall.hosts.web.log import Log, Read, check_free
from web.office import clerk
from web.serving import make_agents, sent, serving, until

pytestmark = [pytest.mark.slow, pytest.mark.in_file]

QUESTIONS, PEOPLE = 10, 4
LONGEST_PAUSE = 5.0
"""Seconds that the event loop of a busy machine may do nothing."""

SERVICE = """
import asyncio, contextlib, os, sys, time
import uvicorn
from office import clerk
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
import upcall.web
from upcall import Runtime

runtime = Runtime(sys.argv[1], agents=[clerk])
longest = 0.0


async def look_at_the_loop():
    global longest
    while True:
        before = time.monotonic()
        await asyncio.sleep(0.02)
        longest = max(longest, time.monotonic() - before)


async def health(request):
    return JSONResponse({"longest_pause": longest})


page = upcall.web.app(runtime, lambda request: request.headers.get("x-key"), index="log.index")
service = Starlette(routes=[Route("/health", health), Mount("/agents", page)])


async def main():
    server = uvicorn.Server(uvicorn.Config(service, port=0, log_level="warning"))
    async with runtime, asyncio.TaskGroup() as tasks:
        tasks.create_task(look_at_the_loop())
        tasks.create_task(runtime.work())
        tasks.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        print(server.servers[0].sockets[0].getsockname()[1], flush=True)
        await asyncio.Event().wait()


asyncio.run(main())
"""


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    """A place for a log: a path, or the URL of a database."""
    if request.param == "sqlite":
        yield str(tmp_path / "log.db")
        return
    url = database_server().database()
    yield url
    database_server().drop(url)


async def ask(store: str) -> list[str]:
    """Let sessions ask, and leave them to other processes; returns the ids of their questions."""
    async with Runtime(store, agents=[clerk], hold=0) as runtime:
        for number in range(QUESTIONS):
            session = await runtime.start("clerk", f"s{number}")
            assert (await session.prompt(f"refund o{number}")).status == "waiting"
        return [one.id for one in await runtime.inbox()]


@asynccontextmanager
async def mounted(folder: Path, store: str) -> AsyncGenerator[str]:
    """A service with the page mounted in it, as a process; its address."""
    (folder / "service.py").write_text(SERVICE)
    with (folder / "service.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "service.py", store),
            cwd=folder,
            env=dict(os.environ),
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        assert line, (folder / "service.log").read_text()
        yield f"http://127.0.0.1:{int(line)}"
        assert process.returncode is None, (folder / "service.log").read_text()
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
    said = (folder / "service.log").read_text()
    assert "Traceback" not in said, said


class Person:
    """Somebody who lists the questions, opens each one, answers it and looks again."""

    def __init__(self, client: aiohttp.ClientSession, below: str, number: int) -> None:
        self._client, self._below, self._number = client, below, number
        self.answered: list[str] = []

    async def answer_all(self, callbacks: list[str]) -> None:
        """Answer all questions; somebody else may have been faster."""
        for one in callbacks[self._number :] + callbacks[: self._number]:
            await self._ok("GET", "/api/inbox")
            card = await self._ok("GET", f"/api/callbacks/{one}")
            await self._ok("GET", f"/api/sessions/{card['root']}")
            if card["status"] == "open":
                code = await self._code("POST", f"/api/callbacks/{one}/answer", {"value": self._number})
                assert code in (200, 409), code
                self.answered += [card["root"]] if code == 200 else []
        await self._ok("GET", "/api/sessions")

    async def watch(self, enough: asyncio.Event) -> None:
        """Read the stream of a page until there was enough."""
        async with self._client.get(f"{self._below}/api/live") as response:
            assert response.status == 200
            events = sent(response)
            stop = asyncio.ensure_future(enough.wait())
            while not stop.done():
                one = asyncio.ensure_future(anext(events))
                await asyncio.wait({one, stop}, return_when="FIRST_COMPLETED")
                if one.done():
                    one.result()
                else:
                    one.cancel()
                    await asyncio.gather(one, return_exceptions=True)

    async def _code(self, method: str, path: str, body: Any = None) -> int:
        data = None if body is None else msgspec.json.encode(body)
        async with self._client.request(method, self._below + path, data=data) as response:
            text = await response.read()
            assert response.status < 500, (path, response.status, text)
            return response.status

    async def _ok(self, method: str, path: str) -> Any:
        async with self._client.request(method, self._below + path) as response:
            text = await response.read()
            assert response.status == 200, (path, response.status, text)
            return msgspec.json.decode(text)


async def answer_together(clients: list[aiohttp.ClientSession], callbacks: list[str], below: str = "") -> None:
    """Let everybody answer everything, and wait until every session is done."""
    people = [Person(client, below, number) for number, client in enumerate(clients)]
    enough = asyncio.Event()
    watching = asyncio.ensure_future(people[0].watch(enough))
    async with asyncio.timeout(120):
        await asyncio.gather(*(one.answer_all(callbacks) for one in people))

        def all_done(found: Any) -> bool:
            return [row["status"] for row in found["sessions"]] == ["done"] * QUESTIONS

        await until(clients[0], f"{below}/api/sessions", all_done, 60)
        enough.set()
        await watching
    answered = sorted(session for one in people for session in one.answered)
    assert answered == sorted(f"s{number}" for number in range(QUESTIONS))


def orders_paid(folder: Path) -> list[str]:
    return sorted(line.split()[0] for line in (folder / "payments.txt").read_text().splitlines())


EVERY_ORDER = sorted(f"o{number}" for number in range(QUESTIONS))


async def test_many_people_answer_at_once_on_a_server_and_every_answer_counts_once(
    store: str, tmp_path: Path
) -> None:
    callbacks = await ask(store)
    async with serving(tmp_path, make_agents(tmp_path), "--store", store) as server:
        clients = [server.client() for _ in range(PEOPLE)]
        try:
            await answer_together(clients, callbacks)
        finally:
            await asyncio.gather(*(client.close() for client in clients))
    assert orders_paid(tmp_path) == EVERY_ORDER


async def test_many_people_answer_at_once_in_a_service_that_mounts_the_page_and_every_answer_counts_once(
    store: str, tmp_path: Path
) -> None:
    make_agents(tmp_path)
    callbacks = await ask(store)
    async with mounted(tmp_path, store) as url:
        clients = [aiohttp.ClientSession(url, headers={"x-key": f"p{number}"}) for number in range(PEOPLE)]
        try:
            await answer_together(clients, callbacks, "/agents")
            async with clients[0].get("/health") as response:
                assert (await response.json())["longest_pause"] < LONGEST_PAUSE
        finally:
            await asyncio.gather(*(client.close() for client in clients))
    assert orders_paid(tmp_path) == EVERY_ORDER


ODD_IDS = ("%00", "a%00b", "a~%00", "%ed%a0%80", "%ff%fe", "a%0Ab", "%5c", "%e2%80%ae", "%F0%9F%92%A9")
PATHS = (
    "/api/sessions/{}",
    "/api/sessions/{}/nodes",
    "/api/sessions/{}/conversation",
    "/api/sessions/{}/events",
    "/api/sessions/{}/events/1",
    "/api/sessions/{}/calls/1",
    "/api/sessions/{}/export",
    "/api/callbacks/{}",
    "/api/live?tree={}",
)


async def test_ids_that_no_log_can_hold_are_not_found(store: str, tmp_path: Path) -> None:
    async with serving(tmp_path, make_agents(tmp_path), "--store", store) as server, server.client() as client:
        for odd in ODD_IDS:
            for path in PATHS:
                async with client.get(URL(server.url + path.format(odd), encoded=True)) as response:
                    assert response.status == 404, (path, odd, await response.text())
        bodies = {"answer": {"value": 1}, "prompt": {"text": "x"}, "cancel": {}, "resume": {}}
        for last, body in bodies.items():
            kind = "callbacks" if last == "answer" else "sessions"
            url = URL(f"{server.url}/api/{kind}/a%00b/{last}", encoded=True)
            async with client.post(url, data=msgspec.json.encode(body)) as response:
                assert response.status == 404, (last, await response.text())


class Owner:
    """An object of the event loop."""

    async def read(self, log: Log) -> None:
        """Read as a method."""


def read_with(value: Any) -> Read[Any]:
    async def read(log: Log) -> Any:
        return value

    return read


@pytest.mark.parametrize("read", [Owner().read, read_with(Owner()), read_with(read_with(Owner())), Owner])
def test_a_read_that_carries_an_object_of_the_event_loop_to_the_thread_of_the_reader_is_refused(read: Any) -> None:
    with pytest.raises(TypeError):
        check_free(read)
    check_free(read_with({"limit": 3}))
