"""`Session`, the public handle of one conversation."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Any, Generic, Protocol, TypeVar

from upcall.contracts import Delta, OutputT_co, Reply
from upcall.core.log.session_log import Sink
from upcall.core.log.state import SessionState
from upcall.core.turns.access import SessionView
from upcall.events import AnyEvent, SessionOptions
from upcall.messages import Message

R = TypeVar("R")


class SessionRunner(Protocol):
    """The parts of a runtime that a `Session` uses. `Sessions` implements them."""

    @property
    def turns(self) -> Mapping[str, object]:
        """The turns that run here, by session id."""
        ...

    async def run_turn(
        self,
        state: SessionState,
        text: str | Message,
        take_over: bool = False,
        sink: Sink | None = None,
        by: str = "",
    ) -> Reply:
        """Run one turn of a session."""
        ...

    async def resume(self, id: str, *, take_over: bool = False, sink: Sink | None = None) -> Reply:
        """Continue a waiting, interrupted or failed turn."""
        ...

    async def reread(self, state: SessionState) -> Reply:
        """Bring a session up to date and return its last reply."""
        ...

    async def cancel(self, id: str, reason: str = "", by: str = "", right: str = "") -> None:
        """End a session's running or waiting turn."""
        ...

    async def steer(self, id: str, text: str, by: str = "", right: str = "") -> None:
        """Add a text that the next model call sees."""
        ...

    async def set_options(self, state: SessionState, options: SessionOptions) -> None:
        """Choose options for a session."""
        ...

    async def compact(self, state: SessionState, keep_last: int) -> None:
        """Have a session's model summarise while no turn runs."""
        ...

    def spawn(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """Run a coroutine in the background."""
        ...


class Session(SessionView, Generic[OutputT_co]):
    """A conversation with one agent, kept in the log. Reads show it as of the last turn or load."""

    _sessions: SessionRunner
    reply: Reply[OutputT_co] | None = None
    _loaded: tuple[int, str] = (0, "")
    """The session's newest sequence number when it was loaded, and its status in the store at that time."""

    @property
    def status(self) -> str:
        """The session's status, as far as this process knows. `runtime.status(id)` asks the store."""
        state, turn = self._state, self._state.turn
        if state.id in self._sessions.turns:
            return "running"
        if state.seq == self._loaded[0]:
            return self._loaded[1]
        if turn.phase != "running" and not (turn.parked and not state.begun):
            return "queued" if state.queued or turn.retry else turn.phase
        return "waiting" if turn.parked or (self.reply and self.reply.status == "waiting") else "interrupted"

    @property
    def turn(self) -> int:
        """The number of its last turn, from 1; 0 before the first."""
        return self._state.turn.number

    async def prompt(self, text: str | Message, *, take_over: bool = False, by: str = "") -> Reply[OutputT_co]:
        """One turn. Raises what failed it; an interrupted turn is finished first. `by`: who says it."""
        self.reply = await self._sessions.run_turn(self._state, text, take_over, by=by)
        return self.reply

    async def resume(self, *, take_over: bool = False) -> Reply:
        """Continue a waiting, interrupted or failed turn; with nothing to do, return the last reply."""
        await self._sessions.resume(self.id, take_over=take_over)
        self.reply = await self._sessions.reread(self._state)
        return self.reply

    async def stream(self, text: str | Message | None = None, *, by: str = "") -> AsyncGenerator[AnyEvent | Delta]:
        """One turn as it happens: its events and its children's, and text while it is written.

        Without a text it continues a waiting, interrupted or failed turn, or joins the one that runs. Leaving early
        does not cancel the turn. `session.reply` has the reply once the stream has ended.
        """
        items: deque[AnyEvent | Delta] = deque()
        more = asyncio.Event()

        def sink(item: AnyEvent | Delta) -> None:
            items.append(item)
            more.set()

        if text is None:
            task = self._sessions.spawn(self._sessions.resume(self.id, sink=sink))
        else:
            task = self._sessions.spawn(self._sessions.run_turn(self._state, text, sink=sink, by=by))
        task.add_done_callback(lambda _: more.set())
        while True:
            while items:
                yield items.popleft()
            if task.done():
                break
            more.clear()
            if not items:
                await more.wait()
        self.reply = await task
        if text is None:
            self.reply = await self._sessions.reread(self._state)

    async def cancel(self, reason: str = "") -> None:
        """End the running turn."""
        await self._sessions.cancel(self.id, reason)

    async def steer(self, text: str) -> None:
        """Say something that the next model call sees."""
        await self._sessions.steer(self.id, text)

    @property
    def options(self) -> SessionOptions:
        """The options for its next turn."""
        return self._state.next_options

    async def set_options(self, options: SessionOptions) -> None:
        """Choose its model among the agent's, and whether more is approved; it counts from the next turn on."""
        await self._sessions.set_options(self._state, options)

    async def trigger_compaction(self, keep_last: int = 10) -> None:
        """Have the model summarise, between turns; a turn that waits does it before its next model call."""
        await self._sessions.compact(self._state, keep_last)

    def __repr__(self) -> str:
        return f"Session({self.id!r}, agent={self.agent!r})"
