"""People and a store's callbacks: the inbox, answers by id, the person who is here, and what can go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from msgspec.structs import replace

from upcall.answers import already, callback_of, checked
from upcall.callbacks import Callback, Held
from upcall.contracts import Host, Row, Store
from upcall.errors import AlreadySettled, AnswerRefused, UnknownCallback, UnknownSession, UpcallError
from upcall.events import SETTLING, AnyEvent, CallbackAnswered
from upcall.loop import Turn
from upcall.session import Sink

log = logging.getLogger("upcall")
R = TypeVar("R")


class People:
    """What a runtime does with callbacks that wait for somebody, whether or not it runs their sessions."""

    def __init__(self, store: Store, host: Host | None) -> None:
        self.store, self.host = store, host
        self.turns: dict[str, Turn] = {}
        self.sinks: list[Sink] = []  # who watches everything that this runtime runs
        self.person_watchers: list[Callable[[Callback], None]] = []  # told once of each question to the person
        self._asks: dict[str, asyncio.Task[Any]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stop_listening: Callable[[], None] | None = None
        self._closed = False

    async def _open(self) -> None:
        if self._closed:
            raise UpcallError("this runtime is closed; make another")
        if self._stop_listening is None:
            await self.store.open()
            self._stop_listening = self.store.listen(self._hear)

    def spawn(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """Run something that goes on whoever leaves; its failure is logged if nobody takes it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.debug("a streamed turn failed: %s", task.exception())

    async def _row(self, id: str) -> Row:
        row = await self.store.row(id)
        if row is None:
            raise UnknownSession(id)
        return row

    def _hear(self, event: AnyEvent) -> None:
        turn = self.turns.get(event.session)
        if turn is not None:
            turn.absorb(event)
            turn.log.publish(event)
        else:
            for sink in self.sinks:
                sink(event)
        if isinstance(event, SETTLING):
            self.withdraw(event.callback_id, "it was settled elsewhere")

    async def _is_ready(self, root: str) -> bool:
        """Tell whether a parked run tree can continue; also where nothing is open any more: that was cancelled."""
        now, callbacks = self.store.now(), await self.store.callbacks(root=root)
        return any(held.ends_wait(now) for held in callbacks) or all(held.status != "open" for held in callbacks)

    async def ready(self) -> list[str]:
        """The ids of all run trees that are ready to continue, oldest first.

        No living process runs them, and they were interrupted, or something that they wait for is settled, expired
        or to be asked of an agent next.
        """
        await self._open()
        return [row.id for row in await self.store.unfinished()]

    async def inbox(self, limit: int = 100_000) -> list[Callback]:
        """What waits for a person, highest priority first, then oldest; equal questions of a tree are one entry."""
        await self._open()
        groups: dict[tuple[str, str], list[Held]] = {}
        for one in await self.store.callbacks(inbox=True, limit=limit):
            if one.expires is None or one.expires > self.store.now():
                groups.setdefault((one.root, one.raised.group or one.raised.callback_id), []).append(one)
        return [callback_of(g[0], tuple([h.raised.callback_id for h in g])) for g in groups.values()]

    async def answer(
        self, id: str, value: Any, by: str = "", only: bool = False, right: str = "asserted"
    ) -> Callback:
        """Settle a callback, and equal ones of its run tree with it unless `only`; the first valid answer wins."""
        await self._open()
        held = await self.store.callback(id)
        if held is None:
            raise UnknownCallback(id)
        if held.status != "open":
            raise already(held)
        if held.raised.kind == "request_resolution":
            raise AnswerRefused(id, "request_resolution is settled by agents, tools and memory, never by a person")
        stored, group = checked(held.raised, value), held.raised.group
        events: dict[str, AnyEvent] = {id: CallbackAnswered(id, stored, by, right)}
        for one in await self.store.callbacks(root=held.root) if group and not only else ():
            if one is not held and one.raised.group == group and one.status == "open" and one.target == "user":
                events[one.raised.callback_id] = CallbackAnswered(one.raised.callback_id, stored, by, right)
        refused = await self.store.settle(id, events)
        if refused is not None:
            raise already(refused)
        return callback_of(replace(held, status="answered", settled=events[id]), tuple(events))

    def ask_host(self, callback: Callback) -> None:
        """Put a question before the person who is here."""
        if callback.id not in self._asks:
            self._asks[callback.id] = asyncio.get_running_loop().create_task(self._ask_host(callback))

    async def _ask_host(self, callback: Callback) -> None:
        try:
            try:
                value = None if self.host is None else await self.host.ask(callback)
            except Exception:  # somebody else's program: the question itself is safe in the inbox
                log.exception("the host failed to ask callback %s; it waits in the inbox", callback.id)
                value = None
            if value is not None:
                by, right = getattr(self.host, "by", "user"), getattr(self.host, "right", "asserted")
                self._asks.pop(callback.id, None)  # what it says is not to be taken off its screen
                try:
                    await self.answer(callback.id, value, by=by, right=right)
                except AnswerRefused as error:
                    self.ask_host(callback.replace(problem=error.problem))
                except AlreadySettled:
                    pass
                return
            # the person who is here leaves it for later: nothing is gained by holding the run in memory
            turn = self.turns.get(callback.session_id)
            if turn is not None:
                turn.tree.left_waiting(callback.id)
        finally:
            if self._asks.get(callback.id) is asyncio.current_task():
                del self._asks[callback.id]

    def withdraw(self, callback_id: str, reason: str) -> None:
        """Tell the person who is here that an open ask has ended, if it is on the screen."""
        asked = self._asks.pop(callback_id, None)
        if self.host is None or asked is None or asked.done():
            return
        asked.cancel()
        withdrawn: Any = self.host.withdraw(callback_id, reason)
        if hasattr(withdrawn, "__await__"):  # a host may do it in its own time
            self.spawn(withdrawn)
