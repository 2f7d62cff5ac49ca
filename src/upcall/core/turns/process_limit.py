"""Limit how many processes a runtime has at once: commands of `shell` and interpreters of `run_python`.

A slot is held while code runs. What waits for a callback, a tool or a child rests: its slot is taken from it as
soon as somebody else needs one, so that nothing waits for what itself waits.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Literal

from upcall.core.turns.timeouts import ToolTimeout
from upcall.errors import SetupError

_FEWEST, _MOST = 4, 16


class ProcessLimit:
    """The slots of one runtime: twice as many as processors by default, at least 4 and at most 16."""

    def __init__(self, most: int | None = None) -> None:
        if most is None:
            most = max(_FEWEST, min(_MOST, 2 * (os.cpu_count() or 1)))
        if type(most) is not int or most < 1:
            raise SetupError(f"Runtime(processes={most!r}): give a whole number of at least 1")
        self.most = self._free = most
        self.commands = 0  # commands of `shell` that run now
        self.adopts = False  # this process is a subreaper for their sake
        self._queue: deque[asyncio.Future[None]] = deque()
        self._resting: dict[ProcessSlot, None] = {}

    def slot(self, guard: ToolTimeout | None, suspend: Callable[[], Awaitable[None]] | None = None) -> ProcessSlot:
        """A slot that is not taken yet.

        guard: counts no time while the slot is waited for
        suspend: ends a process that rests; without it the slot is kept until it is left
        """
        return ProcessSlot(self, guard, suspend)

    async def acquire(self) -> None:
        """Return when a slot is free, first come first served."""
        if self._free:
            self._free -= 1
            return
        free = asyncio.get_running_loop().create_future()
        self._queue.append(free)
        self.reclaim()
        try:
            await free
        except asyncio.CancelledError:
            if free.done() and not free.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """Give a slot to the next one who waits."""
        while self._queue:
            free = self._queue.popleft()
            if not free.done():
                free.set_result(None)
                return
        self._free += 1

    def rest(self, slot: ProcessSlot) -> None:
        """Let others have a slot if they need it."""
        self._resting[slot] = None
        self.reclaim()

    def wake(self, slot: ProcessSlot) -> bool:
        """True where a slot that rested still has its process."""
        if slot not in self._resting:
            return False
        del self._resting[slot]
        return True

    def reclaim(self) -> None:
        """Take a slot from one that rests, if somebody waits for one."""
        waiting = sum(not free.done() for free in self._queue)
        for slot in [*self._resting][:waiting]:
            del self._resting[slot]
            slot.start_suspending()


class ProcessSlot:
    """The slot of one process: free, taken, or resting."""

    def __init__(
        self, limit: ProcessLimit, guard: ToolTimeout | None, suspend: Callable[[], Awaitable[None]] | None
    ) -> None:
        self._limit, self._guard, self._suspend = limit, guard, suspend
        self._state: Literal["free", "taken", "resting"] = "free"
        self._suspending: asyncio.Task[None] | None = None

    async def take(self) -> None:
        """Return when the process may run."""
        if self._state == "resting" and self._limit.wake(self):
            self._state = "taken"
        if self._state == "taken":
            return
        if self._guard is not None:
            self._guard.pause()
        try:
            await self._suspended()
            await self._limit.acquire()
            self._state = "taken"
        finally:
            if self._guard is not None:
                self._guard.resume()

    def rest(self) -> None:
        """Keep the process, unless somebody else needs its slot."""
        if self._state == "taken" and self._suspend is not None:
            self._state = "resting"
            self._limit.rest(self)

    def start_suspending(self) -> None:
        """End the process in favour of another one."""
        self._state = "free"
        self._suspending = asyncio.ensure_future(self._give_up())

    async def _give_up(self) -> None:
        try:
            if self._suspend is not None:
                await self._suspend()
        finally:
            self._limit.release()

    async def _suspended(self) -> None:
        if self._suspending is not None:
            await asyncio.wait([self._suspending])
            self._suspending.result()
            self._suspending = None

    async def leave(self, end: Callable[[], Awaitable[None]] | None = None) -> None:
        """End the process for good, and give the slot to others."""
        held = self._state == "taken" or (self._state == "resting" and self._limit.wake(self))
        self._state = "free"
        try:
            if self._suspending is not None:
                await asyncio.wait([self._suspending])
            if end is not None:
                await end()
        finally:
            if held:
                self._limit.release()
