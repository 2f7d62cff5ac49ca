"""Engines bring ready run trees to the processes that can run them.

A turn runs in segments: claim the tree, replay its log, continue, and return when the turn has ended or is parked.
An engine only says when to look. What is ready, and who may run it, the store decides: a hint that is lost, late or
sent twice changes nothing but the time at which somebody looks.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from upcall.contracts import TakeLimit
from upcall.core.runtime.retrying import Retries
from upcall.core.runtime.worker import OnSegment, Segment, WorkerOptions

__all__ = ["Engine", "Local", "OnSegment", "Retries", "Segment", "TakeLimit", "WorkerOptions"]


class Engine(Protocol):
    """The port: a hint for each tree that becomes ready, and a loop that runs what is ready."""

    async def prepare(self, runtime: Any) -> None:
        """Have a hint written in each transaction that makes a run tree ready."""
        ...

    async def run(self, runtime: Any, stop: asyncio.Event, options: WorkerOptions) -> None:
        """Run ready trees whose agents the runtime has, until `stop` is set or nothing is left with `once`."""
        ...


class Local:
    """The store is the engine: its own wake-ups are the hints, and a look every few seconds finds what is left."""

    async def prepare(self, runtime: Any) -> None:
        """Do nothing: every store tells those who listen of what others append."""

    async def run(self, runtime: Any, stop: asyncio.Event, options: WorkerOptions) -> None:
        """Take trees from the store, the most urgent first, until `stop` is set."""
        await runtime.work(stop, **options._asdict())
