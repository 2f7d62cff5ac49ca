"""What a turn came to, read from its state."""

from __future__ import annotations

from typing import Any

from upcall.agent import Output
from upcall.contracts import Reply
from upcall.core.log.state import SessionState


def reply_of(state: SessionState, output: Output | None = None, *, waits: bool = False) -> Reply:
    """What a session's last turn came to; `output` is the type of what it says, once it has said it."""
    value = None
    if output is not None and state.phase in ("done", "running"):
        said = state.reply_text if output.schema is None else state.model_text
        if state.output is not None:
            value = output.convert(state.output)
        elif said or output.schema is None:
            value = output.parse(said)
    status: Any = "waiting" if waits else state.phase if state.phase in ("cancelled", "limit") else "done"
    return Reply(state.reply_text, status, state.id, state.usage, output=value, limit=state.limit)
