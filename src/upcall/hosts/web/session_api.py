"""The paths about sessions: list, look, start, prompt, steer, cancel, resume."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from upcall.contracts import Row
from upcall.errors import UnknownSession
from upcall.hosts.web.exchange import Refusal, json_response, large_json_response, number, read_body
from upcall.hosts.web.listing import root_of
from upcall.hosts.web.log import Log
from upcall.hosts.web.runs import Means, begin, means_of
from upcall.hosts.web.service import Service, answering_errors, path_id, principal_of
from upcall.hosts.web.session_reads import MOST_ROWS, check_session, read_conversation, read_session, read_sessions
from upcall.hosts.web.streams import Streamed
from upcall.observe.shown_events import shown_events

MOST_CONVERSATIONS = 6
"""Conversations that are read and sent at the same time; other requests wait for their turn."""

_PIECE = 1 << 18
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
        text = given.get("q", "").strip()
        found = await self._service.read(lambda log: read_sessions(log, text, which, limit))
        return await large_json_response(found)

    async def session(self, request: Request) -> Response:
        """One session."""
        session_id = path_id(request)

        async def read(log: Log) -> tuple[dict[str, Any], Means]:
            found = await read_session(log, session_id)
            return found, await means_of(log.store, log.kept.agents, found["session"]["root"])

        found, means = await self._service.read(read)
        status = found["session"]["status"]
        here = means.here and self._service.may(principal_of(request), "operator")
        found["session"] |= {
            "can_prompt": here and status in _TO_PROMPT,
            "can_resume": here and status in _TO_RESUME,
            "needs": "" if means.here else means.command,
        }
        return json_response(found)

    async def nodes(self, request: Request) -> Response:
        """The run tree of a session as nodes; with `after`, what changed in it after that position.

        With `brief=1` nodes are without what is empty and what their histories repeat. With `first=1` it may be the
        beginning of a large tree, with `whole` false, so that something is seen while the rest is read.
        """
        session_id, after = path_id(request), number(request, "after", -1, 1 << 62)
        brief, first = number(request, "brief", 0, 1), number(request, "first", 0, 1)

        async def read(log: Log) -> bytes:
            await check_session(log, session_id)
            root, whole, trees = root_of(session_id), True, log.kept.trees
            if first and after < 0:
                tree, whole = await trees.beginning(log.store, root)
            else:
                tree = await trees.get(log.store, root)
            position = max(log.kept.changes.position, tree.position) if whole else tree.position
            if after >= 0:
                return msgspec.json.encode({"pos": position, "changes": tree.since(after)})
            nodes = tree.brief_nodes() if brief else tree.nodes()
            return msgspec.json.encode({"pos": position, "whole": whole, "nodes": nodes})

        return Response(await self._service.read(read), media_type="application/json")

    async def conversation(self, request: Request) -> Response:
        """The conversation of one session, as people read it."""
        session_id, service = path_id(request), self._service

        async def read(log: Log) -> bytes:
            return msgspec.json.encode((await read_conversation(log, session_id)).entries)

        async def pieces() -> AsyncIterator[bytes]:
            async with self._conversations:  # each is held whole until its client has it
                body = await service.read(read)
                for at in range(0, len(body), _PIECE):
                    yield body[at : at + _PIECE]

        await service.read(lambda log: check_session(log, session_id))
        return Streamed(pieces(), "application/json", {})

    async def event(self, request: Request) -> Response:
        """One event of a session."""
        session_id, seq = path_id(request), int(request.path_params["seq"])

        async def read(log: Log) -> dict[str, Any]:
            await check_session(log, session_id)
            found = await log.store.read(session_id, seq - 1, 1) if 0 < seq < 1 << 32 else []
            if not found or found[0].seq != seq:
                raise Refusal(404, f"session {session_id!r} has no event {seq}")
            return (await shown_events(log.store, found, log.kept.redactor))[0]

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
        async def read(log: Log) -> dict[str, Any]:
            row, listing = await log.store.row(id), log.kept.listing
            if row is None:
                raise UnknownSession(id)
            return listing.row(log.runtime, row, await listing.facts(log.runtime, row))

        return json_response(await self._service.read(read))


def _tags(request: Request) -> dict[str, str]:
    tags: dict[str, str] = {}
    for given in request.query_params.getlist("tag"):
        name, equals, value = given.partition("=")
        if not name or not equals:
            raise Refusal(422, f"tag={given[:100]} is not NAME=VALUE")
        tags[name] = value
    return tags


def _check_text(text: str) -> None:
    if not text.strip():
        raise Refusal(422, "the text is empty")


def _check_free(row: Row) -> None:
    """Refuse at once where a living process runs the session; the runtime would wait for it."""
    if row.owner:
        raise Refusal(409, f"the session is being run by {row.owner}", status=row.current_status)
