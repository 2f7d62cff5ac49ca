"""Who is above a session: the agents that may be asked, and by which rights.

May import: agent, contracts, events, policy, routing, session.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from upcall.agent import Agent
from upcall.contracts import Store
from upcall.events import SessionStarted
from upcall.policy import Policy
from upcall.routing import Ancestor
from upcall.session import Member


class Family(Protocol):
    """Where sessions and their agents are found."""

    @property
    def store(self) -> Store:
        """The log."""
        ...

    @property
    def turns(self) -> Mapping[str, Member]:
        """What runs in this process, by session."""
        ...

    def agent_of(self, header: SessionStarted) -> Agent:
        """The agent of a session."""
        ...


async def reach(home: Family, agent: Agent, header: SessionStarted) -> tuple[Policy, list[Ancestor]]:
    """What a session may ask by, and the agents above it, nearest first.

    Teams and chains only pass on: nobody asks them. Above a worker whose plan names no caller is nobody.
    """
    found: list[Ancestor] = []
    alone = ""
    while True:
        if header.team and header.above == "":
            alone = alone or header.agent
        session_id = header.parent if header.above is None else header.above
        if not session_id:
            break
        turn = home.turns.get(session_id)
        first = [turn.state.header] if turn is not None else await home.store.read(session_id, 0, 1)
        if not first or not isinstance(first[0], SessionStarted):
            break
        header = first[0]
        if header.kind != "coordinator":
            policy = (turn.actor.agent if turn is not None else home.agent_of(header)).policy
            found.append(Ancestor(header.agent, policy, session_id))
    if not alone:
        return agent.policy, found
    below = [Ancestor(a.name, a.policy.alone(alone, True), a.session_id) for a in found]
    return agent.policy.alone(alone, bool(below)), below
