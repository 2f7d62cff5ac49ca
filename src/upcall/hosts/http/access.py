"""Decide which requests may come in: by Host, by Origin, and by whom.

A browser sends requests to loopback addresses on behalf of any page. So the names that a server is reached by are
checked (DNS rebinding), and pages of other origins are refused (forged requests).
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import ipaddress
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from upcall.errors import SetupError
from upcall.hosts.http.people import People, bearer
from upcall.hosts.http.senders import OwnCommand, Senders
from upcall.observe.plain import is_visible, visible
from upcall.tokens import RIGHT, Role, allows, too_weak

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
"""The names of this machine for itself, as a Host header has them."""

_WILDCARDS = ("0.0.0.0", "::")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/?#@,\[\]\\]+)(?::[0-9]{0,5})?")
_PORTS = {"http": ":80", "https": ":443"}
_EXAMPLE = "give a URL such as https://agents.example.org"


class Principal(NamedTuple):
    """The maker of a request, and how the server knows: an answer stores these as `by` and `right`.

    role: what it may do
    digest: of its token, where the store has that
    """

    name: str
    right: str
    role: Role = "operator"
    digest: str = ""


Authenticate = Callable[[Request], str | Awaitable[str | None] | None]
"""Returns the principal's name, or None for a request that may not come in; sync or async."""


class Places(NamedTuple):
    """The names and origins that requests may have.

    hosts: the names that a Host header may have; None leaves that to the service around this application
    origins: origins that are allowed beside the server's own, such as that of a reverse proxy
    any_address: whether every IP address is allowed as a Host, because the server listens on all of them
    """

    hosts: frozenset[str] | None = None
    origins: frozenset[str] = frozenset()
    any_address: bool = False

    def allows_host(self, host: str) -> bool:
        """Tell whether a Host header is one of this server's names."""
        if self.hosts is None:
            return True
        name = host_name(host)
        return name in self.hosts or (self.any_address and _is_address(name))

    def allows_origin(self, origin: str, host: str, scheme: str) -> bool:
        """Tell whether a page of this origin may use the server that it names as `host`."""
        if origin in self.origins:
            return True
        given, separator, place = origin.partition("://")
        if not separator or given not in _PORTS or (scheme == "https" and given != "https"):
            return False
        return place.lower().removesuffix(_PORTS[given]) == host.lower().removesuffix(_PORTS[given])


def places(host: str, origins: Sequence[str]) -> Places:
    """The names of a server that listens on `host` and is reached by these origins too."""
    parsed = [origin_of(url) for url in origins]
    named = {host_name(origin.partition("://")[2]) for origin in parsed}
    own = f"[{host}]" if ":" in host else host
    return Places(frozenset({*LOOPBACK, own.lower(), *named}), frozenset(parsed), host in _WILDCARDS)


def origin_of(url: str) -> str:
    """The origin of a URL; SetupError if it is not the URL of a web server."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise SetupError(f"--origin {visible(url)}: {error}; {_EXAMPLE}") from None
    odd = parts.username or parts.query or parts.fragment or " " in url or not is_visible(url)
    if parts.scheme not in _PORTS or not parts.hostname or odd:
        raise SetupError(f"--origin {visible(url)}: {_EXAMPLE}")
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    shown = f":{port}" if port is not None else ""
    return f"{parts.scheme}://{name}{'' if shown == _PORTS[parts.scheme] else shown}"


def host_name(host: str) -> str:
    """The name in a Host header, without its port; "" where it is not a name and a port."""
    found = _HOST.fullmatch(host)
    return found[1].lower() if found else ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


class Authentication:
    """Asks for the principal of a request. `right` is how the program knows who it is.

    people: who has a token in the store; None where such tokens are not accepted
    """

    def __init__(self, authenticate: Authenticate, right: str, people: People | None = None) -> None:
        self._authenticate, self._right, self.people = authenticate, right, people
        self._senders = Senders()

    async def check_sender(self, request: Request, principal: Principal) -> None:
        """Raise OwnCommand where an agent's command uses a token to change something."""
        if principal.right != RIGHT:
            return
        try:
            await self._senders.check(request)
        except OwnCommand as error:
            await self._record(request, principal.name, str(error))
            raise

    async def principal(self, request: Request) -> Principal | None:
        """The principal; None for a request that may not come in."""
        found = self._authenticate(request)
        name = await found if inspect.isawaitable(found) else found
        if name:
            return Principal(name, self._right)
        token = await self.people.find(request) if self.people is not None else None
        return Principal(token.name, RIGHT, token.role, token.digest) if token is not None else None

    async def record_unknown(self, request: Request) -> None:
        """Keep that a token was not accepted."""
        if self.people is not None:
            await self.people.record_unknown(request)

    async def refuse_weak(self, request: Request, principal: Principal, needed: Role, action: str = "") -> str:
        """Why the principal's role does not allow a request, which is then recorded; "" if it does."""
        if allows(principal.role, needed):
            return ""
        problem = too_weak(principal.name, principal.role, needed)
        await self._record(request, principal.name, problem, action)
        return problem

    async def _record(self, request: Request, by: str, reason: str, action: str = "") -> None:
        if self.people is not None:
            await self.people.record(request, by, reason, action)

    async def handle(self, principal: Principal, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Let an application handle a request; it ends where the principal's token is revoked meanwhile."""
        if self.people is None or not principal.digest:
            await app(scope, receive, send)
        else:
            await self.people.open_requests.run(principal.digest, app, scope, receive, send)


def bearer_token(token: Callable[[], str], user: str) -> Authenticate:
    """Let in requests that carry the token, as this user. The comparison takes the same time for every token."""

    def authenticate(request: Request) -> str | None:
        expected = hashlib.sha256(token().encode()).digest()
        digest = hashlib.sha256(bearer(request).encode("utf-8", "replace")).digest()
        return user if hmac.compare_digest(digest, expected) else None

    return authenticate
