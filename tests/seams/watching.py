"""A throw-away screen: it subscribes to a runtime and notes what it is shown."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any, Self

from upcall import Callback, Delta, Missed, Runtime


class Screen:
    """Events by session, text, questions and gaps, as one subscriber gets them."""

    def __init__(self, runtime: Runtime, **options: Any) -> None:
        self.events: dict[str, list[Any]] = defaultdict(list)
        self.text, self.questions, self.missed = "", list[Callback](), list[Missed]()
        self._subscription = runtime.subscribe(**options)
        self._seen = asyncio.Condition()

    async def __aenter__(self) -> Self:
        await self._subscription.__aenter__()
        self._task = asyncio.ensure_future(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._subscription.aclose()
        await self._task

    async def _watch(self) -> None:
        async for item in self._subscription:
            async with self._seen:
                if isinstance(item, Delta):
                    self.text += item.text
                elif isinstance(item, Callback):
                    self.questions.append(item)
                elif isinstance(item, Missed):
                    self.missed.append(item)
                else:
                    self.events[item.session].append(item)
                self._seen.notify_all()

    async def until(self, session: str, kind: str) -> None:
        """Return once the session's newest event is of this type."""
        async with self._seen:
            await self._seen.wait_for(lambda: self.events[session] and self.events[session][-1].type == kind)

    async def until_asked(self) -> Callback:
        """Return the newest question once there is one."""
        async with self._seen:
            await self._seen.wait_for(lambda: self.questions)
        return self.questions[-1]

    def numbers(self) -> dict[str, list[int]]:
        """The sequence numbers of each session, in order."""
        return {session: sorted(e.seq for e in seen) for session, seen in self.events.items()}
