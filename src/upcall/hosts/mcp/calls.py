"""Turns that clients start: begin one, wait for it a while, continue it, and settle what it asks.

Nothing here knows the protocol. A turn runs in the background and belongs to no request, so a client that leaves
cancels nothing. What is known of a turn is in the log; another process can continue it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from typing import Any, NamedTuple

from upcall.app import Runtime, open_session
from upcall.callbacks import Callback
from upcall.contracts import Delta, Missed, Row
from upcall.errors import RuntimeClosed, SessionBusy, SessionWaiting, SetupError, UnknownSession, UpcallError
from upcall.events import AnyEvent, HooksPassed, Responded, StepEnded, TurnEnded, TurnStarted

MOST_TURNS = 64
"""Turns that run here at the same time; more are refused."""

MOST_QUESTIONS = 20
"""Questions of one turn that are shown at once; the others follow when these are settled."""

_MOST_KNOWN = 10_000
"""Sessions that this process remembers as its own, to continue them when they are answered elsewhere."""

_BEGIN_LIMIT = 10.0
_GATHER = 0.2
"""Seconds to wait after a question: others of the same turn may ask at the same time."""

_LOOK_INTERVAL = 2.0
_PAGE, _TAIL = 500, 20
ENDED = ("done", "failed", "limit", "cancelled")
Items = AsyncIterator[AnyEvent | Delta | Callback | Missed]
Watch = Callable[[AnyEvent], Awaitable[None]]
"""Is told the events of a turn while somebody waits for it."""


class Turn(NamedTuple):
    """One turn of a session."""

    session: str
    number: int

    @property
    def task_id(self) -> str:
        """Its id as a task: the session's, and the number of the turn."""
        return f"{self.session}:{self.number}"

    @classmethod
    def of_task(cls, task_id: str) -> Turn | None:
        """The turn with this task id; None if it is not one."""
        session, _, number = task_id.rpartition(":")
        return cls(session, int(number)) if session and number.isdecimal() and len(number) < 10 else None


class Outcome(NamedTuple):
    """A turn as it is now.

    status: working, waiting, or how it ended: done, failed, limit, cancelled
    text: the reply, or what failed the turn
    questions: what waits for a person
    created, updated: when the session began, and when it last changed
    note: something that whoever waits should know
    """

    turn: Turn
    status: str
    text: str = ""
    questions: tuple[Callback, ...] = ()
    created: float = 0.0
    updated: float = 0.0
    note: str = ""

    @property
    def has_ended(self) -> bool:
        """Tell whether the turn is over."""
        return self.status in ENDED


class Busy(UpcallError):
    """Raised where too many turns run here already."""

    def __init__(self) -> None:
        super().__init__(f"{MOST_TURNS} turns run here already; wait until one has ended")


class AgentCalls:
    """The turns that the clients of one server began or asked for."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._running: dict[str, asyncio.Task[Any]] = {}  # by session
        self._opening = 0
        self._failures: dict[str, str] = {}  # what kept a turn from being continued, by session
        self._known: OrderedDict[str, int] = OrderedDict()  # with the number of the newest turn

    # --- beginning and continuing ---------------------------------------------------------

    @contextlib.asynccontextmanager
    async def beginning(
        self, agent: str, prompt: str, session_id: str | None, by: str
    ) -> AsyncGenerator[tuple[Turn, Items]]:
        """A turn that has begun in the background, and its events from the first on.

        Raises what kept it from beginning. Leaving the block does not end the turn.
        """
        with self._room():
            session, _ = await open_session(self.runtime, self.runtime.agent(agent), session_id)
        if session.agent != agent:
            raise SetupError(f"{session_id!r} is a session of {session.agent!r}, not of {agent!r}")
        if session.id in self._running:
            raise SessionBusy(session.id, "this server", is_local=True)
        turn = Turn(session.id, session.turn + 1)
        async with self.runtime.subscribe(session.id) as items:
            task = self._spawn(turn, session.prompt(prompt, by=by))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_BEGIN_LIMIT):
                    await self._until_begun(items, task, session.id)
            if task.done() and (error := task.exception()) and not await self._has_begun(turn):
                self._known[turn.session] = turn.number - 1
                raise error
            yield turn, items

    @contextlib.contextmanager
    def _room(self) -> Generator[None]:
        """Reserve room for a turn that is about to run; Busy where there is none."""
        if len(self._running) + self._opening >= MOST_TURNS:
            raise Busy
        self._opening += 1
        try:
            yield
        finally:
            self._opening -= 1

    async def _until_begun(self, items: Items, task: asyncio.Task[Any], session_id: str) -> None:
        while True:
            first = asyncio.ensure_future(anext(items))
            try:
                await asyncio.wait({task, first}, return_when="FIRST_COMPLETED")
            finally:
                first.cancel()
            if not first.done():
                return
            item = first.result()
            if isinstance(item, TurnStarted) and item.session == session_id:
                return

    async def _has_begun(self, turn: Turn) -> bool:
        return (await self.runtime.load(turn.session)).turn >= turn.number

    def _spawn(self, turn: Turn, work: Any) -> asyncio.Task[Any]:
        self.remember(turn)
        session_id = turn.session
        self._failures.pop(session_id, None)
        task = self.runtime.spawn(work)
        self._running[session_id] = task
        task.add_done_callback(lambda done: self._ended(session_id, done))
        return task

    def _ended(self, session_id: str, task: asyncio.Task[Any]) -> None:
        if self._running.get(session_id) is task:
            del self._running[session_id]
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not isinstance(error, SessionBusy | RuntimeClosed | SessionWaiting):
            self._failures[session_id] = str(error)

    def remember(self, turn: Turn) -> None:
        """Continue this session here once it is answered, whoever answers it."""
        self._known[turn.session] = max(turn.number, self._known.get(turn.session, 0))
        self._known.move_to_end(turn.session)
        if len(self._known) > _MOST_KNOWN:
            oldest, _ = self._known.popitem(last=False)
            self._failures.pop(oldest, None)

    async def resume_known(self, root: str) -> bool:
        """Resume a ready run tree that a client of this process knows; False for all others."""
        if root not in self._known or root in self._running:
            return False
        resumed = await self._resume(root)
        if task := self._running.get(root):
            await asyncio.wait({task})
        return resumed

    async def _resume(self, session_id: str) -> bool:
        row = await self.runtime.store.row(session_id)
        if row is None or row.agent not in self.runtime.agent_names(session_id):
            return False
        if session_id not in self._running and len(self._running) < MOST_TURNS:
            self._spawn(Turn(session_id, 0), self.runtime.resume(session_id))
        return True

    # --- waiting --------------------------------------------------------------------------

    async def outcome(
        self, turn: Turn, wait: float = 0.0, watch: Watch | None = None, items: Items | None = None
    ) -> Outcome:
        """Wait until a turn has ended or asks the person, at most so many seconds; returns how it is then.

        A turn that was interrupted, or whose question was settled, is continued here if its agent is loaded.
        `items` are its events, where somebody has subscribed to them already.
        """
        await self._check_known(turn)
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        async with contextlib.AsyncExitStack() as stack:
            if items is None:
                items = await stack.enter_async_context(self.runtime.subscribe(turn.session))
            while True:
                found = await self.look(turn)
                if found.questions and turn.session in self._running:
                    await self._gather(turn.session)
                    found = await self.look(turn)
                left = until - loop.time()
                if found.status != "working" or found.note or left <= 0:
                    return found
                await self._next_change(turn.session, items, min(left, _LOOK_INTERVAL), watch)

    async def _check_known(self, turn: Turn) -> None:
        """Raise UnknownSession if the log has no such turn; a client may name any."""
        if turn.number > self._known.get(turn.session, 0):
            self.remember(await self.current_turn(turn.session))
        if turn.number > self._known[turn.session]:
            raise UnknownSession(turn.task_id)
        self.remember(turn)

    async def _gather(self, session_id: str) -> None:
        """Wait a moment for other questions of the same turn."""
        task = self._running.get(session_id)
        if task is not None:
            await asyncio.wait({task}, timeout=_GATHER)

    async def _next_change(self, session_id: str, items: Items, seconds: float, watch: Watch | None) -> None:
        """Wait for something that may change the outcome, or for the end of what runs here."""
        running = self._running.get(session_id)
        change = asyncio.ensure_future(_change(items, watch))
        try:
            waiting = {change} if running is None else {change, running}
            await asyncio.wait(waiting, timeout=seconds, return_when="FIRST_COMPLETED")
        finally:
            change.cancel()
            await asyncio.wait({change})

    async def look(self, turn: Turn) -> Outcome:
        """A turn as it is now; one that can continue here is continued."""
        row = await self.runtime.store.row(turn.session)
        if row is None or row.parent:
            raise UnknownSession(turn.session)
        if turn.number < self._known.get(turn.session, 0):
            return await self._from_log(turn, row)
        if turn.session in self._running:
            return await self._open_outcome(turn, row, "working")
        status = row.current_status
        if status in ENDED or status == "idle":
            return await self._ended_outcome(turn, row)
        if status == "interrupted" or (status == "waiting" and not await self._questions(turn)):
            if turn.session in self._failures:
                why = self._failures[turn.session]
                return _outcome(turn, row, "failed", f"it can't be continued here: {why}")
            if await self._resume(turn.session):
                return await self._open_outcome(turn, row, "working")
            return _outcome(turn, row, "working", note=f"its agent {row.agent!r} is not loaded here")
        return await self._open_outcome(turn, row, "waiting" if status == "waiting" else "working")

    async def _questions(self, turn: Turn) -> tuple[Callback, ...]:
        found = await self.runtime.inbox(MOST_QUESTIONS * 10, session=turn.session)
        return tuple(found[:MOST_QUESTIONS])

    async def _open_outcome(self, turn: Turn, row: Row, status: str) -> Outcome:
        questions = await self._questions(turn)
        return _outcome(turn, row, "waiting" if questions else status, questions=questions)

    async def _ended_outcome(self, turn: Turn, row: Row) -> Outcome:
        session = await self.runtime.load(turn.session)
        if session.turn < turn.number:
            return _outcome(turn, row, "failed", self._failures.get(turn.session, "the turn has not begun"))
        if session.turn == turn.number and session.reply is not None:
            return _outcome(turn, row, session.reply.status, session.reply.text, note=session.reply.limit)
        is_last = session.turn == turn.number
        return await self._from_log(turn, row, max(0, row.seq - _TAIL) if is_last else 0)

    async def _from_log(self, turn: Turn, row: Row, after: int = 0) -> Outcome:
        """The end of a turn that failed, or of one before the last, from its events."""
        text, inside = "", after > 0
        while page := await self.runtime.store.read(turn.session, after, _PAGE):
            for event in page:
                if isinstance(event, TurnStarted):
                    inside, text = event.turn == turn.number, ""
                elif inside and isinstance(event, TurnEnded) and event.turn == turn.number:
                    return _outcome(turn, row, event.status, event.error or text, note=event.limit)
                elif inside:
                    text = _reply_text(event, text)
            after = page[-1].seq
            await asyncio.sleep(0)
        raise UnknownSession(turn.task_id)

    async def current_turn(self, session_id: str) -> Turn:
        """The last turn of a session; UnknownSession where there is none."""
        session = await self.runtime.load(session_id)
        if session.parent:
            raise UnknownSession(session_id)
        return Turn(session_id, session.turn)


async def _change(items: Items, watch: Watch | None) -> None:
    """Tell of events until one may change the outcome of their turn."""
    async for item in items:
        if isinstance(item, Callback):
            return
        if not isinstance(item, Delta | Missed) and watch is not None:
            await watch(item)
        if item.type in _CHANGES:
            return


def _outcome(turn: Turn, row: Row, status: str, text: str = "", **more: Any) -> Outcome:
    return Outcome(turn, status, text, created=row.created, updated=row.updated, **more)


def _reply_text(event: AnyEvent, text: str) -> str:
    """The text of the reply so far, after one more event."""
    match event:
        case Responded():
            return event.message.text
        case HooksPassed(point="end_turn", text=str(changed)):
            return changed
        case HooksPassed(point="post_response") if event.message is not None:
            return event.message.text
        case StepEnded():
            return event.text
        case _:
            return text


_CHANGES = frozenset(
    ("parked", "turn_ended", "callback_answered", "callback_declined", "callback_expired", "callback_withdrawn")
)
