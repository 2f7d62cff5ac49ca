"""Bridges: an `end_turn` hook that hands over to another agent, for people who wire by hand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from upcall.agent import Agent
from upcall.contracts import Reply, SessionAccess
from upcall.core.log.load import load_state
from upcall.core.turns.access import HookSession
from upcall.core.turns.turn import ChildSpec
from upcall.errors import BadAgent, ChildFailed
from upcall.events import StepStarted
from upcall.teams.coordinator import SAID_NOTHING


def bridge(next_agent: Agent[Any]) -> Callable[[SessionAccess, Reply], Awaitable[str]]:
    """A hook for `Hooks(end_turn=[bridge(b)])`: b is told what this agent came to, and b's reply takes its place.

    b has one session below this one, and every turn continues it. Above b lies what lies above this agent, which
    has ended and can't be asked.
    """
    given: Any = next_agent
    if not isinstance(given, Agent):
        raise BadAgent("bridge", f"bridge(agent) takes the agent that comes next, not {given!r}")

    async def hand_over(session: SessionAccess, reply: Reply) -> str:
        access = cast("HookSession", session)
        header = access.turn.state.header
        above = header.parent if header.above is None else header.above
        summary = session.get_summary()
        told = reply.text if summary == reply.text else f"{summary}\n\n{reply.text}"
        child = f"bridge.{next_agent.name}"
        place = ChildSpec(
            caller_session=above, turn_number=await _turn(access, next_agent.name, child), retry_failed=True
        )
        said = await access.child(next_agent, told if told.strip() else SAID_NOTHING, child, place)
        if said.status != "done":
            raise ChildFailed(said.session_id, next_agent.name, f"it ended with {said.limit or said.status}")
        return said.text

    return hand_over


async def _turn(access: HookSession, agent: str, child: str) -> int:
    """Which turn of the next agent's session this hand-over is.

    It is stored before that turn begins: a hook that waited or died runs again, and must find its own turn and not
    begin another one.
    """
    turn = access.turn
    step = f"{child}.{turn.state.end_passed}.{access.asking().occurrence(child)}"
    started = cast("StepStarted | None", turn.state.steps.get((StepStarted, step)))
    if started is None:
        child_id = f"{turn.id}~{child}"
        state = await load_state(turn.log.store, child_id)
        started = StepStarted(step, agent, child_id, 1 if state is None else state.turn + 1)
        turn.log.add(started)
        await turn.log.flush()
    return started.turn
