"""Take run trees as they become ready and have them resumed.

A tree becomes ready when somebody settles a callback, which every store tells of; when a deadline passes, for which
one timer is set; or when its owner dies or leaves it interrupted. That writes no event: a look every few seconds
finds it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from upcall.contracts import Row, Store
from upcall.errors import RuntimeClosed, SessionBusy, UnknownAgent, UpcallError
from upcall.events import SETTLING, AnyEvent

log = logging.getLogger("upcall")

LOOK_INTERVAL = 2.0
"""Seconds between two looks for run trees whose owner is gone."""


class Worker:
    """Resumes ready run trees, at most `concurrency` at once. `resume` runs one and raises what failed it."""

    def __init__(self, store: Store, resume: Callable[[str], Awaitable[object]], concurrency: int) -> None:
        self._store, self._resume, self._concurrency = store, resume, concurrency
        self.running: dict[str, asyncio.Task[None]] = {}
        self._left_alone: dict[str, Row] = {}  # as they were when they could not be resumed here
        self._look = asyncio.Event()

    async def run(self, stop: asyncio.Event | None) -> None:
        """Take what is ready until `stop` is set."""
        stop = stop or asyncio.Event()
        stop_listening = self._store.listen(self._hear)
        watching = asyncio.ensure_future(self._watch())
        stopped = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                self._look.clear()
                await self._take_ready()
                looked = asyncio.ensure_future(self._look.wait())
                due = await self._store.next_deadline(self._store.now())
                seconds = LOOK_INTERVAL if due is None else min(LOOK_INTERVAL, max(0.0, due - self._store.now()))
                await asyncio.wait({looked, stopped, watching}, timeout=seconds, return_when="FIRST_COMPLETED")
                looked.cancel()
                if watching.done():
                    watching.result()
        finally:
            stop_listening()
            watching.cancel()
            stopped.cancel()

    async def close(self) -> None:
        """Wait for what was resumed; whoever calls this has drained or stopped it."""
        for task in self.running.values():
            task.cancel()
        if self.running:
            await asyncio.wait(self.running.values())

    def _hear(self, event: AnyEvent) -> None:
        if isinstance(event, SETTLING):
            self._look.set()

    async def _watch(self) -> None:
        """Keep the store looking for what other processes write: it tells those who listen."""
        while True:
            await self._store.wait(await self._store.last(), LOOK_INTERVAL)

    async def _take_ready(self) -> None:
        room = self._concurrency - len(self.running)
        if room <= 0:
            return
        ready = {row.id: row for row in await self._store.unfinished()}
        self._left_alone = {root: row for root, row in self._left_alone.items() if ready.get(root) == row}
        for root, row in ready.items():
            if room and root not in self.running and root not in self._left_alone:
                room -= 1
                task = self.running[root] = asyncio.ensure_future(self._run(row))
                task.add_done_callback(lambda _, root=root: self._ended(root))

    def _ended(self, root: str) -> None:
        del self.running[root]
        self._look.set()

    async def _run(self, row: Row) -> None:
        try:
            await self._resume(row.id)
        except UnknownAgent:  # another process has it
            self._left_alone[row.id] = row
        except (SessionBusy, RuntimeClosed):
            pass
        except UpcallError as error:  # the log says of a failed turn that it failed
            self._left_alone[row.id] = row
            log.warning("session %s can't be resumed: %s", row.id, error)
        except Exception:
            self._left_alone[row.id] = row
            log.exception("session %s failed when it was resumed", row.id)
