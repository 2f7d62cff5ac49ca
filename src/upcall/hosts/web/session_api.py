"""The paths about sessions: list, look, start, prompt, steer, cancel, resume."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from upcall.app import Runtime
from upcall.contracts import Row, Store
from upcall.errors import UnknownSession
from upcall.events import SessionStarted
from upcall.hosts.web.conversation import Conversation
from upcall.hosts.web.exchange import Refusal, json_response, large_json_response, number, read_body
from upcall.hosts.web.index.reader import Filters
from upcall.hosts.web.index.texts import tags_text
from upcall.hosts.web.listing import root_of
from upcall.hosts.web.runs import Means, begin, means_of
from upcall.hosts.web.service import Service, answering_errors, path_id, principal_of
from upcall.hosts.web.streams import Streamed
from upcall.observe.shown_events import shown_events

MOST_ROWS = 200
MOST_CONVERSATIONS = 6
"""Conversations that are read and sent at the same time; other requests wait for their turn."""

_PAGE, _PIECE = 500, 1 << 18
_COUNTED = 10_000
_LOG_STATUSES = {"running": ("running",), "interrupted": ("running",), "waiting": ("waiting", "running")}
_TO_RESUME = ("waiting", "interrupted", "failed")
_TO_PROMPT = ("idle", "done", "failed", "cancelled", "limit", "interrupted")


class StartBody(msgspec.Struct, forbid_unknown_fields=True):
    """The request to start a session."""

    agent: str
    text: str
    title: str = ""
    id: str | None = None


class TextBody(msgspec.Struct, forbid_unknown_fields=True):
    """A text that somebody says to a session."""

    text: str


class CancelBody(msgspec.Struct, forbid_unknown_fields=True):
    """The reason why a turn is to end."""

    reason: str = ""


class NoBody(msgspec.Struct, forbid_unknown_fields=True):
    """A body that says nothing."""


class SessionApi:
    """Handles the paths about sessions."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._conversations = asyncio.Semaphore(MOST_CONVERSATIONS)

    def routes(self) -> list[Route]:
        """The paths with their handlers."""
        paths = {
            "/api/agents": ("GET", self.agents),
            "/api/sessions": ("GET", self.sessions),
            "/api/sessions/{id}": ("GET", self.session),
            "/api/sessions/{id}/nodes": ("GET", self.nodes),
            "/api/sessions/{id}/conversation": ("GET", self.conversation),
            "/api/sessions/{id}/events/{seq:int}": ("GET", self.event),
        }
        changes = {
            "/api/sessions": self.start,
            "/api/sessions/{id}/prompt": self.prompt,
            "/api/sessions/{id}/steer": self.steer,
            "/api/sessions/{id}/cancel": self.cancel,
            "/api/sessions/{id}/resume": self.resume,
        }
        reads = [Route(path, answering_errors(handle), methods=[how]) for path, (how, handle) in paths.items()]
        return reads + [Route(path, answering_errors(handle), methods=["POST"]) for path, handle in changes.items()]

    # --- looking --------------------------------------------------------------------------

    async def agents(self, request: Request) -> Response:
        """The agents that sessions can be started with."""
        return json_response(self._service.runs.agents())

    async def sessions(self, request: Request) -> Response:
        """A page of sessions, newest first."""
        given, limit = request.query_params, number(request, "limit", 50, MOST_ROWS) or 50
        which: dict[str, Any] = {"parent": given.get("parent", ""), "limit": limit + 1}
        which |= {name: given[name] for name in ("status", "agent", "before") if given.get(name)}
        if tags := _tags(request):
            which["tags"] = tags
        listing, text = self._service.listing, given.get("q", "").strip()

        async def read(runtime: Runtime) -> dict[str, Any]:
            rows = await (self._matching(runtime, text, which) if text else listing.rows(runtime, **which))
            more = len(rows) > limit
            counts = await self._counts(runtime)
            return {"sessions": rows[:limit], "next": rows[limit - 1]["id"] if more else None, "counts": counts}

        return await large_json_response(await self._service.read(read))

    async def _matching(self, runtime: Runtime, text: str, which: dict[str, Any]) -> list[dict[str, Any]]:
        """Sessions whose title, id or agent holds a text and that match all other filters."""
        index, before, limit = self._service.index, which.get("before"), which["limit"]
        if index is None:
            raise Refusal(503, "this log has no index, so it can't be searched")
        found, filters = list[Row](), self._filters(which)
        while len(found) < limit and (roots := index.roots(text[:200], before, MOST_ROWS, filters)):
            for root in roots:
                row = await runtime.store.row(root)
                if row is not None and _matches(row, which):
                    found.append(row)
            before = roots[-1]
        return await self._service.listing.json(runtime, found[:limit])

    def _filters(self, which: dict[str, Any]) -> Filters:
        """The filters as the index knows them: it has no living processes, so some statuses are one there."""
        status, redactor = which.get("status", ""), self._service.redactor
        statuses = _LOG_STATUSES.get(status, (status,) if status else ())
        tags = [tags_text({name: value}, redactor) for name, value in which.get("tags", {}).items()]
        return Filters(statuses, redactor.text(which.get("agent", "")), tuple(tags))

    async def _counts(self, runtime: Runtime) -> dict[str, int]:
        known = self._service.index.counts() if self._service.index is not None else None
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

    async def session(self, request: Request) -> Response:
        """One session."""
        session_id, runs = path_id(request), self._service.runs

        async def read(runtime: Runtime) -> tuple[dict[str, Any], Means]:
            found = await self.whole(runtime, session_id)
            return found, await means_of(runtime.store, runs, found["session"]["root"])

        found, means = await self._service.read(read)
        status = found["session"]["status"]
        here = means.here and self._service.may(principal_of(request), "operator")
        found["session"] |= {
            "can_prompt": here and status in _TO_PROMPT,
            "can_resume": here and status in _TO_RESUME,
            "needs": "" if means.here else means.command,
        }
        return json_response(found)

    async def whole(self, runtime: Runtime, id: str) -> dict[str, Any]:
        """One session with all that the log says of it."""
        rows = await runtime.rows(session=id, limit=1) if "~" not in id else []
        row = next((one for one in rows if one.id == id), None) or await runtime.store.row(id)
        if row is None:
            raise UnknownSession(id)
        service = self._service
        facts = await service.listing.facts(runtime, row)
        first = await runtime.store.read(row.root, 0, 1)
        data: dict[str, Any] = {}
        if first and isinstance(first[0], SessionStarted):
            data.update(first[0].data)
        children = await runtime.rows(parent=id, limit=1000)
        return {
            "session": {
                **service.listing.row(row, facts),
                "data": service.redactor.show(data),
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

    async def nodes(self, request: Request) -> Response:
        """The run tree of a session as nodes; with `after`, what changed in it after that position.

        With `brief=1` nodes are without what is empty and what their histories repeat. With `first=1` it may be the
        beginning of a large tree, with `whole` false, so that something is seen while the rest is read.
        """
        session_id, after = path_id(request), number(request, "after", -1, 1 << 62)
        brief, first = number(request, "brief", 0, 1), number(request, "first", 0, 1)
        service = self._service

        async def read(runtime: Runtime) -> bytes:
            if await runtime.store.row(session_id) is None:
                raise UnknownSession(session_id)
            root, whole = root_of(session_id), True
            if first and after < 0:
                tree, whole = await service.trees.beginning(runtime.store, root)
            else:
                tree = await service.trees.get(runtime.store, root)
            position = max(service.changes.position, tree.position) if whole else tree.position
            if after >= 0:
                return msgspec.json.encode({"pos": position, "changes": tree.since(after)})
            nodes = tree.brief_nodes() if brief else tree.nodes()
            return msgspec.json.encode({"pos": position, "whole": whole, "nodes": nodes})

        return Response(await service.read(read), media_type="application/json")

    async def conversation(self, request: Request) -> Response:
        """The conversation of one session, as people read it."""
        session_id, service = path_id(request), self._service

        async def check(runtime: Runtime) -> None:
            if await runtime.store.row(session_id) is None:
                raise UnknownSession(session_id)

        async def read(runtime: Runtime) -> bytes:
            return msgspec.json.encode((await read_conversation(runtime.store, session_id, service)).entries)

        async def pieces() -> AsyncIterator[bytes]:
            async with self._conversations:  # each is held whole until its client has it
                body = await service.read(read)
                for at in range(0, len(body), _PIECE):
                    yield body[at : at + _PIECE]

        await service.read(check)
        return Streamed(pieces(), "application/json", {})

    async def event(self, request: Request) -> Response:
        """One event of a session."""
        session_id, seq = path_id(request), int(request.path_params["seq"])
        redactor = self._service.redactor

        async def read(runtime: Runtime) -> dict[str, Any]:
            if await runtime.store.row(session_id) is None:
                raise UnknownSession(session_id)
            found = await runtime.store.read(session_id, seq - 1, 1) if 0 < seq < 1 << 32 else []
            if not found or found[0].seq != seq:
                raise Refusal(404, f"session {session_id!r} has no event {seq}")
            return (await shown_events(runtime.store, found, redactor))[0]

        return await large_json_response(await self._service.read(read))

    # --- changing -------------------------------------------------------------------------

    async def start(self, request: Request) -> Response:
        """Start a session and its first turn."""
        self._service.check_writable()
        body = await read_body(request, StartBody)
        _check_text(body.text)
        runtime = self._service.runs.starting(body.agent)
        session = await runtime.start(body.agent, body.id, title=body.title)
        await begin(runtime, session.id, session.prompt(body.text, by=principal_of(request).name))
        return await self._row_response(session.id)

    async def prompt(self, request: Request) -> Response:
        """Begin a turn of a session."""
        self._service.check_writable()
        row, body = await self._service.row(request), await read_body(request, TextBody)
        _check_text(body.text)
        _check_free(row)
        runtime = await self._service.runs.runtime_for(row.root)
        session = await runtime.load(row.id)
        await begin(runtime, row.id, session.prompt(body.text, by=principal_of(request).name))
        return await self._row_response(row.id)

    async def steer(self, request: Request) -> Response:
        """Say something that the next model call of a running turn sees."""
        self._service.check_writable()
        row, body = await self._service.row(request), await read_body(request, TextBody)
        _check_text(body.text)
        if row.current_status not in ("running", "waiting"):
            raise Refusal(409, "no turn is running; send a prompt instead", status=row.current_status)
        who = principal_of(request)
        await self._service.runtime.steer(row.id, body.text, by=who.name, right=who.right)
        return await self._row_response(row.id)

    async def cancel(self, request: Request) -> Response:
        """End a running or waiting turn."""
        self._service.check_writable()
        row, body = await self._service.row(request), await read_body(request, CancelBody)
        who = principal_of(request)
        await self._service.runtime.cancel(row.id, body.reason, by=who.name, right=who.right)
        return await self._row_response(row.id)

    async def resume(self, request: Request) -> Response:
        """Continue a turn that was answered, interrupted or failed."""
        self._service.check_writable()
        row, _ = await self._service.row(request), await read_body(request, NoBody)
        _check_free(row)
        runtime = await self._service.runs.runtime_for(row.root)
        await begin(runtime, row.root, runtime.resume(row.id))
        return await self._row_response(row.id)

    async def _row_response(self, id: str) -> Response:
        async def read(runtime: Runtime) -> dict[str, Any]:
            row = await runtime.store.row(id)
            if row is None:
                raise UnknownSession(id)
            return self._service.listing.row(row, await self._service.listing.facts(runtime, row))

        return json_response(await self._service.read(read))


async def read_conversation(store: Store, session: str, service: Service) -> Conversation:
    """The conversation of one session, up to its newest event."""
    talk, after = Conversation(service.redactor, service.labels), 0
    while page := await store.read(session, after, _PAGE):
        for event in page:
            talk.apply(event)
        after = page[-1].seq
        await asyncio.sleep(0)  # the follower of the log runs in the same thread
    return talk


def _tags(request: Request) -> dict[str, str]:
    tags: dict[str, str] = {}
    for given in request.query_params.getlist("tag"):
        name, equals, value = given.partition("=")
        if not name or not equals:
            raise Refusal(422, f"tag={given[:100]} is not NAME=VALUE")
        tags[name] = value
    return tags


def _matches(row: Row, which: dict[str, Any]) -> bool:
    tags: dict[str, str] = which.get("tags", {})
    return (
        which.get("agent", row.agent) == row.agent
        and which.get("status", row.current_status) == row.current_status
        and tags.items() <= row.tags.items()
    )


def _check_text(text: str) -> None:
    if not text.strip():
        raise Refusal(422, "the text is empty")


def _check_free(row: Row) -> None:
    """Refuse at once where a living process runs the session; the runtime would wait for it."""
    if row.owner:
        raise Refusal(409, f"the session is being run by {row.owner}", status=row.current_status)
