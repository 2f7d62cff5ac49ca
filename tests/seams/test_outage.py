"""Workers on a PostgreSQL server that is stopped, or that they alone can't reach, for longer than reads wait."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path

import pytest

from postgres import server
from store import factories
from upcall import Agent, Context, Request, Runtime, tool
from upcall.models import Script, call
from upcall.models.script import Plain
from upcall.store.postgres.store import PostgresStore

pytestmark = pytest.mark.slow

PATIENCE = 0.2
WAITS = "this worker waits until it can reach the log again"


@pytest.fixture
def url() -> Generator[str]:
    made = server().database()
    yield made
    server().drop(made)


@contextlib.asynccontextmanager
async def stopped() -> AsyncGenerator[None]:
    """The server is down inside the block."""
    await asyncio.to_thread(server().engine.stop)
    try:
        yield
    finally:
        await asyncio.to_thread(server().engine.ensure_postgres_running)


class Crew:
    """An agent whose prompt names its two calls, and which of them ran."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.go = asyncio.Event()

    def agent(self) -> Agent:
        return Agent("worker", model=Script(self._play), tools=[tool(self.step)])

    async def step(self, name: str, ctx: Context) -> str:
        """Do one step; the first one ends when the test says so."""
        self.done.append(name)
        if name == "first":
            await self.go.wait()
        return name

    @staticmethod
    def _play(request: Request) -> Plain:
        results = [result.text for message in request.messages for result in message.results]
        steps = request.messages[0].text.split()
        return call("step", name=steps[len(results)]) if len(results) < len(steps) else " and ".join(results)


def client(url: str) -> Runtime:
    """Another runtime on the same log, which waits as long as usual."""
    return Runtime(url, agents=[Crew().agent()])


@contextlib.asynccontextmanager
async def working(url: str, crew: Crew, lease: float = 5.0) -> AsyncGenerator[tuple[Runtime, asyncio.Task[None]]]:
    """A runtime with a worker that is stopped after the block. Its own reads do not wait long."""
    stop = asyncio.Event()
    store = PostgresStore(url, lease, patience=PATIENCE)
    async with Runtime(store, agents=[crew.agent()], hold=0) as runtime:
        task = asyncio.ensure_future(runtime.work(stop))
        try:
            yield runtime, task
        finally:
            stop.set()
            await asyncio.wait_for(task, 60)


async def has_status(runtime: Runtime, session: str, wanted: str) -> None:
    for _ in range(600):
        if await runtime.status(session) == wanted:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{session} is {await runtime.status(session)}, not {wanted}")


async def wait_until(condition: Callable[[], object]) -> None:
    await factories.wait_until(condition, 60.0)


def warned(caplog: pytest.LogCaptureFixture, text: str = WAITS) -> Callable[[], bool]:
    return lambda: any(text in record.getMessage() for record in caplog.records)


async def test_an_idle_worker_waits_for_the_database_says_so_once_and_continues(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    crew = Crew()
    with caplog.at_level(logging.INFO, "upcall"):
        async with client(url) as other, working(url, crew) as (_, task):
            async with stopped():
                await wait_until(warned(caplog))
                await asyncio.sleep(5 * PATIENCE)  # several attempts fail
                assert not task.done()
            await wait_until(warned(caplog, "can reach the log again"))
            await other.submit("worker", "second", id="s")
            await has_status(other, "s", "done")
    assert sum(WAITS in record.getMessage() for record in caplog.records) == 1


async def test_a_turn_that_ran_when_the_database_went_away_continues_and_each_call_runs_once(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    crew = Crew()
    async with client(url) as other, working(url, crew) as (_, task):
        await other.submit("worker", "first second", id="s")
        await wait_until(lambda: crew.done == ["first"])
        async with stopped():
            await wait_until(warned(caplog))
            crew.go.set()
            await asyncio.sleep(5 * PATIENCE)
        await has_status(other, "s", "done")
        assert not task.done()
        reply = (await other.load("s")).reply
        assert reply is not None
        assert reply.text == "first and second"
    assert crew.done == ["first", "second"]


async def test_a_worker_that_is_told_to_stop_does_not_wait_for_the_database(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    stop = asyncio.Event()
    async with Runtime(PostgresStore(url, patience=600.0), agents=[Crew().agent()]) as runtime:
        task = asyncio.ensure_future(runtime.work(stop))
        async with stopped():
            await asyncio.sleep(0.5)  # it looks, and waits for an answer
            stop.set()
            await asyncio.wait_for(task, 60)
    assert not warned(caplog)()


async def test_a_busy_worker_that_is_told_to_stop_leaves_its_turn_to_others_and_does_not_wait(url: str) -> None:
    stop, crew = asyncio.Event(), Crew()
    async with client(url) as other:
        async with Runtime(PostgresStore(url, 2.0), agents=[crew.agent()], hold=0) as runtime:
            task = asyncio.ensure_future(runtime.work(stop, drain=0.5))
            await other.submit("worker", "first second", id="s")
            await wait_until(lambda: crew.done == ["first"])
            async with stopped():
                crew.go.set()
                stop.set()
                await asyncio.wait_for(task, 90)
                await runtime.close()
        await other.work(once=True)
        while await other.status("s") != "done":  # after the lease
            await asyncio.sleep(0.1)
            await other.work(once=True)
    assert crew.done == ["first"]


async def test_code_that_resumes_what_is_listed_waits_too(url: str, caplog: pytest.LogCaptureFixture) -> None:
    stop, seen = asyncio.Event(), list[str]()

    async def resume(root: str) -> bool:
        seen.append(root)
        return False

    impatient = PostgresStore(url, patience=PATIENCE)
    async with client(url) as other, Runtime(impatient, agents=[Crew().agent()]) as runtime:
        task = asyncio.ensure_future(runtime.work(stop, resume=resume))
        async with stopped():
            await wait_until(warned(caplog))
        await other.submit("worker", "second", id="s")
        await wait_until(lambda: seen == ["s"])
        stop.set()
        await asyncio.wait_for(task, 60)


# --- only this worker is cut off ------------------------------------------------------------


class Cable:
    """A way to the server that can be cut; `url` goes through it."""

    def __init__(self, direct: str, folder: str) -> None:
        self._direct = direct.partition("host=")[2].partition("&")[0] + "/.s.PGSQL.5432"
        self._socket = Path(folder, ".s.PGSQL.5432")
        self.url = direct.partition("host=")[0] + "host=" + folder
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def join(self) -> None:
        """Let connections through."""
        self._server = await asyncio.start_unix_server(self._pass_on, self._socket)

    async def cut(self) -> None:
        """Break every connection, and let no new one through."""
        assert self._server is not None
        self._server.close()
        self._socket.unlink(missing_ok=True)
        for writer in self._open:
            writer.transport.abort()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(self._direct)
        self._open |= {writer, back}
        both = [asyncio.ensure_future(_copy(reader, back)), asyncio.ensure_future(_copy(there, writer))]
        self._tasks.update(both)
        await asyncio.wait(both)
        self._tasks.difference_update(both)
        self._open -= {writer, back}


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@pytest.fixture
def cable(url: str) -> Generator[Cable]:
    with tempfile.TemporaryDirectory(prefix="upcall-cable-") as folder:  # the path of a socket has to be short
        yield Cable(url, folder)


async def test_a_worker_whose_lease_ended_while_it_was_cut_off_starts_nothing_when_it_is_back(
    url: str, cable: Cable, caplog: pytest.LogCaptureFixture
) -> None:
    crew, other = Crew(), Crew()
    other.go.set()
    await cable.join()
    async with working(cable.url, crew, lease=1.0) as (runtime, task):
        await runtime.submit("worker", "first second", id="s")
        await wait_until(lambda: crew.done == ["first"])
        await cable.cut()
        await wait_until(warned(caplog))
        async with Runtime(PostgresStore(url, 1.0), agents=[other.agent()], hold=0) as rescuer:
            while await rescuer.status("s") != "done":
                await rescuer.work(once=True)
                await asyncio.sleep(0.1)
        crew.go.set()
        await asyncio.sleep(0.5)
        await cable.join()
        await wait_until(lambda: not runtime.turns)
        assert (crew.done, other.done) == (["first"], ["second"])
        crew.go.clear()
        async with client(url) as sender:
            await sender.submit("worker", "second", id="t")  # and it takes what comes next
            await has_status(sender, "t", "done")
        assert not task.done()
    await cable.cut()
    assert crew.done == ["first", "second"]
