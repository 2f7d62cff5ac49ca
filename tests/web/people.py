"""People with tokens, for tests of servers and commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from store.factories import open_sqlite
from upcall.tokens import RefusedRequest, Role, Token, digest_of, new_token


async def give_token(folder: Path, name: str, role: Role) -> str:
    """Make a token in the log of a folder; returns it."""
    token = new_token()
    async with open_sqlite(folder / "log.db") as store:
        await store.add_token(Token(name, role, digest_of(token)))
    return token


async def revoke(folder: Path, name: str) -> None:
    """Revoke a token in the log of a folder."""
    async with open_sqlite(folder / "log.db") as store:
        await store.revoke_token(name)


async def refusals(folder: Path) -> Sequence[RefusedRequest]:
    """What was refused, oldest first."""
    async with open_sqlite(folder / "log.db") as store:
        return await store.refusals()
