"""One turn of one session: what it has and what it needs. The loop that runs it is in `loop`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import CoroutineType
from typing import Any, NamedTuple, Protocol

from upcall import events
from upcall.agent import Agent
from upcall.callbacks import Callback
from upcall.contracts import Claim, Delta, Files, Reply, Spent
from upcall.core.log.call_state import CallState
from upcall.core.log.session_log import SessionLog
from upcall.core.routing.question import Question
from upcall.core.turns.parking import Activity, Parking
from upcall.core.turns.prepared_agent import PreparedAgent
from upcall.core.turns.process_limit import ProcessLimit
from upcall.core.turns.question_limit import QuestionSlots
from upcall.core.turns.reply import typed_reply_of
from upcall.core.turns.thread_cache import Threads
from upcall.core.turns.timeouts import Deadlines, ToolTimeout
from upcall.errors import (
    CallEnded,
    LimitReached,
    ReplayMismatch,
    RuntimeClosed,
    SessionTakenOver,
    StoreError,
    UpcallError,
)
from upcall.messages import Message, Priority, Purpose, compacted_messages, user

_MOST_OUTPUT = 100_000
"""Characters of what a call shows that are kept until its hooks have passed its result."""

PINNED = "pinned."
"""Context whose key begins so is shown to the model again when the conversation is compacted."""


class Cancelled(UpcallError):
    """Somebody asked for the turn to end."""


class ChildSpec(NamedTuple):
    """How to start a child session when the defaults do not apply (team members, bridges).

    turn_number: which turn of the child to run
    retry_failed: resume that turn if it ended as failed or at a limit; otherwise return its logged result
    """

    agent: str = ""
    role: str = ""
    team: str = ""
    caller_session: str | None = None
    turn_number: int = 1
    retry_failed: bool = False

    def is_over(self, turn_number: int, phase: str) -> bool:
        """Tell whether the wanted turn has ended and is not to be resumed."""
        if phase == "running" or turn_number < self.turn_number:
            return False
        return turn_number > self.turn_number or not (self.retry_failed and phase in ("failed", "limit"))


DEFAULT_CHILD = ChildSpec()


class SubmitOptions(NamedTuple):
    """The options of a session that a hook or tool queues."""

    priority: Priority = "normal"
    tenant: str = ""
    tags: Mapping[str, str] | None = None
    data: Mapping[str, Any] | None = None


class TurnServices(Protocol):
    """The services that a run tree gives its turns: callbacks, children, side turns, and shared objects."""

    activity: Activity
    deadlines: Deadlines
    threads: Threads
    processes: ProcessLimit
    deps: Any
    """The object of `Runtime(deps=...)`."""
    capture: bool
    """What goes over the wire to models is logged."""
    draining: bool
    """Nothing new starts: turns stop between two steps."""

    # --- the turn in its tree

    def register(self, turn: Turn) -> None:
        """Make a turn that starts to run known, so that cancel, steer and answers reach it."""
        ...

    def unregister(self, turn: Turn) -> None:
        """Forget a turn that has ended or is parked."""
        ...

    def is_stopping(self, turn: Turn) -> bool:
        """Tell whether the turn has to stop between two steps."""
        ...

    def retry_at(self, turn: Turn, error: BaseException) -> float:
        """Return the time from which a worker may try a failed turn again; 0.0 if none does."""
        ...

    async def ensure_claimed(self, turn: Turn) -> Claim:
        """Return the claim on the tree; a session that is just being created is stored and claimed first."""
        ...

    def note_parked(self, turn: Turn) -> None:
        """Note that a turn has unwound and waits; it is part of what is parked."""
        ...

    def workspace(self, turn: Turn) -> Files | None:
        """The files of the turn's agent, or of the nearest agent above it that has a workspace."""
        ...

    def spent(self, turn: Turn) -> CoroutineType[Any, Any, Spent]:
        """The usage of all sessions of the tree."""
        ...

    async def summarise(self, turn: Turn, keep_last: int, origin: str) -> None:
        """Have the model summarise the conversation: now, or before its next call where that is not possible."""
        ...

    # --- callbacks

    async def raise_callback(self, scope: CallbackScope, question: Question) -> Callback:
        """Ask whoever is above; return the settled callback, stored as delivered.

        That an approval was delivered is stored with the start of its tool.
        """
        ...

    async def wait_until_reenterable(self, turn: Turn, origin: str) -> None:
        """Return when a tool call or hook that asked before may run again: one of its callbacks is settled."""
        ...

    def withdraw(self, callback_id: str, reason: str) -> None:
        """Ask nobody any further about a callback that has ended."""
        ...

    def person_deferred(self, callback_id: str) -> None:
        """Note that the person leaves a question for later: the run is not held in memory for it."""
        ...

    # --- children and side turns

    async def start_child(
        self, parent: Turn, agent: Agent | str, prompt: str, name: str, spec: ChildSpec = DEFAULT_CHILD
    ) -> Reply:
        """Run, or resume, the child session called after its parent and `name`."""
        ...

    async def submit(self, turn: Turn, agent: Agent | str, text: str, id: str, options: SubmitOptions) -> str:
        """Queue a session of its own; called again with the same id and text, do nothing."""
        ...

    def note_child_waits(self, turn: Turn, origin: str) -> None:
        """Note that a call or a hook is unwound while it waits for a child."""
        ...

    async def finish_below(self, turn: Turn, call: CallState) -> bool:
        """Run the children that a call waited for when it was parked; Parking where one of them still waits."""
        ...

    async def end_children_of(self, turn: Turn, call_id: str, why: str) -> None:
        """End the children that a call started, with all below them."""
        ...

    async def end_below(self, session_id: str, why: str) -> None:
        """End a session and all below it that wait or failed."""
        ...

    async def side_turn(self, turn: Turn, text: str, name: str) -> str:
        """Have the turn's agent answer over its own conversation, without leaving a trace in it."""
        ...

    async def cancel_side_turns(self) -> None:
        """Cancel the side turns that still have a callback to answer; their ends are stored when this returns."""
        ...


class Turn:
    """One turn of one session, from its prompt, or from where it stopped, to its reply. `loop.run_turn` runs it.

    An agent above that is asked has one too, though it may not run: its log, its agent and its hooks.
    """

    __slots__ = (
        "_cancels", "_question_slots", "activity", "actor", "children", "held_output", "hooks", "log",
        "partial_text", "purpose", "question", "read_output", "room", "same_workspace", "savers", "services",
        "state", "stopping", "summarising", "task", "waits",
    )  # fmt: skip

    def __init__(
        self, log: SessionLog, actor: PreparedAgent, services: TurnServices, purpose: Purpose = "turn"
    ) -> None:
        self.log, self.actor, self.services = log, actor, services
        self.state, self.hooks = log.state, actor.to_run
        self.purpose: Purpose = purpose
        self.activity = Activity(services.activity)
        self.task: asyncio.Task[Any] | None = None  # what runs the turn, while it runs
        self.stopping: Exception | None = None  # why it was stopped from outside
        self._cancels = 0  # of its task, by when it started to run
        self.summarising = False
        self.read_output: tuple[str, Any] | None = None  # its reply's text and the value in it, until they are used
        self.partial_text: list[str] = []  # what its model has written so far in the open call
        self.held_output: dict[str, str] | None = None  # output of calls, until their after_tool hooks have run
        self.children = 0  # that it has started; -1 if they were not counted
        self.waits: dict[str, asyncio.Future[None]] = {}  # open callbacks that code here waits for
        self.savers: list[Callable[[], None]] = []  # programs to save in the append that raises a callback
        self.question: Callback | None = None  # the callback that a side turn has to answer
        self.room: Callable[[], str] | None = None  # names the limit that leaves no room to a side turn
        self.same_workspace = True  # a side turn's agent works in the workspace of the agent that asks
        self._question_slots: QuestionSlots | None = None

    @property
    def id(self) -> str:
        """The session's id."""
        return self.state.id

    @property
    def may_have_callbacks(self) -> bool:
        """False if neither the turn nor a child of it can have raised a callback."""
        return bool(self.state.turn.callbacks or self.children)

    @property
    def question_slots(self) -> QuestionSlots:
        """The slots of calls that may ask; most turns never need them."""
        if self._question_slots is None:
            self._question_slots = QuestionSlots(self.state, self.actor.limits.open_questions)
        return self._question_slots

    def show_output(self, call_id: str, text: str) -> None:
        """Show a running call's output: at once, or after its after_tool hooks if there are any."""
        if not self.hooks.after_tool:
            self.log.publish(Delta(self.id, text, "output", call_id))
            return
        held = self.held_output = self.held_output or {}
        before = held.get(call_id, "")
        held[call_id] = before + text[: _MOST_OUTPUT - len(before)]

    def release_output(self, call_id: str, *, show: bool) -> None:
        """Show a call's output now that its hooks have run; nothing if they replaced its result."""
        text = self.held_output.pop(call_id, "") if self.held_output else ""
        if text and show:
            self.log.publish(Delta(self.id, text, "output", call_id))

    # --- running and stopping -------------------------------------------------------------

    def register(self) -> None:
        """Start to run: cancel, steer, answers and time-outs reach the turn from now on."""
        task = asyncio.current_task()
        assert task is not None
        self.task, self._cancels, self.log.on_foreign_event = task, task.cancelling(), self.absorb
        self.services.register(self)
        activity = self.activity
        activity.on_start, activity.on_idle = self._start_clock, self._stop_clock
        activity.enter()

    def unregister(self) -> None:
        """Stop to run: the turn has ended or is parked."""
        self.task = self.log.on_foreign_event = None
        activity = self.activity
        activity.leave()
        activity.on_start = activity.on_idle = None
        self.services.unregister(self)

    def _start_clock(self) -> None:
        """Count the turn's time from now on, and stop the turn when it is used up."""
        clock, seconds = self.state.turn, self.actor.limits.turn_seconds
        clock.running_since = self.log.store.now()
        if seconds is not None:
            self.services.deadlines.set(self, seconds - clock.ran_seconds, self._out_of_time)

    def _stop_clock(self) -> None:
        """Count no time while everything in the turn waits."""
        self.services.deadlines.drop(self)
        clock = self.state.turn
        if clock.running_since:
            clock.ran_seconds, clock.running_since = clock.running_seconds(self.log.store.now()), 0.0

    def _out_of_time(self) -> None:
        self.stop(LimitReached("turn_seconds", f"{self.actor.limits.turn_seconds:g} s"))

    def stop(self, why: Exception) -> None:
        """End the turn from outside: a LimitReached, a Cancelled, or what made its log unwritable."""
        if self.stopping is None and self.task is not None and not self.task.done():
            self.stopping = why
            if self.task is not asyncio.current_task():
                self.task.cancel()
            elif not isinstance(why, SessionTakenOver | StoreError):  # else the append that fails tells it
                # a tool ends its own turn: it is cancelled where it waits, if it still runs at all
                asyncio.get_running_loop().call_soon(lambda: self.task is not None and self.task.cancel())

    def is_cancelled(self, task: asyncio.Task[Any]) -> bool:
        """Tell whether code swallowed that its task was cancelled: the turn's own, or that of one of its calls.

        While the exception is on its way, nothing was swallowed: a tool may have cancelled itself, as a time-out
        in its code does, and clean up.
        """
        before = self._cancels if task is self.task else 0
        return task.cancelling() > before and not isinstance(sys.exception(), asyncio.CancelledError)

    def check_cancelled(self) -> None:
        """Raise CancelledError if a tool or hook swallowed it when the task that awaits the turn was cancelled."""
        if self.task is not None and self.is_cancelled(self.task):
            raise asyncio.CancelledError

    def check_stop(self) -> None:
        """Raise what stops the turn, if something does."""
        if self.stopping is None and self.state.turn.cancel is not None:  # it was requested while nobody ran this
            self.stopping = Cancelled(self.state.turn.cancel.reason)
        if self.stopping is not None and self.task is not None:  # a tool swallowed that it was cancelled
            self.task.uncancel()
            raise self.stopping
        self.check_cancelled()
        if self.services.draining and self.services.is_stopping(self):
            raise RuntimeClosed

    # --- what others write ----------------------------------------------------------------

    def absorb(self, event: events.AnyEvent) -> None:
        """Take in an event that somebody else appended: an answer, a steer, a cancel request."""
        self.state.absorb(event)
        if isinstance(event, events.SETTLING):
            self.wake(event.callback_id)
        if isinstance(event, events.CancelRequested):
            self.stop(Cancelled(event.reason))

    def wake(self, callback_id: str) -> None:
        """Let code continue that waits for a callback, which is settled now."""
        wait = self.waits.get(callback_id)
        if wait is not None and not wait.done():
            wait.set_result(None)
        if self._question_slots is not None:
            self._question_slots.admit()

    def withdraw_open(self, why: str, which: Callable[[Callback], bool]) -> None:
        """Withdraw open callbacks of this turn that nobody needs any more."""
        for callback in tuple(self.state.turn.callbacks.values()):
            if callback.status == "open" and which(callback):
                self.log.add(events.CallbackWithdrawn(callback.id, why))
                self.services.withdraw(callback.id, why)
                wait = self.waits.pop(callback.id, None)
                if wait is not None:  # of a task that was left behind
                    wait.cancel()

    def park_waiting(self) -> None:
        """Unwind calls and questions that wait for a slot."""
        if self._question_slots is not None:
            self._question_slots.unwind(Parking)

    # --- what the turn writes -------------------------------------------------------------

    def apply_steers(self) -> None:
        """Add what people said meanwhile to the conversation."""
        for seq, steer in sorted(self.state.conversation.steers.items()):
            self.log.add(events.MessageAdded(user(steer.text), steer=seq))

    def compact(self, keep_last: int, origin: str, summary: str = "") -> None:
        """Replace the history by its first message, the summary and the newest messages."""
        state, turn, history = self.state, self.state.turn, self.state.conversation.history
        before = state.conversation.messages()
        newest = _index_of(before, history, turn.response_at) if turn.response is not None else -1
        if newest >= 0:  # what the turn continues from always stays
            keep_last = max(keep_last, len(before) - newest)
        pinned = [v for k, v in state.context.items() if k.startswith(PINNED) and v and isinstance(v, str)]
        messages = compacted_messages(before, keep_last, summary, pinned)
        base, carried = 0, state.carried()
        if turn.prompt is not None:  # a fold goes through the last turn whole: how it ended has to be known
            base, carried = turn.prompt.seq, turn.before
        prompt, newest = (_index_of(messages, history, at) for at in (turn.prompt_at, turn.response_at))
        kept = {id(m) for m in messages}
        dropped = sum(id(m) not in kept for m in before)
        self.log.add(events.Compacted(tuple(messages), summary, dropped, origin, base, (prompt, newest), carried))

    def end(self, status: Any, limit: str = "", error: str = "", retry: float = 0.0) -> None:
        """Add the turn's end to the log."""
        seconds = self.state.turn.running_seconds(self.log.store.now())
        ended = events.TurnEnded(self.state.turn.number, status, limit, error, seconds)
        self.log.add(ended.replace(retry=retry) if retry else ended)  # a 0.0 that is given would be written

    async def reply(self) -> Reply:
        """Return what the turn has come to so far. Each has a value of its own: hooks may change theirs."""
        read, self.read_output = self.read_output, None
        return await typed_reply_of(self.state, self.actor.output if self.purpose == "turn" else None, read)


class CallbackScope:
    """The questions of one run of a tool call or hook, matched to those in the log.

    While any of them waits, the run counts as waiting.
    """

    __slots__ = (
        "_asked", "_counts", "_waiting", "closed", "grace", "guard", "held_back", "origin", "parked",
        "turn",
    )  # fmt: skip

    def __init__(self, turn: Turn, origin: str, guard: ToolTimeout | None = None) -> None:
        self.turn, self.origin, self.guard = turn, origin, guard
        self._asked: set[str] = set()
        self.held_back: list[asyncio.Future[None]] = []  # new questions, until all answers are used
        self.grace = 0  # what is left to act on an answer before the run is parked for another question
        self.parked = self.closed = False
        self._counts: dict[str, int] = {}
        self._waiting = 0

    def occurrence(self, digest: str) -> int:
        """The number of equal questions that this run has asked before."""
        count = self._counts.get(digest, 0)
        self._counts[digest] = count + 1
        return count

    def waiting(self) -> AbstractContextManager[None]:
        """Count the run as waiting during the block; other tasks of the same run may wait at the same time."""
        return self

    def check_open(self) -> None:
        """Raise CallEnded if the run has ended and left the code behind that asks."""
        if self.closed:
            raise CallEnded(self.origin if self.guard is None else self.guard.tool)

    def __enter__(self) -> None:
        self.check_open()
        self._waiting += 1
        if self._waiting == 1:
            if self.guard is not None:
                self.guard.pause()
            self.turn.activity.leave()

    def __exit__(self, *_: object) -> None:
        if self._waiting:  # else the run has ended and left this task behind
            self._waiting -= 1
            if self._waiting == 0:
                if self.guard is not None:
                    self.guard.resume()
                self.turn.activity.enter()

    def close(self) -> None:
        """The run has ended: tasks that it left behind ask no more, and don't make it count as waiting."""
        self.closed = True
        for used in self.held_back:
            used.cancel()
        if self._waiting:
            self._waiting = 0
            self.turn.activity.enter()

    def note_asked(self, callback_id: str) -> None:
        """Note that this run has asked for that callback; what was held back for it may be asked now."""
        self._asked.add(callback_id)
        if self.held_back and not self.unused_answers():
            for used in self.held_back:
                if not used.done():
                    used.set_result(None)

    def unused_answers(self) -> list[Callback]:
        """Answers that were given to an earlier run and that this one has not asked for."""
        mine = self.turn.state.callbacks_of(self.origin)
        return [one for one in mine if one.status == "answered" and one.id not in self._asked and not one.gate]

    def mismatch(self) -> ReplayMismatch:
        """The error for answers that this run has not asked for."""
        call = self.turn.state.conversation.call(self.origin)
        who = f"hook {self.origin!r}" if call is None else f"tool {call.call.name!r}"
        left = [f"{one.message!r} was answered {one.answer.value!r}" for one in self.unused_answers() if one.answer]
        return ReplayMismatch(who, left)


def _index_of(messages: list[Message], history: list[Message], at: int) -> int:
    if 0 <= at < len(history):
        for index in range(len(messages) - 1, -1, -1):
            if messages[index] is history[at]:
                return index
    return -1
