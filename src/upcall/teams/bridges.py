"""Bridges: an `end_turn` hook that hands over to another agent, for people who wire by hand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from upcall.agent import Agent
from upcall.contracts import Reply, SessionAccess
from upcall.errors import BadAgent, ChildFailed
from upcall.session import Access, Place
from upcall.teams.coordinator import SAID_NOTHING


def bridge(next_agent: Agent) -> Callable[[SessionAccess, Reply], Awaitable[str]]:
    """A hook for `Hooks(end_turn=[bridge(b)])`: b is told what this agent said, and b's reply replaces it.

    The questions of b go to this agent's caller; this agent has finished and can't be asked.

    next_agent: the agent that comes next
    """
    given: Any = next_agent
    if not isinstance(given, Agent):
        raise BadAgent("bridge", f"bridge(agent) takes the agent that comes next, not {given!r}")

    async def hand_over(session: SessionAccess, reply: Reply) -> str:
        access = cast("Access", session)
        header = access.member.state.header
        above = header.parent if header.above is None else header.above
        summary = session.get_summary()
        told = reply.text if summary == reply.text else f"{summary}\n\n{reply.text}"
        told = told if told.strip() else SAID_NOTHING
        said = await access.start_child(next_agent, told, Place(above=above, again=True))
        if said.status != "done":
            raise ChildFailed(said.session_id, next_agent.name, f"it ended with {said.limit or said.status}")
        return said.text

    return hand_over
