"""A view of a live run that takes events at once, and shows them one after the other beside all other work."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Self

from upcall.contracts import Delta
from upcall.events import AnyEvent
from upcall.hosts.terminal.text_steps import LONGEST_STEP
from upcall.hosts.terminal.views import Drawing, LineView

TICK = 0.08
"""Seconds between two drawings."""


class QueuedView:
    """Queues what a run tells, and shows it with `view`. Use it with `async with`: at the end, all is shown."""

    def __init__(self, view: LineView, drawing: Drawing | None = None) -> None:
        self._view, self._drawing = view, drawing
        self._items: deque[tuple[AnyEvent | Delta, bool]] = deque()
        self._stop = asyncio.Event()
        self._working: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Start to show and to draw."""
        self.resume()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Show the rest and stop drawing; printed lines stay."""
        try:
            await self._finish()
        finally:
            if self._drawing is not None:
                self._drawing.end()
        await self._show_all()

    def feed(self, item: AnyEvent | Delta) -> None:
        """Take an event or a delta, which is shown soon."""
        self._take(item, True)

    def recall(self, event: AnyEvent) -> None:
        """Take an earlier event, which is not shown."""
        self._take(event, False)

    def _take(self, item: AnyEvent | Delta, shown: bool) -> None:
        if self._working is not None and self._working.done():
            self._working.result()  # the screen can't be written to
        self._items.append((item, shown))

    async def pause(self) -> None:
        """Show what came so far, then leave the screen to somebody else; the rest is shown after `resume`."""
        await self._finish()
        if self._drawing is not None:
            await self._drawing.release()

    def resume(self) -> None:
        """Take the screen again."""
        if self._drawing is not None:
            self._drawing.begin()
        self._stop.clear()
        self._working = asyncio.ensure_future(self._work())

    async def _finish(self) -> None:
        """End the work, once it has shown what came so far."""
        working, self._working = self._working, None
        self._stop.set()
        if working is not None:
            await working

    async def _work(self) -> None:
        while not self._stop.is_set():
            await self._show_all()
            await self._view.tick()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), TICK)
        await self._show_all()

    async def _show_all(self) -> None:
        while self._items:
            item, shown = self._items.popleft()
            if shown:
                await self._view.show(self._with_next(item) if isinstance(item, Delta) else item)
            elif not isinstance(item, Delta):
                await self._view.skip(item)
            await asyncio.sleep(0)

    def _with_next(self, first: Delta) -> Delta:
        """Return a piece of text with the pieces that follow it, up to a bounded length."""
        texts, length = [first.text], len(first.text)
        while self._items and first.kind in ("text", "output"):
            item, _ = self._items[0]
            if (
                not isinstance(item, Delta)
                or _source(item) != _source(first)
                or length + len(item.text) > LONGEST_STEP
            ):
                break
            texts.append(item.text)
            length += len(item.text)
            self._items.popleft()
        return first.replace(text="".join(texts)) if len(texts) > 1 else first


def _source(delta: Delta) -> tuple[str, str, str]:
    return delta.session, delta.kind, delta.call_id
