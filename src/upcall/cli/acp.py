"""The command `acp`: an agent in an editor, over the Agent Client Protocol."""

from __future__ import annotations

import argparse
import contextlib
import glob
import os
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from upcall.cli.options import Commands, agent_argument, events_file_option, positive_number, watching_options
from upcall.cli.places import load_agent, os_user, redactor, runtime_for, shown_with
from upcall.cli.stopping import stopping_of

if TYPE_CHECKING:
    from upcall.agent import Agent
    from upcall.app import Runtime
    from upcall.cli.acp_servers import EditorServers
    from upcall.hosts.acp.desk import Appearance, Desk

EXIT_SECONDS = 1.2
"""Seconds that everything has to end after the editor has left; then the process ends as it is."""

_NEEDED = (
    "upcall.agentfiles.load",
    "upcall.cli.acp_servers",
    "upcall.links.mcp.servers",
    "upcall.models",
    "upcall.observe.capture",
    "upcall.store.opening",
    "upcall.store.sqlite.store",
)
"""Modules that the first session needs."""


def add(commands: Commands) -> None:
    """Add the command `acp`."""
    parser = commands.add(
        "acp",
        "let an editor use an agent, over the Agent Client Protocol",
        _acp,
        about="Editors that speak the Agent Client Protocol start this command and talk to it over\n"
        "standard input and output. Questions are asked in the editor. Sessions are stored, so\n"
        "that the editor, or any other command, can continue them.",
        examples=["upcall acp agents/", "upcall acp coder.md --store ~/.upcall/log.db"],
    )
    agent_argument(parser, default="agents")
    events_file_option(parser)
    watching_options(parser)
    window = "how many tokens the model's context holds, to show how full it is"
    parser.add_argument("--context-window", metavar="TOKENS", type=positive_number, default=0, help=window)


async def _acp(args: argparse.Namespace) -> int:
    from upcall.hosts.acp.agent import AcpAgent
    from upcall.hosts.acp.stdio_guard import private_stdio

    with private_stdio() as (given, taken):
        async with contextlib.AsyncExitStack() as stack:
            agent = AcpAgent(_Place(args, stack), _version())
            with stopping_of(args).on_drained(agent.stop):
                await agent.serve(given, taken, _exit_soon)
    return 0


def _version() -> str:
    """Return the version from the installed files; `importlib.metadata` imports much more than that needs."""
    for place in sys.path:
        for found in glob.glob(f"{glob.escape(place)}/upcall-*.dist-info"):  # noqa: PTH207
            return found.rpartition("upcall-")[2].removesuffix(".dist-info")
    return "0+unknown"


class _Place:
    """The agents and the log of this command, opened when the first session needs them."""

    def __init__(self, args: argparse.Namespace, stack: contextlib.AsyncExitStack) -> None:
        self._args, self._stack = args, stack

    @property
    def person(self) -> str:
        """The user of this machine who runs the editor."""
        return os_user()

    def preload(self) -> None:
        """Import what the first session needs."""
        from importlib import import_module

        for name in _NEEDED:
            import_module(name)

    def appearance(self) -> Appearance:
        """Return how things are shown, as the options say."""
        from upcall.hosts.acp.desk import Appearance
        from upcall.observe.labels import Labels

        shows = shown_with(self._args)
        return Appearance(redactor(), shows.labels or Labels(), shows.cost, self._args.context_window)

    def servers(self, agent: Agent, passed: Mapping[str, Mapping[str, Any]]) -> EditorServers:
        """Return the MCP servers of a session. Nothing is started."""
        from upcall.cli.acp_servers import EditorServers

        return EditorServers(agent, passed)

    async def open(self, host: Desk) -> tuple[Runtime, Agent]:
        """Load the agents and open the log."""
        loaded = load_agent(self._args)
        runtime = runtime_for(self._args, loaded.agents, host)
        await self._stack.enter_async_context(runtime)
        return runtime, loaded.agent


def _exit_soon() -> None:
    """End the process even if a tool does not stop. Its turn can be resumed."""
    ending: Any = threading.Timer(EXIT_SECONDS, os._exit, (0,))
    ending.daemon = True
    ending.start()
