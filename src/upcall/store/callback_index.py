"""The callbacks beside the log: what each event makes of one, for every kind of store."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Any

from msgspec.structs import replace

from upcall.callbacks import PRIORITIES, Held
from upcall.contracts import Selection
from upcall.events import ANSWERING, AnyEvent, CallbackRaised, Parked, SessionAdopted
from upcall.store.rules import CALLBACK_EVENTS, status_after

_RANKS = {word: -place for place, word in enumerate(PRIORITIES)}


def after(held: Held, event: AnyEvent) -> Held:
    """A callback once this event is written."""
    now = replace(held)
    now.take(event)
    return now


def as_of(held: Held, now: float) -> Held:
    """A callback as it is at that moment: an open one whose time is up has expired."""
    late = held.status == "open" and held.expires is not None and held.expires <= now
    return replace(held, status="expired") if late else held


def refusal(held: Held, event: AnyEvent, now: float) -> Held | None:
    """The callback as it is, if this event may no longer settle it."""
    is_now = as_of(held, now) if isinstance(event, ANSWERING) else held
    return None if is_now.status == "open" else is_now


def rank(held: Held) -> tuple[int, float, int]:
    """The inbox's order: highest priority first, then oldest."""
    raised = held.raised
    return (_RANKS.get(raised.priority, _RANKS["normal"]), raised.time, raised.pos)


class CallbackIndex:
    """Callbacks in memory, found by id, by run tree, and in the inbox's order."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._trees: dict[str, list[str]] = {}
        self._parked: dict[str, tuple[str, ...]] = {}  # what each parked session waits for
        self._waiting: list[tuple[tuple[int, float, int], str]] = []  # open ones that a person is asked, by rank

    def note(self, event: Any, root: str, tags: Mapping[str, str] | None = None) -> None:
        """Take an event into account: one of a callback, or one that changes its session's status.

        `tags` are those of its run tree.
        """
        if type(event) not in CALLBACK_EVENTS:
            if isinstance(event, SessionAdopted):
                self._reopen(event.reopened)
            if status_after(event) is not None:
                self._note_status(event)
            return
        callback_id: str = event.callback_id
        if type(event) is CallbackRaised:
            self._held[callback_id] = Held(
                event, root, message=event.message, expires=event.expires, tags=tags or {}
            )
            self._trees.setdefault(root, []).append(callback_id)
            return
        held = self._held.get(callback_id)
        if held is None:
            return
        now = self._held[callback_id] = after(held, event)
        if held.status == "open" and waits(now) != waits(held):
            place = (rank(now), callback_id)
            at = bisect_left(self._waiting, place)
            if waits(now):
                self._waiting.insert(at, place)
            else:
                del self._waiting[at]

    def _reopen(self, callback_ids: Iterable[str]) -> None:
        for callback_id in callback_ids:
            held = self._held.get(callback_id)
            if held is not None and held.status != "open":
                now = self._held[callback_id] = replace(held)
                now.reopen()
                place = (rank(now), callback_id)
                self._waiting.insert(bisect_left(self._waiting, place), place)

    def _note_status(self, event: AnyEvent) -> None:
        """Keep `awaited` true: set by a park for what it waits for, cleared when its session continues or ends."""
        self._mark(self._parked.pop(event.session, ()), awaited=False)
        if type(event) is Parked and event.waits:
            self._parked[event.session] = event.waits
            self._mark(event.waits, awaited=True)

    def _mark(self, callback_ids: Iterable[str], *, awaited: bool) -> None:
        for callback_id in callback_ids:
            if callback_id in self._held:
                self._held[callback_id] = replace(self._held[callback_id], awaited=awaited)

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

    def of_tree(self, root: str) -> list[Held]:
        """Those of a run tree, oldest first."""
        return [self._held[i] for i in self._trees.get(root, ())]

    def for_person(self, which: Selection, now: float, limit: int) -> list[Held]:
        """Those for a person that match, in the inbox's order; without a status those that wait."""
        status = which.status or "open"
        if status == "open":
            listed = [self._held[i] for _, i in self._waiting]
        else:
            listed = sorted((h for h in self._held.values() if h.target == "user"), key=rank)
        found = (
            held
            for held in (as_of(one, now) for one in listed)
            if held.status == status and matches(which, held.raised.session, held.raised.agent, held.tags)
        )
        return list(islice(found, limit))

    def next_deadline(self, after: float) -> float | None:
        """When the next callback that a parked session waits for expires, after that moment."""
        held = [self._held[i] for waits in self._parked.values() for i in waits if i in self._held]
        open_ones = [h.expires for h in held if h.status == "open" and h.expires is not None and h.expires > after]
        return min(open_ones, default=None)

    def forget(self, sessions: Collection[str]) -> None:
        """Whole run trees were deleted."""
        for session in sessions:
            self._parked.pop(session, None)
            for callback_id in self._trees.pop(session, ()):
                del self._held[callback_id]
        self._waiting = [(place, i) for place, i in self._waiting if i in self._held]


def matches(which: Selection, session: str, agent: str, tags: Mapping[str, str]) -> bool:
    """Tell whether a session is one of those that are selected, whatever it is doing."""
    if which.session is not None and not f"{session}~".startswith(f"{which.session}~"):
        return False
    return (which.agent is None or agent == which.agent) and which.tags.items() <= tags.items()


def waits(held: Held) -> bool:
    """Whether it waits for a person."""
    return held.status == "open" and held.target == "user"
