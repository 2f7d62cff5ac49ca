"""The longest stall of a running event loop, in seconds of CPU, and the growth of the process's memory, in bytes.

CPU time, not wall time: a test says the same on a busy machine. A slow or busy processor needs more of it. Where a
bound is exceeded, work whose time is known shows how much more. Memory is the highest resident size meanwhile, less
the size before.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import resource
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from pace import slowness, untraced

MOST_STALL = 0.2
"""Seconds of CPU for which an event loop may run one thing."""

MOST_GROWTH = 64_000_000
"""Bytes by which a process may grow beyond what the bounds say."""

_TICK = 0.001


class Measured:
    """What was measured, once it has ended."""

    stall = 0.0
    """Seconds of CPU that the loop's thread used between two of its callbacks, at most."""
    growth = 0
    """Bytes by which the process was larger than before, at most."""

    def check(self, stall: float = MOST_STALL, growth: int = MOST_GROWTH) -> None:
        """Fail where either is above its bound."""
        if self.stall > stall:
            stall *= slowness()
        assert self.stall <= stall, f"the event loop stood still for {self.stall:.3f} s of CPU"
        assert self.growth <= growth, f"the process grew by {self.growth / 1e6:.0f} MB"


@asynccontextmanager
async def measured() -> AsyncGenerator[Measured]:
    """Measure what is done inside, on this event loop."""
    loop, out = asyncio.get_running_loop(), Measured()
    last = time.thread_time()
    timer: asyncio.TimerHandle | None = None

    def tick(again: bool = True) -> None:
        nonlocal last, timer
        now = time.thread_time()
        out.stall, last = max(out.stall, now - last), now
        timer = loop.call_later(_TICK, tick) if again else None

    with untraced(), grown(out):
        await asyncio.sleep(0)
        last = time.thread_time()
        tick()
        try:
            yield out
        finally:
            if timer is not None:
                timer.cancel()
            tick(again=False)


@contextmanager
def grown(out: Measured | None = None) -> Generator[Measured]:
    """Measure only by how much the process grows."""
    out = out or Measured()
    gc.collect()
    gc.freeze()  # what is alive now is looked through neither while this test is measured nor by the next one
    _give_back()
    before = _resident()
    _forget_peak()
    try:
        yield out
    finally:
        out.growth = max(0, _peak() - before)


def _give_back() -> None:
    """Return freed memory to the system, so that using it again counts as growth."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _forget_peak() -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _resident() -> int:
    return _status("VmRSS") or _highest()


def _peak() -> int:
    return _status("VmHWM") or _highest()


def _status(field: str) -> int:
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return 0


def _highest() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024
