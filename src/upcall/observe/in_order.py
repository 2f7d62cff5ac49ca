"""Work that is done in the order in which it is given, the heavy part of it away from the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

_MOST_HEAVY, _MOST_WAITING = 100, 10_000
"""Pieces of work that wait for the thread: the heavy ones, and all of them."""


class InOrder:
    """Does pieces of work one after the other.

    A heavy piece is done by a thread, and so is what comes after it until the thread has nothing left to do. All
    other pieces are done at once. So two pieces never run at the same time.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: ThreadPoolExecutor | None = None
        self._waiting: deque[tuple[Future[None], bool]] = deque()
        self._heavy = 0

    def do(self, work: Callable[[], None], *, heavy: bool) -> None:
        """Do a piece of work. What a piece raised in the thread is raised by a later call."""
        while self._waiting and (self._waiting[0][0].done() or self._is_full()):
            self._drop_first().result()
        if self._waiting or heavy:
            self._submit(work, heavy)
        else:
            work()

    async def wait_for(self, work: Callable[[], None]) -> None:
        """Do a heavy piece of work, and return when it is done."""
        await asyncio.shield(asyncio.wrap_future(self._submit(work, True)))

    async def settle(self) -> None:
        """Return when everything is done that was given to it."""
        while self._waiting:
            first = self._waiting[0][0]
            try:
                await asyncio.shield(asyncio.wrap_future(first))  # it runs whether or not somebody still waits
            finally:
                if first.done() and self._waiting and self._waiting[0][0] is first:
                    self._drop_first()

    def close(self) -> None:
        """Wait until everything is done, and end the thread."""
        if self._thread is not None:
            self._thread.shutdown()

    def _submit(self, work: Callable[[], None], heavy: bool) -> Future[None]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, self._name)
        future = self._thread.submit(work)
        self._waiting.append((future, heavy))
        self._heavy += heavy
        return future

    def _is_full(self) -> bool:
        return self._heavy >= _MOST_HEAVY or len(self._waiting) >= _MOST_WAITING

    def _drop_first(self) -> Future[None]:
        future, heavy = self._waiting.popleft()
        self._heavy -= heavy
        return future
