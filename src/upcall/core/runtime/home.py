"""The interface through which a run tree uses its runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from upcall.agent import Agent
from upcall.callbacks import Callback
from upcall.contracts import Host, Store
from upcall.core.log.session_log import Sink
from upcall.core.runtime.broadcast import Broadcast
from upcall.core.runtime.inbox import Inbox
from upcall.core.runtime.known_agents import KnownAgents
from upcall.core.runtime.own_workspaces import OwnWorkspaces
from upcall.core.turns.process_limit import ProcessLimit
from upcall.core.turns.thread_cache import Threads
from upcall.core.turns.timeouts import Deadlines
from upcall.core.turns.turn import Turn
from upcall.messages import Priority


class RuntimeServices(Protocol):
    """The parts of a runtime that its run trees use."""

    store: Store
    agents: KnownAgents
    turns: dict[str, Turn]
    threads: Threads
    processes: ProcessLimit
    deadlines: Deadlines
    host: Host | None
    hold: float
    deps: Any
    capture: bool
    workspaces: OwnWorkspaces
    can_ask_cache: dict[tuple[Any, ...], bool]  # see `can_ask_anyone`
    sinks: list[Sink]
    broadcast: Broadcast
    person_watchers: list[Callable[[Callback], None]]
    host_inbox: Inbox

    async def submit(
        self,
        agent: Agent | str,
        text: str,
        id: str | None = None,
        *,
        priority: Priority = "normal",
        tenant: str = "",
        data: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        by: str = "",
    ) -> str:
        """Queue a session of its own, and return its id."""
        ...
