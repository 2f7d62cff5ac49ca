"""The protocol over HTTP on this machine: one path, behind the token and the checks against browsers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import msgspec
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from upcall.hosts.http.access import Authenticate, Authentication, Places, Principal
from upcall.hosts.http.people import People
from upcall.hosts.http.rates import REFUSED, Rate, Rates
from upcall.hosts.http.senders import OwnCommand
from upcall.hosts.mcp.roles import Needed, role_needed
from upcall.safety.bounds import excess_in_text
from upcall.tokens import ROLES

PATH = "/mcp"
LARGEST_BODY = 4_000_000
"""Bytes of a message."""

MOST_REQUESTS = 200
"""Messages that are handled at the same time."""

MOST_SESSIONS = 200
"""Clients of the era of handshakes that are connected at the same time."""

REQUESTS = Rate(50, 200)
_HEADERS = {"x-content-type-options": "nosniff", "cache-control": "no-store"}


class _Refusal(Exception):
    """A request that is answered with an HTTP error."""

    def __init__(self, code: int, problem: str, wait: float = 0.0) -> None:
        super().__init__(problem)
        self.code, self.problem, self.wait = code, problem, wait


class McpApplication:
    """An ASGI application. `run` has to be entered while it serves."""

    def __init__(
        self,
        server: Server[Any],
        authenticate: Authenticate,
        right: str,
        places: Places,
        people: People | None = None,
    ) -> None:
        """`people` have a token in the store; None where such tokens are not accepted."""
        self._manager = StreamableHTTPSessionManager(
            server, max_request_body_size=LARGEST_BODY, max_sessions=MOST_SESSIONS
        )
        self._authentication, self._places = Authentication(authenticate, right, people), places
        self._rates = Rates(time.monotonic)
        self._handling = 0

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncGenerator[None]:
        """Serve requests inside the block."""
        async with self._manager.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; what is not HTTP is refused."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        request = Request(scope, receive)
        try:
            await self._check(request)
            principal: Principal = request.state.principal
            await self._authentication.handle(principal, self._handle, scope, receive, _answered_once(send))
        except _Refusal as refusal:
            await _refused(refusal)(scope, receive, send)

    async def _check(self, request: Request) -> None:
        host, origins = request.headers.get("host", ""), request.headers.getlist("origin")
        if not self._places.allows_host(host):
            raise _Refusal(403, f"this server does not accept the host name {host[:100]!r}")
        if any(not self._places.allows_origin(one, host, request.url.scheme) for one in origins):
            raise _Refusal(403, "requests from pages of other origins are refused")
        if request.url.path != PATH:
            raise _Refusal(404, f"there is nothing here; the server is at {PATH}")
        principal = await self._authentication.principal(request)
        if principal is None:
            address = request.client.host if request.client else ""
            if wait := self._rates.wait(address, REFUSED):
                raise _Refusal(429, "too many requests without a valid token; wait a moment", wait)
            await self._authentication.record_unknown(request)
            raise _Refusal(401, "this needs a valid token: Authorization: Bearer TOKEN")
        if wait := self._rates.wait(principal.name, REQUESTS):
            raise _Refusal(429, "too many requests; wait a moment", wait)
        request.state.principal = principal
        request.scope["user"] = _user(principal)  # binds what the library calls a session to it
        if request.method != "GET":
            try:
                await self._authentication.check_sender(request, principal)
            except OwnCommand as error:
                raise _Refusal(403, str(error)) from None

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._handle_request(Request(scope, receive), scope, receive, send)
        except _Refusal as refusal:
            await _refused(refusal)(scope, receive, send)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            pass  # the client ended its session meanwhile; the library has answered before it raises this

    async def _handle_request(self, request: Request, scope: Scope, receive: Receive, send: Send) -> None:
        if request.method != "POST":
            await self._manager.handle_request(scope, receive, send)
            return
        if self._handling >= MOST_REQUESTS:
            raise _Refusal(429, "too many requests at the same time; wait a moment", 1.0)
        self._handling += 1
        try:
            body = await _body(request)
            await self._check_role(request, body)
            await self._manager.handle_request(scope, _replayed(body, receive), send)
        finally:
            self._handling -= 1

    async def _check_role(self, request: Request, body: bytes) -> None:
        """Refuse what the principal's role does not allow. What is not JSON is left to the library."""
        principal: Principal = request.state.principal
        if principal.role == ROLES[-1]:
            return
        try:
            needed = role_needed(await asyncio.to_thread(msgspec.json.decode, body))
        except msgspec.DecodeError:
            needed = Needed(ROLES[-1], "something that is not JSON")
        if problem := await self._authentication.refuse_weak(request, principal, needed.role, needed.action):
            raise _Refusal(403, problem)


def _user(principal: Principal) -> AuthenticatedUser:
    """The principal as the library knows users; the token itself is nowhere in it."""
    who = f"{principal.right}:{principal.name}:{principal.digest}"
    return AuthenticatedUser(AccessToken(token="", client_id=who, scopes=[principal.role]))


def request_principal(ctx: Any) -> Principal:
    """The maker of a request that came over HTTP."""
    principal: Principal = ctx.request.state.principal
    return principal


async def _body(request: Request) -> bytes:
    """The body, within bounds that are checked before it is read as JSON."""
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > LARGEST_BODY:
        raise _Refusal(413, f"a message may have at most {LARGEST_BODY} bytes")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_BODY:
            raise _Refusal(413, f"a message may have at most {LARGEST_BODY} bytes")
    if problem := excess_in_text(bytes(body), LARGEST_BODY):
        raise _Refusal(400, f"the message is too large: {problem}")
    return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The channel of a request whose body was read already."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _answered_once(send: Send) -> Send:
    """A channel that drops what comes after an answer: the library answers some clients twice that have left."""
    ended = False

    async def guarded(message: Message) -> None:
        nonlocal ended
        if ended:
            return
        ended = message["type"] == "http.response.body" and not message.get("more_body", False)
        await send(message)

    return guarded


def _refused(refusal: _Refusal) -> JSONResponse:
    headers = dict(_HEADERS)
    if refusal.code == 401:
        headers["www-authenticate"] = "Bearer"
    if refusal.wait:
        headers["retry-after"] = str(max(1, round(refusal.wait)))
    return JSONResponse({"error": refusal.problem}, refusal.code, headers)
