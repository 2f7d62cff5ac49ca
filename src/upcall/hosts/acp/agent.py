"""The agent of the protocol: answers an editor's first request, and hands the others on.

Nothing heavy is imported before the first request is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from upcall.hosts.acp.protocol import PROTOCOL_VERSION, Client, Initialize, OneSession
from upcall.jsonrpc.errors import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, RpcError
from upcall.jsonrpc.peer import Peer, RequestId
from upcall.jsonrpc.stdio import LineReader, LineWriter, read_lines

if TYPE_CHECKING:
    from upcall.hosts.acp.desk import Desk, Place

log = logging.getLogger("upcall")

MOST_LINE = 64 * 1024 * 1024
"""The longest line to accept, in bytes: prompts may contain pictures."""

_PRELOAD = 0.02
"""Seconds after the first request at which what sessions need is imported, if none was asked for before."""

_SESSION_METHODS = frozenset(
    f"session/{name}"
    for name in ("new", "load", "resume", "list", "close", "delete", "prompt", "set_mode", "set_config_option")
)


class AcpAgent:
    """One connection to an editor."""

    def __init__(self, place: Place, version: str) -> None:
        self._place, self._version = place, version
        self._client = Client()
        self._is_initialized = False
        self._peer: Peer
        self._writer: LineWriter
        self._ended = asyncio.Event()
        self._desk: Desk | None = None
        self._importing: threading.Thread | None = None

    async def serve(self, input: int, output: int, left: Callable[[], object]) -> None:
        """Answer an editor over two file descriptors, until it leaves; `left` is called at that moment."""
        self._writer = LineWriter(output, self._ended.set)
        self._peer = Peer(self._writer.send, self, most=MOST_LINE)
        reader = LineReader(self._peer.receive, self._peer.refuse_long_line, MOST_LINE)
        try:
            await read_lines(input, reader, self._ended)
        finally:
            left()
            await self._close()

    def stop(self) -> None:
        """Leave the editor."""
        self._ended.set()

    async def _close(self) -> None:
        await self._writer.flushed(0.2)
        await self._peer.close()
        if self._desk is not None:
            self._desk.close()
        self._writer.close()

    # --- the connection, for sessions -----------------------------------------------------

    @property
    def client(self) -> Client:
        """What the editor can do."""
        return self._client

    @property
    def has_left(self) -> bool:
        """True once the editor has closed the connection."""
        return self._ended.is_set()

    def update(self, session_id: str, update: dict[str, Any]) -> None:
        """Send an update of a session."""
        self._peer.notify("session/update", {"sessionId": session_id, "update": update})

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        """Send a request to the editor and return its result."""
        return await self._peer.request(method, params)

    async def drained(self) -> None:
        """Return once the editor has taken enough of what was sent."""
        if self._writer.is_full:
            await self._writer.drained()

    # --- the handler of the peer ----------------------------------------------------------

    async def request(self, method: str, params: msgspec.Raw, request_id: RequestId) -> Any:
        """Answer a request."""
        if method == "initialize":
            given = msgspec.json.decode(params, type=Initialize)
            asyncio.get_running_loop().call_later(_PRELOAD, self._preload)
            return self._initialize(given)
        if method not in _SESSION_METHODS and method != "authenticate":
            raise RpcError(METHOD_NOT_FOUND, f"unknown method {method[:100]!r}")
        if not self._is_initialized:
            raise RpcError(INVALID_REQUEST, "send initialize first")
        if method == "authenticate":
            raise RpcError(
                INVALID_PARAMS, "this agent needs no authentication; it reads its keys from its own environment"
            )
        return await self._opened_desk().handle(method, params)

    async def notification(self, method: str, params: msgspec.Raw) -> None:
        """Take a notification."""
        if method == "session/cancel" and self._desk is not None:
            await self._desk.cancel(msgspec.json.decode(params, type=OneSession).session_id)

    def explain(self, error: Exception) -> RpcError:
        """Return the answer to a request that failed."""
        known = self._desk.explain(error) if self._desk is not None else RpcError(INTERNAL_ERROR, str(error))
        if known is not None:
            return known
        log.error("a request failed", exc_info=error)
        return RpcError(INTERNAL_ERROR, f"{type(error).__name__}: see the agent's standard error")

    def _initialize(self, given: Initialize) -> dict[str, Any]:
        self._client, self._is_initialized = given.client, True
        able = ("list", "delete", "resume", "close", "additionalDirectories")
        sessions: dict[str, Any] = {name: {} for name in able}
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "agentInfo": {"name": "upcall", "title": "Upcall", "version": self._version},
            "agentCapabilities": {
                "loadSession": True,
                "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
                "mcpCapabilities": {"http": True, "sse": False},
                "sessionCapabilities": sessions,
            },
            "authMethods": [],
        }

    def _preload(self) -> None:
        """Import what sessions need, in a thread that an editor which leaves does not wait for."""
        if self._desk is not None:  # a session imports it already
            return
        self._importing = threading.Thread(target=self._import, name="upcall-imports", daemon=True)
        self._importing.start()

    def _import(self) -> None:
        from importlib import import_module

        with contextlib.suppress(Exception):  # the first session fails in the same way, and says so
            import_module("upcall.hosts.acp.desk")
            self._place.preload()

    def _opened_desk(self) -> Desk:
        if self._desk is None:
            if self._importing is not None:  # Python's imports of one package from two threads can fail
                self._importing.join()
            from upcall.hosts.acp.desk import Desk

            self._desk = Desk(self, self._place, self._ended)
        return self._desk
