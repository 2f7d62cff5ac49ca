"""The OpenAPI document of the API: every path with its parameters, bodies and answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from upcall.hosts.web.callback_api import AnswerBody
from upcall.hosts.web.roles import role_needed
from upcall.hosts.web.session_api import CancelBody, NoBody, StartBody, TextBody
from upcall.tokens import ROLE_TEXTS

_TEXT: dict[str, Any] = {"type": "string"}
_NUMBER: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 10**17}
_OBJECT: dict[str, Any] = {"type": "object"}
_LIST: dict[str, Any] = {"type": "array"}
_STREAM = "text/event-stream"
_PROBLEMS = {
    "401": "no valid token",
    "403": "another Host or Origin, a role that does not allow it, or the server is view-only",
    "404": "not found",
    "408": "the body took too long to arrive",
    "409": "settled or busy",
    "413": "the body is too large",
    "422": "the request is not valid",
    "429": "too many requests",
    "503": "the server is stopping, or has no index",
}
_STATUSES = ("idle", "running", "waiting", "interrupted", "done", "failed", "limit", "cancelled")


_ROLES = "The key of the server, or a token of `upcall tokens new`. " + " ".join(
    f"A token with the role `{role}` {text}." for role, text in ROLE_TEXTS.items()
)


class _Path(NamedTuple):
    """One operation: what it does, its answer, its parameters in the query, and its body.

    The answer is JSON, unless it is a stream of server-sent events, or a file of one of some types.
    """

    about: str
    answer: Mapping[str, Any] = _OBJECT
    query: Mapping[str, Mapping[str, Any]] = {}
    body: type[msgspec.Struct] | None = None
    stream: bool = False
    files: tuple[str, ...] = ()


_LIMIT = {"limit": _NUMBER}
_FILTERS: dict[str, Mapping[str, Any]] = {
    "status": {"type": "string", "enum": [*_STATUSES]},
    "agent": _TEXT,
    "tag": {"type": "array", "items": {"type": "string", "pattern": "^[^=]+=.*$"}},
    "q": _TEXT,
    "before": _TEXT,
    "parent": _TEXT,
    **_LIMIT,
}
_GET: dict[str, _Path] = {
    "/api/me": _Path("The user of this request, the log, and its newest position"),
    "/api/agents": _Path("The agents that sessions can be started with", _LIST),
    "/api/sessions": _Path("A page of sessions, newest first", query=_FILTERS),
    "/api/sessions/{id}": _Path("One session"),
    "/api/sessions/{id}/nodes": _Path(
        "The run tree of a session as nodes", query={"after": _NUMBER, "brief": _NUMBER, "first": _NUMBER}
    ),
    "/api/sessions/{id}/conversation": _Path("The conversation of a session", _LIST),
    "/api/sessions/{id}/events": _Path(
        "The events of a session, as a stream", query={"after": _NUMBER}, stream=True
    ),
    "/api/sessions/{id}/events/{seq}": _Path("One event"),
    "/api/sessions/{id}/calls/{ordinal}": _Path(
        "The request and the response of a model call, and the request before it", query={"seq": _NUMBER}
    ),
    "/api/sessions/{id}/export": _Path(
        "The run tree of a session as a file",
        query={"format": {"type": "string", "enum": ["html", "jsonl"]}},
        files=("application/x-ndjson", "text/html"),
    ),
    "/api/events": _Path("The events of all sessions, as a stream", query={"after": _NUMBER}, stream=True),
    "/api/live": _Path("What a page needs, as a stream", query={"tree": _TEXT, "after": _NUMBER}, stream=True),
    "/api/inbox": _Path("The open questions, and those settled today", query=_LIMIT),
    "/api/callbacks/{id}": _Path("One question", query={"reveal": {"type": "string", "enum": ["0", "1"]}}),
    "/api/search": _Path(
        "The newest texts that hold all words of `q`", query={"q": _TEXT, "before": _NUMBER, **_LIMIT}
    ),
    "/api/openapi.json": _Path("This document"),
}
_POST: dict[str, _Path] = {
    "/api/callbacks/{id}/answer": _Path("Answer a question, or approve or reject a call", body=AnswerBody),
    "/api/sessions": _Path("Start a session", body=StartBody),
    "/api/sessions/{id}/prompt": _Path("Begin a turn", body=TextBody),
    "/api/sessions/{id}/steer": _Path("Say something to a running turn", body=TextBody),
    "/api/sessions/{id}/cancel": _Path("End a running or waiting turn", body=CancelBody),
    "/api/sessions/{id}/resume": _Path("Continue a turn", body=NoBody),
}


def document(version: str, server: str) -> dict[str, Any]:
    """The whole document; `server` is the path that all others are below."""
    bodies = [path.body for path in _POST.values() if path.body is not None]
    _, schemas = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    paths: dict[str, dict[str, Any]] = {}
    for method, found in (("get", _GET), ("post", _POST)):
        for path, operation in found.items():
            paths.setdefault(path, {})[method] = _operation(path, method, operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Upcall", "version": version, "description": "Watch agents, and answer what they ask."},
        "servers": [{"url": server or "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": {
                **schemas,
                "Problem": {"type": "object", "required": ["error"], "properties": {"error": _TEXT}},
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": _ROLES}},
        },
    }


def _operation(path: str, method: str, operation: _Path) -> dict[str, Any]:
    needed = role_needed(method.upper(), path)
    made: dict[str, Any] = {
        "operationId": f"{method} {path.removeprefix('/api/')}".replace("/", " ").replace(" ", "_").strip("_"),
        "summary": operation.about,
        "parameters": [*_in_path(path), *_in_query(operation.query)],
        "responses": {"200": _answer(operation), **_problems()},
        "x-role": needed,
    }
    made["description"] = f"Needs the role `{needed}`." + (
        " With `reveal=1`: `answerer`." if "reveal" in operation.query else ""
    )
    if operation.body is not None:
        schema = {"$ref": f"#/components/schemas/{operation.body.__name__}"}
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return made


def _in_path(path: str) -> Sequence[dict[str, Any]]:
    number = {"type": "integer", "minimum": 0, "maximum": 10**9}
    kinds = {"id": {"type": "string", "minLength": 1}, "seq": number, "ordinal": number}
    return [
        {"name": name, "in": "path", "required": True, "schema": kinds[name]}
        for name in kinds
        if f"{{{name}}}" in path
    ]


def _in_query(query: Mapping[str, Mapping[str, Any]]) -> Sequence[dict[str, Any]]:
    return [{"name": name, "in": "query", "required": False, "schema": schema} for name, schema in query.items()]


def _answer(operation: _Path) -> dict[str, Any]:
    if operation.stream:
        return {"description": "server-sent events", "content": {_STREAM: {"schema": _TEXT}}}
    if operation.files:
        return {"description": "a file", "content": {kind: {"schema": _TEXT} for kind in operation.files}}
    return {"description": "done", "content": {"application/json": {"schema": operation.answer}}}


def _problems() -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {code: {"description": about, "content": content} for code, about in _PROBLEMS.items()}
