"""Bring a database's schema up to date: forwards only, by one process at a time."""

from __future__ import annotations

from typing import Any

from upcall.errors import NotAStore, StoreTooNew, StoreUnavailable
from upcall.store.postgres.tables import FUNCTIONS, TABLES, UPGRADES, VERSION
from upcall.store.postgres.url import Address

OLDEST_SERVER = 130000
_LOCK = 7513_001

_STATE = (
    "SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = 'upcall'), EXISTS (SELECT 1 FROM pg_class c "
    "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'upcall' AND c.relname = 'meta'), "
    "current_setting('server_version_num')::integer"
)
_VERSION = "SELECT value FROM upcall.meta WHERE name = 'version'"


async def migrate(connection: Any, address: Address) -> None:
    """Create the schema, or upgrade an older one; refuse a newer one, and one that is not ours."""
    if await _version(connection, address) != VERSION:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            found = await _version(connection, address)  # another process may have done it meanwhile
            if found is None:
                await connection.execute(TABLES)
            for older in range(found or VERSION, VERSION):
                await connection.execute(UPGRADES[older])
            if found != VERSION:
                await connection.execute(FUNCTIONS)
                await connection.execute("UPDATE upcall.meta SET value = %s WHERE name = 'version'", (VERSION,))
    await connection.execute("SELECT upcall.continue_positions()")


async def _version(connection: Any, address: Address) -> int | None:
    """Return the version of the schema; None if there is none."""
    schema, ours, server = await (await connection.execute(_STATE)).fetchone()
    if server < OLDEST_SERVER:
        raise StoreUnavailable(address.shown, "the server is too old; PostgreSQL 13 or newer is needed")
    if not schema:
        return None
    if not ours:
        raise NotAStore(address.shown, "its schema 'upcall' was not created by upcall; choose another database")
    (version,) = await (await connection.execute(_VERSION)).fetchone()
    if version > VERSION:
        problem = f"it has schema version {version}, this version reads up to {VERSION}; upgrade upcall"
        raise StoreTooNew(address.shown, problem)
    return version
