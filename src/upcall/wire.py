"""What goes over the wire between an adapter and its provider, for a runtime that captures it."""

from __future__ import annotations

from contextvars import ContextVar, Token

_MOST_RECEIVED = 1_000_000
"""Bytes of a response that are kept."""


class WireTap:
    """Collects what is sent and received while a model is asked."""

    __slots__ = ("exchanges",)

    def __init__(self) -> None:
        self.exchanges: list[TappedExchange] = []

    def sent(self, url: str, body: bytes) -> TappedExchange:
        """Begin an exchange; a request that is sent again is another one."""
        exchange = TappedExchange(url, body)
        self.exchanges.append(exchange)
        return exchange


class TappedExchange:
    """One request and what came back so far. `status` is 0 while there is no answer."""

    __slots__ = ("body", "received_bytes", "response", "status", "url")

    def __init__(self, url: str, body: bytes) -> None:
        self.url, self.body = url, body
        self.status, self.response, self.received_bytes = 0, bytearray(), 0

    def received(self, data: bytes) -> None:
        """Add a piece of the response; of a very long one the beginning is kept."""
        self.received_bytes += len(data)
        room = _MOST_RECEIVED - len(self.response)
        if room > 0:
            self.response += data[:room]


_TAP: ContextVar[WireTap | None] = ContextVar("upcall_wire_tap", default=None)


def current_tap() -> WireTap | None:
    """Return what collects the exchanges of the model call that runs now; None where nothing is captured."""
    return _TAP.get()


def begin_tap(tap: WireTap) -> Token[WireTap | None]:
    """Collect what goes over the wire from now on, until `end_tap` is called with what this returns."""
    return _TAP.set(tap)


def end_tap(token: Token[WireTap | None]) -> None:
    """Collect nothing more."""
    _TAP.reset(token)
