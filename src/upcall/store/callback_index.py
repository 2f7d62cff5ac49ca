"""The callbacks of a store in memory: found by id, by run tree, and in the order of the inbox."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from msgspec.structs import replace

from upcall.callbacks import Held
from upcall.contracts import Selection
from upcall.store.rules import Effects, as_of, callback_changes, matches, rank, reopened, waits_for_person


class CallbackIndex:
    """Callbacks in memory. `update` applies the effects of an append."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._trees: dict[str, list[str]] = {}
        self._parked: dict[str, tuple[str, ...]] = {}  # the callbacks that each parked session waits for
        self._waiting: list[tuple[tuple[int, float, int], str]] = []  # the inbox: rank and id, sorted

    def update(
        self, session: str, root: str, effects: Effects, tags: Mapping[str, str] | None = None
    ) -> list[Held]:
        """Apply the effects of an append to one session; returns the callbacks that changed.

        `root` and `tags` are those of its run tree.
        """
        changed: list[Held] = []
        for callback_id in effects.reopened:
            held = self._held.get(callback_id)
            if held is not None and held.status != "open":
                self._put(callback_id, reopened(held))
        if effects.callbacks:
            events = [event for _, event in effects.callbacks]
            changes = callback_changes(events, self._held.get, root, tags)
            for callback_id, held in changes.raised.items():
                self._put(callback_id, held)
                self._trees.setdefault(root, []).append(callback_id)
            for callback_id, held in changes.changed.items():
                self._put(callback_id, held)
            changed += changes.changed.values()
            for callback_id in changes.delivered:
                if callback_id in self._held:
                    self._held[callback_id] = replace(self._held[callback_id], delivered=True)
        if effects.status is not None:
            self._set_waits(session, effects.waits)
        return changed

    def _put(self, callback_id: str, held: Held) -> None:
        """Store a callback, and keep the inbox sorted."""
        before = self._held.get(callback_id)
        self._held[callback_id] = held
        was_waiting = before is not None and waits_for_person(before)
        if waits_for_person(held) == was_waiting:
            return
        place = (rank(held), callback_id)
        at = bisect_left(self._waiting, place)
        if was_waiting:
            del self._waiting[at]
        else:
            self._waiting.insert(at, place)

    def _set_waits(self, session: str, callback_ids: tuple[str, ...]) -> None:
        """Record the callbacks that a session waits for, in place of those that it waited for before."""
        self._mark(self._parked.pop(session, ()), awaited=False)
        if callback_ids:
            self._parked[session] = callback_ids
            self._mark(callback_ids, awaited=True)

    def _mark(self, callback_ids: Iterable[str], *, awaited: bool) -> None:
        for callback_id in callback_ids:
            if callback_id in self._held:
                self._held[callback_id] = replace(self._held[callback_id], awaited=awaited)

    def get(self, callback_id: str) -> Held | None:
        """One callback, or None."""
        return self._held.get(callback_id)

    def of_tree(self, root: str) -> list[Held]:
        """The callbacks of a run tree, oldest first."""
        return [self._held[i] for i in self._trees.get(root, ())]

    def for_person(self, which: Selection, now: float, limit: int) -> list[Held]:
        """The callbacks for a person that match, in the order of the inbox; without a status the open ones."""
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
        """The next moment after that one at which a callback expires that a parked session waits for."""
        held = [self._held[i] for waits in self._parked.values() for i in waits if i in self._held]
        open_ones = [h.expires for h in held if h.status == "open" and h.expires is not None and h.expires > after]
        return min(open_ones, default=None)

    def forget(self, sessions: Collection[str]) -> None:
        """Remove the callbacks of deleted run trees."""
        for session in sessions:
            self._parked.pop(session, None)
            for callback_id in self._trees.pop(session, ()):
                del self._held[callback_id]
        self._waiting = [(place, i) for place, i in self._waiting if i in self._held]
