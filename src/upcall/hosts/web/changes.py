"""Which sessions and callbacks changed after a position. It lives where the log is read."""

from __future__ import annotations

from collections.abc import Iterable

from upcall.events import AnyEvent
from upcall.hosts.web.feed import callback_ids
from upcall.hosts.web.listing import root_of

MOST = 5000
"""Changed names that are remembered."""


class Recent:
    """Names with the position of their last change, newest last. Only the newest are remembered."""

    def __init__(self) -> None:
        self._changed: dict[str, int] = {}
        self._complete_after = 0
        self.newest = 0
        """The position of the newest change; at first, the one after which changes are noted."""

    def note(self, name: str, position: int) -> None:
        """Note a change."""
        self._changed.pop(name, None)
        self._changed[name] = self.newest = position
        if len(self._changed) > MOST:
            oldest = next(iter(self._changed))
            self._complete_after = self._changed.pop(oldest)

    def begin(self, position: int) -> None:
        """Nothing is known of changes up to this position."""
        self._complete_after = self.newest = position

    def since(self, position: int, most: int) -> list[str] | None:
        """The names that changed after a position, newest first; None if they are unknown, or more than `most`."""
        if position < self._complete_after:
            return None
        found: list[str] = []
        for name, at in reversed(self._changed.items()):
            if at <= position:
                break
            if len(found) == most:
                return None
            found.append(name)
        return found


class Changes:
    """The run trees and callbacks that changed, up to `position`."""

    def __init__(self) -> None:
        self.position = 0
        self.roots, self.callbacks = Recent(), Recent()

    def begin(self, position: int) -> None:
        """Begin to note changes after this position."""
        self.position = position
        self.roots.begin(position)
        self.callbacks.begin(position)

    def take(self, events: Iterable[AnyEvent]) -> None:
        """Note what these events change."""
        for event in events:
            self.position = event.pos
            self.roots.note(root_of(event.session), event.pos)
            for callback_id in callback_ids(event):
                self.callbacks.note(callback_id, event.pos)
