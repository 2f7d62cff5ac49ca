"""A connection on the event loop that is opened again when it was lost."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import errors

from upcall.errors import StoreError, StoreUnavailable
from upcall.store.postgres.migrations import migrate
from upcall.store.postgres.url import Address, explain, is_refusal

PATIENCE = 15.0
"""Seconds for which what nobody's claim depends on is tried again while the server can't be reached."""

_CLOSING = 5.0

SHORTEST, LONGEST = 0.05, 1.0
"""Seconds between two attempts to connect."""

_PASSING = (errors.CannotConnectNow, errors.TooManyConnections, errors.AdminShutdown, errors.CrashShutdown)
_FINAL = (
    errors.InvalidPassword, errors.InvalidAuthorizationSpecification, errors.InvalidCatalogName,
    errors.InsufficientPrivilege,
)  # fmt: skip


class ConnectionLost(Exception):
    """The server can't be reached now. What was sent may have been done."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        super().__init__(str(error))


class Connection:
    """One connection, used by one statement at a time; statements wait for each other in their order."""

    def __init__(self, address: Address, patience: float = PATIENCE) -> None:
        self._address, self.patience = address, patience
        self._db: psycopg.AsyncConnection[Any] | None = None
        self._free = asyncio.Lock()
        self.statements = 0
        """How many were sent: each is one round trip."""

    async def open(self) -> None:
        """Connect, and bring the schema up to date."""
        async with self._free:
            try:
                await self._connected()
            except ConnectionLost as lost:
                raise explain(self._address, lost.error) from None

    async def _connected(self) -> psycopg.AsyncConnection[Any]:
        if self._db is not None and not self._db.closed:
            return self._db
        try:
            db = await psycopg.AsyncConnection.connect(
                autocommit=True, prepare_threshold=None, **self._address.options
            )
        except _FINAL as error:
            raise explain(self._address, error) from None
        except psycopg.Error as error:
            raise _not_reached(self._address, error) from None
        try:
            await migrate(db, self._address)
        except psycopg.Error as error:
            await db.close()
            if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
                raise ConnectionLost(error) from None
            raise explain(self._address, error) from None
        except BaseException:
            await db.close()
            raise
        self._db = db
        return db

    async def run(self, sql: str, values: Any = ()) -> list[Any]:
        """Run one statement; ConnectionLost if the connection broke, else psycopg's own errors."""
        task = asyncio.ensure_future(self._run(sql, values))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may wait for it any more
        return await asyncio.shield(task)

    async def _run(self, sql: str, values: Any) -> list[Any]:
        async with self._free:
            db = await self._connected()
            self.statements += 1
            try:
                cursor = await db.execute(sql.encode(), values, binary=True)
                return await cursor.fetchall() if cursor.description else []
            except (psycopg.OperationalError, psycopg.InterfaceError, errors.ReadOnlySqlTransaction) as error:
                if not (db.broken or db.closed or isinstance(error, (*_PASSING, errors.ReadOnlySqlTransaction))):
                    raise
                await self._drop()
                raise ConnectionLost(error) from None

    async def read(self, sql: str, values: Any = ()) -> list[Any]:
        """Run a statement that only reads, again if the connection was lost; StoreUnreachable after a while."""
        end, delay = time.monotonic() + self.patience, SHORTEST
        while True:
            try:
                return await self.run(sql, values)
            except ConnectionLost as lost:
                if time.monotonic() >= end:
                    raise explain(self._address, lost.error) from None
            except psycopg.Error as error:
                raise explain(self._address, error) from None
            await asyncio.sleep(delay)
            delay = min(LONGEST, delay * 2)

    async def _drop(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                await db.close()

    async def close(self) -> None:
        """Close the connection, after the statement under way if that ends soon."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._free.acquire(), _CLOSING)
        await self._drop()


def _not_reached(address: Address, error: Exception) -> Exception:
    """Return the exception for a failed attempt to connect: some will fail for ever."""
    return explain(address, error) if is_refusal(str(error)) else ConnectionLost(error)


def closed(address: Address) -> StoreError:
    """Return the exception for a store that is not open."""
    return StoreUnavailable(address.shown, "the store is not open; use `async with Runtime(...)`")


def values_of(jobs: Sequence[Any]) -> int:
    """Return how many events these jobs have."""
    return sum(len(part.events) for job in jobs for part in job.parts)
