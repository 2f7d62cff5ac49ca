"""Text while it is written, for those who watch a run tree: redacted, and joined every 50 ms.

Runtimes are subscribed to only while somebody watches. Deltas are not stored: a client that is too slow loses some
and has the whole text when the log has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from upcall.app import Runtime
from upcall.contracts import Delta
from upcall.events import AnyEvent, HooksPassed, ModelFailed, Responded, ToolEnded, TurnEnded
from upcall.hosts.web.listing import root_of
from upcall.observe.redact import Redactor

MOST_WAITING = 500
"""Texts of which pieces wait for one slow client."""

MOST_TEXT = 100_000
"""Characters of one text that wait for one slow client."""

Key = tuple[str, str, str]
"""Session, kind and call of a text that is being written."""


class Watcher:
    """One client that watches a run tree. `wake` is called when there is something for it."""

    def __init__(self, tree: str, wake: Callable[[], None]) -> None:
        self.tree, self.wake = tree, wake
        self._waiting: dict[Key, dict[str, Any]] = {}

    def put(self, key: Key, text: str) -> None:
        """Add a piece of text."""
        if text and key in self._waiting:
            if len(self._waiting[key]["text"]) < MOST_TEXT:
                self._waiting[key]["text"] += text
        elif text and len(self._waiting) < MOST_WAITING:
            session, kind, call_id = key
            self._waiting[key] = {"session": session, "kind": kind, "text": text, "call_id": call_id}
        self.wake()

    def drop(self, session: str) -> None:
        """Take back what a model has written."""
        for kind in ("text", "thinking"):
            self._waiting.pop((session, kind, ""), None)
        self._waiting[session, "drop", ""] = {"session": session, "kind": "drop", "text": "", "call_id": ""}
        self.wake()

    def take(self) -> list[dict[str, Any]]:
        """Return the deltas that were added since the last call."""
        found, self._waiting = list(self._waiting.values()), {}
        return found


class Deltas:
    """Hands the deltas of some runtimes to watchers."""

    def __init__(self, runtimes: Callable[[], Sequence[Runtime]], redactor: Redactor) -> None:
        self._runtimes, self._redactor = runtimes, redactor
        self._watchers: dict[str, list[Watcher]] = {}
        self._texts: dict[Key, Any] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def add(self, watcher: Watcher) -> None:
        """Begin to hand deltas to a watcher."""
        self._watchers.setdefault(watcher.tree, []).append(watcher)
        self.refresh()

    def remove(self, watcher: Watcher) -> None:
        """Hand nothing more to a watcher."""
        self._watchers[watcher.tree].remove(watcher)
        if not self._watchers[watcher.tree]:
            del self._watchers[watcher.tree]
        if not self._watchers:
            self.close()

    def refresh(self) -> None:
        """Subscribe to runtimes that were added meanwhile."""
        if self._watchers:
            for runtime in self._runtimes():
                if id(runtime) not in self._tasks:
                    self._tasks[id(runtime)] = asyncio.ensure_future(self._follow(runtime))

    def close(self) -> None:
        """End all subscriptions."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()
        self._texts.clear()

    async def _follow(self, runtime: Runtime) -> None:
        async with runtime.subscribe() as items:
            async for item in items:
                if isinstance(item, Delta):
                    self._take(item)
                elif isinstance(item, Responded | ModelFailed | TurnEnded):
                    self._forget(item, ("text", "thinking"), "")
                elif isinstance(item, ToolEnded):
                    self._end_output(item.session, item.call_id)
                elif isinstance(item, HooksPassed) and item.point == "after_tool":
                    self._end_output(item.session, item.at)

    def _take(self, delta: Delta) -> None:
        watchers = self._watchers.get(root_of(delta.session), ())
        if not watchers:
            return
        if delta.kind == "drop":
            self._drop(delta.session)
            for watcher in watchers:
                watcher.drop(delta.session)
            return
        key = (delta.session, delta.kind, delta.call_id)
        if key not in self._texts:
            self._texts[key] = self._redactor.stream()
        shown = self._texts[key].feed(delta.text)
        for watcher in watchers if shown else ():
            watcher.put(key, shown)

    def _end_output(self, session: str, call_id: str) -> None:
        """Hand over the end of what a tool has shown: unlike a reply, it is in no event."""
        key = (session, "output", call_id)
        stream = self._texts.pop(key, None)
        if stream is not None:
            rest = stream.close()
            for watcher in self._watchers.get(root_of(session), ()):
                watcher.put(key, rest)

    def _drop(self, session: str) -> None:
        for kind in ("text", "thinking"):
            self._texts.pop((session, kind, ""), None)

    def _forget(self, event: AnyEvent, kinds: Sequence[str], call_id: str) -> None:
        """The whole text is in the log now: what is held back of it is not needed."""
        for kind in kinds:
            self._texts.pop((event.session, kind, call_id), None)
