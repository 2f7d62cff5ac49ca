"""Run a side turn that answers a callback, within the limits of the agent that is asked."""

from __future__ import annotations

from upcall.agent import Limits
from upcall.core.runtime.home import RuntimeServices
from upcall.core.runtime.usage import SideTurns, no_room
from upcall.core.turns.loop import run_turn
from upcall.core.turns.prepared_agent import PreparedAgent
from upcall.core.turns.side_turn import PassedUp, SideAnswer, outcome_in
from upcall.core.turns.turn import Turn


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
