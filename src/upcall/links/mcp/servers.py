"""MCP servers as a toolset of agents."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from upcall.agent import Agent, Kit
from upcall.contracts import Context, Model, SessionReads
from upcall.errors import SetupError
from upcall.links.mcp.calls import Sample
from upcall.links.mcp.config import Authorize, ServerConfig, read_servers
from upcall.links.mcp.connection import CONNECT, Connection
from upcall.links.mcp.failures import ServerFailed
from upcall.links.mcp.results import prompt_text
from upcall.links.mcp.sampling import sampler
from upcall.links.mcp.tools import offered_tools
from upcall.mcp_wire.names import clean, clean_line, server_prefix
from upcall.mcp_wire.reading import objects
from upcall.messages import Value
from upcall.safety.bounds import TOOLS
from upcall.tools import Tool

WAIT = 1.5
"""Seconds that a model call waits for servers that are being connected."""

NEEDED = 25.0
"""Seconds that a turn waits for the server of a call that was open when the turn was resumed."""

BYTES = 3_000_000
"""Bytes of JSON that describe all tools of all servers."""

_PROMPTS = 200


class ServerStatus(Value, frozen=True):
    """One server as it is now.

    name: its name
    state: `not started`, `connecting`, `connected`, `failed` or `disabled`
    version: the version of the protocol that was negotiated
    tools: how many tools it offers here
    problem: why it failed, or which of its tools were left out
    """

    name: str
    state: str
    version: str = ""
    tools: int = 0
    problem: str = ""


class ServerPrompt(Value, frozen=True):
    """A prompt of a server, for a slash command.

    server: the server's name
    name: the prompt's name at the server
    command: the name of the command: `server:prompt`
    description: what the server says about it
    arguments: the names of its arguments; `required` has those that must be given
    """

    server: str
    name: str
    command: str
    description: str = ""
    arguments: tuple[str, ...] = ()
    required: tuple[str, ...] = ()


class McpServers:
    """Tools of MCP servers, for `Agent(tools=[..., McpServers({...})])`.

    Nothing is started when it is made. Servers are connected when a session first asks for its tools, all at once.
    """

    name = "mcp"

    def __init__(
        self,
        servers: Mapping[str, Mapping[str, Any] | ServerConfig],
        *,
        offer: Sequence[str] | None = None,
        wait: float = WAIT,
        sampling: Sequence[str] = (),
        model: str | Model | None = None,
        environ: Mapping[str, str] | None = None,
        tokens: str | None = None,
        authorize: Authorize | None = None,
    ) -> None:
        """Describe servers by name, each as in `mcp.json`. BadServer says what is wrong with one.

        offer: the servers whose tools every session gets; by default all. The others serve only sessions that were
            started with servers of these names
        wait: seconds that a model call waits for servers that are being connected
        sampling: the servers that may ask for model calls, which `model` answers
        model: the model for that, by name or as a model
        environ: where `${NAME}` is looked up; by default the environment of this process
        tokens: the folder for tokens of servers with `oauth`; by default `~/.upcall/mcp`
        authorize: shows a person the link for signing in; gets the server's name and the link
        """
        configs = read_servers(servers)
        self._offer = tuple(configs) if offer is None else tuple(offer)
        for name in (*self._offer, *sampling):
            if name not in configs:
                raise SetupError(
                    f"there is no MCP server called {name!r}; known servers: {', '.join(configs) or 'none'}"
                )
        if sampling and model is None:
            raise SetupError("servers that may ask for model calls need a model: McpServers(..., model=...)")
        self._wait, self._model, self._sampling = wait, model, frozenset(sampling)
        environ = os.environ if environ is None else environ
        self._connections = {
            name: Connection(
                config, environ=environ, samples=name in self._sampling, tokens=tokens, authorize=authorize
            )
            for name, config in configs.items()
        }
        self._counts: dict[str, int] = {}
        self._left_out: dict[str, str] = {}
        self._made: dict[str, tuple[Any, bool, frozenset[str], tuple[list[Tool], list[str]]]] = {}

    def __repr__(self) -> str:
        return f"McpServers({', '.join(self._connections)})"

    @property
    def servers(self) -> tuple[str, ...]:
        """The names of the servers that every session gets; the log of a session keeps them."""
        return self._offer

    @property
    def available(self) -> tuple[str, ...]:
        """The names of all servers that are described."""
        return tuple(self._connections)

    # --- tools ----------------------------------------------------------------------------

    async def list_tools(self, session: SessionReads) -> list[Tool]:
        """Return the tools of the session's servers that are there within a moment.

        A server that is still being connected gets one tool, by which the model can wait for it. A server whose
        call is open is waited for longer: without it the call would end, and its answer would be lost.
        """
        mine = self._of_session(session)
        for connection in mine:
            connection.start()
        needed = [one for one in mine if _has_open_call(one, session.open_calls)]
        await self._settle([one for one in mine if one.tools is None and not one.is_late], self._wait)
        await self._settle(needed, NEEDED)
        for one in needed:
            if one.tools is None:
                raise ServerFailed(
                    f"MCP server {one.config.name!r} has an open call, but is not connected: {one.problem}"
                )
        return self._tools(mine, session.own_tools)

    def start(self) -> None:
        """Begin to connect the servers that every session gets. Returns at once."""
        for name in self._offer:
            self._connections[name].start()

    def without(self, names: Sequence[str]) -> McpServers:
        """Return the same servers, with the same connections, but those of these names."""
        offer = tuple([name for name in self._offer if name not in names])
        kept = {name: one for name, one in self._connections.items() if name not in names}
        return self._view(_offer=offer, _connections=kept)

    def offering(
        self, names: Sequence[str], *, sampling: Sequence[str] = (), model: str | Model | None = None
    ) -> McpServers:
        """Return the same servers, with the same connections, that offer the tools of these to every session."""
        return self._view(_offer=tuple(names), _sampling=frozenset(sampling), _model=model)

    def _view(self, **changes: Any) -> McpServers:
        view = copy.copy(self)
        vars(view).update({"_made": {}, **changes})
        return view

    async def close(self) -> None:
        """Disconnect all servers and end their processes. One is connected again when it is next needed."""
        await asyncio.gather(*(one.close() for one in self._connections.values()))

    def _of_session(self, session: SessionReads) -> list[Connection]:
        wanted = {*self._offer, *session.servers}
        return [one for name, one in self._connections.items() if name in wanted]

    async def _settle(self, connections: Sequence[Connection], seconds: float) -> None:
        """Wait until all are connected or have failed, for so long at most."""
        waiting = [asyncio.ensure_future(one.settled()) for one in connections if not one.is_settled]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=seconds)
            for task in late:
                task.cancel()
        for one in connections:
            one.is_late = not one.is_settled

    def _tools(self, connections: Sequence[Connection], own: Sequence[str]) -> list[Tool]:
        made: list[Tool] = []
        size = 0
        for one in connections:
            name = one.config.name
            offered, problems = self._offered(one, frozenset([*own, *(tool.name for tool in made)]))
            if one.tools is None and one.state == "connecting":
                offered = [_waiting_tool(one)]
            here = sum(len(msgspec.json.encode(tool.spec)) for tool in offered)
            if len(made) + len(offered) > TOOLS or size + here > BYTES:
                offered, here = [], 0
                problems = ["its tools were left out: all servers together offer too many"]
            made, size = [*made, *offered], size + here
            self._counts[name] = len(offered) if one.tools is not None else 0
            self._left_out[name] = "; ".join(problems[:3])
        return made

    def _offered(self, one: Connection, taken: frozenset[str]) -> tuple[list[Tool], list[str]]:
        """Return a server's tools, made once for each list that it sends."""
        name, made = one.config.name, self._made.get(one.config.name)
        if made is not None and made[0] is one.tools and made[1:3] == (one.has_resources, taken):
            return made[3]
        sample: Sample | None = sampler(name, self._model) if name in self._sampling else None
        found = offered_tools(one, taken, sample)
        self._made[name] = (one.tools, one.has_resources, taken, found)
        return found

    # --- for people -----------------------------------------------------------------------

    def status(self) -> list[ServerStatus]:
        """Return every server as it is now. Nothing is started."""
        return [self._status(name, one) for name, one in self._connections.items()]

    def _status(self, name: str, one: Connection) -> ServerStatus:
        version = one.version if one.state == "connected" else ""
        problem = one.problem if one.state == "failed" else self._left_out.get(name, "")
        count = self._counts.get(name, len(one.tools or ()))
        return ServerStatus(name, one.state, version, count, clean_line(problem, 500))

    async def connect(self, name: str, *, authorize: Authorize | None = None) -> ServerStatus:
        """Connect one server now, and return what came of it. `authorize` shows a person the link to sign in."""
        connection = self._connections.get(name)
        if connection is None:
            raise SetupError(
                f"there is no MCP server called {name!r}; known servers: {', '.join(self._connections) or 'none'}"
            )
        with suppress(ServerFailed):
            await connection.live(CONNECT, authorize)
        return next(one for one in self.status() if one.name == name)

    def prompts(self) -> list[ServerPrompt]:
        """Return the prompts of the servers that are connected. Nothing is started."""
        return [
            _prompt(server, given)
            for server, connection in self._connections.items()
            for given in connection.prompts[:_PROMPTS]
        ]

    async def prompt(self, server: str, name: str, arguments: Mapping[str, str] | None = None) -> str:
        """Return the text of a server's prompt, for a message of the person."""
        connection = self._connections.get(server)
        if connection is None:
            raise SetupError(f"there is no MCP server called {server!r}")
        live = await connection.live(CONNECT)
        return clean(prompt_text(await live.get_prompt(name, dict(arguments or {}))), 1_000_000)


def _prompt(server: str, given: dict[str, Any]) -> ServerPrompt:
    name = str(given.get("name", ""))
    about = clean_line(str(given.get("description") or ""), 500)
    arguments = [(clean_line(str(one.get("name", "")), 100), one) for one in objects(given.get("arguments"))]
    required = tuple([shown for shown, one in arguments if one.get("required")])
    command = clean_line(f"{server_prefix(server)}:{name}", 100)
    return ServerPrompt(server, name, command, about, tuple([shown for shown, _ in arguments]), required)


def _has_open_call(connection: Connection, open_calls: Sequence[str]) -> bool:
    prefix = f"{server_prefix(connection.config.name)}__"
    return any(name.startswith(prefix) for name in open_calls)


def _waiting_tool(connection: Connection) -> Tool:
    """Return the tool by which a model waits for a server that starts slowly."""
    name = connection.config.name

    async def wait(arguments: dict[str, Any], ctx: Context) -> str:
        with suppress(ServerFailed):
            await connection.live(CONNECT)
        if connection.tools is None:
            return f"MCP server {name!r} is not connected: {connection.problem or 'it is still starting'}"
        return f"MCP server {name!r} is connected now; you can call its tools"

    return Tool.from_schema(
        f"{server_prefix(name)}__wait_until_ready", {"type": "object"}, wait, read_only=True,
        description=f"MCP server {name!r} is still starting. Call this to wait for it; then you have its tools.",
    )  # fmt: skip


def with_servers(agent: Agent[Any], servers: McpServers) -> Agent[Any]:
    """Return the agent with these servers added, for one session: `runtime.start(with_servers(agent, servers))`.

    A server of the same name that the agent has already is replaced for that session. Of a team or a chain, each
    member gets them.
    """
    if agent.run_program is not None:
        return agent.with_members(lambda member: with_servers(member, servers))

    def trimmed(tools: Sequence[Any]) -> list[Any]:
        return [one.without(servers.available) if isinstance(one, McpServers) else one for one in tools]

    kit = [piece.replace(tools=trimmed(piece.tools)) for piece in agent.kit]
    return agent.replace(kit=[*kit, Kit(tools=[servers])], tools=trimmed(agent.declared_tools))
