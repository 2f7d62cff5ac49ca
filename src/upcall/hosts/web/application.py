"""The ASGI application: the API, the streams and the page, behind the guard."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from upcall.app import Runtime
from upcall.hosts.http.access import Authenticate, Authentication, Places
from upcall.hosts.http.people import People
from upcall.hosts.web.callback_api import CallbackApi
from upcall.hosts.web.exchange import error_response, failure_response, json_response
from upcall.hosts.web.export_api import ExportApi
from upcall.hosts.web.guard import API, Guard
from upcall.hosts.web.live import Live
from upcall.hosts.web.log import Log
from upcall.hosts.web.model_call_api import ModelCallApi
from upcall.hosts.web.openapi import document
from upcall.hosts.web.page_files import PageFiles
from upcall.hosts.web.runs import OwnRuns, Runs
from upcall.hosts.web.search_api import SearchApi
from upcall.hosts.web.service import Service, answering_errors, principal_of
from upcall.hosts.web.session_api import SessionApi
from upcall.hosts.web.streams import Streams
from upcall.observe.labels import Labels
from upcall.observe.redact import Redactor
from upcall.prices import Cost
from upcall.safety.secrets import without_password

PAGE_PATHS = ("/", "/inbox", "/inbox/{id}", "/sessions", "/sessions/{id}", "/sessions/{id}/{node:path}")
"""Paths that the page draws itself."""


class WebApplication:
    """The API and the page over one log. `close` ends its streams and its reader; the runtime stays open."""

    def __init__(
        self,
        runtime: Runtime,
        authenticate: Authenticate,
        *,
        right: str = "asserted",
        people: People | None = None,
        places: Places = Places(),  # noqa: B008
        runs: Runs | None = None,
        redactor: Redactor | None = None,
        view_only: bool = False,
        page: PageFiles | None = None,
        index: Path | None = None,
        labels: Labels | None = None,
        cost: Cost | None = None,
    ) -> None:
        self.service = Service(
            runtime,
            runs or OwnRuns(runtime),
            redactor or Redactor(),
            view_only=view_only,
            index=index,
            labels=labels,
            cost=cost,
        )
        self._page = page or PageFiles()
        self._all_routes = self._routes()
        app = Starlette(routes=self._all_routes, exception_handlers={404: _missing, 405: _missing, 500: _failed})
        self._guard = Guard(app, places, Authentication(authenticate, right, people))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; a mounted application has no lifespan of its own."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        else:
            await self._guard(scope, receive, send)

    def api_paths(self) -> list[tuple[str, set[str]]]:
        """The paths of the API with their methods."""
        return [(one.path, one.methods or set()) for one in self._all_routes if one.path.startswith(API)]

    def close(self) -> None:
        """End the streams and the reader."""
        self.service.close()

    def _routes(self) -> Sequence[Route]:
        streams = Streams(self.service)
        return [
            Route("/api/me", answering_errors(self._me), methods=["GET"]),
            *SessionApi(self.service).routes(),
            *ModelCallApi(self.service).routes(),
            *CallbackApi(self.service).routes(),
            *streams.routes(),
            *SearchApi(self.service).routes(),
            *ExportApi(self.service, self._page).routes(),
            Route("/api/openapi.json", answering_errors(self._openapi), methods=["GET"]),
            *Live(self.service, streams).routes(),
            *(Route(path, self._index, methods=["GET"]) for path in PAGE_PATHS),
            Route("/{file:path}", self._file, methods=["GET"]),
        ]

    async def _me(self, request: Request) -> Response:
        service, principal = self.service, principal_of(request)

        async def read(log: Log) -> dict[str, Any]:
            return {"time": log.store.now(), "pos": await log.store.last()}

        agents = [one["name"] for one in service.runs.agents()]
        return json_response(
            {
                "user": principal.name,
                "role": principal.role,
                "view_only": not service.may(principal, "answerer"),
                "can_operate": service.may(principal, "operator"),
                "can_start": bool(agents) and service.may(principal, "operator"),
                "store": without_password(service.runtime.store.where),
                "version": version("upcall"),
                "agents": agents,
                **await service.read(read),
            }
        )

    async def _openapi(self, request: Request) -> Response:
        return json_response(document(version("upcall"), str(request.scope.get("root_path", ""))))

    async def _index(self, request: Request) -> Response:
        return self._page.index(request)

    async def _file(self, request: Request) -> Response:
        name = str(request.path_params["file"])
        if name.startswith("api/") or name == "api":
            return error_response(404, "the API has nothing at this path")
        return self._page.file(name, request)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _missing(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    answer = error_response(status, "there is nothing here" if status == 404 else "this path has no such method")
    answer.headers.update(getattr(error, "headers", None) or {})  # which methods it has
    return answer


async def _failed(request: Request, error: Exception) -> Response:
    return failure_response(error)
