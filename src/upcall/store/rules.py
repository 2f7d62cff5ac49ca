"""What a store makes of an event besides keeping it: a session's listed status, and bodies that are dropped."""

from __future__ import annotations

from typing import Any

from upcall.events import (
    SETTLING,
    AnyEvent,
    CallbackAsked,
    CallbackDelivered,
    CallbackPassed,
    CallbackRaised,
    Compacted,
    HooksPassed,
    Parked,
    Responded,
    SessionAdopted,
    SessionStarted,
    ToolEnded,
    TurnEnded,
    TurnResumed,
    TurnStarted,
)
from upcall.messages import Message, Result

CALLBACK_EVENTS = {CallbackRaised, CallbackAsked, CallbackPassed, CallbackDelivered, *SETTLING}
STATUS: dict[type[Any], str] = {
    SessionStarted: "idle", TurnStarted: "running", TurnResumed: "running", Parked: "waiting",
}  # fmt: skip


def status_after(event: AnyEvent) -> str | None:
    """The session's listed status once this is written, if it changes."""
    if type(event) is HooksPassed and event.point == "begin_session":  # it may have waited
        return "idle"
    return event.status if type(event) is TurnEnded else STATUS.get(type(event))


def without_body(event: AnyEvent) -> AnyEvent:
    """The event without the body that a hook replaced; the fact that it happened stays."""
    match event:
        case ToolEnded():
            return event.replace(result=Result(event.call_id, ""), dropped=True)
        case Responded() | TurnStarted():
            return event.replace(message=Message(event.message.role, ()))
        case _:
            return event


INDEXED_EVENTS = {*STATUS, TurnEnded, HooksPassed, Compacted, SessionAdopted, *CALLBACK_EVENTS}
"""All that is more than kept."""
