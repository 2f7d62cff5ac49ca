"""Notify people that a question waits for them: through Apprise addresses, or a function of your own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, cast

from upcall.callbacks import PRIORITIES, Callback
from upcall.core.turns.thread_cache import Threads
from upcall.errors import SetupError
from upcall.hooks import name_of
from upcall.messages import Priority, Value
from upcall.observe.plain import one_line, plain, shell_word
from upcall.observe.redact import Redactor

log = logging.getLogger("upcall")

WINDOW = 0.25
"""Seconds in which the questions of a run tree become one notification."""

PAUSE = 10.0
"""Seconds between two notifications of one run tree."""

_LISTED = 10
"""Questions that are named in one notification."""

_TITLE = _LINE = 200
"""Characters of a notification's title, and of a line about one of several questions."""

_LOOKED_AT = 2_000
"""Characters of a text of which such a line is made."""


class Notify(Value, frozen=True):
    """Whom to notify of questions to the person, from which priority: `Notify("mailto://…", "high")`."""

    to: str | Callable[[Callback], Any]
    least: Priority = "low"

    def __post_init__(self) -> None:
        if self.least not in PRIORITIES:
            raise SetupError(f"Notify(least={self.least!r}): the priorities are {', '.join(PRIORITIES)}")


class Notifier:
    """Sends notifications in the background. A failure is logged and stops nothing.

    The questions of one run tree are gathered: those of `window` seconds are one notification, and the next one
    comes after `pause` seconds at the earliest, unless it has a higher priority. A function is called with the
    first question of the highest priority; its `group` has the ids of all.

    An async function runs on the event loop. A plain one runs in a thread, one call of it at a time: while it waits
    for a server it holds up nobody.

    A notification hides secrets; a function gets the question as it is.
    """

    def __init__(
        self,
        targets: Sequence[Notify | str | Callable[[Callback], Any]],
        window: float = WINDOW,
        pause: float = PAUSE,
        redactor: Redactor | None = None,
    ) -> None:
        self._redactor = redactor or Redactor()
        self._targets = [(t if isinstance(t, Notify) else Notify(t), asyncio.Lock()) for t in targets]
        self._window, self._pause = window, pause
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = Threads()
        self._batches: dict[str, _Batch] = {}  # by the id of the run tree's root

    def __call__(self, callback: Callback) -> None:
        """Queue a notification: a person became the target of this callback."""
        loop, root = asyncio.get_running_loop(), callback.session_id.partition("~")[0]
        batch = self._batches.get(root)
        if batch is None:
            batch = self._batches[root] = _Batch()
        batch.callbacks.append(callback)
        rank = PRIORITIES.index(callback.priority)
        due = loop.time() + self._window
        if rank <= batch.last_priority:
            due = max(due, batch.at + self._pause)
        if batch.timer is None or due < batch.timer.when():
            if batch.timer is not None:
                batch.timer.cancel()
            batch.timer = loop.call_at(due, self._flush, root)

    def _flush(self, root: str) -> None:
        """Send the gathered notifications, and forget run trees without new ones."""
        now, batch = asyncio.get_running_loop().time(), self._batches[root]
        callbacks, batch.callbacks, batch.timer, batch.at = batch.callbacks, [], None, now
        batch.last_priority = max(PRIORITIES.index(c.priority) for c in callbacks)
        for target, turn in self._targets:
            least = PRIORITIES.index(target.least)
            if wanted := [c for c in callbacks if PRIORITIES.index(c.priority) >= least]:
                task = asyncio.ensure_future(self._send(target.to, turn, wanted))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        old = [r for r, b in self._batches.items() if b.timer is None and b.at + self._pause < now]
        for root in old:
            del self._batches[root]

    async def _send(
        self, to: str | Callable[[Callback], Any], turn: asyncio.Lock, callbacks: Sequence[Callback]
    ) -> None:
        callback = max(callbacks, key=lambda c: PRIORITIES.index(c.priority))
        if len(callbacks) > 1:
            callback = callback.replace(group=tuple(c.id for c in callbacks))
        try:
            if isinstance(to, str):
                await self._threads.run(partial(_post, to, callback, callbacks, self._redactor))
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
            more = f" and {len(callbacks) - 1} more" if len(callbacks) > 1 else ""
            log.warning("%s was not told of callback %s%s: %s", who, callback.id, more, self._redactor.text(what))

    async def close(self) -> None:
        """Send the gathered notifications, and wait a while for those under way."""
        for root, batch in [*self._batches.items()]:
            if batch.timer is not None:
                batch.timer.cancel()
                self._flush(root)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=10)
        self._threads.close()


def _is_async(function: Callable[..., Any]) -> bool:
    return iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


class _Batch:
    """Questions of one run tree that are not notified yet."""

    def __init__(self) -> None:
        self.callbacks: list[Callback] = []
        self.timer: asyncio.TimerHandle | None = None
        self.at, self.last_priority = 0.0, -1  # when the last notification was sent, and its priority


def _post(address: str, first: Callback, callbacks: Sequence[Callback], redactor: Redactor) -> None:
    """Send a notification. Importing Apprise, hiding secrets and sending may each take long."""
    title, body = notification_text(first, callbacks, redactor)
    if not _post_to(address).notify(body=body, title=title):
        raise SetupError("the message could not be delivered")


def notification_text(first: Callback, callbacks: Sequence[Callback], redactor: Redactor) -> tuple[str, str]:
    """Return the title and the body of a notification of one question, or of several of one run tree."""
    count = len(callbacks)
    if count == 1:
        return _about_one(first, redactor)
    others = [c for c in callbacks if c.id != first.id]
    named = (first, *others[: _LISTED - 1])
    shown = [f"> {_line(c.agent, redactor)}: {_line(c.reworded or c.message, redactor)}" for c in named]
    if count > _LISTED:
        shown.append(f"… and {count - _LISTED} more")
    title = f"{count} questions wait ({first.priority})"
    return title, "\n".join([*shown, "", "See them with: upcall inbox"])


def _about_one(callback: Callback, redactor: Redactor) -> tuple[str, str]:
    """Return a question in full. Its context, choices and arguments are not in a notification."""
    parts = {name: getattr(callback, name) for name in ("agent", "intent", "reworded", "message")}
    shown = cast("dict[str, str]", redactor.show(parts))
    title = f"{shown['agent']} asks ({shown['intent']}, {callback.priority})"
    asked = [shown["reworded"], "", "In its own words:"] if callback.reworded else []
    quoted = "\n".join(f"> {row}" for row in plain("\n".join([*asked, shown["message"]])).splitlines())
    return one_line(title, _TITLE), f"{quoted}\n\nAnswer with: upcall answer {shell_word(callback.id)} …"


def _line(text: str, redactor: Redactor) -> str:
    """Return a text on one line. Secrets are looked for only in the part that may be shown."""
    start = redactor.beginning(text, _LOOKED_AT)
    return one_line(redactor.text(start) + ("…" if len(start) < len(text) else ""), _LINE)


def _post_to(address: str) -> Any:
    try:
        import apprise
    except ImportError:
        raise SetupError("notifications need the extra: pip install 'upcall[notify]'") from None
    post: Any = apprise.Apprise()
    if not post.add(address):
        raise SetupError("it is not an address that Apprise knows")
    return post
