"""Which failures of run trees a worker tries again, and when it gives a tree up whose workers die.

A tree that kills the process that runs it would otherwise kill one worker after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import NamedTuple

from upcall.contracts import Claim, Delta, Store
from upcall.core.log.session_log import Sink
from upcall.core.log.state import SessionState
from upcall.errors import ModelUnavailable, StoreUnavailable
from upcall.events import AnyEvent, ModelStarted, ToolTriedAgain, TurnResumed

MOST_DEATHS = 3
"""Workers in a row that may die while they run a tree before it fails, if nothing new was logged."""

_PASSING = (ModelUnavailable, StoreUnavailable, ConnectionError, TimeoutError)
_REPEATED = (TurnResumed, ToolTriedAgain, ModelStarted)
"""Events that a worker writes again when it takes a tree over; they are no progress."""


class Retries(NamedTuple):
    """How often a failed turn is tried again, and after how many seconds: each time four times as long."""

    most: int = 3
    seconds: float = 2.0

    def after(self, failures: int) -> float | None:
        """Return the seconds until the next attempt after so many retries; None if there is none."""
        return self.seconds * 4**failures if failures < self.most else None


DEFAULT_RETRIES = Retries()


def may_pass(error: BaseException | None) -> bool:
    """Return whether the failure may be over later: an unavailable model, a lost connection, a store that is away.

    The error of a child, a step or a hook counts by what caused it.
    """
    while error is not None:
        if isinstance(error, _PASSING):
            return True
        error = error.__cause__
    return False


def retry_time(retries: Retries | None, error: BaseException, failures: int, now: float) -> float:
    """Return the time from which a turn that failed so often may be tried again; 0.0 if it is not.

    retries: the worker's rule; None where no worker runs the turn
    """
    seconds = retries.after(failures) if retries is not None and may_pass(error) else None
    return 0.0 if seconds is None else now + seconds


def rate_limit(error: BaseException | None) -> ModelUnavailable | None:
    """Return the error of a model whose provider allows no more requests now, if that caused the failure."""
    while error is not None:
        if isinstance(error, ModelUnavailable) and error.status == 429:
            return error
        error = error.__cause__
    return None


async def deaths(store: Store, claim: Claim, state: SessionState) -> int:
    """Return how many workers in a row died with this tree while nothing new was written to its log."""
    if not claim.orphaned or (state.begun and state.turn.phase != "running"):
        return 0
    first = state.turn.prompt.seq if state.turn.prompt is not None else 0
    tail: list[AnyEvent] = []
    for event in reversed(await store.read(claim.root, max(first, claim.seq - 50), 50)):
        if not isinstance(event, _REPEATED):
            break
        tail.append(event)
    died = [event for event in tail if isinstance(event, TurnResumed) and event.died]
    if died:
        since = await store.read_tree(claim.root, died[-1].pos, 200)
        if any(not isinstance(event, _REPEATED) for event in since):
            died = []
    return len(died) + 1


class Suspects:
    """Runs trees that fail if their worker dies once more one at a time, each until it has logged something new.

    A worker that dies takes down everything that it runs. Side by side, one tree that kills its workers would make
    all of them fail.
    """

    def __init__(self) -> None:
        self._only_one = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def alone(self, sinks: list[Sink]) -> AsyncGenerator[None]:
        """Wait until no other suspect runs here. `sinks` are told of what the tree logs inside the block."""
        await self._only_one.acquire()
        holds = contextlib.ExitStack()
        holds.callback(self._only_one.release)

        def hear(item: AnyEvent | Delta) -> None:
            if not isinstance(item, (Delta, *_REPEATED)):
                holds.close()

        sinks.append(hear)
        try:
            yield
        finally:
            sinks.remove(hear)
            holds.close()
