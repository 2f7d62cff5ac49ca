"""The agents of a runtime by name, and those that one session brought itself.

The log keeps an agent's name only. A session that is started with an agent object whose name, or the name of one
below it, belongs to another agent here keeps its own object: in this process, with all that it starts. Another
process finds the agent by its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from upcall.agent import Agent, all_agents
from upcall.errors import BadAgent, SetupError, UnknownAgent
from upcall.events import SessionStarted


class KnownAgents:
    """Agents by name: the runtime's, and a root session's own in their place."""

    def __init__(self, agents: Sequence[Agent]) -> None:
        self._agents: dict[str, Agent] = all_agents(agents)
        self._own: dict[str, Mapping[str, Agent]] = {}  # by the root session's id

    def get(self, name: str, root: str = "") -> Agent:
        """An agent by its name, as the run tree of this root knows it; UnknownAgent names those there are."""
        own = self._own.get(root)
        found = (own.get(name) if own else None) or self._agents.get(name)
        if found is None:
            raise UnknownAgent(name, self.names(root))
        return found

    def of(self, header: SessionStarted) -> Agent:
        """The agent of a session: a team says who its members are."""
        root = header.root or header.session
        return self.get(header.team, root).member_for(header) if header.team else self.get(header.agent, root)

    def names(self, root: str = "") -> tuple[str, ...]:
        """Every agent's name, as the run tree of this root knows them."""
        own = self._own.get(root)
        return tuple(self._agents) if own is None else tuple({**self._agents, **own})

    def has(self, name: str, root: str) -> bool:
        """Tell whether a run tree's agent is known."""
        return name in self._agents or root in self._own

    def register(self, agent: Agent) -> Mapping[str, Agent] | None:
        """Know an agent with all below it; if other agents have these names, return its own for `bind` instead."""
        if self._agents.get(agent.name) is agent:
            return None
        own = all_agents([agent])
        try:
            self._agents = all_agents([*self._agents.values(), agent])
        except BadAgent:
            return own
        return None

    def all(self) -> list[Agent]:
        """Every agent, those of single sessions too."""
        return [*self._agents.values(), *(agent for own in self._own.values() for agent in own.values())]

    def bind(self, session_id: str, own: Mapping[str, Agent]) -> None:
        """Have one session, with all that it starts, use these agents."""
        self._own[session_id] = own

    def bind_again(self, header: SessionStarted, root: str, agent: Agent) -> None:
        """Have a stored session use this agent; SetupError if the log names another one."""
        if agent.name != header.agent:
            raise SetupError(f"session {root!r} belongs to the agent {header.agent!r}, not to {agent.name!r}")
        self.bind(root, all_agents([agent]))

    def forget(self, session_ids: Sequence[str]) -> None:
        """Drop what sessions brought that are gone."""
        for session_id in session_ids:
            self._own.pop(session_id, None)
