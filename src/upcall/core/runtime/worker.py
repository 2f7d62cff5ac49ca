"""Run trees as they become ready.

A tree becomes ready when a turn of it is queued or somebody settles a callback, which every store tells of; when a
deadline passes, for which one timer is set; or when its owner dies or leaves it interrupted. The death of an owner
writes no event, so a worker also looks every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, cast

from upcall.contracts import Store, TakeLimit
from upcall.core.runtime.retrying import DEFAULT_RETRIES, Retries
from upcall.core.runtime.running_trees import STOP_LIMIT, RunningTrees, drain_trees
from upcall.errors import (
    RuntimeClosed,
    SessionBusy,
    SetupError,
    StoreDamaged,
    StoreError,
    StoreUnreachable,
    UpcallError,
)
from upcall.events import SETTLING, AnyEvent, TurnQueued
from upcall.messages import Value
from upcall.safety.bounds import brief

log = logging.getLogger("upcall")

LOOK_INTERVAL = 2.0
"""Seconds between two looks for run trees whose owner is gone."""

SHORTEST_PAUSE, LONGEST_PAUSE = 0.25, 4.0
"""Seconds between two looks while the store can't be reached: each time twice as long."""

_LAST_LOOK = 1.0
"""Seconds that a look has to end after the worker was told to stop: it may be claiming a tree."""

_MOST_SKIPPED = 1000
"""Trees that can't be run here and are remembered; beyond that all of them are tried again."""

Resume = Callable[[str], Awaitable[bool]]
"""Resumes a run tree by its root's id; False where it can't be run here: it is then skipped until it changes."""

Run = Callable[[], Awaitable[bool]]
"""Runs a tree that was found; returns what `Resume` does."""

Found = tuple[str, Run]
"""A ready tree by its root's id, with what runs it."""

Find = Callable[[int, Collection[str]], AsyncIterator[Found]]
"""Given how many, and which to skip, yields ready trees. Each is run as it comes: it may be claimed by then."""


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


_LIMITS = "a list of upcall.engines.TakeLimit, whose running and per_minute are 1 or more, or None"


class WorkerOptions(NamedTuple):
    """How a worker runs what it takes; see `Runtime.work`."""

    concurrency: int = 10
    drain: float = 20.0
    once: bool = False
    changed: Literal["run", "leave"] = "run"
    limits: Sequence[TakeLimit] = ()
    retries: Retries = DEFAULT_RETRIES
    on_segment: OnSegment | None = None

    def check(self) -> None:
        """Raise SetupError for the first option that has no valid value."""
        for name, value, is_valid, what in (
            ("concurrency", self.concurrency, _is_count(self.concurrency, 1), "a whole number of 1 or more"),
            ("drain", self.drain, _is_seconds(self.drain), "seconds, 0 or more"),
            ("changed", self.changed, self.changed in ("run", "leave"), "'run' or 'leave'"),
            ("limits", self.limits, _are_limits(self.limits), _LIMITS),
            ("retries", self.retries, _are_retries(self.retries), "upcall.engines.Retries(most, seconds)"),
            ("on_segment", self.on_segment, self.on_segment is None or callable(self.on_segment), "a function"),
        ):
            if not is_valid:
                raise SetupError(f"work({name}={brief(value)}): pass {what}")


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _are_limits(value: object) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_limit, cast("Sequence[object]", value)))


def _is_limit(value: object) -> bool:
    counts = (value.running, value.per_minute) if isinstance(value, TakeLimit) else (0,)
    return all(count is None or _is_count(count, 1) for count in counts)


def _are_retries(value: object) -> bool:
    return isinstance(value, Retries) and _is_count(value.most, 0) and _is_seconds(value.seconds)


class Worker:
    """Runs the trees that `find` finds, at most `concurrency` at once. With `once` only until nothing is left.

    waits: tells whether a tree that runs here only waits for somebody
    """

    def __init__(
        self, store: Store, find: Find, waits: Callable[[str], bool], concurrency: int, *, once: bool = False
    ) -> None:
        self._store, self._find, self._concurrency, self._once = store, find, concurrency, once
        self._waits = waits
        self.running: dict[str, asyncio.Task[None]] = {}
        self.closing, self.ended = asyncio.Event(), asyncio.Event()
        self._skipped: dict[str, tuple[int, str]] = {}  # as they were when they could not be run here
        self._unreadable: set[str] = set()  # a newer version wrote them: this process can never run them
        self._look = asyncio.Event()
        self._pause = 0.0  # until the next attempt, while the store can't be reached

    async def run(self, stop: asyncio.Event | None) -> None:
        """Take what is ready until `stop` or `closing` is set; with `once`, until nothing is left to take.

        While the store can't be reached it waits, however long that is.
        """
        stop = stop or self.closing
        stop_listening = self._store.listen(self._hear)
        watching = asyncio.ensure_future(self._watch())
        stopped = {asyncio.ensure_future(event.wait()) for event in (stop, self.closing)}
        try:
            while not stop.is_set() and not self.closing.is_set():
                self._look.clear()
                seconds = await self._look_unless(stopped)
                if seconds is None:
                    return
                looked = asyncio.ensure_future(self._look.wait())
                await asyncio.wait({looked, watching, *stopped}, timeout=seconds, return_when="FIRST_COMPLETED")
                looked.cancel()
                if watching.done():
                    watching.result()
        finally:
            stop_listening()
            for waiting in (watching, *stopped):
                waiting.cancel()

    async def _look_unless(self, stopped: Collection[asyncio.Future[Any]]) -> float | None:
        """Take what is ready, but do not wait for a store that is away once one of these is done.

        Returns the seconds until the next look; None if there is none.
        """
        look = asyncio.ensure_future(self._take_and_plan())
        try:
            await asyncio.wait({look, *stopped}, return_when="FIRST_COMPLETED")
            if not look.done():
                await asyncio.wait({look}, timeout=_LAST_LOOK)
        finally:
            look.cancel()
        if not look.done():
            await asyncio.wait({look})
        return None if look.cancelled() else look.result()

    async def _take_and_plan(self) -> float | None:
        """Take what is ready; return the seconds until the next look, or None if nothing is left with `once`."""
        try:
            await self._take_ready()
            if self._once and not self.running:
                return 0.0 if self._look.is_set() else None  # a tree that ended during the look was not looked at
            due = await self._store.next_deadline(self._store.now())
        except StoreUnreachable as error:
            if not self._pause:
                log.warning("this worker waits until it can reach the log again: %s", error)
            self._pause = min(LONGEST_PAUSE, self._pause * 2 or SHORTEST_PAUSE)
            return self._pause
        if self._pause:
            log.info("this worker can reach the log again")
        self._pause = 0.0
        return LOOK_INTERVAL if due is None else min(LOOK_INTERVAL, max(0.0, due - self._store.now()))

    async def finish(self, trees: RunningTrees | None, seconds: float) -> None:
        """Wait so long for what was resumed to end, then cancel it.

        `trees` are the runtime's own: those that were resumed are drained, and what has not begun to run is left.
        """
        try:
            if trees is not None:
                here = {root: trees.get(root) for root in self.running}
                for root in [root for root, tree in here.items() if tree is None]:
                    self.running[root].cancel()
                await drain_trees([tree for tree in here.values() if tree is not None], seconds)
                seconds = STOP_LIMIT  # the trees have ended, or were stopped
            if self.running:
                await asyncio.wait(self.running.values(), timeout=seconds)
            while self.running:  # the first time they release their trees, for which they may wait for the store
                for task in self.running.values():
                    task.cancel()
                await asyncio.wait(self.running.values(), timeout=STOP_LIMIT)
        finally:
            self.ended.set()

    def _hear(self, event: AnyEvent) -> None:
        if isinstance(event, (*SETTLING, TurnQueued)):
            self._look.set()

    async def _watch(self) -> None:
        """Keep the store looking for what other processes write: it tells those who listen."""
        while True:
            try:
                await self._store.wait(await self._store.last(), LOOK_INTERVAL)
            except StoreUnreachable:
                await asyncio.sleep(LOOK_INTERVAL)

    async def _take_ready(self) -> None:
        """Begin to run ready trees, as many as may run at once; those that only wait are not counted."""
        await self._forget_changed()
        room = self._concurrency - sum(not self._waits(root) for root in self.running)
        if room <= 0:
            return
        async for root, run in self._find(room, {*self.running, *self._skipped, *self._unreadable}):
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
        try:
            before = await self._version_if_known(root)
            resumed = await run() and await self._version(root) != before  # else nothing came of it
        except (SessionBusy, RuntimeClosed):  # another process was faster, or this one stops
            return
        except StoreUnreachable as error:  # it is taken again, here or elsewhere, once the store is back
            log.warning("session %s could not be continued: %s", root, error)
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
        if not resumed and (now := await self._version_if_known(root)) is not None:
            self._skipped[root] = now

    async def _version_if_known(self, root: str) -> tuple[int, str] | None:
        """Return a tree's version; None if it can't be read. A tree that is claimed is run, and so released."""
        try:
            return await self._version(root)
        except StoreError:
            return None


async def find_in_list(
    store: Store, resume: Resume, settled_only: bool, most: int, skip: Collection[str]
) -> AsyncGenerator[Found]:
    """Yield ready trees from the list of all of them, oldest first, for code that resumes them in its own way.

    `settled_only`: only trees that hold a callback which was settled or has expired, and whose outcome has not
    reached the code that asked; a tree that was interrupted otherwise is left to others.
    """
    found = 0
    for row in await store.unfinished():
        if found == most:
            break
        if row.id not in skip and (not settled_only or await _holds_settled(store, row.id)):
            found += 1
            yield row.id, partial(resume, row.id)


async def _holds_settled(store: Store, root: str) -> bool:
    now = store.now()
    return any(
        not held.delivered and (held.status != "open" or (held.expires is not None and held.expires <= now))
        for held in await store.callbacks(root=root)
    )
