"""The callbacks that wait for a person, kept between two changes of them. They live where the log is read."""

from __future__ import annotations

from upcall.app import Runtime
from upcall.callbacks import Callback
from upcall.hosts.web.changes import Changes

MOST = 300
"""Open callbacks that are read and counted, equal ones too: to read 1,000 takes 50 ms."""


_KEPT = 1.0
"""Seconds after which they are read again anyway: a session that is deleted leaves no event."""


class Waiting:
    """The open callbacks of a log, most urgent first. They are read again when a callback has changed."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._found: list[Callback] = []
        self._as_of, self._until = -1, 0.0
        self.has_all = True
        """Tells whether no others are open than those that were read."""

    async def get(self, runtime: Runtime) -> list[Callback]:
        """The callbacks that are open now."""
        last, now = await runtime.store.last(), runtime.store.now()
        follows = last <= self._changes.position  # else something is in the log that was not looked at yet
        as_of = self._changes.callbacks.newest if follows else last
        if as_of != self._as_of or now >= self._until:
            self._found = await runtime.inbox(MOST)
            self.has_all = sum(len(one.group) for one in self._found) < MOST
            self._as_of, self._until = as_of, now + _KEPT
        return [one for one in self._found if one.expires is None or one.expires > now]
