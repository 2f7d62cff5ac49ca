"""Run what requests start: begin a turn in the background and say whether it began."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

from upcall.app import Runtime
from upcall.contracts import Store
from upcall.events import SessionStarted
from upcall.hosts.web.exchange import Refusal

BEGIN_LIMIT = 10.0
"""Seconds that a request waits for its turn to begin; it begins nevertheless."""


class Means(NamedTuple):
    """The means to run a run tree: here, or by a command to type elsewhere; neither if they are unknown."""

    here: bool = False
    command: str = ""


class KnownAgents(Protocol):
    """Tells which agents can run here. It reads no log, so every thread may ask it: nothing in it is awaited."""

    def has_agent(self, agent: str, root: str) -> bool:
        """Tell whether the agent of a run tree is loaded here."""
        ...

    def means(self, root: str, source: str) -> Means:
        """The means to run a tree whose agent comes from a source and is not loaded. Imports nothing."""
        ...


class Runs(KnownAgents, Protocol):
    """Knows which runtime runs which agents. `upcall serve` has one that loads agents when they are needed."""

    @property
    def runtimes(self) -> Sequence[Runtime]:
        """Every runtime that runs something here; their text is shown while it is written."""
        ...

    def agents(self) -> list[dict[str, str]]:
        """The agents that sessions can be started with."""
        ...

    async def runtime_for(self, root: str) -> Runtime:
        """The runtime to run a tree with; Refusal 409 if there is none. May load its agents."""
        ...

    def starting(self, agent: str) -> Runtime:
        """The runtime to start a session of this agent with; Refusal 422 if there is none."""
        ...


class OwnRuns:
    """Runs everything with one runtime and its agents, as a service that mounts this application does."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @property
    def runtimes(self) -> Sequence[Runtime]:
        """The one runtime."""
        return (self._runtime,)

    def agents(self) -> list[dict[str, str]]:
        """The agents of the runtime."""
        return agents_json(self._runtime)

    def has_agent(self, agent: str, root: str) -> bool:
        """Tell whether the runtime has the agent of a run tree."""
        return agent in self._runtime.agent_names(root)

    def means(self, root: str, source: str) -> Means:
        """No means: nothing is loaded here, and which program has the agent is unknown."""
        return Means()

    async def runtime_for(self, root: str) -> Runtime:
        """The one runtime; Refusal 409 where it does not have the agent."""
        row = await self._runtime.store.row(root)
        if row is None or not self.has_agent(row.agent, root):
            raise Refusal(409, "this server has not loaded the agents of this session")
        return self._runtime

    def starting(self, agent: str) -> Runtime:
        """The one runtime; Refusal 422 where it does not have the agent."""
        if agent not in self._runtime.agent_names():
            raise Refusal(422, f"this server has no agent called {agent[:100]!r}")
        return self._runtime


async def means_of(store: Store, known: KnownAgents, root: str) -> Means:
    """The means to run a run tree of a log."""
    row = await store.row(root)
    if row is None:
        return Means()
    if known.has_agent(row.agent, root):
        return Means(here=True)
    first = await store.read(row.root, 0, 1)
    return known.means(root, first[0].source if first and isinstance(first[0], SessionStarted) else "")


def agents_json(runtime: Runtime) -> list[dict[str, str]]:
    """The agents of a runtime, as the API lists them."""
    found = [runtime.agent(name) for name in runtime.agent_names()]
    return [{"name": one.name, "description": one.description, "source": one.source} for one in found]


async def begin(runtime: Runtime, session: str, work: Coroutine[Any, Any, Any]) -> None:
    """Run work of a session in the background; returns when it has begun, and raises what kept it from that."""
    async with runtime.subscribe(session) as items:
        task = runtime.spawn(work)
        first = asyncio.ensure_future(anext(items))
        try:
            await asyncio.wait({task, first}, timeout=BEGIN_LIMIT, return_when="FIRST_COMPLETED")
        finally:
            first.cancel()
        if task.done() and not first.done():
            task.result()
