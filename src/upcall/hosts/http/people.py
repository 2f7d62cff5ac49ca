"""The tokens in a store, as servers use them: who asks, whether a token is still valid, and what was refused."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from starlette.requests import Request

from upcall.contracts import Store
from upcall.errors import StoreError
from upcall.hosts.http.open_requests import OpenRequests
from upcall.hosts.http.rates import Rate, Rates
from upcall.tokens import Token, digest_of, is_token, refused

log = logging.getLogger("upcall")

FRESH = 0.4
"""Seconds for which a token that was valid is not looked up again. A revoked one ends within a second."""

_KNOWN, _UNKNOWN = Rate(1, 60), Rate(1, 20)
"""How many refused requests are kept of one principal, and of all unknown ones: nobody can flush out the others."""


def bearer(request: Request) -> str:
    """The bearer token of a request; "" without one."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""


class People:
    """The people who have a token in the store."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._valid: dict[str, tuple[Token, float]] = {}
        self._rates = Rates(clock)
        self.open_requests = OpenRequests(self._is_valid)

    async def find(self, request: Request) -> Token | None:
        """The valid token that a request carries; None without one."""
        given = bearer(request)
        return await self._look_up(digest_of(given)) if is_token(given) else None

    async def _look_up(self, digest: str) -> Token | None:
        """The valid token with this digest. Only what is valid is remembered, so that guesses take no room."""
        known = self._valid.get(digest)
        if known is not None and self._clock() - known[1] < FRESH:
            return known[0]
        self._valid.pop(digest, None)
        asked = self._clock()
        found = await self._store.token(digest)
        if found is None or found.revoked is not None:
            return None
        self._valid[digest] = (found, asked)
        return found

    async def _is_valid(self, digest: str) -> bool:
        return await self._look_up(digest) is not None

    # --- what was refused -------------------------------------------------------------------

    async def record(self, request: Request, by: str, reason: str, action: str = "") -> None:
        """Keep that a request was refused, if there are not too many. `action`: what it asks for."""
        if self._rates.wait(by, _KNOWN if by else _UNKNOWN):
            return
        address = request.client.host if request.client is not None else ""
        try:
            await self._store.add_refusal(refused(by, action or request.method, request.url.path, reason, address))
        except StoreError as error:  # the request is refused all the same
            log.warning("a refused request can't be recorded: %s", error)

    async def record_unknown(self, request: Request) -> None:
        """Keep that a token was not accepted. Requests without one are not kept: every page sends some."""
        given = bearer(request)
        if not given:
            return
        try:
            found = await self._store.token(digest_of(given)) if is_token(given) else None
        except StoreError:
            found = None
        by, reason = (found.name, "the token was revoked") if found is not None else ("", "the token is not valid")
        await self.record(request, by, reason)
