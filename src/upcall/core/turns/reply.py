"""The reply of a turn, read from its state."""

from __future__ import annotations

from typing import Any

from upcall.agent import Output
from upcall.contracts import Reply
from upcall.core.log.state import SessionState


def reply_of(state: SessionState, output: Output | None = None, *, waits: bool = False) -> Reply:
    """The reply of a session's last turn; `output` parses its text into the agent's output type."""
    value = None
    turn, conversation = state.turn, state.conversation
    if output is not None and turn.phase in ("done", "running"):
        said = conversation.reply_text if output.schema is None else conversation.model_text
        if turn.output is not None:
            value = output.convert(turn.output)
        elif said or output.schema is None:
            value = output.parse(said)
    status: Any = "waiting" if waits else turn.phase if turn.phase in ("cancelled", "limit") else "done"
    return Reply(conversation.reply_text, status, state.id, turn.usage, output=value, limit=turn.limit)
