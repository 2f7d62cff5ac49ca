"""Read the log beside the event loop.

A page of events takes milliseconds to read, fold, redact and encode, and a run tree has many pages. So a thread
with an event loop and a connection of its own does that. A log that can't be opened twice, such as one in memory,
is read on the service's own loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from upcall.app import Runtime
from upcall.contracts import Store
from upcall.errors import RuntimeClosed
from upcall.events import prepare_decoder

R = TypeVar("R")
Work = Callable[[Runtime], Coroutine[Any, Any, R]]
"""Reads through a runtime that runs nothing."""

Started = tuple[asyncio.AbstractEventLoop, Runtime]


@runtime_checkable
class Duplicable(Protocol):
    """A store that can be opened once more, for another thread."""

    def duplicate(self) -> Store:
        """Another connection to the same log; it is not open yet."""
        ...


class LogReader:
    """Runs reads of one log. It starts with the first one; `close` ends it."""

    def __init__(self, runtime: Runtime, name: str = "reader") -> None:
        self._runtime, self._name = runtime, name
        self._thread: threading.Thread | None = None
        self._started: asyncio.Future[Started] | None = None
        self._stop: Callable[[], object] = lambda: None
        self._closed = False
        self._inside: set[asyncio.Future[Any]] = set()

    async def run(self, work: Work[R]) -> R:
        """Run a read to its end. If the caller is cancelled, the read is cancelled as well."""
        if self._closed:
            raise RuntimeClosed(begun=False)
        if not isinstance(self._runtime.store, Duplicable):
            return await work(self._runtime)
        loop, runtime = await self._start(self._runtime.store)
        future = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(runtime), loop))
        self._inside.add(future)
        try:
            return await future
        except asyncio.CancelledError:
            if self._closed:
                raise RuntimeClosed(begun=False) from None
            raise
        finally:
            self._inside.discard(future)

    async def _start(self, store: Duplicable) -> Started:
        if self._started is None:
            self._started = asyncio.get_running_loop().create_future()
            prepare_decoder()
            copy, caller = store.duplicate(), asyncio.get_running_loop()
            self._thread = threading.Thread(
                target=lambda: asyncio.run(self._serve(copy, caller)), name=f"upcall-{self._name}", daemon=True
            )
            self._thread.start()
        return await asyncio.shield(self._started)

    async def _serve(self, store: Store, caller: asyncio.AbstractEventLoop) -> None:
        """Keep the store open, in the thread, until `close`."""
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        started, runtime = cast("asyncio.Future[Started]", self._started), Runtime(store)
        try:
            await store.open()
        except Exception as error:
            caller.call_soon_threadsafe(_settle, started, error)
            return
        self._stop = lambda: loop.call_soon_threadsafe(stopped.set)
        with contextlib.suppress(RuntimeError):  # the caller's loop is gone
            caller.call_soon_threadsafe(_settle, started, (loop, runtime))
            await stopped.wait()
        running = [task for task in asyncio.all_tasks(loop) if task is not asyncio.current_task()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await runtime.close()

    def close(self) -> None:
        """End the thread; what is being read is cancelled."""
        self._closed = True
        with contextlib.suppress(RuntimeError):
            self._stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5.0)


def _settle(started: asyncio.Future[Any], value: Any) -> None:
    if started.done():
        return
    if isinstance(value, Exception):
        started.set_exception(value)
    else:
        started.set_result(value)
