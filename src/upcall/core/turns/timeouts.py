"""Many deadlines on one timer, and the guard that stops a call which runs too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

import msgspec


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


class ToolTimeout(msgspec.Struct, eq=False):
    """Cancels a call that runs too long; tells its own cancelling from that of others. Waiting is no running."""

    task: asyncio.Task[Any]
    deadlines: Deadlines
    scoped: bool
    left: float | None = None
    is_expired: bool = False
    is_parked: bool = False

    def start(self, seconds: float) -> None:
        """Let it run so long."""
        self.deadlines.add(self, seconds, self._expire)

    def pause(self) -> None:
        """It waits for somebody: no time is counted."""
        self.left = self.deadlines.left(self)
        self.deadlines.drop(self)

    def resume(self) -> None:
        """It runs again, for what was left."""
        if self.left is not None:
            self.start(max(0.0, self.left))

    def stop(self) -> None:
        """It has ended."""
        self.deadlines.drop(self)
        if self.is_parked:
            self.task.uncancel()

    def park(self) -> None:
        """A question is left waiting: where a task of the call's own asked it, the tasks beside it end too."""
        if self.scoped and not self.is_parked and self.task is not asyncio.current_task():
            self.is_parked = True
            self.task.cancel()

    def cancelled_to_park(self) -> bool:
        """Whether it is being cancelled because it parks, and for nothing else."""
        return self.is_parked and self.task.cancelling() == 1

    def _expire(self) -> None:
        self.is_expired = True
        self.task.cancel()

    def timed_out(self) -> bool:
        """Whether it was this guard, and nobody else, that cancelled."""
        return self.is_expired and self.task.uncancel() == 0
