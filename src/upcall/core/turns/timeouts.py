"""The time-outs of turns and tool calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from math import inf
from typing import Any

import msgspec

LOOK_PAUSE = 0.01
"""Seconds between two looks at all deadlines, so that many which expire one after the other cost little."""


class Deadlines:
    """The deadlines of a runtime's turns and calls, on one timer of the loop.

    A deadline is set and dropped often and reached rarely. So the timer is set again only for a deadline that comes
    before its next look.
    """

    __slots__ = ("_due", "_loop", "_next_look", "_timer")

    def __init__(self) -> None:
        self._due: dict[object, tuple[float, Callable[[], None]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next_look = inf

    def set(self, key: object, seconds: float, expire: Callable[[], None]) -> None:
        """Call `expire` after so many seconds, unless the key is dropped before."""
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        self._due[key] = (when, expire)
        if when < self._next_look or loop is not self._loop:  # a runtime may be used in one loop after another
            self._look_at(when, loop)

    def drop(self, key: object) -> None:
        """Forget a deadline, if there is one."""
        self._due.pop(key, None)

    def left(self, key: object) -> float | None:
        """Return the seconds that are left, or None if there is no such deadline."""
        found = self._due.get(key)
        return None if found is None else found[0] - asyncio.get_running_loop().time()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._next_look = None, inf

    def _look_at(self, when: float, loop: asyncio.AbstractEventLoop) -> None:
        self.close()
        self._loop, self._next_look = loop, when
        # with a context of its own: the timer would keep the variables of the turn that happened to set it
        self._timer = loop.call_at(when, self._look, loop, context=Context())

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Call what is due, and set the timer for what is left."""
        now = loop.time()
        for key in [key for key, (when, _) in self._due.items() if when <= now]:
            _, expire = self._due.pop(key)
            expire()
        self.close()
        if self._due:
            self._look_at(max(now + LOOK_PAUSE, min(when for when, _ in self._due.values())), loop)


class ToolTimeout(msgspec.Struct, eq=False):
    """Cancels a call that runs too long, and tells its own cancelling from that of others.

    Time in which the call waits for somebody does not count.
    """

    tool: str
    task: asyncio.Task[Any]
    deadlines: Deadlines
    scoped: bool
    seconds: float | None = None
    left: float | None = None
    is_expired: bool = False
    is_parked: bool = False
    is_stopped: bool = False
    has_waited: bool = False
    is_cut: bool = False
    """The call was cancelled: a thread of it may still run, and a task that caught the exception."""

    def begin(self, seconds: float, ran: float) -> None:
        """Let the call run so long in all its attempts; it has run for `ran` seconds before."""
        self.seconds = seconds
        self.deadlines.set(self, seconds - ran, self._expire)

    def pause(self) -> None:
        """Count no time: the call waits for somebody."""
        self.has_waited = True
        left = self.deadlines.left(self)
        if left is not None:
            self.left = left
            self.deadlines.drop(self)

    def resume(self) -> None:
        """Let the call run for the time that was left."""
        if self.left is not None:
            self.deadlines.set(self, max(0.0, self.left), self._expire)
            self.left = None

    def ran(self) -> float:
        """The seconds that the call has run, in all its attempts; 0.0 if its time is not limited."""
        if self.seconds is None:
            return 0.0
        left = self.left if self.left is not None else self.deadlines.left(self)
        return round(self.seconds - max(0.0, left or 0.0), 3)

    def stop(self) -> float:
        """Note that the call has ended; return how long a call that waited has run.

        A task that it left behind neither starts its time again nor parks it.
        """
        ran = self.ran() if self.has_waited else 0.0
        self.is_stopped, self.left = True, None
        self.deadlines.drop(self)
        if self.is_parked:
            self.task.uncancel()
        return ran

    def park(self) -> None:
        """Note that a question is left waiting; where a task of the call asked it, the tasks beside it end too."""
        if self.scoped and not (self.is_parked or self.is_stopped) and self.task is not asyncio.current_task():
            self.is_parked = True
            self.task.cancel()

    def cancelled_to_park(self) -> bool:
        """Tell whether the call is being cancelled because it parks, and for nothing else."""
        return self.is_parked and self.task.cancelling() == 1

    def take_back_cancel(self) -> bool:
        """Undo the cancel of a time-out; return whether the time-out, and nobody else, cancelled the call."""
        return self.is_expired and self.task.uncancel() == 0

    def _expire(self) -> None:
        self.is_expired = True
        self.task.cancel()
