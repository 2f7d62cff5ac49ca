"""Follows what other processes append: tells listeners of it, and wakes those who wait for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Protocol

from upcall.errors import StoreError
from upcall.events import FOREIGN, AnyEvent
from upcall.store.postgres import queries as sql

POLL = 0.25
"""Seconds between looks at what others wrote while something waits here, in case notifications are lost."""

_SOON, _OWN = 0.005, 0.25


class Read(Protocol):
    """Runs a statement that only reads, and returns its rows."""

    def __call__(self, statement: str, values: Any = ()) -> Awaitable[list[Any]]:
        """Run the statement with these values."""
        ...


class Follower:
    """Follows the log for one open store, while there are claims or something waits.

    where: the log, as errors name it
    claims: the claims of the store
    watch: called with whether something waits here, so that notifications are listened for
    """

    def __init__(self, where: str, read: Read, claims: Collection[str], watch: Callable[[bool], None]) -> None:
        self._where, self._read, self._claims, self._watch = where, read, claims, watch
        self._listeners: list[Callable[[AnyEvent], None]] = []
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._heard: set[int] = set()
        self._low = self._last = self._newest = self._horizon = 0
        self._snapshot = ""
        self._poll: asyncio.TimerHandle | None = None
        self._delay = POLL
        self._looking: asyncio.Task[None] | None = None
        self._is_open = False
        self.looks = 0
        """How many statements were sent to look for what others wrote."""

    def open(self, horizon: int, last: int) -> None:
        """Begin to follow a log whose newest event has the position `last`."""
        self._low, self._horizon = horizon - 1, horizon
        self._newest = self._last = last
        self._is_open = True

    async def close(self) -> None:
        """Stop looking. Those who wait are released by `release_all`."""
        self._is_open = False
        if self._poll is not None:
            self._poll.cancel()
            self._poll = None
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})

    # --- for those who use the store ------------------------------------------------------

    def listen(self, hear: Callable[[AnyEvent], None]) -> Callable[[], None]:
        """Call `hear` for every event that any process appends without a claim; the result ends that."""
        self._listeners.append(hear)
        return lambda: self._listeners.remove(hear) if hear in self._listeners else None

    async def wait(self, after: int, timeout: float) -> None:
        """Return when an event with `pos` above `after` may be there, or after `timeout` seconds."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((after, waiter))
        self.follow()
        self.look_soon()
        try:
            await asyncio.wait({waiter}, timeout=timeout)
        finally:
            self._waiters = [one for one in self._waiters if one[1] is not waiter]

    async def wait_for_own(self) -> None:
        """Wait a moment until what this process wrote can be read by position: others may still be writing."""
        end = time.monotonic() + _OWN
        while self._newest >= self._horizon and time.monotonic() < end:
            self._horizon = (await self._read(sql.NEWS))[0][0]
            if self._newest >= self._horizon:
                await asyncio.sleep(_SOON)

    def release_all(self) -> None:
        """Let everybody continue who waits: the store is closed."""
        self._release(lambda _: True)

    # --- looking --------------------------------------------------------------------------

    def note_own(self, newest: int, *, foreign: bool) -> None:
        """Take in that this process appended events up to a position; `foreign`: without a claim."""
        self._newest = max(self._newest, newest)
        if self._waiters or (foreign and self._listeners):
            self.look_soon()

    def follow(self) -> None:
        """Look at intervals from now on, and listen for notifications if something waits here."""
        self._watch(bool(self._waiters))
        if self._poll is None:
            self._poll = asyncio.get_running_loop().call_later(POLL, self._look_again)

    def look_soon(self) -> None:
        """Look now for what others wrote; a look that has begun may have been too early, so look once more then."""
        if not self._is_open:
            return
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look())
        else:
            self._delay = 0.0

    def _look_again(self) -> None:
        self._poll = None
        if self._claims or self._waiters:
            self.look_soon()

    async def _look(self) -> None:
        try:
            self._delay = POLL if self._last >= self._newest else min(POLL, max(_SOON, self._delay * 2))
            await self._catch_up()
        except StoreError:  # it can't be reached; look again later
            self._delay = POLL
        finally:
            self._looking = None
            if self._is_open and (self._claims or self._waiters):
                if self._poll is not None:
                    self._poll.cancel()
                delay = self._delay if self._delay != POLL or self._last >= self._newest else _SOON
                self._poll = asyncio.get_running_loop().call_later(delay, self._look_again)
            elif self._is_open:
                self._watch(False)

    async def _catch_up(self) -> None:
        """Tell listeners of what others appended, and release those who wait for what is there now."""
        horizon, _, self._last, snapshot = (await self._read(sql.NEWS))[0]
        self.looks += 1
        self._horizon = max(self._horizon, horizon)
        if snapshot != self._snapshot:  # else nothing was committed since the last look
            await self._tell_of_others(horizon)
            self._snapshot = snapshot
        self._release(lambda after: self._last > after)

    async def _tell_of_others(self, horizon: int) -> None:
        """Tell listeners of what others appended and they have not heard of."""
        rows: list[Any] = []
        if self._listeners:
            rows = await self._read(sql.BY_OTHERS, (self._low,))
            self.looks += 1
        fresh = [row for row in rows if row[2] not in self._heard]
        self._low = horizon - 1  # all below was committed before it was read
        self._heard = {row[2] for row in rows if row[2] > self._low}
        for row in fresh:
            with sql.left_out("an event"):
                self._tell(sql.event_of(self._where, row))

    def _tell(self, event: AnyEvent) -> None:
        if isinstance(event, FOREIGN):
            for hear in tuple(self._listeners):
                hear(event)

    def _release(self, is_over: Callable[[int], bool]) -> None:
        for after, waiter in self._waiters:
            if is_over(after) and not waiter.done():
                waiter.set_result(None)
