"""Which calls, steps, turns and sessions wait, and which run.

A call waits while a callback of its own is open. Whatever started others waits while all of these wait: a turn
waits when all its open calls do, and a call that delegated waits with its child.
"""

from __future__ import annotations

from upcall.observe.node_table import NodeTable

_MOVING = ("running", "waiting")


class Work:
    """One call, step or turn that is not over."""

    __slots__ = ("callbacks", "id", "open", "over", "parent", "session", "waiting", "waits")

    def __init__(self, node_id: str, parent: Work | None, session: str) -> None:
        self.id, self.parent, self.session = node_id, parent, session
        self.open = self.waiting = self.callbacks = (
            0  # works below that are not over, those that wait; open callbacks
        )
        self.waits = self.over = False


class Activity:
    """Keeps the status of works, and of the sessions whose turns they are, up to date."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._works: dict[str, Work] = {}

    def begin(self, node_id: str, parent: str | None, session: str = "") -> None:
        """Begin a work, or begin it again. `session`: the node of the session whose turn it is."""
        work = self._works.get(node_id)
        if work is not None and not work.over:
            return
        above = self._works.get(parent) if parent is not None else None
        self._works[node_id] = Work(node_id, above, session)
        if above is not None:
            above.open += 1
            self._update(above)

    def end(self, node_id: str) -> None:
        """End a work, with whatever is below it."""
        work = self._works.pop(node_id, None)
        if work is None or work.over:
            return
        work.over = True
        if work.parent is not None:
            work.parent.open -= 1
            work.parent.waiting -= work.waits
            self._update(work.parent)

    def ask(self, node_id: str, count: int) -> None:
        """A callback of the work was raised (1) or settled (-1)."""
        work = self._works.get(node_id)
        if work is not None:
            work.callbacks = max(work.callbacks + count, 0)
            self._update(work)

    def __contains__(self, node_id: str) -> bool:
        return node_id in self._works

    def _update(self, work: Work | None) -> None:
        """Set the status of a work, and of those above it as far as theirs changes."""
        while work is not None and not work.over:
            waits = work.callbacks > 0 or (work.open > 0 and work.waiting >= work.open)
            if waits == work.waits:
                return
            work.waits = waits
            for node_id in (work.id, work.session):
                if node_id and self._table.get(node_id, "status") in _MOVING:
                    self._table.set(node_id, status="waiting" if waits else "running")
            if work.parent is not None:
                work.parent.waiting += 1 if waits else -1
            work = work.parent
