"""The MCP servers that an editor passes with a session, as `mcp.json` describes servers.

Which code connects them is not this package's matter: the command passes it in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from upcall.agent import Agent
from upcall.jsonrpc.errors import INVALID_PARAMS, RpcError

MOST_SERVERS = 100


class SessionServers(Protocol):
    """The servers of one session."""

    @property
    def agent(self) -> Agent:
        """The agent with the tools of the servers."""
        ...

    def start(self) -> None:
        """Begin to connect the servers, and return at once."""
        ...

    def status(self) -> list[str]:
        """Return a line for each server: its name, and whether it is connected."""
        ...

    def prompts(self) -> list[tuple[str, str, str]]:
        """Return the commands of the servers' prompts, each with its description and a hint for arguments."""
        ...

    async def prompt(self, command: str, argument: str) -> str:
        """Return the text of a prompt; UpcallError says why there is none."""
        ...

    async def close(self) -> None:
        """Disconnect the servers that only this session has."""
        ...


def described(servers: Sequence[Mapping[str, Any]] | None) -> dict[str, dict[str, Any]]:
    """Return the servers by name; RpcError says which one can't be used."""
    if len(servers or ()) > MOST_SERVERS:
        raise RpcError(INVALID_PARAMS, f"at most {MOST_SERVERS} MCP servers are accepted")
    found: dict[str, dict[str, Any]] = {}
    for number, one in enumerate(servers or ()):
        name = one.get("name")
        if not isinstance(name, str) or not name:
            raise RpcError(INVALID_PARAMS, f"mcpServers[{number}] has no name")
        found[name] = _description(number, one)
    return found


def _description(number: int, one: Mapping[str, Any]) -> dict[str, Any]:
    match one:
        case {"type": "http", "url": str(url)}:
            return {"url": url, "headers": _pairs(one.get("headers"))}
        case {"type": "sse"}:
            problem = "uses SSE, which MCP has replaced; give its streamable HTTP address"
            raise RpcError(INVALID_PARAMS, f"mcpServers[{number}] {problem}")
        case {"command": str(command)}:
            args = one.get("args")
            listed = [str(arg) for arg in cast("list[Any]", args)] if isinstance(args, list) else []
            return {"command": command, "args": listed, "env": _pairs(one.get("env"))}
        case _:
            raise RpcError(INVALID_PARAMS, f"mcpServers[{number}] is neither a command nor an HTTP server")


def _pairs(given: Any) -> dict[str, str]:
    """Return a list of names and values as an object."""
    found: dict[str, str] = {}
    for one in cast("list[Any]", given) if isinstance(given, list) else []:
        match one:
            case {"name": str(name), "value": str(value)}:
                found[name] = value
            case _:
                pass
    return found
