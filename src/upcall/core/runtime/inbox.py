"""Answers to callbacks by id, and the callbacks that are put before the person who is here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from upcall.callbacks import Answer, Callback, CoveredCall, after, public
from upcall.contracts import Host, Store
from upcall.core.routing.answer import (
    already_settled,
    check_principal,
    covered_calls,
    settled_with,
    settling_event,
)
from upcall.core.turns.turn import Turn
from upcall.errors import AlreadySettled, AnswerRefused, SetupError, UnknownCallback
from upcall.events import (
    AnyEvent,
    CallbackAnswered,
    CallbackDeclined,
    CallbackExpired,
)

log = logging.getLogger("upcall")

MOST_REFUSED = 100
"""Answers in a row that a host may give and that are refused; then the question is left in the inbox."""

_GATHER, _MOST_GATHER = 0.25, 1.0
"""Seconds that the host waits for another equal question while others of the run tree still run; and in all."""


class Inbox:
    """Settles callbacks by id, and puts them before the person who is here, if a host is given.

    turns: those that run here; they are told what the person leaves for later
    spawn: runs something in the background
    """

    def __init__(
        self,
        store: Store,
        host: Host | None,
        turns: Mapping[str, Turn],
        spawn: Callable[[Coroutine[Any, Any, Any]], Any],
    ) -> None:
        self._store, self._host, self._turns, self._spawn = store, host, turns, spawn
        self._asks: dict[tuple[str, ...], HostAsk] = {}
        self._ask_of: dict[str, HostAsk] = {}  # by callback id
        self._answered: dict[tuple[str, ...], asyncio.Future[None]] = {}  # groups whose answer is being stored

    def close(self) -> None:
        """Ask the host nothing any more."""
        for asked in tuple(self._asks.values()):
            asked.cancel()

    async def answer(self, id: str, value: Any, *, by: str, right: str, only: bool = False) -> Callback:
        """Settle a callback, as `Catalog.answer` says."""
        by, right = check_principal(by, right)
        callback = await self._store.callback(id)
        if callback is None:
            raise UnknownCallback(id)
        if callback.status != "open":
            raise already_settled(callback)
        if callback.kind == "request_resolution":
            raise AnswerRefused(
                id,
                "a person can't answer a callback of the kind request_resolution, only agents and their hooks can",
            )
        event = settling_event(callback, value, by, right)
        events: dict[str, CallbackAnswered | CallbackDeclined] = {id: event}
        if not only:
            events |= {one.callback_id: one for one in await self._settled_too(callback, event)}
        refused = await self._store.settle(id, events)
        if refused is not None:
            raise already_settled(refused)
        return public(after(callback, event), group=tuple(events))

    async def _settled_too(
        self, callback: Callback, event: CallbackAnswered | CallbackDeclined
    ) -> Sequence[CallbackAnswered | CallbackDeclined]:
        """The events that settle others too: equal questions, or the calls that an approval covers."""
        if not callback.gate and not callback.digest_of_group:
            return []
        if callback.gate and isinstance(event, CallbackAnswered) and not event.value["for_session"]:
            return []
        tree, now = await self._store.callbacks(root=callback.root), self._store.now()
        if callback.gate and isinstance(event, CallbackAnswered):
            return settled_with(callback, event, tree, now)
        equal = [one for one in tree if one.group_key == callback.group_key and one.status == "open"]
        waiting = [one for one in equal if one.target == "user" and (one.expires is None or one.expires > now)]
        return [event.replace(callback_id=one.id) for one in waiting if one.id != callback.id]

    # --- the person who is here -----------------------------------------------------------

    def ask_host(self, callback: Callback, *, gather: bool = False) -> None:
        """Put a question before the person who is here: once for all equal ones, which share their `group_key`.

        `gather`: others of its run tree are still running, so a moment is left for them to ask the same.
        """
        key = callback.group_key
        asked = self._asks.get(key)
        if asked is None:
            asked = self._asks[key] = HostAsk(key)
            asked.task = asyncio.get_running_loop().create_task(self._ask_host(asked, gather=gather))
        asked.members.setdefault(callback.id, callback)
        self._ask_of[callback.id] = asked

    def end_gathering(self, root: str) -> None:
        """Ask the host now: nothing of that run tree runs any more, so nobody is about to ask the same."""
        for asked in self._asks.values():
            if asked.key[0] == root:
                asked.gathered.set()

    async def _ask_host(self, asked: HostAsk, *, gather: bool = False) -> None:
        if gather:
            await asked.gather()
        if (answered := self._answered.get(asked.key)) is not None:  # the answer to its equals settles it, too
            asked.again = True
            await asyncio.wait({answered})
        callback = await self._first_open(asked)
        if callback is None:
            self._forget(asked)
            return
        asked.shown = callback.id
        try:
            everybody = (callback.id, *[i for i in asked.members if i != callback.id])
            shown = public(callback, group=everybody, covers=await self._covers(callback))
            value = None if self._host is None else await self._host.ask(shown)
        except Exception:  # somebody else's program: the question itself is safe in the inbox
            log.exception("the host failed to ask callback %s; it waits in the inbox", callback.id)
            value = None
        if asked.shown != callback.id:  # it was taken off the screen, and the host answered nevertheless
            return
        self._forget(asked)  # what the host says is not to be taken off its screen
        if value is not None and await self._take_in_turn(asked, value):
            return
        for member in asked.members.values():
            # the person who is here leaves it for later: nothing is gained by holding the run in memory
            turn = self._turns.get(member.session_id)
            if turn is not None:
                turn.services.person_deferred(member.id)

    async def _covers(self, callback: Callback) -> dict[str, tuple[CoveredCall, ...]]:
        """For each pattern of an approval, the other calls of its session that wait now and that it covers."""
        if not callback.patterns:
            return {}
        return covered_calls(callback, await self._store.callbacks(root=callback.root))

    async def _first_open(self, asked: HostAsk) -> Callback | None:
        """The question to show: the oldest of the group. Once one was taken off the screen, look which are open."""
        for callback in tuple(asked.members.values()):
            now = await self._store.callback(callback.id) if asked.again else callback
            if now is not None and now.status == "open" and callback.id in asked.members:
                return callback
        return None

    async def _take_in_turn(self, asked: HostAsk, value: Any) -> bool:
        """Settle the group; an equal question that comes meanwhile is shown only if it is still open then."""
        done = self._answered[asked.key] = asyncio.get_running_loop().create_future()
        try:
            return await self._take(asked, value)
        finally:
            del self._answered[asked.key]
            done.set_result(None)

    async def _take(self, asked: HostAsk, value: Any) -> bool:
        """Settle the group by what the host said; a value that is refused is asked for again, with the reason.

        False after too many refused values in a row: a host that repeats itself must not keep the loop busy.
        """
        by, right = "user", "asserted"
        if isinstance(value, Answer):
            value, by, right = value.value, value.by or by, value.right or right
        left: dict[str, Callback] = {asked.shown: asked.members[asked.shown], **asked.members}
        while left:
            callback_id = next(iter(left))
            try:
                settled: tuple[str, ...] = (await self.answer(callback_id, value, by=by, right=right)).group
            except AnswerRefused as error:
                if asked.refused + 1 >= MOST_REFUSED:
                    said = "the host gave %d invalid answers in a row to callback %s; it waits in the inbox: %s"
                    log.warning(said, MOST_REFUSED, callback_id, error.problem)
                    return False
                for callback in left.values():
                    self.ask_host(callback.replace(problem=error.problem))
                self._asks[asked.key].refused = asked.refused + 1
                return True
            except SetupError as error:
                log.warning("invalid answer from the host; %s waits in the inbox: %s", callback_id, error)
                return False
            except (AlreadySettled, UnknownCallback):  # the others may still be open
                settled = (callback_id,)
            left = {i: callback for i, callback in left.items() if i not in settled}
        return True

    def withdraw(self, callback_id: str, reason: str) -> None:
        """Tell the person who is here that a callback has ended, if it is on the screen.

        Equal questions that are still open stay there, or take its place.
        """
        asked = self._ask_of.pop(callback_id, None)
        if asked is None:
            return
        del asked.members[callback_id]
        if asked.members and asked.shown != callback_id:
            return
        asked.cancel()
        shown, asked.shown, asked.again = asked.shown, "", True
        if asked.members:
            asked.task = asyncio.get_running_loop().create_task(self._ask_host(asked))
        else:
            self._forget(asked)
        take_back = getattr(self._host, "withdraw", None) if shown else None  # not every host has a screen
        withdrawn: Any = None if take_back is None else take_back(callback_id, reason)
        if hasattr(withdrawn, "__await__"):  # a host may do it in its own time
            self._spawn(withdrawn)

    def _forget(self, asked: HostAsk) -> None:
        """Note that the host no longer shows these questions."""
        self._asks.pop(asked.key, None)
        for callback_id in asked.members:
            self._ask_of.pop(callback_id, None)


def why_withdrawn(event: AnyEvent) -> str:
    """The reason that a host is given when a callback has ended elsewhere."""
    if isinstance(event, CallbackExpired):
        return "it expired"
    if isinstance(event, CallbackAnswered) and event.covered_by:
        return f"the answer to {event.covered_by} covers it"
    return "it was settled elsewhere"


class HostAsk:
    """Equal questions of one run tree that are put before the person who is here as one.

    `shown` is the id under which the host was asked; `again`: one was taken off the screen before; `refused` counts
    the answers in a row that were not taken.
    """

    task: asyncio.Task[None]

    def __init__(self, key: tuple[str, ...]) -> None:
        self.key, self.shown, self.again, self.refused = key, "", False, 0
        self.gathered = asyncio.Event()
        self.members: dict[str, Callback] = {}

    async def gather(self) -> None:
        """Wait for equal questions, as long as they keep coming."""
        now = asyncio.get_running_loop().time
        until, before = now() + _MOST_GATHER, 0
        while not self.gathered.is_set() and len(self.members) > before and now() < until:
            before = len(self.members)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.gathered.wait(), _GATHER)

    def cancel(self) -> None:
        """Stop asking."""
        self.task.cancel()
