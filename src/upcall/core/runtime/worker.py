"""Take run trees as they become ready and have them resumed.

A tree becomes ready when somebody settles a callback, which every store tells of; when a deadline passes, for which
one timer is set; or when its owner dies or leaves it interrupted. That writes no event: a look every few seconds
finds it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from upcall.contracts import Row, Store
from upcall.core.runtime.run_tree import RunTree
from upcall.errors import RuntimeClosed, SessionBusy, UpcallError
from upcall.events import SETTLING, AnyEvent

log = logging.getLogger("upcall")

LOOK_INTERVAL = 2.0
"""Seconds between two looks for run trees whose owner is gone."""


STOP_LIMIT = 6.0
"""Seconds that turns have to end once they were stopped where they are."""

Resume = Callable[[str], Awaitable[bool]]
"""Resumes a run tree by its root's id; False where it can't be run here: it is then left alone until it changes."""


class Worker:
    """Has ready run trees resumed, at most `concurrency` at once. `resume` runs one and raises what failed it.

    `settled_only`: only trees that hold a callback which was settled or has expired, and whose outcome has not
    reached the code that asked; a tree that was interrupted otherwise is left to others.
    """

    def __init__(self, store: Store, resume: Resume, concurrency: int, *, settled_only: bool = False) -> None:
        self._store, self._resume, self._concurrency = store, resume, concurrency
        self._settled_only = settled_only
        self.running: dict[str, asyncio.Task[None]] = {}
        self.closing, self.ended = asyncio.Event(), asyncio.Event()
        self._left_alone: dict[str, Row] = {}  # as they were when they could not be resumed here
        self._look = asyncio.Event()

    async def run(self, stop: asyncio.Event | None) -> None:
        """Take what is ready until `stop` or `closing` is set."""
        stop = stop or self.closing
        stop_listening = self._store.listen(self._hear)
        watching = asyncio.ensure_future(self._watch())
        stopped = {asyncio.ensure_future(event.wait()) for event in (stop, self.closing)}
        try:
            while not stop.is_set() and not self.closing.is_set():
                self._look.clear()
                await self._take_ready()
                looked = asyncio.ensure_future(self._look.wait())
                due = await self._store.next_deadline(self._store.now())
                seconds = LOOK_INTERVAL if due is None else min(LOOK_INTERVAL, max(0.0, due - self._store.now()))
                await asyncio.wait({looked, watching, *stopped}, timeout=seconds, return_when="FIRST_COMPLETED")
                looked.cancel()
                if watching.done():
                    watching.result()
        finally:
            stop_listening()
            for waiting in (watching, *stopped):
                waiting.cancel()

    async def finish(self, trees: Mapping[str, RunTree] | None, seconds: float) -> None:
        """Wait so long for what was resumed to end, then cancel it.

        `trees` are the runtime's own: those that were resumed are drained, and what has not begun to run is left.
        """
        try:
            for root, task in self.running.items():
                if trees is not None and root not in trees:
                    task.cancel()
            await drain_trees([trees[root] for root in self.running if root in trees] if trees else (), seconds)
            if self.running:
                await asyncio.wait(self.running.values(), timeout=seconds)
            for task in self.running.values():
                task.cancel()
            if self.running:
                await asyncio.wait(self.running.values())
        finally:
            self.ended.set()

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
                if self._settled_only and not await self._holds_settled(root):
                    continue
                room -= 1
                task = self.running[root] = asyncio.ensure_future(self._run(row))
                task.add_done_callback(lambda _, root=root: self._ended(root))

    async def _holds_settled(self, root: str) -> bool:
        now = self._store.now()
        return any(
            not held.delivered and (held.status != "open" or (held.expires is not None and held.expires <= now))
            for held in await self._store.callbacks(root=root)
        )

    def _ended(self, root: str) -> None:
        del self.running[root]
        self._look.set()

    async def _run(self, row: Row) -> None:
        try:
            resumed = await self._resume(row.id) and await self._store.row(row.id) != row  # else nothing came of it
        except (SessionBusy, RuntimeClosed):  # another process was faster, or this one stops
            return
        except UpcallError as error:  # the log says of a failed turn that it failed
            log.warning("session %s can't be resumed: %s", row.id, error)
            resumed = False
        except Exception:
            log.exception("session %s failed when it was resumed", row.id)
            resumed = False
        if not resumed:
            self._left_alone[row.id] = row


async def drain_trees(trees: Sequence[RunTree], seconds: float) -> None:
    """Let run trees stop between two steps; what has not stopped in time is stopped where it is."""
    if not trees:
        return
    for tree in trees:
        tree.drain()
    _, running = await asyncio.wait([tree.when_ended() for tree in trees], timeout=seconds)
    if running:
        for tree in trees:
            tree.stop(RuntimeClosed())
        await asyncio.wait(running, timeout=STOP_LIMIT)
