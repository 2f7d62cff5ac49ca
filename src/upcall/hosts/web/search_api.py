"""Search in everything that sessions hold."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from upcall.errors import StoreDamaged
from upcall.hosts.web.exchange import Refusal, large_json_response, number
from upcall.hosts.web.index.reader import SHORTEST, Hit
from upcall.hosts.web.index.texts import body_of, texts_of
from upcall.hosts.web.listing import root_of
from upcall.hosts.web.log import Log
from upcall.hosts.web.service import Service, answering_errors
from upcall.observe.plain import plain
from upcall.observe.shown_events import is_held_back, passed_in

MOST_HITS = 100
LONGEST = 200
_AROUND = 80
_LOOK_AHEAD = 100


class SearchApi:
    """Handles `/api/search`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """The path with its handler."""
        return [Route("/api/search", answering_errors(self.search), methods=["GET"])]

    async def search(self, request: Request) -> Response:
        """The newest texts that hold all words of `q`, each with the words around it."""
        text, limit = request.query_params.get("q", "").strip(), number(request, "limit", 30, MOST_HITS) or 30
        before = number(request, "before", 0, 1 << 62)
        if not text or len(text) > LONGEST:
            raise Refusal(422, f"q must have 1 to {LONGEST} characters")
        found = await self._service.read(lambda log: _search(log, text, limit, before))
        return await large_json_response(found)


async def _search(log: Log, text: str, limit: int, before: int) -> dict[str, Any]:
    index = log.kept.index
    if index is None:
        raise Refusal(503, "this log has no index, so it can't be searched")
    hits = index.search(text, limit, before or None)
    found = [one for hit in hits.found if (one := await _hit(log, hit, text)) is not None]
    if not hits.found and not before:
        found = await _titles(log, text, limit)
    indexed, last = index.position(), await log.store.last()
    return {"hits": found, "next": hits.more, "indexed": min(1.0, indexed / last) if last else 1.0}


async def _hit(log: Log, hit: Hit, text: str) -> dict[str, Any] | None:
    """A hit with its snippet, made from the log as it is now; None where the text is gone."""
    try:
        events = await log.store.read(hit.session, hit.seq - 1, 1)
    except StoreDamaged:
        return None
    if not events or await log.store.row(hit.session) is None:
        return None
    event = events[0]
    snippet = ""
    redactor = log.kept.redactor
    for one in texts_of(event, redactor):
        if one.kind == hit.kind and (snippet := snippet_of(one.text, text)):
            break
    else:
        before = await log.store.read(hit.session, max(0, hit.seq - _LOOK_AHEAD), _LOOK_AHEAD)
        passed = passed_in([event])
        bodies = [body_of(one) for one in before if is_held_back(one, set()) and not is_held_back(one, passed)]
        texts = [one.text for body in bodies for one in texts_of(body, redactor) if one.kind == hit.kind]
        snippet = next((made for one in texts if (made := snippet_of(one, text))), "")
    return {**hit._asdict(), "title": await _title(log, hit.session), "snippet": snippet}


async def _titles(log: Log, text: str, limit: int) -> list[dict[str, Any]]:
    """Sessions that the text names: by their id, or by their title if it is too short for the full text."""
    index = log.kept.index
    assert index is not None
    is_short = any(len(word) < SHORTEST for word in text.split())
    roots = (index.roots(text, None, limit) or []) if is_short else index.roots_by_id(text, limit)
    found: list[dict[str, Any]] = []
    for root in roots:
        row = await log.store.row(root)
        if row is not None:
            title = await _title(log, root)
            place = {"session": root, "seq": 1, "kind": "session", "node": root, "time": row.created}
            found.append({**place, "title": title, "snippet": title})
    return found


async def _title(log: Log, session: str) -> str:
    root = root_of(session)
    return (await log.kept.listing.cache.get(log.store, [root]))[root].title


def snippet_of(text: str, wanted: str) -> str:
    """The words around the first place that holds what was looked for; "" where nothing does."""
    folded = text.casefold()
    at = next((at for word in (wanted, *wanted.split()) if (at := folded.find(word.casefold())) >= 0), -1)
    if at < 0:
        return ""
    start, end = max(0, at - _AROUND), at + len(wanted) + _AROUND
    cut = " ".join(plain(text[start:end]).split())
    return f"{'…' if start else ''}{cut}{'…' if end < len(text) else ''}"
