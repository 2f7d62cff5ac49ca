"""The begin_session hooks of a session that was stored before they ran: a worker that takes it runs them."""

from __future__ import annotations

from typing import Any

from upcall.contracts import Claim
from upcall.core.log.load import end_session, refresh
from upcall.core.runtime.run_tree import RunTree
from upcall.core.turns.turn import Cancelled, Turn
from upcall.errors import HookFailed, LimitReached
from upcall.events import TurnResumed


async def begin_stored(tree: RunTree, turn: Turn) -> bool:
    """Run the hooks; False if they wait or the session ended in them. A hook that raises fails the next turn."""
    await _note_death(turn, tree.claim)
    try:
        return await tree.begin_root(turn)
    except HookFailed as error:
        await _end(tree, turn, "failed", error=f"HookFailed: {error}", retry=tree.retry_at(turn, error))
        raise
    except LimitReached as error:
        if not await _end(tree, turn, "limit", limit=error.limit):
            raise
    except Cancelled:
        await turn.log.flush()
        await end_session(tree.store, tree.claim, turn.id, "the turn was cancelled")
        await refresh(tree.store, turn.state)
    return False


async def _note_death(turn: Turn, claim: Claim | None) -> None:
    """Write down that the worker before this one died in the hooks, so that those who kill workers are found."""
    if claim is not None and claim.orphaned:
        turn.log.add(TurnResumed(turn.state.turn.number, died=True))
        await turn.log.flush(lazy=True)


async def _end(tree: RunTree, turn: Turn, status: str, **how: Any) -> bool:
    """End the turn that waits for the hooks: the one that is tried again, or the first in the queue."""
    state = turn.state
    if state.queued and not state.turn.retry:
        queued = state.queued[0]
        tree.record_prompt(turn, queued.message, queued.by, queued)
    elif state.turn.phase != "failed":
        return False
    turn.end(status, **how)
    await turn.log.flush(release=True)
    return True
