"""A store whose appends are never done at once: each becomes readable a few milliseconds later, in order.

`pytest --delayed` puts every store behind it. It shows code that takes an append for done because SQLite or memory
did it at once.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from upcall.callbacks import Held
from upcall.contracts import Claim, Store
from upcall.errors import StoreError
from upcall.events import AnyEvent

SHORTEST, LONGEST = 0.0005, 0.003


class DelayedStore:
    """Hands every write on to another store, in order, after a delay; reads see what was handed on."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self._queue: deque[Callable[[], None]] = deque()
        self._random = random.Random(7)
        self._due = 0.0
        self._releasing: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def hold(self, _: Callable[[], object]) -> bool:
        return False

    def append(
        self,
        session: str,
        events: Sequence[AnyEvent],
        claim: Claim | None,
        *,
        blobs: Mapping[str, bytes] | None = None,
        release: bool = False,
        lazy: bool = False,
    ) -> asyncio.Future[None]:
        if claim is not None and (claim.failure is not None or claim.released or id(claim) in self._releasing):
            raise claim.failure or StoreError(self._inner.where, f"the claim on {claim.root!r} was given up")
        if release and claim is not None:
            self._releasing.add(id(claim))
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def write() -> None:
            try:
                done = self._inner.append(session, events, claim, blobs=blobs, release=release, lazy=lazy)
            except Exception as error:
                stored.set_exception(error)
                stored.exception()
            else:
                if done is None:
                    _finish(stored)
                else:
                    done.add_done_callback(lambda ended: _finish(stored, ended.exception()))
            self._releasing.discard(id(claim))

        self._enqueue(write)
        return stored

    def _enqueue(self, work: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._due = max(self._due, loop.time() + self._random.uniform(SHORTEST, LONGEST))
        self._queue.append(work)
        loop.call_at(self._due, self._run_next)

    def _run_next(self) -> None:
        if self._queue:
            self._queue.popleft()()

    async def _own_turn(self) -> None:
        """Wait until all that was handed over before is handed on."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._enqueue(lambda: _finish(turn))
        await turn

    async def claim(self, root: str, *, take_over: bool = False) -> Claim:
        await self._own_turn()
        return await self._inner.claim(root, take_over=take_over)

    async def release(self, claim: Claim) -> None:
        await self._own_turn()
        await self._inner.release(claim)

    async def append_all(self, events: Mapping[str, Sequence[AnyEvent]]) -> None:
        await self._own_turn()
        await self._inner.append_all(events)

    async def park(self, claim: Claim, events: Mapping[str, Sequence[AnyEvent]], waits: Sequence[str]) -> bool:
        await self._own_turn()
        return await self._inner.park(claim, events, waits)

    async def settle(
        self, callback_id: str, events: Mapping[str, AnyEvent], claim: Claim | None = None
    ) -> Held | None:
        await self._own_turn()
        return await self._inner.settle(callback_id, events, claim)

    async def delete(self, sessions: Sequence[str]) -> int:
        await self._own_turn()
        return await self._inner.delete(sessions)

    async def close(self) -> None:
        while self._queue:
            self._run_next()
        await self._inner.close()


def _finish(future: asyncio.Future[None], error: BaseException | None = None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
        future.exception()
    else:
        future.set_result(None)


def delay_every_store() -> None:
    """Put each store that `open_store` makes from now on behind a delay."""
    from upcall import app

    at_once = app.open_store

    def delayed(where: Any, trusted: bool | None = None) -> Store:
        store = at_once(where, trusted)
        return store if store is where else cast("Store", DelayedStore(store))

    app.open_store = delayed
