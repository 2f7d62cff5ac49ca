"""Compact a conversation that has become long: have the model summarise it, or drop its middle."""

from __future__ import annotations

from collections.abc import Awaitable

from upcall.core.log.model_calls import SUMMARY_PROMPT, settings_for_summary
from upcall.core.turns.hook_runner import run_hooks
from upcall.core.turns.request_log import log_request
from upcall.core.turns.response_bounds import bounded
from upcall.core.turns.toolsets import ensure_tools
from upcall.core.turns.turn import Turn
from upcall.core.turns.wire_log import ask_and_capture
from upcall.errors import ContextTooLong
from upcall.events import CompactionAsked, ModelFailed, ModelStarted, Responded
from upcall.messages import Message, Request, Response, close_dangling_calls, compacted_messages, user


async def compact_now(turn: Turn) -> None:
    """Do the compaction that was asked for while calls were open."""
    requested = turn.state.conversation.compaction
    assert requested is not None
    turn.state.settle_calls()
    await turn.log.flush()
    if requested.summarise:
        await summarise(turn, requested.keep_last, "")
    else:
        turn.compact(requested.keep_last, "")


async def summarise(turn: Turn, keep_last: int, origin: str) -> None:
    """Have the model summarise now; where no turn runs, or one summarises already, before its next model call."""
    if turn.task is None or turn.summarising or not turn.state.begun:  # a hook of this call can't begin another
        turn.log.add(CompactionAsked(keep_last, True, origin))
        return
    turn.summarising = True
    try:
        await _summarise(turn, keep_last, origin)
    finally:
        turn.summarising = False


async def summarise_between_turns(turn: Turn, keep_last: int) -> None:
    """Have the model summarise while no turn runs; one that waits does it before its next model call."""
    state = turn.state
    if state.turn.phase == "running" or state.conversation.calls:
        turn.log.add(CompactionAsked(keep_last, True, ""))
    elif state.conversation.history:
        await ensure_tools(turn)
        await _summarise(turn, keep_last, "")
    await turn.log.flush()


async def _summarise(turn: Turn, keep_last: int, origin: str) -> None:
    """Have the model summarise the conversation, and keep only the summary and the newest messages.

    A summary that fails, or is empty, changes nothing.
    """
    state, actor, ordinal = turn.state, turn.actor, turn.state.conversation.ordinal
    await turn.log.flush()
    messages, settings = state.conversation.messages(), actor.settings
    if settings is not None:
        settings = settings_for_summary(settings)
    # as for every model call, unless it is one of them that wants the summary
    hooks = () if origin.startswith("before_model.") else turn.hooks.before_model
    for tries_left in (3, 2, 1, 0):
        told = [*messages, user(SUMMARY_PROMPT)]
        request = Request(actor.name, "summary", actor.agent.instructions, told, actor.specs, settings=settings)
        asked = await run_hooks(turn, "before_model", f"{ordinal}.summary{state.turn.model_calls}", hooks, request)
        if isinstance(asked, Request):  # the prompt above counts as a change: it is not in the conversation
            if asked.messages is not told:  # a hook may have taken results away
                asked = asked.replace(messages=close_dangling_calls(asked.messages))
            log_request(turn, request.replace(messages=messages), asked, ordinal, "summary")
        else:
            turn.log.add(ModelStarted(ordinal, "summary"))
        turn.log.flush_soon()
        try:
            response = asked if isinstance(asked, Response) else await _ask(turn, asked, ordinal)
            response = bounded(response, actor.model.name)
        except Exception as error:
            turn.log.add(ModelFailed(ordinal, str(error), type(error).__name__))
            if not isinstance(error, ContextTooLong) or not tries_left:
                return
            messages = compacted_messages(messages, len(messages) // 2, state.conversation.summary)
            continue
        turn.log.add(Responded(ordinal, Message("assistant", ()), response.usage, response.stop, response.model))
        if response.text.strip():  # a failed or empty summary changes nothing
            turn.compact(keep_last, origin, response.text)
        return


def _ask(turn: Turn, request: Request, ordinal: int) -> Awaitable[Response]:
    if turn.services.capture:
        return ask_and_capture(turn, request, None, ordinal)
    return turn.actor.model.respond(request, None)
