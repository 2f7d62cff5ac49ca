"""Refuse requests that an agent's command sends with the person's token."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from upcall.safety.local_clients import Connection, sessions_of_clients


class OwnCommand(Exception):
    """A request that a command of an agent sends. Agents don't settle what they ask."""


class Senders:
    """Looks up who sends requests, in a thread, for all requests that wait for it at once."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Connection, asyncio.Future[str | None]]] = []
        self._looking: asyncio.Task[None] | None = None

    async def check(self, request: Request) -> None:
        """Raise OwnCommand for a request of an agent's command on this machine."""
        client, server = request.client, request.scope.get("server")
        if client is None or server is None or server[1] is None:
            return
        session_id = await self._session(Connection(client.host, client.port, server[0], server[1]))
        if session_id:
            who = f"a command that an agent runs (session {session_id})"
            raise OwnCommand(f"this request comes from {who}; agents may not answer questions or change sessions")
        if session_id is not None:
            why = "it ended too early, or it is a command that an agent runs"
            raise OwnCommand(f"the program that sent this request could not be checked: {why}")

    async def _session(self, connection: Connection) -> str | None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((connection, future))
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return await future

    async def _look(self) -> None:
        """Look for everybody who waits. A look that began before a request came does not count for it."""
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                found = await asyncio.to_thread(sessions_of_clients, {one for one, _ in batch})
            except Exception as error:  # each request answers with it
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for one, future in batch:
                if not future.done():
                    future.set_result(found[one])
