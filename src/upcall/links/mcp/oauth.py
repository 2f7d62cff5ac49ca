"""Tokens of servers that want OAuth: the library's flow, tokens in files of mode 600, and a page to come back to.

A person opens a link and is sent back to a port of this machine. Without somebody to show the link to, a server
that wants a person fails and says so.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl, ValidationError

from upcall.links.mcp.config import SIGN_IN, Authorize, OAuth, ServerConfig
from upcall.links.mcp.failures import ServerFailed
from upcall.mcp_wire.reading import as_object
from upcall.safety.small_files import read_small

_PATH, _REQUEST = "/callback", 8192
_PAGE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
    b"You can close this page and go back to your terminal.\n"
)


class TokenFile:
    """The tokens of one server, and the client that was registered there, in a file for its owner alone."""

    def __init__(self, folder: str | None, url: str) -> None:
        base = Path(folder) if folder else Path.home() / ".upcall" / "mcp"
        self.path = base / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.json"

    async def get_tokens(self) -> OAuthToken | None:
        """Return the stored tokens."""
        return self._get("tokens", OAuthToken)

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store tokens."""
        self._put("tokens", tokens.model_dump(mode="json", exclude_none=True))

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the registered client."""
        return self._get("client", OAuthClientInformationFull)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Store the registered client."""
        self._put("client", client_info.model_dump(mode="json", exclude_none=True))

    def port(self, wanted: int) -> int:
        """Return the port to be sent back to: the wanted one, the stored one, or a free one, which is stored."""
        kept = self._read().get("port")
        if wanted or (isinstance(kept, int) and 0 < kept < 65536):
            return wanted or int(str(kept))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        self._put("port", port)
        return port

    def _get(self, key: str, kind: Any) -> Any:
        found = self._read().get(key)
        try:
            return None if found is None else kind.model_validate(found)
        except ValidationError:
            return None

    def _read(self) -> dict[str, Any]:
        try:
            if self.path.is_symlink() or self.path.stat().st_mode & 0o077:
                return {}  # somebody else may have written or read it
            read = msgspec.json.decode(read_small(self.path))
        except (OSError, ValueError):
            return {}
        return as_object(read)

    def _put(self, key: str, value: Any) -> None:
        """Replace the file by one that has the value, too."""
        body = msgspec.json.encode({**self._read(), key: value})
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self.path.with_name(f"{self.path.name}-{secrets.token_hex(8)}")
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "wb") as out:
            out.write(body)
        fresh.replace(self.path)


class _SignIn:
    """One person's way through the browser and back."""

    def __init__(
        self, server: str, port: int, authorize: Authorize | None, extend: Callable[[float], None]
    ) -> None:
        self._server, self._port, self._authorize, self._extend = server, port, authorize, extend
        self._returned = ""
        self._listening: asyncio.Server | None = None
        self._came: asyncio.Future[str] | None = None

    async def show(self, url: str) -> None:
        """Show the link to the person."""
        if self._authorize is None:
            raise ServerFailed("a person has to sign in; use `upcall chat` and its command /mcp NAME")
        if urlsplit(url).scheme not in ("http", "https"):
            raise ServerFailed("its sign-in page has an address that is not http or https")
        self._extend(SIGN_IN)
        self._came = asyncio.get_running_loop().create_future()
        with suppress(OSError):  # the port may be taken; the caller may know the address anyway
            self._listening = await asyncio.start_server(self._serve, "127.0.0.1", self._port, limit=_REQUEST)
        self._returned = await self._authorize(self._server, url) or ""

    async def come_back(self) -> AuthorizationCodeResult:
        """Return what the browser was sent back with."""
        assert self._came is not None
        try:
            address = self._returned or await asyncio.wait_for(self._came, SIGN_IN)
        finally:
            if self._listening is not None:
                self._listening.close()
        given = parse_qs(urlsplit(address).query)
        if "code" not in given:
            raise ServerFailed(f"signing in failed: {given.get('error', ['no code came back'])[0][:200]}")
        first: Callable[[str], str | None] = lambda name: given.get(name, [None])[0]  # noqa: E731
        return AuthorizationCodeResult(code=given["code"][0], state=first("state"), iss=first("iss"))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError, asyncio.IncompleteReadError, TimeoutError):
            line = await asyncio.wait_for(reader.readline(), 10.0)
            target = line.decode("ascii", "replace").split(" ")[1:2]
            if target and target[0].startswith(f"{_PATH}?") and self._came is not None and not self._came.done():
                self._came.set_result(target[0])
            writer.write(_PAGE)
            await writer.drain()
        writer.close()


def oauth_for(
    config: ServerConfig, folder: str | None, authorize: Authorize | None, extend: Callable[[float], None]
) -> OAuthClientProvider:
    """Return the authentication of a server's requests. `extend` gives connecting more seconds for a person."""
    wanted = config.oauth or OAuth()
    kept = TokenFile(folder, config.url)
    port = kept.port(wanted.port)
    redirect = f"http://127.0.0.1:{port}{_PATH}"
    metadata = OAuthClientMetadata(
        redirect_uris=[AnyUrl(redirect)], client_name="Upcall", scope=wanted.scope or None,
    )  # fmt: skip
    storage: Any = _Registered(kept, wanted, redirect) if wanted.client_id else kept
    sign_in = _SignIn(config.name, port, authorize, extend)
    return OAuthClientProvider(
        config.url, metadata, storage, sign_in.show, sign_in.come_back,
        client_metadata_url=wanted.client_metadata_url or None,
    )  # fmt: skip


class _Registered:
    """Tokens in a file, for a client that was registered by hand."""

    def __init__(self, kept: TokenFile, wanted: OAuth, redirect: str) -> None:
        self._kept, self._wanted, self._redirect = kept, wanted, redirect
        self.get_tokens, self.set_tokens = kept.get_tokens, kept.set_tokens

    async def get_client_info(self) -> OAuthClientInformationFull:
        """Return the client of the description."""
        return OAuthClientInformationFull(
            client_id=self._wanted.client_id, client_secret=self._wanted.client_secret or None,
            redirect_uris=[AnyUrl(self._redirect)], scope=self._wanted.scope or None,
            token_endpoint_auth_method="client_secret_basic" if self._wanted.client_secret else "none",
        )  # fmt: skip

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep the client of the description."""
