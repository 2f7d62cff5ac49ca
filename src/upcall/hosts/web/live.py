"""The one stream of a page: changed nodes, rows and questions, and text while it is written.

Nothing is queued for a client. Each one has a position, and gets what changed since, whenever it accepts it.
Clients at the same position share what was read and encoded for one of them. So a slow client costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from upcall.hosts.web.deltas import Deltas, Watcher
from upcall.hosts.web.feed import INTERVAL, Batch
from upcall.hosts.web.listing import root_of
from upcall.hosts.web.live_reads import News, news_everywhere, news_in_tree
from upcall.hosts.web.log import Log, Read
from upcall.hosts.web.service import Service, answering_errors, possible_id, principal_of
from upcall.hosts.web.session_reads import check_session
from upcall.hosts.web.streams import PING, Streams, frame, last_event_id

_ANSWERS, _LOOKS = "", " "
"""Keys of what is shared by all who may answer, and by all who may only look. No session has them as its id."""


class Client:
    """One page that is connected."""

    def __init__(self, tree: str, can_answer: bool) -> None:
        self.tree, self.can_answer, self.ended = tree, can_answer, False
        self._more = asyncio.Event()
        self.watcher = Watcher(tree, self._more.set)

    def wake(self) -> None:
        """Let it look."""
        self._more.set()

    async def wait(self, seconds: float) -> bool:
        """Wait until there may be something; False after so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._more.wait()
                self._more.clear()
                return True
        return False


class Live:
    """Handles `/api/live`."""

    def __init__(self, service: Service, streams: Streams) -> None:
        self._service, self._streams = service, streams
        self._deltas = Deltas(lambda: service.runs.runtimes, service.redactor)
        self._clients: set[Client] = set()
        self._shared: dict[tuple[str, int], asyncio.Future[News]] = {}
        service.feed.listeners.append(self._hear)
        service.closers.append(self.close)

    def routes(self) -> list[Route]:
        """The path with its handler."""
        return [Route("/api/live", answering_errors(self.live), methods=["GET"])]

    def close(self) -> None:
        """End all streams."""
        for client in self._clients:
            client.ended = True
            client.wake()
        self._deltas.close()

    async def live(self, request: Request) -> Response:
        """The stream of one page; `tree` is the run tree that it shows, `after` the position that it knows."""
        tree, after = possible_id(request.query_params.get("tree", "")), last_event_id(request)

        async def check(log: Log) -> None:
            if tree:
                await check_session(log, tree)
                await log.kept.trees.get(log.store, root_of(tree))

        await self._service.read(check)
        can_answer = self._service.may(principal_of(request), "answerer")
        position = self._service.feed.position if after is None else min(after, self._service.feed.position)
        return self._streams.response(self._frames(Client(root_of(tree), can_answer), position))

    def _hear(self, batch: Batch) -> None:
        self._shared.clear()
        self._deltas.refresh()
        for client in self._clients:
            client.wake()

    # --- one client -----------------------------------------------------------------------

    async def _frames(self, client: Client, position: int) -> AsyncIterator[bytes]:
        self._clients.add(client)
        if client.tree:
            self._deltas.add(client.watcher)
        try:
            now = {"pos": position, "time": self._service.runtime.store.now()}
            yield frame(msgspec.json.encode(now), None, "hello")
            common = of_tree = position
            while not client.ended:
                news = [News((), common), News((), of_tree)]
                if self._service.feed.position > min(common, of_tree):
                    news = await self._news(client, common, of_tree)
                common, of_tree = news[0].position, news[1].position if client.tree else news[0].position
                pieces = [*news[1].pieces, *news[0].pieces]
                if is_new := bool(pieces):
                    yield _joined(pieces, min(common, of_tree))
                del news, pieces  # the next ones may be long in coming
                if text := client.watcher.take():
                    yield frame(msgspec.json.encode(text), None, "delta")
                await asyncio.sleep(INTERVAL if is_new or text else 0)
                is_behind = self._service.feed.position > min(common, of_tree)
                if not client.ended and not is_behind and not await client.wait(PING):
                    yield b": ping\n\n"
        finally:
            self._clients.discard(client)
            if client.tree:
                self._deltas.remove(client.watcher)

    async def _news(self, client: Client, common: int, of_tree: int) -> list[News]:
        """The changes in all sessions, and those in one run tree."""
        tree, can_answer = client.tree, client.can_answer
        key = (_ANSWERS if can_answer else _LOOKS, common)
        everywhere = await self._share(key, lambda log: news_everywhere(log, common, can_answer))
        if not tree:
            return [everywhere, News((), everywhere.position)]
        return [
            everywhere,
            await self._share((tree, of_tree), lambda log: news_in_tree(log, tree, of_tree)),
        ]

    async def _share(self, key: tuple[str, int], read: Read[News]) -> News:
        """Read once for all clients that want the same."""
        found = self._shared.get(key)
        if found is None:
            found = self._shared[key] = asyncio.ensure_future(self._service.read(read))
            found.add_done_callback(lambda _: self._forget_soon(key))
        return await asyncio.shield(found)

    def _forget_soon(self, key: tuple[str, int]) -> None:
        """Keep what was read only for those who want it now: on a quiet log it would stay for ever."""
        asyncio.get_running_loop().call_later(INTERVAL, self._shared.pop, key, None)


def _joined(pieces: list[tuple[str, bytes]], position: int) -> bytes:
    """The frames of some pieces; only the last one carries the position, so that none is lost with it."""
    last = len(pieces) - 1
    return b"".join(frame(data, position if at == last else None, name) for at, (name, data) in enumerate(pieces))
