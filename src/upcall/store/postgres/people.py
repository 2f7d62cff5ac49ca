"""The tables `tokens` and `refusals`: who may do what over HTTP and with commands, and what was refused."""

from __future__ import annotations

import abc
from typing import Any

from upcall.errors import TokenExists, UnknownToken
from upcall.store.postgres.jobs import Operation
from upcall.store.rules import findable
from upcall.tokens import KEPT_REFUSALS, RefusedRequest, Token

_COLUMNS = "name, role, digest, created, revoked"
_TOKENS = f"SELECT {_COLUMNS} FROM upcall.tokens"
_ADD = (
    "INSERT INTO upcall.tokens (name, role, digest, created) VALUES (%s, %s, %s, upcall.clock()) "
    f"ON CONFLICT DO NOTHING RETURNING {_COLUMNS}"
)
_ADD_AGAIN = f"WITH made AS ({_ADD}) SELECT * FROM made UNION ALL {_TOKENS} WHERE digest = %s"
_REVOKE = (
    f"UPDATE upcall.tokens SET revoked = upcall.clock() WHERE name = %s AND revoked IS NULL RETURNING {_COLUMNS}"
)
_REVOKE_AGAIN = (
    f"WITH done AS ({_REVOKE}) SELECT * FROM done UNION ALL "
    f"(SELECT {_COLUMNS} FROM upcall.tokens WHERE name = %s AND NOT EXISTS (SELECT FROM done) "
    "ORDER BY n DESC LIMIT 1)"
)
_REFUSE = (
    "WITH added AS (INSERT INTO upcall.refusals (time, principal, action, target, reason, address) "
    "VALUES (upcall.clock(), %s, %s, %s, %s, %s) RETURNING n) "
    "DELETE FROM upcall.refusals WHERE n <= (SELECT n FROM added) - %s"
)
_REFUSALS = (
    "SELECT principal, action, target, reason, address, n, time FROM upcall.refusals "
    "WHERE n > %s ORDER BY n LIMIT %s"
)


class PostgresPeople(abc.ABC):
    """The part of a store in PostgreSQL that is about people."""

    @abc.abstractmethod
    async def _do(self, job: Any) -> Any:
        """Run a job in its order, and return its result."""

    @abc.abstractmethod
    async def _read(self, statement: str, values: Any = ()) -> list[Any]:
        """Return the rows of a statement that only reads."""

    async def tokens(self) -> list[Token]:
        """Return the tokens of people, in the order in which they were made; revoked ones too."""
        return [Token(*row) for row in await self._read(f"{_TOKENS} ORDER BY n")]

    async def token(self, digest: str) -> Token | None:
        """Return the token with this digest, revoked or not; None if there is none."""
        rows = await self._read(f"{_TOKENS} WHERE digest = %s", (findable(digest),))
        return Token(*rows[0]) if rows else None

    async def add_token(self, token: Token) -> Token:
        """Keep a token; return it with the time at which it was made."""
        values = (token.name, token.role, token.digest)
        rows = await self._do(Operation(_ADD, values, again=(_ADD_AGAIN, (*values, token.digest))))
        if not rows:
            raise TokenExists(token.name)
        return Token(*rows[0])

    async def revoke_token(self, name: str) -> Token:
        """Revoke the valid token with this name; return it."""
        known = findable(name)
        rows = await self._do(Operation(_REVOKE, (known,), again=(_REVOKE_AGAIN, (known, known))))
        if not rows:
            raise UnknownToken(name)
        return Token(*rows[0])

    async def add_refusal(self, refusal: RefusedRequest) -> None:
        """Keep a refused request; the oldest is deleted where there are too many.

        It may be kept twice if the connection breaks meanwhile: better than not at all.
        """
        said = (refusal.by, refusal.action, refusal.target, refusal.reason, refusal.address)
        await self._do(Operation(_REFUSE, (*said, KEPT_REFUSALS)))

    async def refusals(self, after: int = 0, limit: int = 1000) -> list[RefusedRequest]:
        """Return the refused requests with a number above `after`, oldest first."""
        return [RefusedRequest(*row) for row in await self._read(_REFUSALS, (after, limit))]
