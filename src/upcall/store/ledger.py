"""The callbacks beside the log: what each event makes of one, for every kind of store.

May import: callbacks, contracts, events.
"""

from __future__ import annotations

from upcall.callbacks import PRIORITIES
from upcall.contracts import Held
from upcall.events import (
    SETTLING,
    AnyEvent,
    CallbackAnswered,
    CallbackAsked,
    CallbackDelivered,
    CallbackExpired,
    CallbackPassed,
    CallbackRaised,
    CallbackWithdrawn,
)

CALLBACK_EVENTS = {CallbackRaised, CallbackAsked, CallbackPassed, CallbackDelivered, *SETTLING}
_STATUS = {CallbackAnswered: "answered", CallbackExpired: "expired", CallbackWithdrawn: "withdrawn"}


def after(held: Held, event: AnyEvent) -> Held:
    """A callback once this event is written; what comes after it is settled changes nothing but its delivery."""
    match event:
        case CallbackDelivered():
            return held.replace(delivered=True)
        case _ if held.status != "open":
            return held
        case CallbackAsked():
            path = (*held.path, (event.target, "asked", ""))
            expires = event.expires if event.expires is not None else held.raised.expires
            return held.replace(target=event.target, path=path, expires=expires)
        case CallbackPassed():
            step = "reworded" if event.message else "passed"
            path = (*held.path, (event.agent, step, event.reason))
            return held.replace(target="", path=path, message=event.message or held.message)
        case CallbackAnswered() | CallbackExpired() | CallbackWithdrawn():
            return held.replace(status=_STATUS[type(event)], settled=event)
        case _:
            return held


def refusal(held: Held, event: AnyEvent, now: float) -> Held | None:
    """The callback as it is, if this event may no longer settle it."""
    late = held.expires is not None and held.expires <= now and isinstance(event, CallbackAnswered)
    if held.status == "open" and not late:
        return None
    return held.replace(status="expired") if held.status == "open" else held


def rank(held: Held) -> tuple[int, float, int]:
    """The inbox's order: highest priority first, then oldest."""
    raised, words = held.raised, list[str](PRIORITIES)
    return (-words.index(raised.priority), raised.time, raised.pos)


class Ledger:
    """Callbacks in memory."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}

    def note(self, event: AnyEvent, root: str) -> None:
        """Take an event into account."""
        if isinstance(event, CallbackRaised):
            self._held[event.callback_id] = Held(event, root, message=event.message, expires=event.expires)
            return
        held = self._held.get(str(getattr(event, "callback_id", "")))
        if held is not None:
            self._held[held.raised.callback_id] = after(held, event)

    def get(self, callback_id: str) -> Held | None:
        """One callback, or None."""
        return self._held.get(callback_id)

    def is_open(self, callback_id: str) -> bool:
        """Whether it is still open."""
        held = self._held.get(callback_id)
        return held is not None and held.status == "open"

    def refusal(self, callback_id: str, event: AnyEvent, now: float) -> Held | None:
        """The callback as it is, if this event may no longer settle it."""
        return refusal(self._held[callback_id], event, now)

    def find(self, root: str | None, inbox: bool) -> list[Held]:
        """Those of a run tree, or those that wait for a person in the inbox's order."""
        if inbox:
            return sorted((h for h in self._held.values() if h.status == "open" and h.target == "user"), key=rank)
        return [h for h in self._held.values() if root is None or h.root == root]

    def forget(self, session: str) -> None:
        """The session was deleted."""
        self._held = {i: h for i, h in self._held.items() if h.raised.session != session}
