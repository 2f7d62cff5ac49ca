"""What a whole run tree has used so far: from the log, and from those of its sessions that run.

May import: contracts, fold, replay.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from upcall.contracts import Spent, Store
from upcall.fold import State
from upcall.replay import load_state


class Spending:
    """What each session of a run tree has used in all its turns; those that run are asked each time."""

    __slots__ = ("_each", "_store")

    def __init__(self, store: Store) -> None:
        self._store = store
        self._each: dict[str, Spent] = {}

    @classmethod
    async def of(cls, store: Store, root: str) -> Self:
        """What the log says of all sessions below one."""
        made, above = cls(store), [root]
        while above:
            for row in await store.rows(parent=above.pop(), limit=1_000_000):
                state = await load_state(store, row.id)
                if state is not None:
                    made.note(state)
                    above.append(row.id)
        return made

    def note(self, state: State) -> None:
        """Remember a session as it is now."""
        self._each[state.id] = self._spent(state)

    def total(self, running: Iterable[State]) -> Spent:
        """All together."""
        spent = [(state.id, self._spent(state)) for state in running]
        if not self._each and len(spent) == 1:
            return spent[0][1]
        return sum((self._each | dict(spent)).values(), Spent())

    def _spent(self, state: State) -> Spent:
        calls, seconds = state.before
        now = self._store.now() if state.since else 0.0
        return Spent(calls + state.model_calls, state.used, seconds + state.running_seconds(now))
