"""The state that a client carries from one leg of a call to the next, sealed so that nobody else can make one.

The key is kept in a file, so a state outlives the process. It is valid as long as what it points to: the log says
whether a question still waits, so the seal itself does not expire.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity

from upcall.hosts.http.access import Principal
from upcall.hosts.mcp.calls import Turn

_TEN_YEARS = 10 * 365 * 86_400.0


class CallState(msgspec.Struct, frozen=True):
    """The turn that a call waits for, and the ids of the questions that the client was given."""

    session: str
    turn: int
    asked: tuple[str, ...] = ()

    def encoded(self) -> str:
        """As text, to be sealed."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def decoded(cls, text: str) -> CallState | None:
        """From the text of a seal that was checked; None where another version wrote it."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError:
            return None

    @property
    def of(self) -> Turn:
        """The turn."""
        return Turn(self.session, self.turn)


def boundary(key: str, principal: Callable[[Any], Principal]) -> RequestStateBoundary:
    """What seals and checks states on the wire, bound to the principal, the tool and its arguments."""

    def bound_to(ctx: Any) -> str:
        return principal(ctx).name

    security = RequestStateSecurity(keys=[key], ttl=_TEN_YEARS, bind_principal=bound_to, audience="upcall")
    return RequestStateBoundary(security, default_audience="upcall")
