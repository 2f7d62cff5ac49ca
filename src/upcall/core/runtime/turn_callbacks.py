"""A session that nobody runs now: whether it can continue, why it takes no prompt, and its last reply."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from upcall.agent import Agent
from upcall.callbacks import can_continue
from upcall.contracts import Reply, Store
from upcall.core.log.state import SessionState
from upcall.core.turns.reply import reply_of, typed_reply_of, with_callbacks
from upcall.errors import SessionWaiting, UnknownAgent
from upcall.events import SessionStarted


async def is_ready(store: Store, root: str) -> bool:
    """Tell whether a parked run tree can continue; also where nothing is open any more: that was cancelled."""
    now, callbacks = store.now(), await store.callbacks(root=root)
    return can_continue(callbacks, now) or all(one.status != "open" for one in callbacks)


async def waiting_error(store: Store, state: SessionState) -> SessionWaiting:
    """The error for a prompt to a session that waits."""
    callbacks = await store.callbacks(root=state.header.root or state.id)
    return SessionWaiting(state.id, [one.id for one in callbacks if one.status == "open"])


async def last_reply(
    store: Store, state: SessionState, agent_of: Callable[[SessionStarted], Agent]
) -> Reply | None:
    """The reply of the last turn, from the log alone; None if no turn has ended or the last one failed.

    Its `output` needs the agent, so it is None where this runtime does not have that one.
    """
    waits = state.turn.phase == "running" and state.turn.parked
    if not waits and state.turn.phase not in ("done", "cancelled", "limit"):
        return None
    reply = reply_of(state, waits=waits)
    if not waits and state.header.kind != "side_turn":
        with contextlib.suppress(UnknownAgent, ValueError, TypeError):
            reply = await typed_reply_of(state, agent_of(state.header).output)
    return await with_callbacks(store, reply, state)
