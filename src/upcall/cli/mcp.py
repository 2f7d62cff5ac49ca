"""The command `mcp`: agents as tools of an MCP client, over stdio or HTTP."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import importlib.util
import logging
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upcall.callbacks import Callback
from upcall.cli.http_server import allow_files, listening_at, server_for, wait_until_started
from upcall.cli.options import Commands, port_number, seconds_between, watching_options
from upcall.cli.output import tell
from upcall.cli.places import (
    command_line,
    no_log_at,
    os_user,
    program,
    redactor,
    runtime_for,
    shown_with,
    store_of,
    store_option,
)
from upcall.cli.run import CODES
from upcall.cli.stopping import TERMINATED, leaving, stopping_of
from upcall.errors import SetupError
from upcall.hosts.terminal.question import answer_command
from upcall.tokens import RIGHT

if TYPE_CHECKING:
    from upcall.agent import Agent
    from upcall.app import Runtime
    from upcall.hosts.mcp.server import AgentServer

PORT = 7718
WAIT = 25.0
"""Seconds that a call may take; many clients give up after 30."""

_HOST = "127.0.0.1"
_LONGEST_WAIT = 3600.0
_LEAVE_SECONDS = 1.5
"""Seconds that running calls have to end when the client has left; it may kill the server after two."""

_CONCURRENCY = 16


def add(commands: Commands) -> None:
    """Add the command `mcp`."""
    parser = commands.add(
        "mcp",
        "offer agents as tools to an MCP client, such as an editor",
        _mcp,
        about="Each agent in AGENT becomes a tool. The client starts this command and talks to it over\n"
        "standard input and output. With --http, clients connect to a port of this machine.\n"
        "A question is shown as a form in the client, or waits in the inbox.\n"
        "Without AGENT, clients can answer questions and look at sessions. Needs the extra mcp:\n"
        "pip install 'upcall[mcp]'.",
        examples=[
            "upcall mcp agents/",
            "upcall mcp agents/writer.md --wait 50",
            "upcall mcp agents/ --http --port 7718",
        ],
    )
    parser.add_argument(
        "agent", metavar="AGENT", nargs="?", help="a folder of agent files, one NAME.md, or module:attribute"
    )
    parser.add_argument("--agent", metavar="NAME", dest="agent_name", help="offer only this agent")
    wait = f"seconds that a call waits for the reply; then it says how to get the reply later (default: {WAIT:.0f})"
    parser.add_argument(
        "--wait", metavar="SECONDS", type=seconds_between(0, _LONGEST_WAIT), default=WAIT, help=wait
    )
    parser.add_argument(
        "--http",
        action="store_true",
        help="serve HTTP on this machine; clients send the token that is printed, or one from `upcall tokens new`",
    )
    port = f"the port of --http; 0 picks a free one (default: {PORT})"
    parser.add_argument("--port", type=port_number, help=port)
    watching_options(parser)


async def _mcp(args: argparse.Namespace) -> int:
    _check_usage(args)
    _import_library()
    if args.http:
        return await _over_http(args)
    return await _over_stdio(args)


def _import_library() -> None:
    """Import the protocol's library, most of whose second is spent on types that stay for ever.

    So the garbage collector, which would look at them again and again, waits until they are there.
    """
    gc.disable()
    try:
        importlib.import_module("upcall.hosts.mcp.server")
        gc.freeze()
    finally:
        gc.enable()


def _check_usage(args: argparse.Namespace) -> None:
    if importlib.util.find_spec("mcp") is None:
        raise SetupError("`upcall mcp` needs the extra mcp; install it with: pip install 'upcall[mcp]'")
    if args.port is not None and not args.http:
        raise SetupError("--port is for --http; give both, or neither")
    if args.agent_name is not None and args.agent is None:
        raise SetupError("--agent chooses among the agents of AGENT; give AGENT, too")
    if store_of(args) == ":memory:":
        raise SetupError("--store :memory: is empty when a command starts; give the path of a file")


# --- the transports -----------------------------------------------------------------------


async def _over_stdio(args: argparse.Namespace) -> int:
    from upcall.hosts.http.access import Principal
    from upcall.hosts.mcp.stdio import claim_stdio, serve_stdio

    if sys.stdin.isatty():
        tell("upcall: waiting for an MCP client, which starts this command and speaks to it here; Ctrl-C leaves")
    wire = claim_stdio()  # before agents are loaded: their modules may print
    person = Principal(os_user(), "os-user")

    def principal(_: Any) -> Principal:
        return person

    async with _serving(args, principal) as (runtime, server):
        serving = asyncio.ensure_future(serve_stdio(server.protocol, wire))
        with leaving(args, serving.cancel):
            await asyncio.wait({serving})
            if not serving.cancelled():
                serving.result()
        if not stopping_of(args).requested.is_set():
            await runtime.drain(_LEAVE_SECONDS)
    return _exit_code(args)


async def _over_http(args: argparse.Namespace) -> int:
    from upcall.hosts.http.access import bearer_token, places
    from upcall.hosts.http.people import People
    from upcall.hosts.http.token_file import KeptToken, token_path
    from upcall.hosts.mcp.application import PATH, McpApplication, request_principal

    allow_files()
    missing = no_log_at(args)
    async with contextlib.AsyncExitStack() as stack:
        runtime, server = await stack.enter_async_context(_serving(args, request_principal))
        token = KeptToken(token_path(runtime.store.where), no_log_at=missing)
        own, people = bearer_token(token, os_user()), People(runtime.store)
        application = McpApplication(server.protocol, own, RIGHT, places(_HOST, ()), people)
        listening = stack.enter_context(listening_at(_HOST, PORT if args.port is None else args.port))
        web = server_for(application, _HOST, listening.getsockname()[1])
        await stack.enter_async_context(application.run())
        serving = asyncio.ensure_future(web.serve([listening]))

        def stop() -> None:
            web.should_exit = True

        with leaving(args, stop):
            await wait_until_started(web, serving)
            sys.stdout.write(f"http://{_HOST}:{listening.getsockname()[1]}{PATH}\n")
            sys.stdout.write(f"Authorization: Bearer {token()}\n")
            sys.stdout.flush()
            await serving
    return _exit_code(args)


def _exit_code(args: argparse.Namespace) -> int:
    if args.left:
        return CODES["cancelled"]
    return TERMINATED if stopping_of(args).requested.is_set() else 0


# --- the server ---------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _serving(args: argparse.Namespace, principal: Any) -> AsyncGenerator[tuple[Runtime, AgentServer]]:
    """The server over the log; sessions that its clients know continue when they are answered."""
    from upcall.hosts.http.token_file import kept_token, mcp_key_path
    from upcall.hosts.mcp.server import AgentServer
    from upcall.observe.labels import Labels
    from upcall.observe.lines import Lines

    missing = no_log_at(args)
    known, served = _agents(args)
    _quiet_library()
    async with runtime_for(args, known) as runtime:
        server = AgentServer(
            runtime,
            served,
            principal,
            wait=args.wait,
            key=kept_token(mcp_key_path(runtime.store.where), no_log_at=missing),
            commands=_PastedCommands(args),
            lines=Lines(redactor(), shown_with(args).labels or Labels()),
        )
        stop = asyncio.Event()
        resume = server.calls.resume_known
        working = asyncio.ensure_future(
            runtime.work(stop, resume=resume, concurrency=_CONCURRENCY, drain=_LEAVE_SECONDS, settled_only=True)
        )
        try:
            yield runtime, server
        finally:
            stop.set()
            await asyncio.gather(working, return_exceptions=True)


def _agents(args: argparse.Namespace) -> tuple[Sequence[Agent], Sequence[Agent]]:
    """Every agent to run sessions with, and those that clients see: all of a folder, or the one that was named."""
    from upcall.agentfiles.load import load_agents, load_spec

    if args.agent is None:
        return (), ()
    if args.agent_name is None and Path(args.agent).is_dir():
        found = load_agents(args.agent)
        return found, found
    loaded = load_spec(args.agent, args.agent_name)
    return loaded.agents, (loaded.agent,)


class _PastedCommands:
    """Commands for people, with the log that this command line names."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args

    def answer(self, callback: Callback) -> str:
        """The command that answers a question."""
        return answer_command(callback, store_option(self._args), program())

    def reveal(self, callback: Callback) -> str:
        """The command that shows what is hidden in a question."""
        return command_line(self._args, "inbox", reveal=callback.id)

    def resume(self, session: str) -> str:
        """The command that continues a session."""
        return command_line(self._args, "resume", session)


class _OneLine(logging.Handler):
    """Prints warnings of the protocol's library as one line each, without stack traces."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line."""
        tell(f"upcall: {record.name}: {redactor().text(record.getMessage())[:500]}")


def _quiet_library() -> None:
    log = logging.getLogger("mcp")
    if not any(isinstance(one, _OneLine) for one in log.handlers):
        log.addHandler(_OneLine(logging.WARNING))
        log.propagate = False
