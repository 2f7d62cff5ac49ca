"""Who is above a session: the agents that may be asked, and by which rights."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from upcall.agent import Agent
from upcall.contracts import Store
from upcall.events import SessionStarted
from upcall.policy import Policy
from upcall.routing import Ancestor
from upcall.session import Member


async def reach(
    agent: Agent,
    header: SessionStarted,
    store: Store,
    turns: Mapping[str, Member],
    agent_of: Callable[[SessionStarted], Agent],
) -> tuple[Policy, list[Ancestor]]:
    """What a session may ask by, and the agents above it, nearest first: as they run here, or from the log.

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
        turn = turns.get(session_id)
        first = [turn.state.header] if turn is not None else await store.read(session_id, 0, 1)
        if not first or not isinstance(first[0], SessionStarted):
            break
        header = first[0]
        if header.kind != "coordinator":
            policy = (turn.actor.agent if turn is not None else agent_of(header)).policy
            found.append(Ancestor(header.agent, policy, session_id))
    if not alone:
        return agent.policy, found
    below = [Ancestor(a.name, a.policy.alone(alone, True), a.session_id) for a in found]
    return agent.policy.alone(alone, bool(below)), below
