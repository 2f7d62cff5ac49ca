"""Run side turns: those that answer a callback, within the limits of the agent that is asked, and those of code."""

from __future__ import annotations

from upcall.agent import Limits
from upcall.core.log.state import SessionState
from upcall.core.runtime.children import logged_end
from upcall.core.runtime.home import RuntimeServices
from upcall.core.runtime.usage import SideTurns, no_room
from upcall.core.turns.loop import run_turn
from upcall.core.turns.prepared_agent import PreparedAgent
from upcall.core.turns.side_turn import PassedUp, SideAnswer, outcome_in
from upcall.core.turns.turn import Turn
from upcall.errors import ChildFailed


def must_continue(side: Turn, asked: Turn, name: str) -> bool:
    """Tell whether a side turn that began earlier runs again, because it has not ended or is retried.

    A side turn that answers a callback is retried if it failed. A prompt of code, called `name`, continues if it
    was cancelled. If it failed, it is retried, unless its code has acted on the failure: then it fails as before.
    """
    turn = side.state.turn
    if turn.phase != "failed" or side.question is not None:
        return turn.phase in ("running", "failed") or (turn.phase == "cancelled" and side.question is None)
    return turn.failure is None or not _acted_since(turn.failure.pos, asked.state, name)


def _acted_since(pos: int, state: SessionState, name: str) -> bool:
    """Tell whether the hook or call that began something of this name has logged anything after a position."""
    turn = state.turn
    done: list[tuple[str, int]] = [(one.origin, one.pos) for one in turn.callbacks.values()]
    done += [(origin, event.pos) for origin, written in turn.hook_writes.items() for event in written]
    done += [(origin, ended.pos) for (origin, _), ended in turn.once_effects.items() if ended is not None]
    return any(at > pos and name.startswith(f"{origin}.") for origin, at in done)


async def run_to_text(side: Turn) -> str:
    """Run the side turn, or read what it came to before; ChildFailed unless it is done."""
    state, agent = side.state, side.actor.agent
    if state.turn.phase == "running":
        try:
            reply = await run_turn(side, release=False)
        except Exception as error:
            ended = state.turn
            if ended.phase != "failed":
                raise
            raise ChildFailed(side.id, agent.name, ended.error) from error
    else:
        reply = await logged_end(state, agent)
    if reply.status != "done":
        raise ChildFailed(side.id, agent.name, f"its side turn stopped: {reply.limit or reply.status}")
    return reply.text


async def run_to_outcome(side: Turn, sides: SideTurns, limits: Limits) -> SideAnswer | PassedUp:
    """Run the side turn, or read what it came to before; anything but an answer counts as passing up."""
    sides.begin(side.state)
    try:
        if side.state.turn.phase == "running":
            await run_turn(side, release=False)
    finally:
        sides.end(side.state)
    state = side.state
    if state.turn.phase == "cancelled":
        return PassedUp("its side turn was cancelled")
    if state.turn.limit in ("model_calls", "tokens"):
        return PassedUp(no_room(limits, state.turn.limit), unseen=True)
    why = f"its limit {state.turn.limit} was reached" if state.turn.limit else "it called no tool that answers"
    return outcome_in(side) or PassedUp(f"it gave no answer: {why}")


def answering_actor(home: RuntimeServices, asked: Turn) -> PreparedAgent:
    """The agent that is asked, with the tools for answering and the model that its session uses."""
    actor, state = asked.actor, asked.state
    if "answer_callback" in actor.toolbox:
        return actor
    asks, model = state.header.asks, state.options_in_force.model
    return home.agents.prepared(actor.agent, actor.hooks, asks=asks, answers=True, model=model)
