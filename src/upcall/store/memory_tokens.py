"""The tokens and refused requests of a store in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from itertools import islice
from operator import attrgetter

from upcall.errors import TokenExists, UnknownToken
from upcall.tokens import KEPT_REFUSALS, RefusedRequest, Token

_number = attrgetter("number")


class MemoryTokens:
    """The part of a store in memory that is about people."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.now = clock
        self._tokens: dict[str, Token] = {}  # by digest
        self._refusals: deque[RefusedRequest] = deque(maxlen=KEPT_REFUSALS)

    async def tokens(self) -> list[Token]:
        """Return the tokens of people, in the order in which they were made; revoked ones too."""
        return list(self._tokens.values())

    async def token(self, digest: str) -> Token | None:
        """Return the token with this digest, revoked or not; None if there is none."""
        return self._tokens.get(digest)

    def _valid(self, name: str) -> Token | None:
        return next((one for one in self._tokens.values() if one.name == name and one.revoked is None), None)

    async def add_token(self, token: Token) -> Token:
        """Keep a token; return it with the time at which it was made."""
        if token.digest in self._tokens or self._valid(token.name) is not None:
            raise TokenExists(token.name)
        kept = self._tokens[token.digest] = token.replace(created=self.now(), revoked=None)
        return kept

    async def revoke_token(self, name: str) -> Token:
        """Revoke the valid token with this name; return it."""
        found = self._valid(name)
        if found is None:
            raise UnknownToken(name)
        kept = self._tokens[found.digest] = found.replace(revoked=self.now())
        return kept

    async def add_refusal(self, refusal: RefusedRequest) -> None:
        """Keep a refused request; the oldest is deleted where there are too many."""
        last = self._refusals[-1].number if self._refusals else 0
        self._refusals.append(refusal.replace(number=last + 1, time=self.now()))

    async def refusals(self, after: int = 0, limit: int = 1000) -> list[RefusedRequest]:
        """Return the refused requests with a number above `after`, oldest first."""
        first = bisect_right(self._refusals, after, key=_number)
        return list(islice(self._refusals, first, first + limit))
