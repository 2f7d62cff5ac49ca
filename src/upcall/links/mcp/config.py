"""The description of one MCP server, as `mcp.json` has it: how it is started or reached, and how far it is trusted.

Reading a description starts nothing and reads no environment. `${NAME}` is replaced when the server is started, so
that no secret is part of a description.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, cast
from urllib.parse import urlsplit

from upcall.errors import SetupError
from upcall.messages import Value
from upcall.safety.bounds import brief

SERVERS, TEXT, ITEMS = 100, 10_000, 500
"""Servers in one file, characters of one text in a description, and items of one of its lists."""

SIGN_IN = 300.0
"""Seconds that a person has to sign in to a server."""

Authorize = Callable[[str, str], Awaitable[str | None]]
"""Gets a server's name and the link that a person has to open. Returns the address that the browser was sent back
to, or None to have it waited for on this machine."""

_NAME = 100
_TYPES = ("stdio", "http", "streamable-http", "streamableHttp")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-((?:[^}$]++|\$(?!\{))*+))?\}")
"""`${NAME}`, `${NAME:-default}`; a default does not hold another variable."""


class BadServer(SetupError):
    """A server's description can't be used. `problems` has each mistake with its key."""

    def __init__(self, server: str, problems: Sequence[tuple[str, str]]) -> None:
        self.server, self.problems = server, tuple(problems)
        told = "; ".join(f"{key}: {text}" if key else text for key, text in problems)
        super().__init__(f"MCP server {server!r}: {told}")


class OAuth(Value, frozen=True):
    """How to get a token from the server's authorization server.

    client_id, client_secret: of a client that is registered already; without them one is registered
    client_metadata_url: an https URL that describes the client, where the server accepts one
    scope: the scopes to ask for; without it those that the server names
    port: the port on this machine that the person's browser is sent back to; 0 is any
    """

    client_id: str = ""
    client_secret: str = ""
    client_metadata_url: str = ""
    scope: str = ""
    port: int = 0


class ServerConfig(Value, frozen=True):
    """One MCP server: a program (`command`) or an address (`url`), and what its tools may do.

    command, args, env, cwd: the program to start, with its arguments, further variables and folder
    url, headers: where it is reached by streamable HTTP, and what is sent with each request
    allow, deny: globs of its tools' names; without `allow` all are offered; `deny` counts more
    trusted: believe its annotations: a tool that it calls read-only runs without approval
    read_only: globs of tools that you know to be read-only
    auto_approve: globs of tools that may run without approval although they change something
    oauth: get a token by OAuth
    timeout: seconds that one call may take; None is the agent's `Limits(tool_seconds)`
    disabled: it is not started
    """

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    cwd: str = ""
    url: str = ""
    headers: Mapping[str, str] = {}
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    trusted: bool = False
    read_only: tuple[str, ...] = ()
    auto_approve: tuple[str, ...] = ()
    oauth: OAuth | None = None
    timeout: float | None = None
    disabled: bool = False

    def __repr__(self) -> str:
        """Return a text without arguments, variables and headers, which may hold secrets."""
        return f"ServerConfig({self.name!r}, {'command' if self.command else 'url'}=…)"

    def offers(self, tool: str) -> bool:
        """Return whether a tool of this name is offered to agents."""
        return (not self.allow or _matches(tool, self.allow)) and not _matches(tool, self.deny)

    def is_read_only(self, tool: str, claims_read_only: bool) -> bool:
        """Return whether a tool is known to be read-only: by you, or by a server that you trust."""
        return _matches(tool, self.read_only) or (self.trusted and claims_read_only)

    def runs_unasked(self, tool: str) -> bool:
        """Return whether you let a tool run without approval."""
        return _matches(tool, self.auto_approve)

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that the description names without a default."""
        texts = (self.command, *self.args, *self.env.values(), self.cwd, self.url, *self.headers.values())
        found = [match for text in texts for match in _VARIABLE.finditer(text)]
        return tuple(dict.fromkeys(match[1] for match in found if match[2] is None))

    def expanded(self, environ: Mapping[str, str]) -> ServerConfig:
        """Return the description with the values of its variables; SetupError names those that are missing."""
        missing = [name for name in self.variables if name not in environ]
        if missing:
            raise SetupError(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set")

        def fill(text: str) -> str:
            return _VARIABLE.sub(lambda one: environ.get(one[1], one[2] or ""), text)

        return self.replace(
            command=fill(self.command), args=tuple(map(fill, self.args)), cwd=fill(self.cwd), url=fill(self.url),
            env={name: fill(text) for name, text in self.env.items()},
            headers={name: fill(text) for name, text in self.headers.items()},
        )  # fmt: skip


def _matches(tool: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(tool, glob) for glob in globs)


def read_servers(servers: Mapping[str, Any]) -> dict[str, ServerConfig]:
    """Return the described servers by name; BadServer says what is wrong with the first bad one."""
    if not isinstance(servers, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SetupError(
            f'servers must map names to descriptions: {{"time": {{"command": …}}}}, not {brief(servers)}'
        )
    if len(servers) > SERVERS:
        raise SetupError(f"{len(servers)} MCP servers are described; at most {SERVERS} are accepted")
    return {name: read_server(name, given) for name, given in servers.items()}


def read_server(name: str, given: Any) -> ServerConfig:
    """Return one server; BadServer lists every mistake."""
    if isinstance(given, ServerConfig):
        return given
    problems = list(server_problems(name, given))
    if problems:
        raise BadServer(str(name)[:_NAME], problems)
    fields: dict[str, Any] = {}
    for key, value in cast("Mapping[str, Any]", given).items():
        field = _FIELDS.get(key, key)
        if field == "oauth":
            fields[field] = _oauth(value)
        elif isinstance(value, list | tuple):
            fields[field] = tuple(cast("Sequence[Any]", value))
        elif field not in ("type", "description"):
            fields[field] = dict(cast("Mapping[str, str]", value)) if isinstance(value, Mapping) else value
    return ServerConfig(name, **fields)


_TEXTS, _LISTS, _MAPS = (
    ("command", "cwd", "url"),
    ("args", "allow", "deny", "readOnly", "autoApprove"),
    ("env", "headers"),
)
_FLAGS = ("trusted", "disabled")
KEYS = (*_TEXTS, *_LISTS, *_MAPS, *_FLAGS, "type", "oauth", "timeout", "description")
"""The keys of one server in `mcp.json`."""

_FIELDS = {"readOnly": "read_only", "autoApprove": "auto_approve"}
_OAUTH = {
    "clientId": "client_id", "clientSecret": "client_secret", "clientMetadataUrl": "client_metadata_url",
    "scope": "scope", "port": "port",
}  # fmt: skip


def server_problems(name: Any, given: Any) -> Iterator[tuple[str, str]]:
    """Yield each mistake in a server's description, with its key."""
    if not isinstance(name, str) or not 0 < len(name) <= _NAME or not name.isprintable() or not name.strip():
        yield "", f"a server's name has 1 to {_NAME} printable characters"
    if not isinstance(given, Mapping):
        yield "", f'a server is described by an object such as {{"command": "uvx"}}, not {brief(given)}'
        return
    described = cast("Mapping[Any, Any]", given)
    for key, value in described.items():
        if key in _FIELDS.values():
            key = next(shown for shown, field in _FIELDS.items() if field == key)
        problem = _problem(key, value)
        if problem:
            yield str(key)[:_NAME], problem
    command, url = described.get("command"), described.get("url")
    if bool(command) == bool(url):
        yield "", "give either a command to start or a url to reach, not both or neither"
    elif described.get("type") in _TYPES and (described["type"] == "stdio") != bool(command):
        yield "type", f"does not fit: a server with a {'command' if command else 'url'} is of another type"
    elif isinstance(url, str) and "${" not in url and (problem := _url_problem(url)):
        yield "url", problem


def _problem(key: Any, value: Any) -> str:
    if key not in KEYS:
        from difflib import get_close_matches

        near = get_close_matches(str(key)[:_NAME], KEYS, n=1)
        meant = f". Did you mean {near[0]}?" if near else ""
        return f"unknown key; allowed are {', '.join(KEYS)}{meant}"
    if key in (*_TEXTS, "description"):
        return "" if _is_text(value) else f"must be a text, not {brief(value)}"
    if key in _LISTS:
        return "" if _are_texts(value) else f"must be a list of at most {ITEMS} texts, not {brief(value)}"
    if key in _MAPS:
        mapped = isinstance(value, Mapping) and _are_texts(list(cast("Mapping[Any, Any]", value)))
        fits = mapped and _are_texts(list(cast("Mapping[Any, Any]", value).values()))
        return "" if fits else "must map names to texts"
    if key == "type":
        return "" if value in _TYPES else f"must be one of {', '.join(_TYPES)}, not {brief(value)}"
    if key == "timeout":
        fits = type(value) in (int, float) and 0 < value <= 86_400
        return "" if fits else f"must be seconds above 0 and at most 86400, not {brief(value)}"
    if key == "oauth":
        return _oauth_problem(value)
    return "" if isinstance(value, bool) else f"must be true or false, not {brief(value)}"


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= TEXT and "\0" not in value


def _are_texts(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(cast("Any", value)) <= ITEMS
        and all(map(_is_text, cast("Any", value)))
    )


def _url_problem(url: str) -> str:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        return f"is not a valid address: {error}"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "must begin with http:// or https:// and name a host"
    return "holds a password; put it into headers, as ${NAME}" if parts.password else ""


def _oauth_problem(value: Any) -> str:
    if isinstance(value, bool):
        return ""
    if not isinstance(value, Mapping):
        return f"must be true, or an object with {', '.join(_OAUTH)}, not {brief(value)}"
    for key, one in cast("Mapping[Any, Any]", value).items():
        if key not in _OAUTH:
            return f"has no key {brief(key)}; allowed are {', '.join(_OAUTH)}"
        fits = type(one) is int and 0 <= one < 65536 if key == "port" else _is_text(one)
        if not fits:
            return f"{key} must be {'a port' if key == 'port' else 'a text'}, not {brief(one)}"
    return ""


def _oauth(value: Any) -> OAuth | None:
    if isinstance(value, bool):
        return OAuth() if value else None
    return OAuth(**{_OAUTH[key]: one for key, one in cast("Mapping[str, Any]", value).items()})
