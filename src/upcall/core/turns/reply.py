"""The reply of a turn, read from its state."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from upcall.agent import Output
from upcall.callbacks import Callback, public
from upcall.contracts import Reply, Store
from upcall.core.log.state import SessionState


def reply_of(state: SessionState, *, waits: bool = False) -> Reply:
    """Return the reply of a session's last turn, without its value of the agent's output type."""
    return _reply(state, None, waits)


async def typed_reply_of(state: SessionState, output: Output | None, read: tuple[str, Any] | None = None) -> Reply:
    """Return the reply of a session's last turn; `output` parses its text into the agent's output type.

    read: a text that was parsed already, and its value
    """
    value = None
    turn, conversation = state.turn, state.conversation
    if output is not None and turn.phase in ("done", "running"):
        said = conversation.reply_text if output.schema is None else conversation.model_text
        if turn.output is not None:
            value = output.convert(turn.output)
        elif read is not None and read[0] == said:
            value = read[1]
        elif said or output.schema is None:
            value = await output.read(said)
    return _reply(state, value, waits=False)


def _reply(state: SessionState, value: Any, waits: bool) -> Reply:
    turn, text = state.turn, state.conversation.reply_text
    status: Any = "waiting" if waits else turn.phase if turn.phase in ("cancelled", "limit") else "done"
    return Reply(text, status, state.id, turn.usage, output=value, limit=turn.limit)


async def with_callbacks(store: Store, reply: Reply, state: SessionState) -> Reply:
    """The reply with every callback of this turn's tree."""
    return replace(reply, callbacks=await raised_in_turn(store, state))


async def with_callbacks_of_child(store: Store, reply: Reply, state: SessionState) -> Reply:
    """The reply of a child with every callback of its turn's tree, which is read only if it has sessions below."""
    if await store.rows(parent=state.id, limit=1):
        return await with_callbacks(store, reply, state)
    return replace(reply, callbacks=tuple([public(one) for one in state.turn.callbacks.values()]))


async def raised_in_turn(store: Store, state: SessionState) -> tuple[Callback, ...]:
    """Every callback that the session and all below it have raised since the turn began."""
    since = state.turn.prompt.pos if state.turn.prompt is not None else 0
    callbacks = await store.callbacks(root=state.header.root or state.id)
    below = f"{state.id}~"
    mine = [one for one in callbacks if one.pos > since and f"{one.session_id}~".startswith(below)]
    return tuple([public(one) for one in mine])
