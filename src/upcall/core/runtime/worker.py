"""Run trees as they become ready.

A tree becomes ready when a turn of it is queued or somebody settles a callback, which every store tells of; when a
deadline passes, for which one timer is set; or when its owner dies or leaves it interrupted. That writes no event:
a look every few seconds finds it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial

from upcall.contracts import Store
from upcall.core.runtime.run_tree import RunTree
from upcall.errors import RuntimeClosed, SessionBusy, StoreDamaged, UpcallError
from upcall.events import SETTLING, AnyEvent, TurnQueued
from upcall.messages import Value

log = logging.getLogger("upcall")

LOOK_INTERVAL = 2.0
"""Seconds between two looks for run trees whose owner is gone."""

STOP_LIMIT = 6.0
"""Seconds that turns have to end once they were stopped where they are."""

_MOST_SKIPPED = 1000
"""Trees that can't be run here and are remembered; beyond that all of them are tried again."""

Resume = Callable[[str], Awaitable[bool]]
"""Resumes a run tree by its root's id; False where it can't be run here: it is then skipped until it changes."""

Run = Callable[[], Awaitable[bool]]
"""Runs a tree that was found; returns what `Resume` does."""

Find = Callable[[int, Collection[str]], Awaitable[Sequence[tuple[str, Run]]]]
"""Given how many, and which to skip, returns ready trees by their roots' ids, each with what runs it."""


class Segment(Value, frozen=True):
    """One run of a tree by a worker, from its claim until the tree ended, waited or was left.

    root: the id of its root session
    agent: the root's agent
    outcome: how the turn ended (`done`, `limit`, `cancelled`, `failed`), or `waiting`; `retry`: it failed and is
        tried again; `interrupted`: the worker was told to stop; `left`: it can't be run here
    seconds: how long it took
    taken_over: the process that owned it before died
    error: why it failed or was left
    """

    root: str
    agent: str
    outcome: str
    seconds: float = 0.0
    taken_over: bool = False
    error: str = ""


OnSegment = Callable[[Segment], None]


class Worker:
    """Runs the trees that `find` finds, at most `concurrency` at once. With `once` only until nothing is left."""

    def __init__(self, store: Store, find: Find, concurrency: int, *, once: bool = False) -> None:
        self._store, self._find, self._concurrency, self._once = store, find, concurrency, once
        self.running: dict[str, asyncio.Task[None]] = {}
        self.closing, self.ended = asyncio.Event(), asyncio.Event()
        self._skipped: dict[str, tuple[int, str]] = {}  # as they were when they could not be run here
        self._unreadable: set[str] = set()  # a newer version wrote them: this process can never run them
        self._look = asyncio.Event()

    async def run(self, stop: asyncio.Event | None) -> None:
        """Take what is ready until `stop` or `closing` is set; with `once`, until nothing is left to take."""
        stop = stop or self.closing
        stop_listening = self._store.listen(self._hear)
        watching = asyncio.ensure_future(self._watch())
        stopped = {asyncio.ensure_future(event.wait()) for event in (stop, self.closing)}
        try:
            while not stop.is_set() and not self.closing.is_set():
                self._look.clear()
                await self._take_ready()
                if self._once and not self.running:
                    return
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
        if isinstance(event, (*SETTLING, TurnQueued)):
            self._look.set()

    async def _watch(self) -> None:
        """Keep the store looking for what other processes write: it tells those who listen."""
        while True:
            await self._store.wait(await self._store.last(), LOOK_INTERVAL)

    async def _take_ready(self) -> None:
        """Begin to run ready trees while there is a free place."""
        await self._forget_changed()
        room = self._concurrency - len(self.running)
        if room <= 0:
            return
        for root, run in await self._find(room, {*self.running, *self._skipped, *self._unreadable}):
            task = self.running[root] = asyncio.ensure_future(self._run(root, run))
            task.add_done_callback(lambda _, root=root: self._ended(root))

    async def _forget_changed(self) -> None:
        """Try those again that have changed since they could not be run here."""
        for skipped in (self._skipped, self._unreadable):
            if len(skipped) > _MOST_SKIPPED:
                skipped.clear()
        for root, before in tuple(self._skipped.items()):
            if await self._version(root) != before:
                del self._skipped[root]

    async def _version(self, root: str) -> tuple[int, str]:
        row = await self._store.row(root)
        return (0, "") if row is None else (row.seq, row.status)

    def _ended(self, root: str) -> None:
        del self.running[root]
        self._look.set()

    async def _run(self, root: str, run: Run) -> None:
        before = await self._version(root)
        try:
            resumed = await run() and await self._version(root) != before  # else nothing came of it
        except (SessionBusy, RuntimeClosed):  # another process was faster, or this one stops
            return
        except StoreDamaged as error:  # whatever others do with it
            log.warning("session %s is left to others: %s", root, error)
            self._unreadable.add(root)
            return
        except UpcallError as error:  # the log says of a failed turn that it failed
            log.warning("session %s can't be resumed: %s", root, error)
            resumed = False
        except Exception:
            log.exception("session %s failed when it was resumed", root)
            resumed = False
        if not resumed:
            self._skipped[root] = await self._version(root)


class Listing:
    """Finds ready trees in the list of all of them, for code that runs them in its own way.

    `settled_only`: only trees that hold a callback which was settled or has expired, and whose outcome has not
    reached the code that asked; a tree that was interrupted otherwise is left to others.
    """

    def __init__(self, store: Store, resume: Resume, *, settled_only: bool = False) -> None:
        self._store, self._resume, self._settled_only = store, resume, settled_only

    async def find(self, most: int, skip: Collection[str]) -> Sequence[tuple[str, Run]]:
        """Return ready trees, oldest first, with what resumes each."""
        found: list[tuple[str, Run]] = []
        for row in await self._store.unfinished():
            if len(found) == most:
                break
            if row.id not in skip and (not self._settled_only or await self._holds_settled(row.id)):
                found.append((row.id, partial(self._resume, row.id)))
        return found

    async def _holds_settled(self, root: str) -> bool:
        now = self._store.now()
        return any(
            not held.delivered and (held.status != "open" or (held.expires is not None and held.expires <= now))
            for held in await self._store.callbacks(root=root)
        )


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
