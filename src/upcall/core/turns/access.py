"""The interface of a session for tools and hooks: read it, write to it, ask, start children."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from functools import partial
from types import CoroutineType
from typing import Any, Literal, TypeVar, cast

import msgspec

from upcall import events
from upcall.agent import Agent
from upcall.callbacks import Callback, public
from upcall.contracts import Files, Reply, Spent, SyncContext
from upcall.core.log.load import conversation
from upcall.core.log.state import SessionState
from upcall.core.routing.question import asking, outcome_of, plain_json
from upcall.core.turns.effects import failed_effect, logged_effect
from upcall.core.turns.parking import CANCEL_GRACE, Parking, Stopping
from upcall.core.turns.timeouts import ToolTimeout
from upcall.core.turns.turn import DEFAULT_CHILD, CallbackScope, ChildSpec, SubmitOptions, Turn
from upcall.errors import STOPS, CallEnded, SetupError, UpcallError
from upcall.messages import (
    Instruction,
    Message,
    Priority,
    Purpose,
    Text,
    is_blank,
    replace_surrogates,
    user,
)
from upcall.safety.bounds import PROMPT, brief
from upcall.safety.private_files import private_paths

R = TypeVar("R")
_SYNC = frozenset(name for name in dir(SyncContext) if not name.startswith("_"))


class SessionView(msgspec.Struct, eq=False):
    """Read access to a session. Its hooks and tools see it as it is now, others as of the last turn or load."""

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

    @property
    def title(self) -> str:
        """The title of `start(title=...)`, or ""; children have their root's."""
        return self._state.root_header.title

    @property
    def folder(self) -> str | None:
        """The folder of `start(folder=...)`, or None; children have their root's."""
        return self._state.root_header.folder or None

    @property
    def roots(self) -> tuple[str, ...]:
        """The further folders of `start(roots=...)`; children have their root's."""
        return self._state.root_header.roots

    def get_messages(self) -> list[Message]:
        """The conversation since the last compaction."""
        return self._state.conversation.messages()

    def get_context(self, key: str, default: Any = None) -> Any:
        """The value that `set_context` stored under this key."""
        return self._state.context.get(key, default)

    def get_summary(self) -> str:
        """The summary of the last compaction, else the last reply's text."""
        return self._state.conversation.summary or self._state.conversation.reply_text


class HookSession(SessionView):
    """The session as a hook gets it. Writes carry the occurrence of the point at which the hook runs.

    When a hook runs again, what it wrote the first time is matched and not written twice.
    """

    turn: Turn
    _origin: str
    asker: CallbackScope | None = None
    guard: ToolTimeout | None = None
    hook: int = 0
    """The number of the hook among those of its point."""
    _effects: dict[str, tuple[asyncio.Task[Any] | None, asyncio.Future[None]]] = {}
    """The effects of `once` that run now, by name."""
    _logged: list[bytes] | tuple[()] | None = None
    ended: Literal["", "ended", "stopped"] = ""
    """Says that the call or hook has ended, or was stopped while its code ran. Nothing is done for it any more."""
    stopped_by: Exception | None = None
    """The error that ended the work on the session while this call or hook waited. Its result is then dropped."""

    @property
    def workspace(self) -> Files | None:
        """The files of this agent, or of the nearest one above it that has a workspace."""
        return self.turn.services.workspace(self.turn)

    @property
    def deps(self) -> Any:
        """The object of `Runtime(deps=...)`, which is never stored; None where none was given."""
        return self.turn.services.deps

    @property
    def purpose(self) -> Purpose:
        """The kind of turn: `turn`, or `side_turn`, whose writes stay in the side turn."""
        return self.turn.purpose

    def add_message(self, role: str, content: str) -> None:
        """Add to the conversation. `system` becomes an instruction; between a call and its result it waits."""
        self._write(events.MessageAdded(message_from(role, content), self._origin))

    def set_context(self, key: str, value: Any) -> None:
        """Keep a JSON value under a key."""
        _check_text("the key of set_context(key, value)", key)
        if not (type(value) is str and value.isascii()):
            value = plain_json(f"set_context({key!r}, ...)", value)
        self._write(events.ContextSet(key, value, self._origin))

    def compact_messages(self, keep_last: int = 10) -> None:
        """Forget all but the first user message and the last few, without a model."""
        if self.ended:
            raise self.refusal()
        _check_count(keep_last)
        if self._compacted_before():
            return
        if self.turn.state.conversation.calls:
            self._write(events.CompactionAsked(keep_last, False, self._origin))
        else:
            self.turn.compact(keep_last, self._origin)

    async def trigger_compaction(self, keep_last: int = 10) -> None:
        """Have the model summarise, now if no call is open, else before the next model call."""
        self._check_running()
        _check_count(keep_last)
        if self._compacted_before():
            return
        if self._state.conversation.calls:
            self._write(events.CompactionAsked(keep_last, True, self._origin))
            return
        try:
            await self.turn.services.summarise(self.turn, keep_last, self._origin)
        except STOPS as error:
            raise self._stopping(error) from None

    async def get_history(self) -> list[Message]:
        """The whole conversation from the log, what was compacted away too."""
        await self.turn.services.ensure_claimed(self.turn)
        await self.turn.log.flush()
        return await conversation(self.turn.log.store, self.id)

    def spent(self) -> CoroutineType[Any, Any, Spent]:
        """The usage of the whole run tree so far."""
        return self.turn.services.spent(self.turn)

    async def prompt(self, text: str) -> str:
        """A side turn of this agent over its own conversation; returns what it says and leaves no trace in it."""
        self._check_running()
        if self.turn.purpose == "side_turn":
            raise UpcallError("session.prompt can't be used in a side turn: the agent would ask itself endlessly")
        prompt_message(text)
        try:
            return await self.turn.services.side_turn(self.turn, text, self._name("side", text))
        except STOPS as error:
            raise self._stopping(error) from None

    async def start_child(self, agent: Agent | str, prompt: str, spec: ChildSpec = DEFAULT_CHILD) -> Reply:
        """Run another agent as a child; returns its reply."""
        name = _agent_name(agent)
        if isinstance(cast("Any", prompt), str) and (problem := _too_long(prompt)):
            raise SetupError(f"the prompt {problem}")
        return await self.child(agent, prompt, self._name("child", [name, prompt]), spec)

    async def submit(
        self,
        agent: Agent | str,
        text: str,
        *,
        priority: Priority = "normal",
        tenant: str = "",
        tags: Mapping[str, str] | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> str:
        """Queue a session of its own for a worker, once per occurrence; returns its id at once."""
        self._check_running()
        prompt_message(text)
        name = _agent_name(agent)
        mark = events.digest(self.id, self._name("submit", [name, text]))[:16]
        root = self._state.header.root or self.id
        options = SubmitOptions(priority, tenant, tags, data)
        with self.turn.services.activity.running():
            return await self.turn.services.submit(self.turn, agent, text, f"{root[:180]}.{mark}", options)

    async def child(self, agent: Agent | str, prompt: str, name: str, spec: ChildSpec = DEFAULT_CHILD) -> Reply:
        """Run a child called `name`, counting as waiting meanwhile."""
        self._check_running()
        asker, slots = self.asking(), self.turn.question_slots
        slots.step_out(asker.origin)
        try:
            with asker.waiting():
                return await self.turn.services.start_child(self.turn, agent, prompt, name, spec)
        except Parking:
            self.turn.services.note_child_waits(self.turn, self._origin)
            raise
        except STOPS as error:
            raise self._stopping(error) from None
        finally:
            slots.step_in(asker.origin)

    async def raise_callback(self, message: str, callback_type: str = "query", **options: Any) -> Any:
        """Ask whoever is above, by policy; returns the answer's value."""
        return outcome_of(await self._ask(message, callback_type, options))

    async def raise_callback_full(self, message: str, callback_type: str = "query", **options: Any) -> Callback:
        """Like `raise_callback`, returning the settled callback: who answered, by what right, by which path."""
        asked = await self._ask(message, callback_type, options)
        outcome_of(asked)
        return public(asked)

    async def _ask(self, message: str, callback_type: str, options: dict[str, Any]) -> Callback:
        """Raise a callback and return it once it is settled."""
        self._check_running()
        try:
            return await self.turn.services.raise_callback(self.asking(), asking(message, callback_type, options))
        except STOPS as error:
            raise self._stopping(error) from None

    async def once(self, name: str, effect: Callable[..., Awaitable[R] | R], *args: Any, **kwargs: Any) -> R:
        """Run a side effect at most once, its result kept in the log."""
        self._check_running()
        _check_text("the name of once(name, effect)", name)
        turn = self.turn
        stored = f"{name}#{self.hook + 1}" if self.hook else name  # hooks of one point may use the same name
        with turn.services.activity.running():  # not parked between its first append and its last
            await turn.services.ensure_claimed(turn)
            if (running := self._effects.get(stored)) is not None:
                await _other_run(name, *running)
            if (key := (self._origin, stored)) in turn.state.turn.once_effects:
                return logged_effect(name, turn.state.turn.once_effects[key])
            ended = asyncio.get_running_loop().create_future()
            self._effects[stored] = (asyncio.current_task(), ended)
            try:
                return await self._run_once(name, stored, partial(effect, *args, **kwargs))
            finally:
                del self._effects[stored]
                ended.set_result(None)

    async def _run_once(self, name: str, stored: str, effect: Callable[[], Any]) -> Any:
        """Run an effect, and log its start and its end."""
        self._check_running()  # the call may have ended while this waited for its claim or for another run
        log = self.turn.log
        log.add(events.OnceStarted(self._origin, stored))
        await log.flush()
        if log.is_overdue:  # this process may have been stopped since the start was stored
            await log.confirm()
        try:
            out = effect()
            value = await out if hasattr(out, "__await__") else out
            ended = events.OnceEnded(self._origin, stored, plain_json(f"the effect {name!r}", value))
        except Exception as error:
            log.add(failed_effect(self._origin, stored, error))
            await log.flush()
            raise
        log.add(ended)
        await log.flush()
        return ended.value

    def _stopping(self, error: Exception) -> Stopping:
        """Return the exception that ends this call or hook because the work on the session ends here."""
        self.stopped_by = error
        return Stopping(error)

    def asking(self) -> CallbackScope:
        """The scope of this run's questions."""
        if self.asker is None:
            self.asker = CallbackScope(self.turn, self._origin, self.guard)
        return self.asker

    def _name(self, kind: str, what: Any) -> str:
        """A name that follows from this occurrence, what is asked of it, and how often the same was before."""
        mark = events.digest(kind, what)[:8]
        count = self.asking().occurrence(f"{kind} {mark}")
        return f"{self._origin}.{mark}" + (f".{count + 1}" if count else "")

    def end(self) -> None:
        """Refuse from now on what code that was left behind asks, writes or starts."""
        self.ended = "stopped" if self.guard is not None and self.guard.is_cut else "ended"
        if self.asker is not None:
            self.asker.close()

    def check_stopped(self) -> None:
        """Raise what ended the work on the session while this waited, whatever its code made of it."""
        if self.stopped_by is not None:
            raise self.stopped_by

    def refusal(self) -> BaseException:
        """The exception for code of a call or hook that has ended.

        Where the code was stopped, `except Exception` does not catch it: such code must not continue.
        """
        name = self._origin if self.guard is None else self.guard.tool
        return CallEnded(name) if self.ended == "ended" else asyncio.CancelledError(f"{name} was stopped")

    def _check_running(self) -> None:
        """Start nothing for a call or hook that has ended or is being stopped."""
        guard, turn = self.guard, self.turn
        if self.ended or turn.stopping is not None:
            raise self.refusal()
        if guard is not None and (guard.is_expired or turn.is_cancelled(guard.task)):
            raise self.refusal()

    def _write(self, event: events.AnyEvent) -> None:
        if self.ended:
            raise self.refusal()
        left = self._left() if self._logged is None else self._logged
        if left and (body := _body(event)) in left:
            left.remove(body)
        else:
            self.turn.log.add(event)

    def _left(self) -> list[bytes] | tuple[()]:
        """The events that an earlier run wrote and this one has not yet; () if there was no earlier run."""
        if self._logged is None:
            logged = self._state.turn.hook_writes.get(self._origin)
            self._logged = [_body(e) for e in logged] if logged else ()
        return self._logged

    def _compacted_before(self) -> bool:
        """Tell whether an earlier run of this hook compacted the history, so that bodies can't match."""
        logged = self._state.turn.hook_writes.get(self._origin, ()) if self._left() != () else ()
        return any(isinstance(e, events.Compacted | events.CompactionAsked) for e in logged)


class CallContext(HookSession):
    """The context of a tool: its session and its call. An async tool gets it itself."""

    works: set[asyncio.Future[Any]] | None = None
    """What the loop does for the threads of a plain `def` tool, which wait for it meanwhile."""

    @property
    def call_id(self) -> str:
        """The id of the tool call that is running."""
        return self._origin

    def show(self, text: str) -> None:
        """Let people who watch see text while the tool runs; it is not stored.

        If the agent has after_tool hooks, people see it when those have run, and not at all if a hook replaced the
        result.
        """
        if not self.ended:
            self.turn.show_output(self._origin, text)

    async def end_call(self) -> None:
        """End it like a hook's, with what the loop still does for a thread of it."""
        self.end()
        if self.works:
            await self._end_works()
        self.check_stopped()

    async def _end_works(self) -> None:
        """Cancel what the loop still does for the tool's threads, and wait until it has ended."""
        works = tuple(self.works or ())
        for work in works:
            if not (isinstance(work, asyncio.Task) and work.cancelling()):  # else it is ending and may write so
                work.cancel()
        await asyncio.wait(works, timeout=CANCEL_GRACE)


class SyncCallContext:
    """The context of a plain `def` tool, for use in the tool's thread."""

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
        return private_paths(self._context.turn.log.store)

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
            return await self._context.turn.services.threads.run(partial(effect, *args, **kwargs))

        return self._on_loop(self._context.once, name, here)

    def _on_loop(self, work: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Do something on the loop and return what comes of it. It ends with the call, and this thread then too."""
        outcome: Future[Any] = Future()
        try:
            self._loop.call_soon_threadsafe(self._begin, partial(work, *args, **options), outcome)
        except RuntimeError:  # the loop is closed: the call ended before
            raise self._context.refusal() from None
        try:
            return outcome.result()
        finally:
            del outcome  # an error holds this frame, which would hold it

    def _begin(self, work: Callable[[], Any], outcome: Future[Any]) -> None:
        """Begin what a thread of the tool wants done."""
        context = self._context
        if context.ended:
            outcome.set_exception(context.refusal())
            return
        try:
            out = work()
            if hasattr(out, "__await__"):
                task = asyncio.ensure_future(out)
                context.works = context.works or set()
                context.works.add(task)
                task.add_done_callback(partial(self._done, outcome))
            else:
                outcome.set_result(out)
        except BaseException as error:
            outcome.set_exception(error)
        finally:
            del outcome

    def _done(self, outcome: Future[Any], done: asyncio.Future[Any]) -> None:
        """Give the thread that waits what came of it."""
        if self._context.works is not None:
            self._context.works.discard(done)
        error = self._context.refusal() if done.cancelled() else done.exception()
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(done.result())
        del error


async def _other_run(name: str, task: asyncio.Task[Any] | None, ended: asyncio.Future[None]) -> None:
    """Wait for an effect that another task of the same call or hook runs."""
    if task is asyncio.current_task():
        raise UpcallError(f"once({name!r}) was called inside the effect of the same name; use another name")
    await asyncio.wait({ended})


def _check_text(what: str, given: Any) -> None:
    """Refuse what the log could not give back as the same text."""
    if not isinstance(given, str) or replace_surrogates(given) != given:
        raise UpcallError(f"{what} must be a valid string, not {brief(given)}")


def _check_count(keep_last: Any) -> None:
    if type(keep_last) is not int:
        raise UpcallError(f"keep_last must be the number of messages to keep, not {brief(keep_last)}")


def _agent_name(agent: Any) -> str:
    if not isinstance(agent, str | Agent):
        raise UpcallError(f"give an agent or its name, not {brief(agent)}")
    return agent if isinstance(agent, str) else agent.name


def prompt_message(given: str | Message) -> Message:
    """The message that a prompt is; SetupError where it is too long, or empty, which no provider takes."""
    is_text = isinstance(given, str)
    if not is_text and not hasattr(given, "parts"):
        raise SetupError(f"a prompt must be a string or a Message, not {brief(given)}")
    texts = [given] if is_text else [p.text for p in given.parts if isinstance(p, Text | Instruction)]
    if problem := _too_long(*texts):
        raise SetupError(f"the prompt {problem}")
    if not given.strip() if is_text else is_blank(given):
        raise SetupError("the prompt is empty; say what the agent should do")
    return user(given) if is_text else given


def _too_long(*texts: str) -> str:
    """Say that texts are too long to be given to a model, or return ""."""
    size = sum(map(len, texts))
    if size <= PROMPT:
        return ""
    return f"has {size:,} characters; the most are {PROMPT:,}. Put long text into a file and name its path"


def message_from(role: str, content: str) -> Message:
    """A message as hooks add it: `user`, `assistant`, or `system` for an instruction."""
    if role not in ("user", "assistant", "system"):
        raise UpcallError(f"add_message({role!r}, ...): the role must be 'user', 'assistant' or 'system'")
    if not isinstance(cast("Any", content), str):
        raise UpcallError(f"the content of add_message(role, content) must be a string, not {brief(content)}")
    if problem := _too_long(content):
        raise UpcallError(f"the content of add_message(role, content) {problem}")
    part = Instruction(replace_surrogates(content)) if role == "system" else Text(replace_surrogates(content))
    return Message("assistant" if role == "assistant" else "user", (part,))


def _body(event: Any) -> bytes:
    return events.encode(event.replace(session="", seq=0, pos=0, time=0.0))
