"""Read sessions for the page: lists of them, one with all that the log says of it, and conversations.

It runs where the log is read.
"""

from __future__ import annotations

import asyncio
from typing import Any

from upcall.contracts import Row
from upcall.errors import UnknownSession
from upcall.events import SessionStarted
from upcall.hosts.web.conversation import Conversation
from upcall.hosts.web.exchange import Refusal
from upcall.hosts.web.index.reader import Filters
from upcall.hosts.web.index.texts import tags_text
from upcall.hosts.web.log import Log
from upcall.observe.redact import Redactor

MOST_ROWS = 200

_PAGE = 500
_COUNTED = 10_000
_LOG_STATUSES = {"running": ("running",), "interrupted": ("running",), "waiting": ("waiting", "running")}


async def check_session(log: Log, session: str) -> None:
    """Raise UnknownSession if a log has no such session."""
    if await log.store.row(session) is None:
        raise UnknownSession(session)


async def read_sessions(log: Log, text: str, which: dict[str, Any], limit: int) -> dict[str, Any]:
    """A page of sessions that match, and how many there are of each status."""
    listing = log.kept.listing
    rows = await (_matching(log, text, which) if text else listing.rows(log.runtime, **which))
    more = len(rows) > limit
    counts = await _counts(log)
    return {"sessions": rows[:limit], "next": rows[limit - 1]["id"] if more else None, "counts": counts}


async def _matching(log: Log, text: str, which: dict[str, Any]) -> list[dict[str, Any]]:
    """Sessions whose title, id or agent holds a text and that match all other filters."""
    index, before, limit = log.kept.index, which.get("before"), which["limit"]
    if index is None:
        raise Refusal(503, "this log has no index, so it can't be searched")
    found, filters = list[Row](), _filters(which, log.kept.redactor)
    while len(found) < limit and (roots := index.roots(text[:200], before, MOST_ROWS, filters)):
        for root in roots:
            row = await log.store.row(root)
            if row is not None and _matches(row, which):
                found.append(row)
        before = roots[-1]
    return await log.kept.listing.json(log.runtime, found[:limit])


def _filters(which: dict[str, Any], redactor: Redactor) -> Filters:
    """The filters as the index knows them: it has no living processes, so some statuses are one there."""
    status = which.get("status", "")
    statuses = _LOG_STATUSES.get(status, (status,) if status else ())
    tags = [tags_text({name: value}, redactor) for name, value in which.get("tags", {}).items()]
    return Filters(statuses, redactor.text(which.get("agent", "")), tuple(tags))


async def _counts(log: Log) -> dict[str, int]:
    index, runtime = log.kept.index, log.runtime
    known = index.counts() if index is not None else None
    if known is not None:
        running = await runtime.rows(parent="", status="running", limit=MOST_ROWS)
        more = {"waiting": known.get("waiting", 0), "failed": known.get("failed", 0)}
        return {"all": sum(known.values()), "running": len(running), **more}
    rows = await runtime.rows(parent="", limit=_COUNTED)
    counts = {"all": len(rows), "running": 0, "waiting": 0, "failed": 0}
    for row in rows:
        if row.status in counts:
            counts[row.status] += 1
    return counts


async def read_session(log: Log, id: str) -> dict[str, Any]:
    """One session with all that the log says of it."""
    runtime, kept = log.runtime, log.kept
    rows = await runtime.rows(session=id, limit=1) if "~" not in id else []
    row = next((one for one in rows if one.id == id), None) or await runtime.store.row(id)
    if row is None:
        raise UnknownSession(id)
    facts = await kept.listing.facts(runtime, row)
    first = await runtime.store.read(row.root, 0, 1)
    data: dict[str, Any] = {}
    if first and isinstance(first[0], SessionStarted):
        data.update(first[0].data)
    children = await runtime.rows(parent=id, limit=1000)
    return {
        "session": {
            **kept.listing.row(runtime, row, facts),
            "data": kept.redactor.show(data),
            "children": [one.id for one in children if one.kind != "side_turn"],
            "root": row.root,
            "tree": row.root,
            "usage": {
                "input": facts.input_tokens,
                "output": facts.output_tokens,
                "cached": facts.cached_tokens,
            },
            "model_calls": facts.model_calls,
            "tool_calls": facts.tool_calls,
        }
    }


async def read_conversation(log: Log, session: str) -> Conversation:
    """The conversation of one session, up to its newest event."""
    talk, after = Conversation(log.kept.redactor, log.kept.labels), 0
    while page := await log.store.read(session, after, _PAGE):
        for event in page:
            talk.apply(event)
        after = page[-1].seq
        await asyncio.sleep(0)  # the follower of the log runs in the same thread
    return talk


def _matches(row: Row, which: dict[str, Any]) -> bool:
    tags: dict[str, str] = which.get("tags", {})
    return (
        which.get("agent", row.agent) == row.agent
        and which.get("status", row.current_status) == row.current_status
        and tags.items() <= row.tags.items()
    )
