"""The connection to an editor, as sessions use it."""

from __future__ import annotations

from typing import Any, Protocol

from upcall.hosts.acp.protocol import Client


class Connection(Protocol):
    """Sends updates and requests to an editor."""

    @property
    def client(self) -> Client:
        """What the editor can do."""
        ...

    @property
    def has_left(self) -> bool:
        """True once the editor has closed the connection."""
        ...

    def update(self, session_id: str, update: dict[str, Any]) -> None:
        """Send an update of a session."""
        ...

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        """Send a request and return its result."""
        ...

    async def drained(self) -> None:
        """Return once the editor has taken enough of what was sent."""
        ...
