"""Log that a model is asked, with what is needed to rebuild the request."""

from __future__ import annotations

from upcall.core.log.request_diff import change_of
from upcall.core.turns.turn import Turn
from upcall.events import NO_OPTIONS, Change, ModelStarted
from upcall.messages import Purpose, Request


def log_request(turn: Turn, asked: Request, request: Request, ordinal: int, purpose: Purpose) -> None:
    """Log a request. `asked` is the one that hooks were given; what differs in `request` is logged."""
    state, actor, log = turn.state, turn.actor, turn.log
    instructions = tools = options = ""
    if state.instructions != actor.instructions_hash:
        instructions = actor.instructions_hash
        log.put_blob(instructions, actor.instructions_body)
    if state.tools != actor.tools_hash:
        tools = actor.tools_hash
        log.put_blob(tools, actor.tools_body)
    if state.options != actor.options_hash:
        options = actor.options_hash or NO_OPTIONS
        if actor.options_body:
            log.put_blob(options, actor.options_body)
    change: Change | None = None
    if request is not asked:
        change = change_of(asked, request, state.conversation.messages, log.put_blob, actor.named)
    model, labels = actor.model.name, actor.labels
    log.add(
        ModelStarted(
            ordinal, purpose, instructions, tools, change, options,
            "" if model == state.model else model, None if labels == state.labels else labels,
        )
    )  # fmt: skip
