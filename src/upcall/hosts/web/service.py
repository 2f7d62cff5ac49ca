"""The parts that all handlers share: the runtime, the reader of the log, the redactor, and who may do what."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from upcall.app import Runtime
from upcall.contracts import Row
from upcall.errors import RuntimeClosed, UnknownSession
from upcall.hosts.http.access import Principal
from upcall.hosts.web.changes import Changes
from upcall.hosts.web.exchange import Refusal, failure_response
from upcall.hosts.web.feed import Feed
from upcall.hosts.web.index.reader import IndexReader
from upcall.hosts.web.index.writer import IndexWriter
from upcall.hosts.web.listing import Listing
from upcall.hosts.web.log import Kept, Log, Read, check_free
from upcall.hosts.web.log_reader import LogReader
from upcall.hosts.web.runs import Runs
from upcall.hosts.web.trees import Trees
from upcall.hosts.web.waiting import Waiting
from upcall.observe.labels import Labels
from upcall.observe.nodes import RunTreeNodes
from upcall.observe.redact import Redactor
from upcall.prices import Cost
from upcall.tokens import Role, allows

log = logging.getLogger("upcall")
R = TypeVar("R")
Handler = Callable[[Request], Awaitable[Response]]
_LONGEST_ID = 2000


class Service:
    """One application over one log."""

    def __init__(
        self,
        runtime: Runtime,
        runs: Runs,
        redactor: Redactor,
        *,
        view_only: bool = False,
        index: Path | None = None,
        labels: Labels | None = None,
        cost: Cost | None = None,
    ) -> None:
        """`index` is the file of the index; without one, lists are slower and nothing can be searched."""
        self.runtime, self.runs, self.redactor, self.view_only = runtime, runs, redactor, view_only
        self._reader = LogReader(runtime)
        self._indexing: asyncio.Task[None] | None = None
        self._reads = 0
        self._index_writer = IndexWriter(index, redactor, lambda: self._reads > 0) if index is not None else None
        self._index_thread = LogReader(runtime, "index")
        self._kept = kept = _kept(runs, redactor, view_only, index, labels or Labels(), cost)
        self.feed = Feed(self._reader, redactor, kept.listing.cache)
        self.feed.begin_takers.append(kept.changes.begin)
        self.feed.takers += [kept.changes.take, kept.trees.take]
        self.closers: list[Callable[[], None]] = []
        runtime.on_close.append(self.close)

    async def read(self, read: Read[R]) -> R:
        """Read the log beside the event loop, with everything that is kept about it up to date.

        The function runs in another thread. It gets the log there, and carries only plain values along.
        """
        check_free(read)
        kept = self._kept
        await self.feed.start()
        if self._index_writer is not None and self._indexing is None:
            self._indexing = asyncio.ensure_future(self._index_thread.run(self._index_writer.follow))
            self._indexing.add_done_callback(_retrieve)
        self._reads += 1
        try:
            return await self._reader.run(lambda runtime: read(Log(runtime, kept)))
        finally:
            self._reads -= 1

    def close(self) -> None:
        """End the streams and the reader."""
        for close in self.closers:
            close()
        self.feed.close()
        if self._indexing is not None:
            self._indexing.cancel()
        self._index_thread.close()
        self._reader.close()

    def may(self, principal: Principal, needed: Role) -> bool:
        """Tell whether a principal may do what needs this role; on a server that only shows, nobody may change."""
        return allows(principal.role, needed) and not (self.view_only and needed != "viewer")

    def check_writable(self) -> None:
        """Refuse with 403 where nothing may be changed."""
        if self.view_only:
            raise Refusal(403, "you can look but not answer: the server was started with --view-only")

    async def row(self, request: Request) -> Row:
        """The session that a request names; UnknownSession if there is none."""
        session_id = path_id(request)
        await self.runtime.rows(limit=0)  # opens the store where nothing else did
        row = await self.runtime.store.row(session_id)
        if row is None:
            raise UnknownSession(session_id)
        return row


def _kept(
    runs: Runs, redactor: Redactor, view_only: bool, index: Path | None, labels: Labels, cost: Cost | None
) -> Kept:
    changes, known = Changes(), IndexReader(index) if index is not None else None
    return Kept(
        redactor=redactor,
        labels=labels,
        cost=cost,
        view_only=view_only,
        agents=runs,
        index=known,
        listing=Listing(redactor, known),
        trees=Trees(lambda: RunTreeNodes(labels=labels, redactor=redactor, cost=cost)),
        changes=changes,
        waiting=Waiting(changes),
    )


def path_id(request: Request) -> str:
    """The id in a request's path; Refusal 404 where nothing can have it."""
    return possible_id(str(request.path_params["id"]))


def possible_id(text: str) -> str:
    """An id that a request gives; Refusal 404 where nothing can have it: no database stores a NUL in a text."""
    if "\0" in text:
        raise Refusal(404, "the id of a session or a callback can't contain a NUL character")
    return text[:_LONGEST_ID]


def principal_of(request: Request) -> Principal:
    """The principal that makes the request, as the guard has found it."""
    principal: Principal = request.state.principal
    return principal


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Log why the index is not written any more; that it was stopped is no failure."""
    if not task.cancelled() and not isinstance(task.exception(), RuntimeClosed | None):
        log.error("the index is not written any more", exc_info=task.exception())


def answering_errors(handler: Handler) -> Handler:
    """The handler with every failure turned into a JSON answer."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except Exception as error:
            return failure_response(error)

    return handle
