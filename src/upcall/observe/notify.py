"""Telling people that a question waits for them: through Apprise addresses, or a function of your own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from upcall.callbacks import PRIORITIES, Callback, Priority
from upcall.errors import SetupError
from upcall.messages import Value

log = logging.getLogger("upcall")


class Notify(Value, frozen=True):
    """Whom to tell of questions to the person, from a least priority on: `Notify("mailto://…", "high")`."""

    to: str | Callable[[Callback], Any]
    least: Priority = "low"

    def __post_init__(self) -> None:
        if self.least not in PRIORITIES:
            raise SetupError(f"Notify(least={self.least!r}): the priorities are {', '.join(PRIORITIES)}")


class Notifier:
    """Tells everybody who wants to know, in the background; what fails there is logged and stops nothing."""

    def __init__(self, targets: Sequence[Notify | str | Callable[[Callback], Any]]) -> None:
        self._targets = [t if isinstance(t, Notify) else Notify(t) for t in targets]
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, callback: Callback) -> None:
        """A person became the target of this callback."""
        rank = PRIORITIES.index(callback.priority)
        for target in self._targets:
            if rank >= PRIORITIES.index(target.least):
                task = asyncio.ensure_future(self._tell(target, callback))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _tell(self, target: Notify, callback: Callback) -> None:
        try:
            if isinstance(target.to, str):
                await _apprise(target.to, callback)
            else:
                out = target.to(callback)
                if hasattr(out, "__await__"):
                    await out
        except Exception as error:
            log.warning("nobody was told of callback %s: %s", callback.id, error)

    async def close(self) -> None:
        """Let what is under way finish, for a while."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=10)


async def _apprise(address: str, callback: Callback) -> None:
    try:
        import apprise
    except ImportError:
        raise SetupError("notifications need the extra: pip install 'upcall[notify]'") from None
    post: Any = apprise.Apprise()
    if not post.add(address):
        raise SetupError("an address in notify=[...] is none that Apprise knows")
    title = f"{callback.agent} asks ({callback.intent}, {callback.priority})"
    body = f"{callback.message}\n\nAnswer with: upcall answer {callback.id} …"
    if not await post.async_notify(body=body, title=title):
        raise SetupError("the message could not be delivered")
