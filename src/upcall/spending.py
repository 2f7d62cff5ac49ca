"""What a whole run tree has used so far: from the log, and from those of its sessions that run.

May import: contracts, fold, replay.
"""

from __future__ import annotations

from collections.abc import Iterable

from upcall.contracts import Spent, Store
from upcall.fold import State
from upcall.replay import load_state


class Spending:
    """What each session of a run tree has used in all its turns; those that run are asked each time."""

    __slots__ = ("_each", "_loaded", "_store", "running")

    def __init__(self, store: Store, running: Iterable[State], loaded: bool = False) -> None:
        self._store, self._loaded = store, loaded
        self._each: dict[str, Spent] = {}
        self.running = {state.id: state for state in running}

    def end(self, state: State) -> None:
        """Remember a session that no longer runs."""
        self.running.pop(state.id, None)
        self._each[state.id] = self._spent(state)

    async def total(self, root: str) -> Spent:
        """What all of them have used; those that have not run here are looked up in the log once."""
        above = [] if self._loaded else [root]
        while above:
            for row in await self._store.rows(parent=above.pop(), limit=1_000_000):
                state = await load_state(self._store, row.id)
                if state is not None:
                    self._each.setdefault(row.id, self._spent(state))  # what ended here meanwhile is known better
                    above.append(row.id)
        self._loaded = True
        if not self._each and len(self.running) == 1:
            return self._spent(*self.running.values())
        each = self._each | {name: self._spent(state) for name, state in self.running.items()}
        return sum(each.values(), Spent())

    def _spent(self, state: State) -> Spent:
        calls, seconds = state.before
        return Spent(calls + state.model_calls, state.used, seconds + state.running_seconds(self._store.now()))
