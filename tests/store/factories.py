"""Shared helpers for the tests of stores: a clock, a factory for each kind of store, and functions that append."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, cast

from delayed import DelayedStore
from postgres import ServerClock, bouncer, server
from upcall.contracts import Claim, Store
from upcall.events import AnyEvent, CallbackAsked, CallbackRaised, SessionStarted, TurnEnded, TurnStarted
from upcall.messages import user
from upcall.store.memory import MemoryStore
from upcall.store.postgres.store import PostgresStore
from upcall.store.sqlite.store import SqliteStore


class Clock:
    """A clock that only moves when a test sets it."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class SettableClock(Protocol):
    """A clock that a test sets."""

    @property
    def now(self) -> float: ...
    @now.setter
    def now(self, value: float) -> None: ...

    def __call__(self) -> float: ...


class StoreFactory(Protocol):
    """Opens stores of one kind. All of them share one log, as stores in several processes would."""

    @property
    def clock(self) -> SettableClock:
        """The clock of the log."""
        ...

    async def open(self) -> Store:
        """Open one more store on the same log."""
        ...

    async def close(self) -> None:
        """Close every store that was opened."""
        ...


class MemoryFactory:
    """Returns the same store each time: there is only one process in memory."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = MemoryStore(self.clock)

    async def open(self) -> Store:
        return self.store

    async def close(self) -> None:
        await self.store.close()


class SqliteFactory:
    """Opens any number of stores on one file."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.path = folder / "log.db"
        self.stores: list[SqliteStore] = []

    async def open(self) -> Store:
        store = SqliteStore(self.path, self.clock)
        await store.open()
        self.stores.append(store)
        return store

    async def close(self) -> None:
        for store in self.stores:
            await store.close()


class DelayedFactory(SqliteFactory):
    """Opens stores on one file that commit late."""

    async def open(self) -> Store:
        return cast("Store", DelayedStore(await super().open()))


class PostgresFactory:
    """Opens any number of stores on one database."""

    def __init__(self, folder: Path) -> None:
        self.url = server().database("upcall_clock")
        self.clock = ServerClock(self.url)
        self.stores: list[PostgresStore] = []

    def address(self) -> str:
        return self.url

    async def open(self) -> Store:
        store = PostgresStore(self.address(), clock=self.clock)
        await store.open()
        self.stores.append(store)
        return store

    async def close(self) -> None:
        for store in self.stores:
            await store.close()
        server().drop(self.url)


class PooledFactory(PostgresFactory):
    """Opens stores on one database through a transaction pooler."""

    def address(self) -> str:
        return bouncer().url(self.url)


@asynccontextmanager
async def open_sqlite(
    path: Path, clock: Callable[[], float] = time.time, busy: float = 5.0
) -> AsyncGenerator[SqliteStore]:
    store = SqliteStore(path, clock, busy)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def put(
    store: Store,
    session: str,
    *events: AnyEvent,
    claim: Claim | None = None,
    blobs: Mapping[str, bytes] | None = None,
    release: bool = False,
) -> Sequence[AnyEvent]:
    """Append events, and return when they are stored."""
    stored = store.append(session, events, claim, blobs=blobs, release=release)
    if stored is not None:
        await stored
    return events


async def start_session(store: Store, session: str = "s", agent: str = "writer") -> None:
    """Start a session without a turn."""
    await put(store, session, SessionStarted(agent))


async def start_and_claim(store: Store, session: str = "s") -> Claim:
    """Start a session and return the claim on it."""
    await start_session(store, session)
    return await store.claim(session)


def child_of(parent: str, root: str = "", agent: str = "helper") -> SessionStarted:
    """Return the first event of a session that another one started."""
    return SessionStarted(agent, parent=parent, root=root or parent, depth=1)


def turn(number: int = 1, text: str = "go") -> TurnStarted:
    return TurnStarted(number, user(text))


def turn_end(number: int = 1) -> TurnEnded:
    return TurnEnded(number, "done")


def question(name: str, expires: float | None = None) -> CallbackRaised:
    route: dict[str, Any] = {"stations": [], "end": "person", "why": ""}
    return CallbackRaised(
        name, "r1c0", "writer", f"{name}?", "query", "callback_to_caller", route, name, expires=expires
    )


def question_events(name: str, expires: float | None = None) -> list[AnyEvent]:
    """Return the events of a question to the person."""
    return [question(name, expires), CallbackAsked(name, "user", expires=expires)]


async def wait_until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Return when the condition is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        await asyncio.sleep(0.005)
