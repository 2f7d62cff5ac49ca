"""Many deadlines on one timer, and the guard that stops a call which runs too long.

May import: nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any


class Deadlines:
    """Many deadlines on one timer: a turn or a call that ends in time costs two dict operations."""

    __slots__ = ("_due", "_next", "_timer")

    def __init__(self) -> None:
        self._due: dict[object, tuple[float, Callable[[], None]]] = {}
        self._next = float("inf")
        self._timer: asyncio.TimerHandle | None = None

    def add(self, key: object, seconds: float, expire: Callable[[], None]) -> None:
        """Call `expire` after so many seconds, unless it is dropped before."""
        when = monotonic() + seconds
        self._due[key] = (when, expire)
        if when < self._next:
            self._arm(when)

    def drop(self, key: object) -> None:
        """It is no longer needed."""
        self._due.pop(key, None)

    def left(self, key: object) -> float | None:
        """The seconds that are left of it."""
        found = self._due.get(key)
        return None if found is None else found[0] - monotonic()

    def _arm(self, when: float) -> None:
        self.close()
        self._next = when
        self._timer = asyncio.get_running_loop().call_later(when - monotonic(), self._fire)

    def _fire(self) -> None:
        now = monotonic()
        for key, (when, expire) in tuple(self._due.items()):
            if when <= now:
                del self._due[key]
                expire()
        self.close()
        if self._due:
            self._arm(min(when for when, _ in self._due.values()))

    def close(self) -> None:
        """Stop the timer."""
        self._next = float("inf")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Guard:
    """Cancels a call that runs too long; tells its own cancelling from that of others. Waiting is no running."""

    __slots__ = ("_deadlines", "_expired", "_left", "_parked", "_scoped", "_task")

    def __init__(self, task: asyncio.Task[Any], deadlines: Deadlines, scoped: bool) -> None:
        self._task, self._deadlines, self._scoped = task, deadlines, scoped
        self._expired, self._left, self._parked = False, None, False

    def start(self, seconds: float) -> None:
        """Let it run so long."""
        self._deadlines.add(self, seconds, self._expire)

    def pause(self) -> None:
        """It waits for somebody: no time is counted."""
        self._left = self._deadlines.left(self)
        self._deadlines.drop(self)

    def go_on(self) -> None:
        """It runs again, for what was left."""
        if self._left is not None:
            self.start(max(0.0, self._left))

    def stop(self) -> None:
        """It has ended."""
        self._deadlines.drop(self)
        if self._parked:
            self._task.uncancel()

    def park(self) -> None:
        """A question is left waiting: where a task of the call's own asked it, the tasks beside it end too."""
        if self._scoped and not self._parked and self._task is not asyncio.current_task():
            self._parked = True
            self._task.cancel()

    def parked(self) -> bool:
        """Whether it is being cancelled because it parks, and for nothing else."""
        return self._parked and self._task.cancelling() == 1

    def _expire(self) -> None:
        self._expired = True
        self._task.cancel()

    def caught(self) -> bool:
        """Whether it was this guard, and nobody else, that cancelled."""
        return self._expired and self._task.uncancel() == 0
