"""What can go wrong with a server. Each becomes an error result of the call; none fails a turn."""

from __future__ import annotations

from typing import Any

from upcall.errors import UpcallError


class ServerFailed(UpcallError):
    """A server can't be reached, or was not; the request was not sent."""


class SessionForgotten(ServerFailed):
    """A legacy server does not know the session of this connection any more; it has not looked at the request."""


class AnswerLost(UpcallError):
    """The connection ended after a request was sent. Nobody knows whether it was carried out."""


class RequestRefused(UpcallError):
    """A server answered a request with an error."""

    def __init__(self, code: int, text: str, data: Any = None) -> None:
        self.code, self.text, self.data = code, text, data
        super().__init__(text)
