"""Export a run tree as a file: its events as lines, or one page that opens offline."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from upcall.hosts.web.exchange import Refusal
from upcall.hosts.web.export_page import TreeExport
from upcall.hosts.web.listing import root_of
from upcall.hosts.web.log import Log
from upcall.hosts.web.page_files import PageFiles
from upcall.hosts.web.service import Service, answering_errors, path_id
from upcall.hosts.web.session_reads import check_session
from upcall.hosts.web.streams import Streamed
from upcall.observe.shown_events import shown_events

MOST_AT_ONCE = 2
"""Pages that are made or sent at the same time; each may have 50 MB."""

_PAGE, _PIECE = 50, 1 << 18


class ExportApi:
    """Handles the export of a run tree."""

    def __init__(self, service: Service, page: PageFiles) -> None:
        self._service, self._page = service, page
        self._running = 0

    def routes(self) -> list[Route]:
        """The path with its handler."""
        return [Route("/api/sessions/{id}/export", answering_errors(self.export), methods=["GET"])]

    async def export(self, request: Request) -> Response:
        """A run tree as a file: `jsonl`, or `html`."""
        session_id, kind = path_id(request), request.query_params.get("format", "jsonl")
        if kind not in ("html", "jsonl"):
            raise Refusal(422, "format is html or jsonl")

        await self._service.read(lambda log: check_session(log, session_id))
        headers = {"content-disposition": f'attachment; filename="session.{kind}"'}
        if kind == "jsonl":
            return Streamed(self._lines(root_of(session_id)), "application/x-ndjson", headers)
        if self._running >= MOST_AT_ONCE:
            raise Refusal(429, f"{MOST_AT_ONCE} exports are already running; wait a moment", retry_after=5.0)
        return Streamed(await self._started(self._file(root_of(session_id))), "text/html", headers)

    async def _started(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same pieces, once the first one was made: what fails until then can still be answered."""
        first = await anext(pieces)

        async def all_of_them() -> AsyncIterator[bytes]:
            try:
                yield first
                async for piece in pieces:
                    yield piece
            finally:
                await pieces.aclose()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]

        return all_of_them()

    async def _file(self, root: str) -> AsyncIterator[bytes]:
        template = self._page.export_template()
        self._running += 1
        try:
            found = await self._service.read(lambda log: TreeExport(log, root).pieces(template))
            for start in range(0, len(found), 1000):
                whole = b"".join(found[start : start + 1000])
                for at in range(0, len(whole), _PIECE):
                    yield whole[at : at + _PIECE]
        finally:
            self._running -= 1

    async def _lines(self, root: str) -> AsyncIterator[bytes]:
        """All events of a run tree, redacted, one JSON object per line."""
        after, wanted = 0, 1

        async def page(log: Log) -> tuple[bytes, int, int]:
            events = await log.store.read_tree(root, after, wanted)
            shown = await shown_events(log.store, events, log.kept.redactor)
            lines = b"".join(msgspec.json.encode(one) + b"\n" for one in shown)
            return lines, len(events), events[-1].pos if events else after

        while True:
            lines, count, after = await self._service.read(page)
            if lines:
                yield lines
            if count < wanted:
                return
            wanted = min(_PAGE, wanted * 2) if len(lines) <= _PIECE else max(1, wanted // 4)  # a piece stays small
