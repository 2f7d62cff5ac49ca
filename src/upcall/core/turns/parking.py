"""Know when everything waits, and unwind it then, so that its memory is free."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

R = TypeVar("R")

CANCEL_GRACE = 5.0
"""Seconds to wait for tasks that don't end when they are cancelled."""

_STARTED_AT_ONCE = 50
"""Tasks to start before others on the event loop have their turn."""


class Parking(BaseException):
    """Raised through code that waits for a callback when its run is parked.

    A BaseException, so that `except Exception` in a tool does not swallow it.
    """


class Stopping(BaseException):
    """Carries `error`, which ends the work of this process on a session, through the code of a tool or hook.

    A BaseException, so that `except Exception` around a wait for a child, a side turn or an answer does not take a
    drain or a takeover for a failure of what it waited for.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Activity:
    """Counts what runs in a run tree, or in one of its turns, so that it is known when everything waits.

    What runs in a turn also runs in its `parent`, the tree. `on_start` is called when the first thing starts to
    run, `on_idle` when the last one ends or waits.
    """

    __slots__ = ("_parent", "_waiting", "count", "on_idle", "on_start")

    def __init__(self, parent: Activity | None = None) -> None:
        self._parent = parent
        self._waiting: _Waiting | None = None
        self.count = 0
        self.on_start: Callable[[], None] | None = None
        self.on_idle: Callable[[], None] | None = None

    def running(self) -> AbstractContextManager[None]:
        """Count the block as running: nothing is parked meanwhile."""
        return self

    def waiting(self) -> AbstractContextManager[None]:
        """Count code that runs as waiting during the block."""
        if self._waiting is None:
            self._waiting = _Waiting(self)
        return self._waiting

    def start(
        self, work: Coroutine[Any, Any, R], on_end: Callable[[asyncio.Task[R]], None] | None = None
    ) -> asyncio.Task[R]:
        """Run a coroutine in a task that counts as running until it ends.

        `on_end` is called before the task stops counting, so that code which waits for it can count first.
        """
        self.enter()
        task = asyncio.get_running_loop().create_task(work)

        def ended(done: asyncio.Task[R]) -> None:
            try:
                if on_end is not None:
                    on_end(done)
            finally:
                self.leave()

        task.add_done_callback(ended)
        return task

    async def run_all(self, works: Sequence[Coroutine[Any, Any, R]]) -> list[R]:
        """Run coroutines side by side and return their results in order; the first failure of the list is raised.

        The caller counts as waiting until the last of them has ended. If it is cancelled, they are too. Of very
        many, a few are started at a time: until its first wait, each of them holds the event loop.
        """
        left, all_ended = len(works), asyncio.get_running_loop().create_future()

        def on_end(_: object) -> None:
            nonlocal left
            left -= 1
            if not left and not all_ended.done():
                caller_waits.close()
                all_ended.set_result(None)

        with ExitStack() as caller_waits:
            tasks: list[asyncio.Task[R]] = []
            try:
                for number, work in enumerate(works):
                    if number and number % _STARTED_AT_ONCE == 0:
                        await asyncio.sleep(0)
                    tasks.append(self.start(work, on_end))
                caller_waits.enter_context(self.waiting())
                await all_ended
            except asyncio.CancelledError:
                caller_waits.close()
                for work in works[len(tasks) :]:
                    work.close()
                for task in tasks:
                    task.cancel()
                await asyncio.wait([asyncio.gather(*tasks, return_exceptions=True)], timeout=CANCEL_GRACE)
                raise
        for task in tasks:
            task.exception()  # mark all as retrieved: only the first is raised
        return [task.result() for task in tasks]

    def enter(self) -> None:
        """Count one more that runs; use `running()`, `waiting()` or `start()`."""
        self.count += 1
        if self._parent is not None:
            self._parent.enter()
        if self.count == 1 and self.on_start is not None:
            self.on_start()

    def leave(self) -> None:
        """Count one less; use `running()`, `waiting()` or `start()`."""
        self.count -= 1
        if self.count == 0 and self.on_idle is not None:
            self.on_idle()
        if self._parent is not None:
            self._parent.leave()

    def __enter__(self) -> None:
        self.enter()

    def __exit__(self, *_: object) -> None:
        self.leave()


class _Waiting:
    """The reverse of `Activity.running()`."""

    __slots__ = ("_activity",)

    def __init__(self, activity: Activity) -> None:
        self._activity = activity

    def __enter__(self) -> None:
        self._activity.leave()

    def __exit__(self, *_: object) -> None:
        self._activity.enter()
