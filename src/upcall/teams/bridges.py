"""Bridges: an `end_turn` hook that hands over to another agent, for people who connect agents by hand."""

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
    """Return a hook for `Hooks(end_turn=[bridge(b)])`: b gets this agent's reply, and b's reply replaces it.

    b has one session below this one, and every turn continues it. b's questions go to this agent's caller; this
    agent has finished and can't be asked.
    """
    argument: Any = next_agent
    if not isinstance(argument, Agent):
        raise BadAgent("bridge", f"bridge(agent) takes the next agent, not {argument!r}")

    async def hand_over(session: SessionAccess, reply: Reply) -> str:
        access = cast("HookSession", session)
        header = access.turn.state.header
        caller = header.parent if header.above is None else header.above
        summary = session.get_summary()
        prompt = reply.text if summary == reply.text else f"{summary}\n\n{reply.text}"
        child = f"bridge.{next_agent.name}"
        spec = ChildSpec(
            caller_session=caller, turn_number=await _turn_number(access, next_agent.name, child), retry_failed=True
        )
        next_reply = await access.child(next_agent, prompt if prompt.strip() else SAID_NOTHING, child, spec)
        if next_reply.status != "done":
            raise ChildFailed(
                next_reply.session_id,
                next_agent.name,
                f"it did not complete its turn ({next_reply.limit or next_reply.status})",
            )
        return next_reply.text

    return hand_over


async def _turn_number(access: HookSession, agent: str, child: str) -> int:
    """Return the number of the next agent's turn that this hand-over runs.

    The number is stored before that turn begins: a hook that waited or died runs again, and must find its own turn
    instead of starting another one.
    """
    turn = access.turn
    step = f"{child}.{turn.state.turn.end_passed}.{access.asking().occurrence(child)}"
    started = cast("StepStarted | None", turn.state.turn.steps.get((StepStarted, step)))
    if started is None:
        child_id = f"{turn.id}~{child}"
        state = await load_state(turn.log.store, child_id)
        started = StepStarted(step, agent, child_id, 1 if state is None else state.turn.number + 1)
        turn.log.add(started)
        await turn.log.flush()
    return started.turn
