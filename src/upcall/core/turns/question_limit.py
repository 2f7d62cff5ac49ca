"""Limit how many questions one response may have open. Further calls wait until others are settled.

A call that may still ask holds a slot while it runs, so that there is one for its first question. A call that has
to wait for a slot has not started: after a crash or a park it begins as if it were new. A further question of a
call that waits already is asked again when that call is entered again. So nothing that waits here has to be stored.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque

from upcall.core.log.call_state import CallState
from upcall.core.log.state import SessionState

_POINTS = ("before_tool.", "after_tool.")


class QuestionSlots:
    """The slots of one session's response; `most` is None where they are not limited."""

    __slots__ = ("_away", "_live", "_most", "_raising", "_state", "_waiting")

    def __init__(self, state: SessionState, most: float | None) -> None:
        self._state, self._most = state, most
        self._live: set[str] = set()  # calls that have a slot
        self._away: defaultdict[str, int] = defaultdict(
            int
        )  # those that wait for a child or for calls of their program
        self._raising: defaultdict[str, int] = defaultdict(
            int
        )  # questions that are about to be in the log, by call
        self._waiting: deque[tuple[str, bool, asyncio.Future[None]]] = deque()

    def enter(self, call: CallState) -> asyncio.Future[None] | None:
        """Give a call its slot, or return a future that is done when it has one.

        A call that has begun before gets one in any case: it may have questions open.
        """
        name, outer = call.call.id, call.call.id.rpartition(".")[0]
        if outer:
            self._away[outer] += 1
        if call.started or call.hooks_passed or self._asks_of(name) or not self._is_full():
            self._live.add(name)
            return None
        return self._wait(name, is_call=True)

    def leave(self, name: str) -> None:
        """Free the slot of a call that has ended or is parked."""
        self._live.discard(name)
        if outer := name.rpartition(".")[0]:
            self._away[outer] -= 1
        self.admit()

    def step_out(self, name: str) -> None:
        """Count no slot for a call while it waits for a child."""
        self._away[name] += 1
        self.admit()

    def step_in(self, name: str) -> None:
        """Count its slot again."""
        self._away[name] -= 1

    def begin_question(self, origin: str) -> asyncio.Future[None] | None:
        """Make room for one more question of a call; a future is done when there is some.

        The first one has the slot of its call. `end_question` is due once it is in the log.
        """
        name = _call_of(origin)
        if not self._is_full() or not (self._raising[name] or self._open_of(name)):
            self._raising[name] += 1
            return None
        return self._wait(name, is_call=False)

    def end_question(self, origin: str) -> None:
        """Note that a question is in the log, or will not be."""
        self._raising[_call_of(origin)] -= 1
        self.admit()

    def admit(self) -> None:
        """Let those continue that there is a slot for, in the order in which they came."""
        while self._waiting and (self._waiting[0][2].done() or not self._is_full()):
            name, is_call, future = self._waiting.popleft()
            if future.done():  # it was cancelled
                continue
            if is_call:
                self._live.add(name)
            else:
                self._raising[name] += 1
            future.set_result(None)

    def unwind(self, parking: type[BaseException]) -> None:
        """Raise `parking` in everything that waits: it is begun or asked again when the turn is resumed."""
        waiting, self._waiting = self._waiting, deque()
        for _, _, future in waiting:
            if not future.done():
                future.set_exception(parking())
                future.exception()  # who waited may be gone already

    def _wait(self, name: str, *, is_call: bool) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((name, is_call, future))
        return future

    def _is_full(self) -> bool:
        most = self._most
        if most is None or len(self._live) + len(self._state.turn.callbacks) + sum(self._raising.values()) < most:
            return False
        asking: set[str] = {name for name, count in self._raising.items() if count > 0}
        taken = sum(count for count in self._raising.values() if count > 0)
        for one in self._state.turn.callbacks.values():
            name = _call_of(one.origin)
            if one.status == "open" and self._state.conversation.call(name) is not None:
                asking.add(name)
                taken += 1
        taken += sum(name not in asking and self._away[name] <= 0 for name in self._live)
        return taken >= most

    def _asks_of(self, name: str) -> bool:
        return any(_call_of(one.origin) == name for one in self._state.turn.callbacks.values())

    def _open_of(self, name: str) -> bool:
        asks = self._state.turn.callbacks.values()
        return any(one.status == "open" and _call_of(one.origin) == name for one in asks)


def _call_of(origin: str) -> str:
    """The call whose code, or whose hooks, ask."""
    for point in _POINTS:
        if origin.startswith(point):
            return origin[len(point) :]
    return origin
