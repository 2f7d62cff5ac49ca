"""What tools and hooks may do with a session: read it, write to it, ask, start children."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from functools import partial
from types import CoroutineType
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from upcall import events
from upcall.agent import Agent
from upcall.callbacks import Callback, Held
from upcall.contracts import Claim, Delta, Files, Reply, Spent, SyncContext
from upcall.core.log.call_state import CallState
from upcall.core.log.load import conversation
from upcall.core.log.session_log import SessionLog
from upcall.core.log.state import SessionState
from upcall.core.routing.answer import callback_of
from upcall.core.routing.question import Question, asking, outcome_of, plain_json
from upcall.core.turns.parking import Activity, Parking
from upcall.core.turns.prepared_agent import PreparedAgent
from upcall.core.turns.process_limit import ProcessLimit
from upcall.core.turns.question_limit import Places
from upcall.core.turns.thread_cache import Threads
from upcall.core.turns.timeouts import Deadlines, ToolTimeout
from upcall.errors import OutcomeUnknown, SetupError, UpcallError
from upcall.messages import (
    Instruction,
    Message,
    Purpose,
    Text,
    compacted_messages,
    is_blank,
    replace_surrogates,
    user,
)
from upcall.safety.bounds import brief
from upcall.safety.private_files import private_paths

R = TypeVar("R")
_SYNC = frozenset(name for name in dir(SyncContext) if not name.startswith("_"))
PINNED = "pinned."
"""Context whose key begins so is shown to the model again when the conversation is compacted."""


class ChildSpec(NamedTuple):
    """Where a child stands that is more than its parent's: a team's member, a bridge's next agent.

    `turn` is which of its turns is meant; one that failed or reached a limit is gone on with
    if it is to be run `again`.
    """

    agent: str = ""
    role: str = ""
    team: str = ""
    caller_session: str | None = None
    turn_number: int = 1
    retry_failed: bool = False

    def is_over(self, turn: int, phase: str) -> bool:
        """Whether the turn that is meant has ended, and is not to be gone on with."""
        if phase == "running" or turn < self.turn_number:
            return False
        return turn > self.turn_number or not (self.retry_failed and phase in ("failed", "limit"))


DEFAULT_CHILD = ChildSpec()


class Tree(Protocol):
    """What a live session asks of the run tree it belongs to."""

    deadlines: Deadlines
    threads: Threads
    deps: Any
    """The application's object, for tools and hooks."""
    processes: ProcessLimit
    activity: Activity
    draining: bool
    """Nothing new starts: turns stop between two steps."""

    def note_child_waits(self, member: Member, origin: str) -> None:
        """Note that a call or a hook is unwound while it waits for a child."""
        ...

    async def finish_below(self, member: Member, call: CallState) -> bool:
        """Run the children that a call waited for when it was parked; Parking where one of them still waits."""
        ...

    def is_stopping(self, member: Member) -> bool:
        """Tell whether the member has to stop between two steps."""
        ...

    def admit(self, member: Member) -> None:
        """A turn of the tree begins to run."""
        ...

    def dismiss(self, member: Member) -> None:
        """It has ended, or waits."""
        ...

    def note_parked(self, member: Member) -> None:
        """It waits, and is part of what is parked when all of the tree does."""
        ...

    def left_waiting(self, callback_id: str) -> None:
        """The person who is here leaves a question for later: don't hold memory for it."""
        ...

    def withdraw(self, callback_id: str, reason: str) -> None:
        """Tell the person who is here that an open ask has ended."""
        ...

    async def end_asides(self) -> None:
        """End every side turn that is still to answer something: their ends are written before the tree is free."""
        ...

    async def end_below(self, session_id: str, why: str) -> None:
        """End a session and all below it that wait or failed."""
        ...

    async def ready(self, member: Member, origin: str) -> None:
        """Return when a tool call or hook that asked before may run again: one of its callbacks is settled."""
        ...

    def workspace(self, member: Member) -> Files | None:
        """The member's files: of its agent's own workspace, or of the nearest one above."""
        ...

    async def secure(self, member: Member) -> Claim:
        """The claim on the tree; a session that is just being created is stored and claimed first."""
        ...

    def spent(self, member: Member) -> CoroutineType[Any, Any, Spent]:
        """What all sessions of the tree have used."""
        ...

    async def start_child(
        self, parent: Member, agent: Agent | str, prompt: str, name: str, place: ChildSpec = DEFAULT_CHILD
    ) -> Reply:
        """Run (or go on with) a child session called after its parent and `name`."""
        ...

    async def side_turn(self, member: Member, text: str, name: str) -> str:
        """Let the member's agent answer over its own conversation without leaving a trace in it."""
        ...

    async def raise_callback(self, asker: CallbackScope, question: Question) -> Held:
        """Ask whoever is above; returns the callback once it is settled, written down as delivered."""
        ...


class Member:
    """One session of a run tree while this process holds it; `loop.Turn` is one that can run."""

    __slots__ = (
        "_partial", "_places", "_stopping", "_summing", "_task", "activity", "actor", "children", "hooks", "log",
        "purpose", "question", "room", "same_place", "savers", "state", "tree", "waits",
    )  # fmt: skip

    def __init__(self, log: SessionLog, actor: PreparedAgent, tree: Tree, purpose: Purpose = "turn") -> None:
        self.log, self.actor, self.tree = log, actor, tree
        self.state, self.hooks = log.state, actor.to_run
        self.purpose: Purpose = purpose
        self.children = 0
        self.waits: dict[str, asyncio.Future[None]] = {}  # open callbacks that code here waits for
        self.question: events.CallbackRaised | None = None  # what a side turn is to answer
        self.room: Callable[[], str] | None = None  # names the limit that leaves none to a side turn
        self.same_place = True  # a side turn's agent works in the workspace of the one who asks
        self.savers: list[Callable[[], None]] = []  # programs to save in the append that raises a callback
        self.activity = Activity(tree.activity)
        self._places: Places | None = None
        self._partial: list[str] = []  # what its model has said so far
        self._task: asyncio.Task[Any] | None = None  # what runs the turn, once it does
        self._stopping: Exception | None = None
        self._summing = False

    @property
    def id(self) -> str:
        """The session's id."""
        return self.state.id

    @property
    def places(self) -> Places:
        """The places of calls that may ask; most turns never need them."""
        if self._places is None:
            self._places = Places(self.state, self.actor.limits.open_questions)
        return self._places

    def park_waiting(self) -> None:
        """Let go of calls and questions that wait for a place."""
        if self._places is not None:
            self._places.unwind(Parking)

    def start_clock(self) -> None:
        """Count the turn's time from now on, and stop the turn when it is used up."""
        state, seconds = self.state, self.actor.limits.turn_seconds
        state.running_since = self.log.store.now()
        if seconds is not None:
            self.tree.deadlines.add(self, seconds - state.ran_seconds, self.out_of_time)

    def stop_clock(self) -> None:
        """Count no time while everything in the turn waits."""
        self.tree.deadlines.drop(self)
        state = self.state
        if state.running_since:
            state.ran_seconds, state.running_since = state.running_seconds(self.log.store.now()), 0.0

    def out_of_time(self) -> None:
        """Its time is up; only a turn that runs can be stopped."""

    def come(self) -> None:
        """Hooks of a session that is being created have something to wait for."""

    async def summarise(self, keep_last: int, origin: str) -> None:
        """Have the model summarise: now, if a turn runs that is not at it already; else before its next call."""
        self.log.add(events.CompactionAsked(keep_last, True, origin))

    def absorb(self, event: events.AnyEvent) -> None:
        """Take in what somebody else appended; whoever waits for it goes on."""
        self.state.absorb(event)
        if isinstance(event, events.SETTLING):
            self.wake(event.callback_id)

    def wake(self, callback_id: str) -> None:
        """A callback was settled: let who waits for it go on."""
        wait = self.waits.get(callback_id)
        if wait is not None and not wait.done():
            wait.set_result(None)
        if self._places is not None:
            self._places.admit()

    def compact(self, keep_last: int, origin: str, summary: str = "") -> None:
        """Replace the history by its first message, the summary and the newest messages."""
        state = self.state
        before = state.messages()
        newest = _place(before, state.history, state.response_at) if state.response is not None else -1
        if newest >= 0:  # what the turn goes on from always stays
            keep_last = max(keep_last, len(before) - newest)
        pinned = [v for k, v in state.context.items() if k.startswith(PINNED) and v and isinstance(v, str)]
        messages = compacted_messages(before, keep_last, summary, pinned)
        base, carried = 0, state.carried()
        if state.prompt is not None:  # a fold goes through the last turn whole: how it ended has to be known
            base, carried = state.prompt.seq, state.before_turn
        prompt, newest = (_place(messages, state.history, at) for at in (state.prompt_at, state.response_at))
        kept = {id(m) for m in messages}
        dropped = sum(id(m) not in kept for m in before)
        self.log.add(events.Compacted(tuple(messages), summary, dropped, origin, base, (prompt, newest), carried))


def _place(messages: list[Message], history: list[Message], at: int) -> int:
    if 0 <= at < len(history):
        for index in range(len(messages) - 1, -1, -1):
            if messages[index] is history[at]:
                return index
    return -1


class CallbackScope:
    """Who asks, in one run of a tool call or a hook's occurrence: matches its questions to the log.

    While any of them waits, the run counts as waiting.
    """

    __slots__ = (
        "_counts", "_waiting", "answered_at", "claimed", "guard", "held_back", "member", "origin", "parked",
    )  # fmt: skip

    def __init__(self, member: Member, origin: str, guard: ToolTimeout | None = None) -> None:
        self.member, self.origin, self.guard = member, origin, guard
        self.claimed: set[str] = set()
        self.held_back: list[asyncio.Future[None]] = []  # new questions, until all answers are claimed
        self.answered_at = 0.0  # by the loop's clock: when this run was last given an answer
        self.parked = False
        self._counts: dict[str, int] = {}
        self._waiting = 0

    def occurrence(self, digest: str) -> int:
        """How many equal questions this run has asked before."""
        count = self._counts.get(digest, 0)
        self._counts[digest] = count + 1
        return count

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Count the run as waiting during the block; other tasks of the same run may wait at the same time."""
        self._waiting += 1
        if self._waiting == 1:
            if self.guard is not None:
                self.guard.pause()
            self.member.activity.leave()
        try:
            yield
        finally:
            if self._waiting:  # else the run has ended and left this task behind
                self._waiting -= 1
                if self._waiting == 0:
                    if self.guard is not None:
                        self.guard.resume()
                    self.member.activity.enter()

    def close(self) -> None:
        """The run has ended: tasks that it left behind no longer make it count as waiting."""
        for claimed in self.held_back:
            claimed.cancel()
        if self._waiting:
            self._waiting = 0
            self.member.activity.enter()

    def claim(self, callback_id: str) -> None:
        """Note that this run has asked for that callback; what was held back for it may be asked now."""
        self.claimed.add(callback_id)
        if self.held_back and not self.unclaimed():
            for claimed in self.held_back:
                if not claimed.done():
                    claimed.set_result(None)

    def unclaimed(self) -> list[Held]:
        """Answers that were given to an earlier run and that this one has not asked for."""
        asks = self.member.state.asks_of(self.origin)
        return [a for a in asks if a.raised.callback_id not in self.claimed and a.answer and not a.raised.gate]


class SessionView(msgspec.Struct, eq=False):
    """What may be read of a session: as it is for its hooks and tools, as of the last turn or load for others."""

    _state: SessionState

    @property
    def id(self) -> str:
        """The session's id."""
        return self._state.id

    @property
    def agent(self) -> str:
        """The agent's name."""
        return self._state.header.agent

    @property
    def parent(self) -> str | None:
        """The id of the session that started this one, if one did."""
        return self._state.header.parent or None

    @property
    def data(self) -> dict[str, Any]:
        """A copy of what the application gave with `start(data=...)`; children have their root's."""
        data = self._state.root_header.data
        return msgspec.json.decode(msgspec.json.encode(data)) if data else {}

    @property
    def tags(self) -> dict[str, str]:
        """A copy of the tags of `start(tags=...)`; children have their root's."""
        return dict(self._state.root_header.tags)

    def get_messages(self) -> list[Message]:
        """The conversation since the last compaction."""
        return self._state.messages()

    def get_context(self, key: str, default: Any = None) -> Any:
        """What was kept under that key."""
        return self._state.context.get(key, default)

    def get_summary(self) -> str:
        """The summary of the last compaction, else the last reply's text."""
        return self._state.summary or self._state.reply_text


class HookSession(SessionView):
    """What a hook gets: its session, signed with the occurrence of the point it runs at.

    When a hook runs again, what it wrote the first time is matched and not written twice.
    """

    member: Member
    _origin: str
    asker: CallbackScope | None = None
    guard: ToolTimeout | None = None
    _logged: list[bytes] | tuple[()] | None = None

    @property
    def workspace(self) -> Files | None:
        """The files of this agent, or of the nearest one above it that has a workspace."""
        return self.member.tree.workspace(self.member)

    @property
    def deps(self) -> Any:
        """The object of `Runtime(deps=...)`, which is never stored; None where none was given."""
        return self.member.tree.deps

    @property
    def purpose(self) -> Purpose:
        """What runs: `turn`, or `side_turn`, whose writes stay in it."""
        return self.member.purpose

    def add_message(self, role: str, content: str) -> None:
        """Add to the conversation. `system` becomes an instruction; between a call and its result it waits."""
        self._write(events.MessageAdded(message_from(role, content), self._origin))

    def set_context(self, key: str, value: Any) -> None:
        """Keep a JSON value under a key."""
        if not (type(value) is str and value.isascii()):
            value = plain_json(f"set_context({key!r}, ...)", value)
        self._write(events.ContextSet(key, value, self._origin))

    def compact_messages(self, keep_last: int = 10) -> None:
        """Forget all but the first user message and the last few, without a model."""
        if self._compacted_before():
            return
        if self.member.state.calls:
            self._write(events.CompactionAsked(keep_last, False, self._origin))
        else:
            self.member.compact(keep_last, self._origin)

    async def trigger_compaction(self, keep_last: int = 10) -> None:
        """Have the model summarise, now if no call is open, else before the next model call."""
        if self._compacted_before():
            return
        if self._state.calls:
            self._write(events.CompactionAsked(keep_last, True, self._origin))
        else:
            await self.member.summarise(keep_last, self._origin)

    async def get_history(self) -> list[Message]:
        """The whole conversation from the log, what was compacted away too."""
        await self.member.tree.secure(self.member)
        await self.member.log.flush()
        return await conversation(self.member.log.store, self.id)

    def spent(self) -> CoroutineType[Any, Any, Spent]:
        """What the whole run tree has used so far."""
        return self.member.tree.spent(self.member)

    async def prompt(self, text: str) -> str:
        """A side turn of this agent over its own conversation; returns what it says and leaves no trace in it."""
        if self.member.purpose == "side_turn":
            raise UpcallError("session.prompt can't be used in a side turn: it would ask itself without end")
        prompt_message(text)
        return await self.member.tree.side_turn(self.member, text, self._name("side", text))

    async def start_child(self, agent: Agent | str, prompt: str, place: ChildSpec = DEFAULT_CHILD) -> Reply:
        """Run another agent as a child; returns its reply."""
        name = agent if isinstance(agent, str) else agent.name
        return await self.child(agent, prompt, self._name("child", [name, prompt]), place)

    async def child(self, agent: Agent | str, prompt: str, name: str, place: ChildSpec = DEFAULT_CHILD) -> Reply:
        """Run a child called `name`, counting as waiting meanwhile."""
        asker, places = self.asking(), self.member.places
        places.step_out(asker.origin)
        try:
            with asker.waiting():
                return await self.member.tree.start_child(self.member, agent, prompt, name, place)
        except Parking:
            self.member.tree.note_child_waits(self.member, self._origin)
            raise
        finally:
            places.step_in(asker.origin)

    async def raise_callback(self, message: str, callback_type: str = "query", **options: Any) -> Any:
        """Ask whoever is above, by policy; returns the answer's value."""
        asked = await self.member.tree.raise_callback(self.asking(), asking(message, callback_type, options))
        return outcome_of(asked)

    async def raise_callback_full(self, message: str, callback_type: str = "query", **options: Any) -> Callback:
        """Like `raise_callback`, returning the settled callback: who answered, by what right, by which path."""
        asked = await self.member.tree.raise_callback(self.asking(), asking(message, callback_type, options))
        outcome_of(asked)
        return callback_of(asked)

    async def once(self, name: str, effect: Callable[..., Awaitable[R] | R], *args: Any, **kwargs: Any) -> R:
        """Run a side effect at most once, its result kept in the log."""
        member, key = self.member, (self._origin, name)
        with member.tree.activity.running():  # not parked between its first append and its last
            await member.tree.secure(member)
            if key in member.state.once_effects:
                return _logged_effect(name, member.state.once_effects[key])
            member.log.add(events.OnceStarted(self._origin, name))
            await member.log.flush()
            try:
                out: Any = effect(*args, **kwargs)
                value = await out if hasattr(out, "__await__") else out
            except Exception as error:
                failed = f"{type(error).__name__}: {error}"
                member.log.add(events.OnceEnded(self._origin, name, error=failed))
                await member.log.flush()
                raise
            ended = events.OnceEnded(self._origin, name, plain_json(f"the effect {name!r}", value))
            member.log.add(ended)
            await member.log.flush()
        return ended.value

    def asking(self) -> CallbackScope:
        """Who asks, in this run of it."""
        if self.asker is None:
            self.asker = CallbackScope(self.member, self._origin, self.guard)
        return self.asker

    def _name(self, kind: str, what: Any) -> str:
        """A name that follows from this occurrence, what is asked of it, and how often the same was before."""
        mark = events.digest(kind, what)[:8]
        count = self.asking().occurrence(f"{kind} {mark}")
        return f"{self._origin}.{mark}" + (f".{count + 1}" if count else "")

    def _write(self, event: events.AnyEvent) -> None:
        left = self._left() if self._logged is None else self._logged
        if left and (body := _body(event)) in left:
            left.remove(body)
        else:
            self.member.log.add(event)

    def _left(self) -> list[bytes] | tuple[()]:
        """What an earlier run wrote and this one has not, looked up before it writes; () where there was none."""
        if self._logged is None:
            logged = self._state.hook_writes.get(self._origin)
            self._logged = [_body(e) for e in logged] if logged else ()
        return self._logged

    def _compacted_before(self) -> bool:
        """Whether the first run of this hook compacted already: the history has changed, so bodies can't match."""
        logged = self._state.hook_writes.get(self._origin, ()) if self._left() != () else ()
        return any(isinstance(e, events.Compacted | events.CompactionAsked) for e in logged)


class CallContext(HookSession):
    """What an async tool gets: its session, and the call it serves."""

    @property
    def call_id(self) -> str:
        """The id of the tool call that is running."""
        return self._origin

    def show(self, text: str) -> None:
        """Let people who watch see text while the tool runs; it is not stored."""
        self.member.log.publish(Delta(self.member.id, text, "output", self._origin))


class SyncCallContext:
    """What a plain `def` tool gets, in its own thread."""

    __slots__ = ("_context", "_loop")

    def __init__(self, context: CallContext, loop: asyncio.AbstractEventLoop) -> None:
        self._context, self._loop = context, loop

    def __getattr__(self, name: str) -> Any:
        """Whatever an async tool may read or call, done on the loop while this thread waits."""
        if name not in _SYNC:
            raise AttributeError(f"a SyncContext has no {name!r}; it has {', '.join(sorted(_SYNC))}")
        value = getattr(self._context, name)
        return partial(self._on_loop, value) if callable(value) else value

    @property
    def private_paths(self) -> tuple[str, ...]:
        """The files of the store, which no tool shows to an agent."""
        return private_paths(self._context.member.log.store)

    @property
    def deps(self) -> Any:
        """The object of `Runtime(deps=...)`, as it is: it may be callable."""
        return self._context.deps

    def show(self, text: str) -> None:
        """Let people who watch see text while the tool runs; it is not stored."""
        self._loop.call_soon_threadsafe(self._context.show, text)

    def once(self, name: str, effect: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        """Run a side effect at most once, its result kept in the log."""

        async def here() -> R:  # the effect belongs into this thread, what is noted of it onto the loop
            return await self._context.member.tree.threads.run(partial(effect, *args, **kwargs))

        return self._on_loop(self._context.once, name, here)

    def _on_loop(self, work: Callable[..., Any], *args: Any, **options: Any) -> Any:
        async def call() -> Any:
            out = work(*args, **options)
            return await out if hasattr(out, "__await__") else out

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()


def _logged_effect(name: str, ended: events.OnceEnded | None) -> Any:
    """Return what the effect returned when it ran; raises if it failed, or if its end is not known."""
    if ended is None:
        raise OutcomeUnknown(name)
    if ended.error:
        raise UpcallError(f"the effect {name!r} failed when it ran: {ended.error}")
    return ended.value


def prompt_message(given: str | Message) -> Message:
    """The message that a prompt is; SetupError where it is empty, which no provider takes."""
    if not isinstance(given, str) and not hasattr(given, "parts"):
        raise SetupError(f"a prompt is a text or a Message, not {brief(given)}")
    if not given.strip() if isinstance(given, str) else is_blank(given):
        raise SetupError("the prompt is empty; say what the agent should do")
    return user(given) if isinstance(given, str) else given


def message_from(role: str, content: str) -> Message:
    """A message as hooks add it: `user`, `assistant`, or `system` for an instruction."""
    if role not in ("user", "assistant", "system"):
        raise UpcallError(f"add_message({role!r}, ...): the role is 'user', 'assistant' or 'system'")
    part = Instruction(replace_surrogates(content)) if role == "system" else Text(replace_surrogates(content))
    return Message("assistant" if role == "assistant" else "user", (part,))


def _body(event: Any) -> bytes:
    return events.encode(event.replace(session="", seq=0, pos=0, time=0.0))
