"""A take whose answer is lost on the way keeps no run tree from the others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from postgres import server
from upcall import Agent, Runtime
from upcall.errors import StoreUnreachable
from upcall.models import Script
from upcall.store.postgres.store import PostgresStore

pytestmark = pytest.mark.slow


@pytest.fixture
def url() -> Generator[str]:
    made = server().database()
    yield made
    server().drop(made)


class Wire:
    """A connection to the server that can lose the answer to a statement which the server has carried out."""

    def __init__(self, folder: str) -> None:
        self._path = f"{folder}/.s.PGSQL.5432"
        self.losing = False
        """The answer to the next take is lost, and with it every connection."""
        self.closed = False
        """New connections are refused."""
        self.lost = 0
        self._open: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if not self.closed:
                above, below = await asyncio.open_unix_connection(self._path)
                await asyncio.gather(self._ask(reader, below), self._answer(above, writer))
        except OSError:
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _ask(self, reader: asyncio.StreamReader, below: asyncio.StreamWriter) -> None:
        with contextlib.closing(below):
            while said := await reader.read(65536):
                self.lost += (loses := self.losing and b"upcall.take" in said)
                below.write(said)
                if loses:
                    self.losing = False
                    self._cut_after(below)

    def _cut_after(self, below: asyncio.StreamWriter) -> None:
        """Say goodbye for the client: the server carries out what came before, and its answer reaches nobody."""
        for writer in self._open:
            writer.transport.abort()
        below.write(b"X\0\0\0\4")

    async def _answer(self, above: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while said := await above.read(65536):
            writer.write(said)
        writer.close()


@contextlib.asynccontextmanager
async def wired(url: str, patience: float) -> AsyncGenerator[tuple[Wire, PostgresStore]]:
    """A store that reaches the server by a wire of its own."""
    found = conninfo_to_dict(url)
    wire = Wire(str(found["host"]))
    async with await asyncio.start_server(wire.serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        store = PostgresStore(f"postgresql://{found['user']}@127.0.0.1:{port}/{found['dbname']}", patience=patience)
        await store.open()
        try:
            yield wire, store
        finally:
            await store.close()


async def submitted(url: str, *names: str) -> None:
    async with Runtime(url, agents=[Agent("a", model=Script(["done"]))]) as runtime:
        for name in names:
            await runtime.submit("a", "go", id=name)


def owned(url: str) -> list[str]:
    with psycopg.connect(url, autocommit=True) as db:
        return [row[0] for row in db.execute("SELECT id FROM upcall.sessions WHERE owner <> '' ORDER BY id")]


async def test_a_take_that_is_repeated_after_its_answer_was_lost_owns_only_what_it_returns(url: str) -> None:
    await submitted(url, "one", "two", "three")
    async with wired(url, patience=10) as (wire, store):
        first = await store.take()
        wire.losing = True
        second = await store.take()
        assert first is not None
        assert second is not None
        assert wire.lost == 1
        assert owned(url) == sorted([first.root, second.root])
        third = await store.take()
        assert third is not None
        assert {first.root, second.root, third.root} == {"one", "two", "three"}


async def test_what_a_take_left_behind_in_an_outage_is_released_by_the_next_one(url: str) -> None:
    await submitted(url, "one", "two")
    async with wired(url, patience=0.2) as (wire, store):
        wire.losing = wire.closed = True
        with pytest.raises(StoreUnreachable):
            await store.take()
        assert len(owned(url)) == 1
        wire.closed = False
        taken = await store.take()
        assert taken is not None
        assert owned(url) == [taken.root]


async def test_a_claim_that_was_made_beside_a_lost_take_is_kept(url: str) -> None:
    await submitted(url, *[f"s{number}" for number in range(6)])
    async with wired(url, patience=10) as (wire, store):
        wire.losing = True
        takes = [asyncio.ensure_future(store.take()) for _ in range(3)]
        claims = await asyncio.gather(store.claim("s4"), store.claim("s5"))
        taken = [one.root for one in await asyncio.gather(*takes) if one is not None]
        assert wire.lost == 1
        assert len(taken) == 3
        assert owned(url) == sorted([*taken, *[claim.root for claim in claims]])
