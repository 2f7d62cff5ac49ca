"""What a whole run tree has used so far: from the log, and from those of its sessions that run."""

from __future__ import annotations

import msgspec

from upcall.contracts import Spent, Store
from upcall.fold import State
from upcall.replay import load_state


class Spending(msgspec.Struct, eq=False):
    """What each session of a run tree has used in all its turns; those that run are asked each time.

    `loaded`: there are no others, or they have been looked up.
    """

    store: Store
    running: dict[str, State]
    loaded: bool = False
    ended: dict[str, Spent] = {}

    def end(self, state: State) -> None:
        """Remember a session that no longer runs."""
        self.running.pop(state.id, None)
        self.ended[state.id] = self._spent(state)

    async def total(self, root: str) -> Spent:
        """What all of them have used; those that have not run here are looked up in the log once."""
        above = [] if self.loaded else [root]
        if above and root not in self.running:  # a child was prompted by its own id
            state = await load_state(self.store, root)
            if state is not None:
                self.ended.setdefault(root, self._spent(state))
        while above:
            for row in await self.store.rows(parent=above.pop(), limit=1_000_000):
                state = await load_state(self.store, row.id)
                if state is not None:
                    self.ended.setdefault(row.id, self._spent(state))  # what ended here meanwhile is known better
                    above.append(row.id)
        self.loaded = True
        if not self.ended and len(self.running) == 1 and root in self.running:
            return self._spent(self.running[root])
        each = self.ended | {name: self._spent(state) for name, state in self.running.items()}
        return sum(each.values(), Spent())

    def _spent(self, state: State) -> Spent:
        calls, seconds = state.before
        return Spent(calls + state.model_calls, state.used, seconds + state.running_seconds(self.store.now()))
