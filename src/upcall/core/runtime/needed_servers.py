"""The MCP servers that sessions were given. The log keeps their names, and nothing else of them.

A session runs only where its agent has servers of these names: elsewhere the calls that wait for an answer would
end without their tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from upcall.agent import Agent, all_agents
from upcall.contracts import Toolset
from upcall.core.log.state import SessionState
from upcall.errors import ServersMissing


def given_servers(agent: Agent[Any]) -> tuple[str, ...]:
    """Return the names of the servers that an agent's toolsets give to every session."""
    return tuple(dict.fromkeys(name for one in _toolsets(agent) for name in getattr(one, "servers", ())))


def _toolsets(agent: Agent[Any]) -> Sequence[Toolset]:
    """Return the toolsets of an agent; a team or a chain has those of its members."""
    if agent.run_program is None:
        return agent.toolsets
    return [one for member in all_agents([agent]).values() for one in member.toolsets]


def check_servers(state: SessionState, agent: Agent[Any] | None) -> None:
    """Raise ServersMissing if the run tree's agent does not have every server that the session was given."""
    if agent is None:
        return
    here = {name for one in _toolsets(agent) for name in getattr(one, "available", ())}
    missing = [name for name in state.root_header.servers if name not in here]
    if missing:
        raise ServersMissing(state.header.root or state.id, missing)


async def close_toolsets(agents: Iterable[Agent[Any]]) -> None:
    """Close the toolsets of agents that can be closed, each once."""
    toolsets = {id(one): one for agent in agents for one in agent.toolsets}.values()
    closing = [close() for one in toolsets if (close := getattr(one, "close", None)) is not None]
    if closing:
        await asyncio.gather(*closing)
