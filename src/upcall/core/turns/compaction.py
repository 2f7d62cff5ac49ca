"""Compact a conversation that has become long: have the model summarise it, or drop its middle."""

from __future__ import annotations

from upcall.core.turns.hook_runner import run_hooks
from upcall.core.turns.response_bounds import bounded
from upcall.core.turns.toolsets import ensure_tools
from upcall.core.turns.turn import Turn
from upcall.errors import ContextTooLong
from upcall.events import CompactionAsked, ModelFailed, ModelStarted, Responded
from upcall.messages import Message, Request, Response, compacted_messages, user

SUMMARY_PROMPT = (
    "Summarise this conversation for yourself, so that you can go on without it: what was asked, what was found "
    "out and decided, what is done, what is still open, and names, paths and values that will be needed. "
    "Reply with the summary alone and call no tool."
)


async def compact_now(turn: Turn) -> None:
    """Do the compaction that was asked for while calls were open."""
    requested = turn.state.compaction
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
    if state.phase == "running" or state.calls:
        turn.log.add(CompactionAsked(keep_last, True, ""))
    elif state.history:
        await ensure_tools(turn)
        await _summarise(turn, keep_last, "")
    await turn.log.flush()


async def _summarise(turn: Turn, keep_last: int, origin: str) -> None:
    """Have the model summarise the conversation, and keep only the summary and the newest messages.

    A summary that fails, or is empty, changes nothing.
    """
    state, actor, ordinal = turn.state, turn.actor, turn.state.ordinal
    await turn.log.flush()
    messages, settings = state.messages(), actor.settings
    if settings is not None:  # what shapes a reply would cut a summary off, or keep it from being written
        settings = settings.replace(tool_choice=None, parallel_tool_calls=None, max_tokens=None, stop=None)
    # as for every model call, unless it is one of them that wants the summary
    hooks = () if origin.startswith("before_model.") else turn.hooks.before_model
    for tries_left in (3, 2, 1, 0):
        told = [*messages, user(SUMMARY_PROMPT)]
        request = Request(actor.name, "summary", actor.agent.instructions, told, actor.specs, settings=settings)
        asked = await run_hooks(turn, "before_model", f"{ordinal}.summary{state.model_calls}", hooks, request)
        turn.log.add(ModelStarted(ordinal, "summary"))
        turn.log.flush_soon()
        try:
            response = asked if isinstance(asked, Response) else await actor.model.respond(asked, None)
            response = bounded(response, actor.model.name)
        except Exception as error:
            turn.log.add(ModelFailed(ordinal, str(error), type(error).__name__))
            if not isinstance(error, ContextTooLong) or not tries_left:
                return
            messages = compacted_messages(messages, len(messages) // 2, state.summary)
            continue
        turn.log.add(Responded(ordinal, Message("assistant", ()), response.usage, response.stop, response.model))
        if response.text.strip():  # a failed or empty summary changes nothing
            turn.compact(keep_last, origin, response.text)
        return
