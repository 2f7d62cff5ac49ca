"""Telling people that a question waits for them: through Apprise addresses, or a function of your own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from inspect import iscoroutinefunction
from typing import Any

from upcall.callbacks import PRIORITIES, Callback, Priority
from upcall.errors import SetupError
from upcall.hooks import name_of
from upcall.messages import Value
from upcall.observe.plain import one_line, plain, shell_word
from upcall.threads import Threads

log = logging.getLogger("upcall")

_TITLE = 200
"""Characters of a notification's title."""


class Notify(Value, frozen=True):
    """Whom to tell of questions to the person, from a least priority on: `Notify("mailto://…", "high")`."""

    to: str | Callable[[Callback], Any]
    least: Priority = "low"

    def __post_init__(self) -> None:
        if self.least not in PRIORITIES:
            raise SetupError(f"Notify(least={self.least!r}): the priorities are {', '.join(PRIORITIES)}")


class Notifier:
    """Tells everybody who wants to know, in the background; what fails there is logged and stops nothing.

    An async function runs on the event loop. A plain one runs in a thread, one call of it at a time: while it waits
    for a server it holds up nobody.
    """

    def __init__(self, targets: Sequence[Notify | str | Callable[[Callback], Any]]) -> None:
        self._targets = [(t if isinstance(t, Notify) else Notify(t), asyncio.Lock()) for t in targets]
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = Threads()

    def __call__(self, callback: Callback) -> None:
        """A person became the target of this callback."""
        rank = PRIORITIES.index(callback.priority)
        for target, turn in self._targets:
            if rank >= PRIORITIES.index(target.least):
                task = asyncio.ensure_future(self._tell(target.to, turn, callback))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _tell(self, to: str | Callable[[Callback], Any], turn: asyncio.Lock, callback: Callback) -> None:
        try:
            if isinstance(to, str):
                await _apprise(to, callback, self._threads)
            elif _is_async(to):
                await to(callback)
            else:
                async with turn:
                    out = await self._threads.run(partial(to, callback))
                if hasattr(out, "__await__"):
                    await out
        except Exception as error:
            who = "an address in notify=[...]" if isinstance(to, str) else f"{name_of(to)} in notify=[...]"
            what = str(error) if isinstance(error, SetupError) else f"{type(error).__name__}: {error}"
            log.warning("%s was not told of callback %s: %s", who, callback.id, what)

    async def close(self) -> None:
        """Let what is under way finish, for a while."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=10)
        self._threads.close()


def _is_async(function: Callable[..., Any]) -> bool:
    return iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


async def _apprise(address: str, callback: Callback, threads: Threads) -> None:
    post = await threads.run(partial(_post_to, address))  # the import alone takes a while
    title = one_line(f"{callback.agent} asks ({callback.intent}, {callback.priority})", _TITLE)
    asked = [callback.reworded, "", "In its own words:"] if callback.reworded else []
    quoted = "\n".join(f"> {row}" for row in plain("\n".join([*asked, callback.message])).splitlines())
    body = f"{quoted}\n\nAnswer with: upcall answer {shell_word(callback.id)} …"
    if not await post.async_notify(body=body, title=title):
        raise SetupError("the message could not be delivered")


def _post_to(address: str) -> Any:
    try:
        import apprise
    except ImportError:
        raise SetupError("notifications need the extra: pip install 'upcall[notify]'") from None
    post: Any = apprise.Apprise()
    if not post.add(address):
        raise SetupError("it is not an address that Apprise knows")
    return post
