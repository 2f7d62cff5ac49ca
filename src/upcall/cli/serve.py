"""The command `serve`: the web page over a log, and the agents that its requests and answers run."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upcall.cli.http_server import allow_files, listening_at, server_for, wait_until_started
from upcall.cli.options import Commands, port_number, watching_options
from upcall.cli.output import failure_line, tell
from upcall.cli.places import (
    command_line,
    is_default,
    make_log_folder,
    no_log_at,
    origin_of,
    os_user,
    redactor,
    runtime_for,
    shown_with,
    store_of,
)
from upcall.cli.run import CODES
from upcall.cli.stopping import DRAIN_SECONDS, TERMINATED, leaving, stopping_of
from upcall.core.runtime.running_trees import STOP_LIMIT
from upcall.errors import SetupError, UpcallError
from upcall.observe.plain import plain
from upcall.tokens import RIGHT

if TYPE_CHECKING:
    import uvicorn

    from upcall.app import Runtime
    from upcall.hosts.web.application import WebApplication
    from upcall.hosts.web.runs import Means

PORT = 7717
CONCURRENCY = 16
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_SWITCH_INTERVAL = 0.001
"""Seconds after which a thread that reads the log lets the event loop run; by default five times that."""


def add(commands: Commands) -> None:
    """Add the command `serve`."""
    parser = commands.add(
        "serve",
        "show sessions and answer questions on a web page",
        _serve,
        about="Prints the address of the page, which contains a token, when the server is ready. The\n"
        "server resumes sessions whose questions were answered. It uses the agents in AGENT, or\n"
        "agents in the current folder that the log names. The token stays the same until you use\n"
        "--new-token. Other people can use tokens of their own: see `upcall tokens`.",
        examples=[
            "upcall serve",
            "upcall serve agents/ --open",
            "upcall serve --view-only --store old.db",
            "upcall serve --origin https://agents.example.org",
        ],
    )
    parser.add_argument(
        "agents",
        metavar="AGENT",
        nargs="*",
        help="agents to start and resume sessions with: folder, file or module",
    )
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)")
    parser.add_argument(
        "--port", type=port_number, default=PORT, help=f"the port; 0 picks a free one (default: {PORT})"
    )
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.add_argument("--view-only", action="store_true", help="run nothing, and accept no answers")
    parser.add_argument(
        "--new-token",
        action="store_true",
        help="make a new token; pages that were opened with the old one stop working",
    )
    origin = "a URL under which a reverse proxy serves the page; may be given several times"
    parser.add_argument("--origin", metavar="URL", action="append", default=[], help=origin)
    parser.add_argument("--tls-cert", metavar="FILE", help="a certificate, to serve https")
    parser.add_argument("--tls-key", metavar="FILE", help="its private key")
    watching_options(parser)
    insecure = "serve other machines without TLS; anybody who can read the network traffic can read the token"
    parser.add_argument("--insecure", action="store_true", help=insecure)


async def _serve(args: argparse.Namespace) -> int:
    _check_usage(args)
    sys.setswitchinterval(_SWITCH_INTERVAL)
    allow_files()
    missing = no_log_at(args)
    async with contextlib.AsyncExitStack() as stack:
        runtime, foreign = await stack.enter_async_context(_log(args))
        args.view_only = args.view_only or foreign
        fleet = Fleet(args, runtime, stack)
        token = _token(args, runtime, foreign, missing)
        index = stack.enter_context(_index(runtime, foreign))
        application = _application(args, runtime, fleet, token, index)
        listening = stack.enter_context(listening_at(args.host, args.port))
        server = server_for(application, args.host, args.port, args.tls_cert, args.tls_key)

        def stop() -> None:  # open streams end first
            application.close()
            server.should_exit = True

        with leaving(args, stop):
            return await _run(args, runtime, fleet, server, application, token, listening)


def _check_usage(args: argparse.Namespace) -> None:
    if bool(args.tls_cert) != bool(args.tls_key):
        raise SetupError("give both --tls-cert and --tls-key")
    if args.tls_cert and args.insecure:
        raise SetupError("--insecure means without TLS; leave it out, or leave out --tls-cert")
    if args.host not in _LOOPBACK and not args.tls_cert and not args.insecure:
        how = "give --tls-cert and --tls-key, or --insecure if the network may read the token"
        raise SetupError(f"--host {args.host} can be reached by other machines; {how}")
    if args.view_only and args.agents:
        raise SetupError("--view-only runs nothing; leave out AGENT")


@contextlib.asynccontextmanager
async def _log(args: argparse.Namespace) -> AsyncGenerator[tuple[Runtime, bool]]:
    """The log to serve, with the agents of AGENT, and whether it is somebody else's: then it is only shown."""
    from upcall.app import Runtime, open_store

    if store_of(args) == ":memory:":
        raise SetupError("--store :memory: is empty in every new process; give a file")
    make_log_folder(args)
    view = open_store(store_of(args), found=is_default(args), view=True)
    await view.open()
    foreign: bool = getattr(view, "foreign", False)
    await view.close()
    if foreign:
        tell(f"upcall: {store_of(args)} is not your log, so it is only shown (to adopt it: `upcall adopt`)")
        async with Runtime(open_store(store_of(args), found=is_default(args), view=True)) as runtime:
            yield runtime, True
        return
    async with runtime_for(args, _agents(args)) as runtime:
        yield runtime, False


def _agents(args: argparse.Namespace) -> list[Any]:
    """The agents that AGENT names."""
    from upcall.agentfiles.load import load_spec

    found: dict[str, Any] = {}
    for spec in args.agents:
        for agent in load_spec(spec, None).agents:
            if found.setdefault(agent.name, agent) is not agent:
                raise SetupError(f"two agents are called {agent.name!r}; serve them separately")
    return list(found.values())


def _token(args: argparse.Namespace, runtime: Runtime, foreign: bool, missing: float | None) -> Callable[[], str]:
    """The token of the page: kept beside the log, and only for this time beside somebody else's."""
    import secrets

    from upcall.hosts.http.token_file import KeptToken, token_path

    if foreign:
        made = secrets.token_urlsafe(32)
        return lambda: made
    return KeptToken(token_path(runtime.store.where), new=args.new_token, no_log_at=missing)


@contextlib.contextmanager
def _index(runtime: Runtime, foreign: bool) -> Generator[Path]:
    """The file of the index: beside the log, and in a temporary folder for somebody else's."""
    from upcall.hosts.web.index.file import index_path

    if not foreign:
        yield index_path(runtime.store.where)
        return
    with tempfile.TemporaryDirectory(prefix="upcall-index-") as folder:
        yield Path(folder, "index")


def _application(
    args: argparse.Namespace, runtime: Runtime, fleet: Fleet, token: Callable[[], str], index: Path
) -> WebApplication:
    from urllib.parse import urlsplit

    from upcall.hosts.http.access import bearer_token, places
    from upcall.hosts.http.people import People
    from upcall.hosts.web.application import WebApplication
    from upcall.hosts.web.page_files import PageFiles

    given: list[str] = args.origin
    reached_by = places(args.host, given)  # raises if one is not a URL
    paths = [urlsplit(url).path for url in given]
    shows = shown_with(args)
    return WebApplication(
        runtime,
        bearer_token(token, os_user()),
        right=RIGHT,
        people=None if getattr(runtime.store, "foreign", False) else People(runtime.store),
        places=reached_by,
        runs=fleet,
        redactor=redactor(),
        labels=shows.labels,
        cost=shows.cost,
        view_only=args.view_only,
        index=index,
        page=PageFiles(base=next((path for path in paths if path.strip("/")), "")),
    )


async def _run(
    args: argparse.Namespace,
    runtime: Runtime,
    fleet: Fleet,
    server: uvicorn.Server,
    application: WebApplication,
    token: Callable[[], str],
    listening: socket.socket,
) -> int:
    stop = asyncio.Event()
    serving = asyncio.ensure_future(server.serve([listening]))
    working = asyncio.ensure_future(_work(args, runtime, fleet, stop))
    try:
        await _announce(args, server, serving, token(), listening.getsockname()[1])
        await asyncio.wait({serving, working}, return_when="FIRST_COMPLETED")
        if working.done() and not args.view_only and not stopping_of(args).requested.is_set():
            working.result()
        await serving
    finally:
        stop.set()
        server.should_exit = True
        application.close()
        await asyncio.gather(serving, working, return_exceptions=True)
    return CODES["cancelled"] if args.left else TERMINATED


async def _work(args: argparse.Namespace, runtime: Runtime, fleet: Fleet, stop: asyncio.Event) -> None:
    """Resume trees that hold a settled or expired callback, until the server stops."""
    if args.view_only:
        await stop.wait()
        return
    await runtime.work(
        stop, resume=fleet.resume, concurrency=CONCURRENCY, drain=DRAIN_SECONDS + STOP_LIMIT, settled_only=True
    )
    await stop.wait()


async def _announce(
    args: argparse.Namespace, server: uvicorn.Server, serving: asyncio.Future[None], token: str, port: int
) -> None:
    """Print the page's address once the server accepts connections."""
    await wait_until_started(server, serving)
    scheme = "https" if args.tls_cert else "http"
    host = f"[{args.host}]" if ":" in args.host else args.host
    place = args.origin[0].rstrip("/") if args.origin else f"{scheme}://{host}:{port}"
    url = f"{place}/#token={token}"
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
    if sys.stderr.isatty():
        how = "You can look but not answer" if args.view_only else "Open it in a browser"
        tell(f"{how}. Ctrl-C stops the server; questions wait on disk.")
    if args.open:
        import webbrowser

        await asyncio.to_thread(webbrowser.open, url)


class Fleet:
    """The runtimes of the server: one with the agents of AGENT, and one for each other source that a log names.

    Agents that a log names are imported only if they lie below the current folder.
    """

    def __init__(self, args: argparse.Namespace, own: Runtime, stack: contextlib.AsyncExitStack) -> None:
        self._args, self._own, self._stack = args, own, stack
        self._loaded: dict[tuple[str, str], Runtime] = {}
        self._loading = asyncio.Lock()

    @property
    def runtimes(self) -> Sequence[Runtime]:
        """Every runtime that runs something here."""
        return (self._own, *self._loaded.values())

    def agents(self) -> list[dict[str, str]]:
        """The agents of AGENT."""
        from upcall.hosts.web.runs import agents_json

        return agents_json(self._own)

    def starting(self, agent: str) -> Runtime:
        """The runtime of AGENT; Refusal 422 where no agent has that name."""
        from upcall.hosts.web.runs import OwnRuns

        return OwnRuns(self._own).starting(agent)

    def has_agent(self, agent: str, root: str) -> bool:
        """Tell whether AGENT has the agent of a run tree."""
        return agent in self._own.agent_names(root)

    def means(self, root: str, source: str) -> Means:
        """How a tree with an agent of this source can be run: here, or by a command. Nothing is imported."""
        from upcall.hosts.web.runs import Means

        named = not _is_below_here(source)
        command = command_line(self._args, "resume", root, agents=(source or "AGENT") if named else None)
        return Means(here=not named and not self._args.view_only, command=command)

    async def runtime_for(self, root: str) -> Runtime:
        """The runtime to run a tree with; its agents are loaded if they may be. Refusal 409 says why not."""
        from upcall.hosts.web.exchange import Refusal
        from upcall.hosts.web.runs import means_of

        try:
            runtime = await self._runtime_for(root)
        except UpcallError as error:
            raise Refusal(409, f"this server can't load the agents of this session: {plain(str(error))}") from None
        if runtime is None:
            command = (await means_of(self._own.store, self, root)).command
            raise Refusal(
                409,
                f"this server has not loaded the agents of this session; resume it with `{command}`",
                needs=command,
            )
        return runtime

    async def resume(self, root: str) -> bool:
        """Resume a tree that is ready; False if it can't be run here."""
        runtime = await self._runtime_for(root)
        if runtime is None:
            return False
        await runtime.resume(root)
        return True

    async def _runtime_for(self, root: str) -> Runtime | None:
        row = await self._own.store.row(root)
        if row is None or self._args.view_only:
            return None
        if row.agent in self._own.agent_names(root):
            return self._own
        origin = await origin_of(self._own, root)
        if not _is_below_here(origin.source):
            return None
        key = (origin.source, origin.agent)
        async with self._loading:
            if key not in self._loaded:
                self._loaded[key] = await self._load(*key)
        return self._loaded[key]

    async def _load(self, source: str, agent: str) -> Runtime:
        from upcall.agentfiles.load import load_spec

        try:
            loaded = load_spec(source, agent)
        except UpcallError as error:
            tell(f"upcall: the agents in {plain(source)} can't be loaded: {failure_line(error)}")
            raise
        return await self._stack.enter_async_context(runtime_for(self._args, loaded.agents))


def _is_below_here(source: str) -> bool:
    """Tell whether agents of this source lie below the current folder, so that they may be imported unasked."""
    from upcall.agentfiles.source_places import strange_place

    return bool(source) and not strange_place(source, Path.cwd(), installed=False)
