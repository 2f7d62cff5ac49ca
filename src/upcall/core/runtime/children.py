"""Start and end child sessions: their first event, the limits on number and depth, and their outcome."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from upcall.agent import Agent
from upcall.contracts import Claim, Reply, Selection, Store
from upcall.core.log.load import append, end_session, load_state
from upcall.core.log.state import SessionState
from upcall.core.turns.reply import typed_reply_of
from upcall.core.turns.turn import Turn
from upcall.errors import ChildFailed, LimitReached
from upcall.events import AnyEvent, SessionStarted, TurnResumed

ALL_CHILDREN = 1_000_000
"""More sessions than one run tree has."""


def child_header(starter: Turn, agent: str, name: str, kind: Any, deeper: int = 1, **more: Any) -> SessionStarted:
    """The first event of a session that another session starts."""
    by = starter.state.header
    depth, root = by.depth + deeper, by.root or starter.id
    return SessionStarted(agent, starter.id, root, name, depth, kind, source=by.source, **more)


async def count_children(store: Store, parent: Turn) -> int:
    """Count the children that the turn has started so far."""
    since = parent.state.turn.prompt.time if parent.state.turn.prompt is not None else 0.0
    rows = await store.rows(parent=parent.id, limit=ALL_CHILDREN)
    return sum(r.kind != "side_turn" and r.created >= since for r in rows)


def check_child_limits(parent: Turn, find: Callable[[str], Turn | None]) -> None:
    """Count one more child; LimitReached where that is too many, or too deep for the parent or any agent above."""
    limits = parent.actor.agent.limits
    parent.children += 1
    if limits.children is not None and parent.children > limits.children:
        raise LimitReached("children", f"{limits.children} in this turn")
    above: Turn | None = parent
    while above is not None:  # whoever is above may have set the lowest
        most = above.actor.agent.limits.depth
        if most is not None and parent.state.header.depth + 1 > most:
            raise LimitReached("depth", f"sessions may be at most {most} levels below the root")
        above = find(above.state.header.parent)


async def logged_end(state: SessionState, agent: Agent) -> Reply:
    """Return what a session's last turn came to, or raise that it failed."""
    if state.turn.phase == "failed":
        raise ChildFailed(state.id, agent.name, state.turn.error)
    return await typed_reply_of(state, agent.output if state.header.kind != "side_turn" else None)


def can_repeat(turn: Turn, call_id: str) -> bool:
    """Tell whether a call may run again after it was cut off anywhere."""
    call = turn.state.conversation.call(call_id)
    tool = None if call is None else turn.actor.toolbox.get(call.call.name)
    return tool is None or tool.repeatable


async def unfinished_children(store: Store, parent: Turn, call_id: str) -> list[SessionStarted]:
    """Return how the children began that a call has started itself and whose turns have not ended."""
    children = await store.rows(parent=parent.id, limit=ALL_CHILDREN)
    rows = [row for row in children if row.id.startswith(f"{parent.id}~{call_id}.")]
    waiting = [row.id for row in rows if row.kind != "side_turn" and row.status in ("running", "waiting")]
    first = [(await store.read(child, 0, 1))[0] for child in waiting]
    return [event for event in first if isinstance(event, SessionStarted)]


async def children_of_call(store: Store, session_id: str, call_id: str) -> list[str]:
    """The ids of the children that a tool call of the session has started."""
    first = f"{session_id}~{call_id}"
    rows = await store.rows(parent=session_id, limit=ALL_CHILDREN)
    return [row.id for row in rows if row.id == first or row.id.startswith(f"{first}.")]


async def end_subtree(
    store: Store, claim: Claim | None, session_id: str, why: str, running: Container[str]
) -> list[AnyEvent]:
    """End a session and all below it that wait or failed and do not run here; return the events that say so."""
    events: list[AnyEvent] = []
    rows = await store.rows(which=Selection(session=session_id), limit=ALL_CHILDREN)
    for row in rows:  # newest first: a session ends before the one that started it
        if row.status in ("running", "waiting", "failed") and row.id not in running:
            events += await end_session(store, claim, row.id, why)
    return events


async def make_ready(store: Store, claim: Claim | None, root: str) -> None:
    """Let a parked run tree be resumed by whoever has its agents: a child that it waited for was ended."""
    state = await load_state(store, root)
    if state is not None and state.turn.parked:
        await append(store, root, [TurnResumed(state.turn.number)], claim)
