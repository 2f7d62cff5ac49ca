"""A store that commits late: each write is committed a moment after the call, in the order of the calls.

It stands for a store behind a network. The contract suite runs on it, and `pytest --delayed` puts every store
behind it: that finds code that takes an append for done because SQLite or memory did it at once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

from upcall.contracts import Claim, Store
from upcall.errors import StoreError
from upcall.events import AnyEvent

SHORTEST, LONGEST = 0.0005, 0.003


class DelayedStore:
    """Hands every write to another store, one after the other, each after a delay; reads see what was committed."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self._random = random.Random(7)
        self._newest: asyncio.Task[Any] | None = None
        self._releasing: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name not in ("claim", "take", "release", "append_all", "park", "settle", "delete", "prune", "pause"):
            return value

        async def call(*args: Any, **options: Any) -> Any:
            return await asyncio.shield(self._in_turn(lambda: value(*args, **options)))

        return call

    def _in_turn(self, write: Callable[[], Awaitable[Any]]) -> asyncio.Task[Any]:
        """Make a write after those before it."""
        before, delay = self._newest, self._random.uniform(SHORTEST, LONGEST)

        async def run() -> Any:
            if before is not None and not before.done():
                await asyncio.wait({before})
            await asyncio.sleep(delay)
            return await write()

        self._newest = asyncio.ensure_future(run())
        return self._newest

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
        if claim is not None and (not claim.is_active or id(claim) in self._releasing):
            raise claim.failure or StoreError(self._inner.where, f"the claim on {claim.root!r} was given up")
        if release and claim is not None:
            self._releasing.add(id(claim))

        async def write() -> None:
            try:
                stored = self._inner.append(session, events, claim, blobs=blobs, release=release, lazy=lazy)
                if stored is not None:
                    await stored
            finally:
                self._releasing.discard(id(claim))

        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_turn(write).add_done_callback(lambda task: _finish(stored, task.exception()))
        return stored

    async def close(self) -> None:
        if self._newest is not None:
            await asyncio.wait({self._newest})
        await self._inner.close()


def _finish(stored: asyncio.Future[None], error: BaseException | None) -> None:
    if stored.done():
        return
    if error is None:
        stored.set_result(None)
    else:
        stored.set_exception(error)
        stored.exception()  # whoever awaits it is told; nobody is warned about the rest


def delay_every_store() -> None:
    """Put each store that `open_store` makes from now on behind a delay."""
    from upcall import app

    at_once = app.open_store

    def delayed(where: Any, trusted: bool | None = None) -> Store:
        store = at_once(where, trusted)
        return store if store is where else cast("Store", DelayedStore(store))

    app.open_store = delayed
