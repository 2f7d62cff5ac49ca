"""Have the model summarise a conversation that has become long."""

from __future__ import annotations

from upcall.core.turns.access import Member
from upcall.core.turns.hook_runner import run_hooks
from upcall.core.turns.response_bounds import bounded
from upcall.errors import ContextTooLong
from upcall.events import ModelFailed, ModelStarted, Responded
from upcall.messages import Message, Request, Response, compacted_messages, user

SUMMARY_PROMPT = (
    "Summarise this conversation for yourself, so that you can go on without it: what was asked, what was found "
    "out and decided, what is done, what is still open, and names, paths and values that will be needed. "
    "Reply with the summary alone and call no tool."
)


async def summarise(member: Member, keep_last: int, origin: str) -> None:
    """Have the model summarise the conversation, and keep only the summary and the newest messages.

    A summary that fails, or is empty, changes nothing.
    """
    state, actor, ordinal = member.state, member.actor, member.state.ordinal
    await member.log.flush()
    messages, settings = state.messages(), actor.settings
    if settings is not None:  # what shapes a reply would cut a summary off, or keep it from being written
        settings = settings.replace(tool_choice=None, parallel_tool_calls=None, max_tokens=None, stop=None)
    # as for every model call, unless it is one of them that wants the summary
    hooks = () if origin.startswith("before_model.") else member.hooks.before_model
    for tries_left in (3, 2, 1, 0):
        told = [*messages, user(SUMMARY_PROMPT)]
        request = Request(actor.name, "summary", actor.agent.instructions, told, actor.specs, settings=settings)
        asked = await run_hooks(member, "before_model", f"{ordinal}.summary{state.model_calls}", hooks, request)
        member.log.add(ModelStarted(ordinal, "summary"))
        member.log.flush_soon()
        try:
            response = asked if isinstance(asked, Response) else await actor.model.respond(asked, None)
            response = bounded(response, actor.model.name)
        except Exception as error:
            member.log.add(ModelFailed(ordinal, str(error), type(error).__name__))
            if not isinstance(error, ContextTooLong) or not tries_left:
                return
            messages = compacted_messages(messages, len(messages) // 2, state.summary)
            continue
        member.log.add(Responded(ordinal, Message("assistant", ()), response.usage, response.stop, response.model))
        if response.text.strip():  # a failed or empty summary changes nothing
            member.compact(keep_last, origin, response.text)
        return
