"""The checks that every request passes, before and after it is handled.

Host and Origin first, then the principal, then how often. Nothing here reads a body. Every answer gets the headers
that keep a browser from doing more with it than showing it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from upcall.hosts.http.access import Authentication, Places, Principal
from upcall.hosts.http.rates import READS, REFUSED, SEARCHES, WRITES, Rate, Rates
from upcall.hosts.http.senders import OwnCommand
from upcall.hosts.web.exchange import Refusal, error_response, failure_response
from upcall.hosts.web.roles import SAFE, role_needed

API = "/api/"
MOST_WRITES = 32
"""Requests with a body that are handled at the same time: each may hold a body of the largest size."""

_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}


def content_policy(nonce: str) -> str:
    """The policy of the page: its own scripts and styles, its own server, and no text that becomes code."""
    return (
        f"default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; font-src 'self'; "
        "img-src 'self' data:; connect-src 'self'; base-uri 'self'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types svelte-trusted-html dompurify"
    )


class Guard:
    """An ASGI application that lets requests through to another one, as `request.state.principal` says by whom."""

    def __init__(self, app: ASGIApp, places: Places, authentication: Authentication) -> None:
        self._app, self._places, self._authentication = app, places, authentication
        self._rates = Rates(time.monotonic)
        self._writing = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; what is not HTTP is refused."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        nonce = secrets.token_urlsafe(16)
        state: MutableMapping[str, Any] = scope.setdefault("state", {})
        state["nonce"] = nonce
        guarded = _with_headers(send, nonce)
        request = Request(scope, receive)
        try:
            self._check_place(request)
            if is_api(request):
                await self._check_principal(request)
        except Refusal as refusal:
            await failure_response(refusal)(scope, receive, guarded)
            return
        except Exception as error:  # of the service's own authentication
            await failure_response(error)(scope, receive, guarded)
            return
        app = self._app if request.method in SAFE else self._write
        principal: Principal | None = state["principal"] if is_api(request) else None
        if principal is None:
            await app(scope, receive, guarded)
        else:
            await self._authentication.handle(principal, app, scope, receive, guarded)

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request that may have a body, if not too many are handled already."""
        if self._writing >= MOST_WRITES:
            refusal = Refusal(429, "too many requests at the same time; wait a moment", retry_after=1.0)
            await failure_response(refusal)(scope, receive, send)
            return
        self._writing += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._writing -= 1

    def _check_place(self, request: Request) -> None:
        host = request.headers.get("host", "")
        if not self._places.allows_host(host):
            raise Refusal(
                403,
                f"this server does not accept the host name {host[:100]!r}; start it with --origin URL for it",
            )
        origins = request.headers.getlist("origin")
        if any(not self._places.allows_origin(one, host, request.url.scheme) for one in origins):
            raise Refusal(403, "requests from pages of other origins are refused")
        if not origins and is_api(request) and request.headers.get("sec-fetch-site", "none") == "cross-site":
            raise Refusal(403, "requests from pages of other origins are refused")

    async def _check_principal(self, request: Request) -> None:
        principal = await self._authentication.principal(request)
        if principal is None:
            address = request.client.host if request.client else ""
            if wait := self._rates.wait(address, REFUSED):
                raise Refusal(429, "too many requests without a valid token; wait a moment", retry_after=wait)
            await self._authentication.record_unknown(request)
            raise Refusal(401, "this needs a valid token: Authorization: Bearer TOKEN")
        if wait := self._rates.wait(principal.name, _rate_of(request)):
            raise Refusal(429, "too many requests; wait a moment", retry_after=wait)
        request.state.principal = principal
        reveal = request.query_params.get("reveal", "")
        needed = role_needed(request.method, route_path(request.scope), reveal)
        if problem := await self._authentication.refuse_weak(request, principal, needed):
            raise Refusal(403, problem, needs_role=needed)
        if request.method not in SAFE or "reveal" in request.query_params:
            try:
                await self._authentication.check_sender(request, principal)
            except OwnCommand as error:
                raise Refusal(403, str(error)) from None


def is_api(request: Request) -> bool:
    """Tell whether a request is for the API, which needs a principal; page files do not."""
    return route_path(request.scope).startswith(API)


def route_path(scope: Scope) -> str:
    """The path below the place where this application is mounted."""
    path, root = scope["path"], scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def _rate_of(request: Request) -> Rate:
    if request.method not in SAFE:
        return WRITES
    return SEARCHES if route_path(request.scope) == "/api/search" else READS


def _with_headers(send: Send, nonce: str) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
            headers["content-security-policy"] = content_policy(nonce)
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return guarded


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer that there is nothing at this path."""
    await error_response(404, "there is nothing here")(scope, receive, send)
