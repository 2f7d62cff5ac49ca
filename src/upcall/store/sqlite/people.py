"""The tables `tokens` and `refusals`: who may do what over HTTP and with commands, and what was refused."""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from upcall.errors import StoreDamaged, TokenExists, UnknownToken
from upcall.store.rules import findable
from upcall.store.sqlite.tables import ADD_ID
from upcall.store.sqlite.transaction import Tx
from upcall.tokens import KEPT_REFUSALS, RefusedRequest, Role, Token

_TOKENS = "SELECT name, role, digest, created, revoked FROM tokens"
_TAKEN = "SELECT 1 FROM tokens WHERE digest = ? OR (name = ? AND revoked IS NULL)"
_ADD = "INSERT INTO tokens (name, role, digest, created) VALUES (?, ?, ?, ?)"
_REVOKE = "UPDATE tokens SET revoked = ? WHERE name = ? AND revoked IS NULL"
_REVOKE_ALL = "UPDATE tokens SET revoked = ? WHERE revoked IS NULL"
_REFUSE = (
    "INSERT INTO refusals (time, principal, action, target, reason, address) VALUES (?, ?, ?, ?, ?, ?) RETURNING n"
)
_TRIM = "DELETE FROM refusals WHERE n <= ?"
_REFUSALS = (
    "SELECT principal, action, target, reason, address, n, time FROM refusals WHERE n > ? ORDER BY n LIMIT ?"
)


class SqlitePeople(abc.ABC):
    """The part of a store in a file that is about people."""

    where: str

    @abc.abstractmethod
    async def _operate(self, work: Callable[[Tx], Any], root: str = "", *, sync: bool = False) -> Any:
        """Run a function in a transaction."""

    @abc.abstractmethod
    def _query(self, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        """Return the rows of a query."""

    async def tokens(self) -> list[Token]:
        """Return the tokens of people, in the order in which they were made; revoked ones too."""
        return [self._token(row) for row in self._query(f"{_TOKENS} ORDER BY n")]

    async def token(self, digest: str) -> Token | None:
        """Return the token with this digest, revoked or not; None if there is none."""
        rows = self._query(f"{_TOKENS} WHERE digest = ?", (findable(digest),))
        return self._token(rows[0]) if rows else None

    def _token(self, row: Sequence[Any]) -> Token:
        name, role, digest, created, revoked = row
        texts = all(isinstance(one, str) for one in (name, role, digest))
        if not texts or not isinstance(created, float) or not isinstance(revoked, float | None):
            raise StoreDamaged(self.where, "a row of the table `tokens` can't be read; restore a backup")
        return Token(name, cast("Role", role), digest, created, revoked)

    async def add_token(self, token: Token) -> Token:
        """Keep a token; return it with the time at which it was made."""

        def add(tx: Tx) -> Token:
            if tx.execute(_TAKEN, (token.digest, token.name)).get is not None:
                raise TokenExists(token.name)
            tx.execute(_ADD, (token.name, token.role, token.digest, tx.now))
            return token.replace(created=tx.now, revoked=None)

        return await self._operate(add, sync=True)

    async def revoke_token(self, name: str) -> Token:
        """Revoke the valid token with this name; return it."""

        def revoke(tx: Tx) -> Token:
            found: Any = tx.execute(f"{_TOKENS} WHERE name = ? AND revoked IS NULL", (findable(name),)).get
            if found is None:
                raise UnknownToken(name)
            tx.execute(_REVOKE, (tx.now, name))
            return self._token(found).replace(revoked=tx.now)

        return await self._operate(revoke, sync=True)

    async def add_refusal(self, refusal: RefusedRequest) -> None:
        """Keep a refused request; the oldest is deleted where there are too many."""
        said = (refusal.by, refusal.action, refusal.target, refusal.reason, refusal.address)

        def add(tx: Tx) -> None:
            number: Any = tx.execute(_REFUSE, (tx.now, *said)).get
            tx.execute(_TRIM, (number - KEPT_REFUSALS,))

        await self._operate(add, sync=True)

    async def refusals(self, after: int = 0, limit: int = 1000) -> list[RefusedRequest]:
        """Return the refused requests with a number above `after`, oldest first."""
        rows = self._query(_REFUSALS, (after, limit))
        if any(not isinstance(text, str) for row in rows for text in row[:5]):
            raise StoreDamaged(self.where, "a row of the table `refusals` can't be read; restore a backup")
        return [RefusedRequest(*row) for row in rows]


def adopt(tx: Tx, log_id: str) -> None:
    """Give the log one more id, and revoke every token: whoever made the log knows them."""
    tx.execute(ADD_ID, (log_id,))
    tx.execute(_REVOKE_ALL, (tx.now,))
