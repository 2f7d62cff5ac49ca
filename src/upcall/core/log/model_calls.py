"""A model call as it was, rebuilt from the log: the request that the model got, and what came back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from upcall.contracts import Exchange, ModelCall, Store
from upcall.core.log.load import load_state
from upcall.core.log.request_diff import apply_change, response_of, tool_specs
from upcall.core.log.state import SessionState
from upcall.core.log.wire import rebuild_exchanges
from upcall.events import (
    NO_OPTIONS,
    AnyEvent,
    HooksPassed,
    ModelFailed,
    ModelStarted,
    Responded,
    TurnEnded,
    WireCaptured,
)
from upcall.messages import Request, user
from upcall.settings import Settings

SUMMARY_PROMPT = (
    "Summarise this conversation for yourself, so that you can go on without it: what was asked, what was found "
    "out and decided, what is done, what is still open, and names, paths and values that will be needed. "
    "Reply with the summary alone and call no tool."
)
"""The instruction to summarise, for older logs. Newer logs contain it as a change of the request."""

_ANSWERS_CALLBACK = re.compile(r"(?:.*\.)?q[0-9a-f]+")
_PAGE = 200


async def rebuild_model_call(store: Store, session_id: str, *, ordinal: int = 0, seq: int = 0) -> ModelCall | None:
    """Rebuild a model call by its number in the session, or by the number of its event; None if there is none.

    Values of headers are not in the log, so they are not in the request's settings.
    """
    asked = await _find(store, session_id, ordinal, seq)
    state = None if asked is None else await load_state(store, session_id, asked.seq - 1)
    if asked is None or state is None:
        return None
    request = await _request(store, state, asked)
    call = ModelCall(
        session_id, asked.ordinal, asked.purpose, asked.seq, asked.time, asked.model or state.model, request
    )
    call = await _with_outcome(store, call)
    return call.replace(wire=await _wire(store, call))


async def _wire(store: Store, call: ModelCall) -> tuple[Exchange, ...]:
    """Return what went over the wire in a call, if that was captured."""
    after, upto = call.seq, 0
    while page := await store.read(call.session, after, _PAGE):
        for event in page:
            if isinstance(event, ModelStarted | TurnEnded):
                return await rebuild_exchanges(store, call.session, call.seq, upto) if upto else ()
            upto = event.seq if isinstance(event, WireCaptured) else upto
        after = page[-1].seq
    return await rebuild_exchanges(store, call.session, call.seq, upto) if upto else ()


async def _find(store: Store, session_id: str, ordinal: int, seq: int) -> ModelStarted | None:
    """Find the event that began a model call; of several with one number, the newest that is not a summary."""
    found: ModelStarted | None = None
    after = max(seq - 1, 0)
    while page := await store.read(session_id, after, 1 if seq else _PAGE):
        after = page[-1].seq
        for event in page:
            if isinstance(event, ModelStarted) and (seq or event.ordinal == ordinal):
                found = event if seq or event.purpose != "summary" or found is None else found
        if seq or (found is not None and _is_past(page, ordinal)):
            break
    return found


def _is_past(page: Sequence[AnyEvent], ordinal: int) -> bool:
    return any(isinstance(event, ModelStarted) and event.ordinal > ordinal for event in page)


async def _request(store: Store, state: SessionState, asked: ModelStarted) -> Request:
    """Build the request from the session as it was when the model was asked."""
    conversation = state.conversation
    if asked.purpose != "summary" and (conversation.calls or conversation.deferred):
        state.settle_calls()
    messages = conversation.messages()
    if asked.purpose == "summary" and asked.change is None:
        messages.append(user(SUMMARY_PROMPT))
    instructions = await _blob(store, asked.instructions or state.instructions)
    tools = await _blob(store, asked.tools or state.tools)
    options: dict[str, Any] = msgspec.json.decode(await _blob(store, _options_hash(state, asked)) or b"{}")
    given = options.get("settings")
    settings = _settings_for(asked.purpose, msgspec.convert(given, Settings)) if given else None
    freely = state.header.kind == "side_turn" and _ANSWERS_CALLBACK.fullmatch(state.header.origin) is None
    output = None if asked.purpose == "summary" or freely else options.get("output")
    specs = tool_specs(tools) if tools else ()
    request = Request(state.header.agent, asked.purpose, instructions.decode(), messages, specs, output, settings)
    request = await apply_change(request, asked.change, store)
    if asked.change is not None and asked.change.settings is not None:  # with the names of headers that hooks gave
        request = request.replace(settings=msgspec.convert(asked.change.settings, Settings))
    return request


def _options_hash(state: SessionState, asked: ModelStarted) -> str:
    return "" if asked.options == NO_OPTIONS else asked.options or state.options


async def _blob(store: Store, name: str) -> bytes:
    return await store.blob(name) if name else b""


def settings_for_summary(settings: Settings) -> Settings:
    """The settings without those that would cut a summary off, or keep it from being written."""
    return settings.replace(tool_choice=None, parallel_tool_calls=None, max_tokens=None, stop=None)


def settings_for_side_turn(settings: Settings) -> Settings:
    """The settings without the one that would keep an agent from answering, or from doing anything else."""
    return settings.replace(tool_choice=None)


def _settings_for(purpose: str, settings: Settings) -> Settings:
    if purpose == "summary":
        return settings_for_summary(settings)
    return settings_for_side_turn(settings) if purpose == "side_turn" else settings


async def _with_outcome(store: Store, call: ModelCall) -> ModelCall:
    """Add the response, as the hooks left it, or the failure. A response whose hooks still run is not shown."""
    after, pending = call.seq, None
    while page := await store.read(call.session, after, _PAGE):
        after = page[-1].seq
        for event in page:
            match event:
                case ModelStarted():
                    return call
                case Responded() if not event.pending:
                    return _answered(call, event, event)
                case Responded():
                    pending = event
                case HooksPassed(point="post_response") if pending is not None:
                    shown = pending if event.message is None else pending.replace(message=event.message)
                    return _answered(call, shown, event).replace(changed_by_hook=event.message is not None)
                case ModelFailed():
                    return call.replace(error=event.error, end_seq=event.seq, ended=event.time)
                case _:
                    pass
    return call


def _answered(call: ModelCall, responded: Responded, event: AnyEvent) -> ModelCall:
    response = response_of(responded)
    return call.replace(response=response, by_hook=responded.by_hook, end_seq=event.seq, ended=responded.time)
