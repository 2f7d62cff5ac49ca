"""An index of callbacks in memory: by id, by run tree, and in the order of the inbox."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from msgspec.structs import replace

from upcall.callbacks import Callback, reopened
from upcall.contracts import Selection
from upcall.store.rules import Effects, as_of, callback_changes, matches, rank, waits_for_person


class CallbackIndex:
    """Callbacks in memory. `update` applies the effects of an append."""

    def __init__(self) -> None:
        self._by_id: dict[str, Callback] = {}
        self._trees: dict[str, list[str]] = {}
        self._parked: dict[str, tuple[str, ...]] = {}  # the callbacks that each parked session waits for
        self._waiting: list[tuple[tuple[int, float, int], str]] = []  # the inbox: rank and id, sorted

    def update(
        self, session: str, root: str, effects: Effects, tags: Mapping[str, str] | None = None
    ) -> list[Callback]:
        """Apply the effects of an append to one session; returns the callbacks that changed.

        `root` and `tags` are those of its run tree.
        """
        changed: list[Callback] = []
        for callback_id in effects.reopened:
            callback = self._by_id.get(callback_id)
            if callback is not None and callback.status != "open":
                self._put(callback_id, reopened(callback))
        if effects.callbacks:
            events = [event for _, event in effects.callbacks]
            changes = callback_changes(events, self._by_id.get, root, tags)
            for callback_id, callback in changes.raised.items():
                self._put(callback_id, callback)
                self._trees.setdefault(root, []).append(callback_id)
            for callback_id, callback in changes.changed.items():
                self._put(callback_id, callback)
            changed += changes.changed.values()
            for callback_id in changes.delivered:
                if callback_id in self._by_id:
                    self._by_id[callback_id] = replace(self._by_id[callback_id], delivered=True)
        if effects.status is not None:
            self._set_waits(session, effects.waits)
        return changed

    def _put(self, callback_id: str, callback: Callback) -> None:
        """Store a callback, and keep the inbox sorted."""
        before = self._by_id.get(callback_id)
        self._by_id[callback_id] = callback
        was_waiting = before is not None and waits_for_person(before)
        if waits_for_person(callback) == was_waiting:
            return
        place = (rank(callback), callback_id)
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
            if callback_id in self._by_id:
                self._by_id[callback_id] = replace(self._by_id[callback_id], awaited=awaited)

    def get(self, callback_id: str) -> Callback | None:
        """Return one callback, or None."""
        return self._by_id.get(callback_id)

    def of_tree(self, root: str) -> list[Callback]:
        """Return the callbacks of a run tree, oldest first."""
        return [self._by_id[i] for i in self._trees.get(root, ())]

    def for_person(self, which: Selection, now: float, limit: int) -> list[Callback]:
        """Return the callbacks for a person that match, in the inbox's order; without a status the open ones."""
        status = which.status or "open"
        if status == "open":
            listed = [self._by_id[i] for _, i in self._waiting]
        else:
            listed = sorted((one for one in self._by_id.values() if one.target == "user"), key=rank)
        found = (
            callback
            for callback in (as_of(one, now) for one in listed)
            if callback.status == status and matches(which, callback.session_id, callback.agent, callback.tags)
        )
        return list(islice(found, limit))

    def next_deadline(self, after: float) -> float | None:
        """Return the first time after `after` at which a callback of a parked session expires, or None."""
        waiting = [self._by_id[i] for waits in self._parked.values() for i in waits if i in self._by_id]
        moments = [one.expires for one in waiting if one.status == "open" and one.expires is not None]
        return min([moment for moment in moments if moment > after], default=None)

    def forget(self, sessions: Collection[str]) -> None:
        """Remove the callbacks of deleted run trees."""
        for session in sessions:
            self._parked.pop(session, None)
            for callback_id in self._trees.pop(session, ()):
                del self._by_id[callback_id]
        self._waiting = [(place, i) for place, i in self._waiting if i in self._by_id]
