"""Threads for what would block the event loop: made when none is idle, kept for the next piece of work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

R = TypeVar("R")


class Threads:
    """As many as run at once. The program does not wait for them when it ends: one may never end."""

    __slots__ = ("_idle", "_made", "_work")

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = self._made = 0

    def run(self, work: Callable[[], R]) -> asyncio.Future[R]:
        """Run a function in a thread; the future has its outcome. Twice as fast as an executor. Event loop only."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[R] = loop.create_future()

        def tell(settle: Callable[[Any], None], outcome: Any) -> None:
            self._idle += 1
            if not ended.done():  # else who waited was cancelled
                settle(outcome)

        def here() -> None:
            try:
                outcome, settle = work(), ended.set_result
            except StopIteration as error:  # no future takes one
                outcome, settle = RuntimeError(repr(error)), ended.set_exception
            except BaseException as error:
                outcome, settle = error, ended.set_exception
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(tell, settle, outcome)
            del outcome  # an error holds this frame, which would hold it

        if self._idle:
            self._idle -= 1
        else:
            Thread(target=_serve, args=(self._work,), name="upcall-tool", daemon=True).start()
            self._made += 1
        self._work.put(here)
        return ended

    def close(self) -> None:
        """Let every thread end once it is idle."""
        for _ in range(self._made):
            self._work.put(None)


def _serve(work: SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := work.get()) is not None:
        job()
        del job  # what it holds need not live until the next one comes
