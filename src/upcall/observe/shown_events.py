"""Events as they may be shown: redacted, and without what hooks have not passed yet."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from typing import Any

from upcall.contracts import Store
from upcall.events import AnyEvent, HooksPassed, Responded, ToolEnded, TurnEnded, WireCaptured
from upcall.observe.redact import Redactor

_LOOK_AHEAD, _FEW = 200, 10

Passed = set[tuple[str, str, str]]
"""Session, hook point and occurrence of what hooks have passed."""


def passed_in(events: Iterable[AnyEvent]) -> Passed:
    """What hooks passed in these events."""
    return {(one.session, one.point, one.at) for one in events if isinstance(one, HooksPassed)}


def is_held_back(event: AnyEvent, passed: Passed) -> bool:
    """Tell whether hooks may still replace the event's body, so that nobody may see it."""
    key = _pending_key(event)
    return key is not None and key not in passed


def shown_event(event: AnyEvent, redactor: Redactor, passed: Passed) -> dict[str, Any]:
    """The JSON object of an event: session, seq, time, type, then its own fields as they may be shown."""
    if is_held_back(event, passed) or isinstance(event, WireCaptured):
        event = _without_body(event)
    head = {"session": event.session, "seq": event.seq, "time": event.time, "type": event.type}
    return head | redactor.show(event)


async def shown_events(store: Store, events: Sequence[AnyEvent], redactor: Redactor) -> list[dict[str, Any]]:
    """Stored events as they may be shown; for pending bodies the log is asked whether hooks have passed them."""
    passed = passed_in(events)
    for event in events:
        if is_held_back(event, passed):
            passed |= passed_in(await store.read(event.session, event.seq, _LOOK_AHEAD))
    return [shown_event(event, redactor, passed) for event in events]


async def passed_events(
    store: Store, events: AsyncIterable[AnyEvent], redactor: Redactor
) -> AsyncIterator[AnyEvent]:
    """Yield events as they may be shown. What hooks have not passed when an event is read has no body."""
    async for event in events:
        held = is_held_back(event, set()) and not await _has_passed(store, event)
        if held or isinstance(event, WireCaptured):
            event = _without_body(event)
        yield redactor.copy(event)


async def _has_passed(store: Store, event: AnyEvent) -> bool:
    """Tell whether hooks have passed an event's body unchanged."""
    after, count = event.seq, _FEW
    while page := await store.read(event.session, after, count):
        for one in page:
            if isinstance(one, HooksPassed) and not is_held_back(event, passed_in([one])):
                return not _replaces(one)
        after, count = page[-1].seq, _LOOK_AHEAD
    return False


def _replaces(event: HooksPassed) -> bool:
    return event.result is not None or event.message is not None


class HeldBack:
    """Holds events back whose body hooks may still replace, for those who write events down as they happen."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str, str], AnyEvent] = {}

    def take(self, event: AnyEvent) -> list[AnyEvent]:
        """Return what can be written now: the event, after those that were held back for it."""
        if (key := _pending_key(event)) is not None:
            self._held[key] = event
            return []
        if isinstance(event, HooksPassed):
            held = self._held.pop((event.session, event.point, event.at), None)
            if held is not None:
                return [_without_body(held) if _replaces(event) else held, event]
        elif isinstance(event, TurnEnded) and self._held:
            return [*self.rest(event.session), event]
        return [_without_body(event) if isinstance(event, WireCaptured) else event]

    def rest(self, session: str = "") -> list[AnyEvent]:
        """Return what is still held back, without its body; with `session`, only that of one session."""
        found = [key for key in self._held if not session or key[0] == session]
        return [_without_body(self._held.pop(key)) for key in found]


def _pending_key(event: AnyEvent) -> tuple[str, str, str] | None:
    if isinstance(event, ToolEnded) and event.pending:
        return event.session, "after_tool", event.call_id
    if isinstance(event, Responded) and event.pending:
        return event.session, "post_response", str(event.ordinal)
    return None


def _without_body(event: AnyEvent) -> AnyEvent:
    if isinstance(event, ToolEnded):
        return event.replace(result=event.result.replace(text="", json=None, images=()))
    if isinstance(event, Responded):
        return event.replace(message=event.message.replace(parts=()))
    if isinstance(event, WireCaptured):  # a part of a body can't be redacted; `model_call_json` shows the whole
        return event.replace(exchanges=tuple([one.replace(body="", response="") for one in event.exchanges]))
    return event
