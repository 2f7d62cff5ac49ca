"""The reply of a turn, read from its state."""

from __future__ import annotations

from typing import Any

from upcall.agent import Output
from upcall.contracts import Reply
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
