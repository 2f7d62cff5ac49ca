"""Limits on how often one principal, or one address, may ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

_MOST_KEYS = 1000


class Rate(NamedTuple):
    """So many requests a second, and a burst of so many after a pause."""

    a_second: float
    burst: float


READS = Rate(100, 500)
WRITES = Rate(20, 60)
SEARCHES = Rate(10, 30)
REFUSED = Rate(1, 20)
"""Requests with a wrong token, from one address. Requests with the right one are never counted here."""


class Rates:
    """Counts requests by key with token buckets; `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left: dict[tuple[str, Rate], tuple[float, float]] = {}  # what is left, and as of when

    def __len__(self) -> int:
        """The number of keys that are remembered."""
        return len(self._left)

    def wait(self, key: str, rate: Rate) -> float:
        """Count one request; returns 0, or the seconds after which the next one is allowed."""
        now = self._clock()
        left, since = self._left.pop((key, rate), (rate.burst, now))
        left = min(rate.burst, left + (now - since) * rate.a_second)
        allowed = left >= 1.0
        if len(self._left) >= _MOST_KEYS:  # the one that was used least recently is first
            del self._left[next(iter(self._left))]
        self._left[key, rate] = (left - 1.0 if allowed else left, now)
        return 0.0 if allowed else (1.0 - left) / rate.a_second
