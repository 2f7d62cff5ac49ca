"""The SDK over the log: a live session's log, and what hooks may do with it.

May import: agent, callbacks, contracts, errors, events, fold, hooks, messages, tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from upcall.agent import Agent
from upcall.contracts import Claim, Delta, Model, Reply, Store
from upcall.errors import UpcallError
from upcall.events import (
    AnyEvent,
    Compacted,
    CompactionAsked,
    ContextSet,
    MessageAdded,
    content_hash,
    digest,
    encode,
)
from upcall.fold import State, compacted_messages
from upcall.hooks import Hooks
from upcall.messages import Instruction, Message, Purpose, Text, ToolSpec
from upcall.tools import Tool

R = TypeVar("R")
Sink = Callable[[AnyEvent | Delta], None]


class Actor:
    """An agent ready to run: its model, its hooks with the inherited ones, its tools with the built-in ones."""

    __slots__ = (
        "agent", "hooks", "instructions_hash", "model", "name", "passed_on", "setup", "specs", "toolbox",
        "tools_body", "tools_hash",
    )  # fmt: skip

    def __init__(self, agent: Agent, model: Model, hooks: Hooks, extra: Sequence[Tool] = ()) -> None:
        self.agent, self.model, self.hooks, self.name = agent, model, hooks, agent.name
        self.passed_on = hooks.passed_on()
        self.toolbox = {**agent.toolbox, **{t.name: t for t in extra}}
        self.specs: tuple[ToolSpec, ...] = agent.specs
        self.tools_body, self.tools_hash = agent.tools_body, agent.tools_hash
        self.instructions_hash, self.setup = agent.instructions_hash, agent.setup
        if extra:
            self.specs = tuple(t.spec for t in self.toolbox.values())
            self.tools_body = msgspec.json.encode(self.specs)
            self.tools_hash = content_hash(self.tools_body)
            self.setup = digest(self.instructions_hash, self.tools_hash, agent.policy)


class Live:
    """Who watches a run tree while it runs."""

    __slots__ = ("sinks",)

    def __init__(self) -> None:
        self.sinks: list[Sink] = []

    def publish(self, item: AnyEvent | Delta) -> None:
        """Show it to everybody who watches."""
        for sink in self.sinks:
            sink(item)


class Log:
    """One session's log in the hands of its owner: every event is folded as it is written.

    `add` may be called anywhere: what it adds goes out with the next `send` or `commit`, in order, all or none.
    """

    __slots__ = ("_blobs", "_buffer", "_last", "absorb", "claim", "live", "state", "store")

    def __init__(self, store: Store, claim: Claim | None, state: State, live: Live) -> None:
        self.store, self.claim, self.state, self.live = store, claim, state, live
        self.absorb: Callable[[AnyEvent], None] = state.absorb
        self._buffer: list[AnyEvent] = []
        self._blobs: dict[str, bytes] = {}
        self._last: asyncio.Future[None] | None = None

    def add(self, event: AnyEvent) -> None:
        """Write an event down with the next ones."""
        self._buffer.append(event)
        state = self.state
        state.folds[type(event)](state, event)  # its stamps are not there yet, so no `apply`

    def keep(self, name: str, body: bytes) -> None:
        """Store a body once, with the next events."""
        self._blobs[name] = body

    def send(self, release: bool = False) -> None:
        """Hand over what was added; a failure is told by the next `commit`."""
        if not self._buffer:
            return
        events, self._buffer = self._buffer, []
        blobs, self._blobs = self._blobs, {}
        future = self.store.append(self.state.id, events, self.claim, blobs=blobs or None, release=release)
        if future is None:
            self._stored(events)
        else:
            self._last = future
            future.add_done_callback(partial(self._done, events))

    def flush(self, release: bool = False) -> Awaitable[None] | None:
        """Like `commit`, but None where everything is stored already: then there is nothing to wait for."""
        self.send(release)
        if self._last is not None:
            return self._wait()
        if self.claim is not None and self.claim.failure is not None:
            raise self.claim.failure
        return None

    async def commit(self, release: bool = False) -> None:
        """Return when everything that was added is stored; raises what kept any of it from being."""
        waiting = self.flush(release)
        if waiting is not None:
            await waiting

    async def _wait(self) -> None:
        last = self._last
        if last is not None:
            await asyncio.shield(last)
            if self._last is last:
                self._last = None

    def _done(self, events: Sequence[AnyEvent], future: asyncio.Future[None]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._stored(events)

    def _stored(self, events: Sequence[AnyEvent]) -> None:
        state = self.state
        if events[0].seq > state.seq + 1:
            self._fetch(state.seq, events[0].seq)
        state.seq, state.last_time = events[-1].seq, events[-1].time
        if self.live.sinks:
            for event in events:
                self.live.publish(event)

    def _fetch(self, after: int, before: int) -> None:
        """Others wrote in between: read it. The store has told of most of it already; folding twice is harmless."""
        task = asyncio.ensure_future(self.store.read(self.state.id, after, before - after - 1))

        def read(done: asyncio.Future[list[AnyEvent]]) -> None:
            if not done.cancelled() and done.exception() is None:
                for event in done.result():
                    self.absorb(event)

        task.add_done_callback(read)


class Deadlines:
    """Many deadlines on one timer: a turn or a call that ends in time costs two dict operations."""

    __slots__ = ("_due", "_next", "_timer")

    def __init__(self) -> None:
        self._due: dict[object, tuple[float, Callable[[], None]]] = {}
        self._next = float("inf")
        self._timer: asyncio.TimerHandle | None = None

    def add(self, key: object, seconds: float, expire: Callable[[], None]) -> None:
        """Call `expire` after so many seconds, unless it is dropped before."""
        when = asyncio.get_running_loop().time() + seconds
        self._due[key] = (when, expire)
        if when < self._next:
            self._arm(when)

    def drop(self, key: object) -> None:
        """It is no longer needed."""
        self._due.pop(key, None)

    def _arm(self, when: float) -> None:
        self.close()
        self._next = when
        self._timer = asyncio.get_running_loop().call_at(when, self._fire)

    def _fire(self) -> None:
        now = asyncio.get_running_loop().time()
        for key, (when, expire) in tuple(self._due.items()):
            if when <= now:
                del self._due[key]
                expire()
        self.close()
        if self._due:
            self._arm(min(when for when, _ in self._due.values()))

    def close(self) -> None:
        """Stop the timer."""
        self._next = float("inf")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Tree(Protocol):
    """What a live session asks of the run tree it belongs to."""

    deadlines: Deadlines

    @property
    def threads(self) -> ThreadPoolExecutor:
        """Where plain `def` tools run."""
        ...

    async def start_child(self, parent: Member, agent: Agent | str, prompt: str, name: str) -> Reply:
        """Run (or go on with) a child session called after its parent and `name`."""
        ...

    async def side_turn(self, member: Member, text: str, name: str) -> str:
        """Let the member's agent answer over its own conversation without leaving a trace in it."""
        ...


class Member:
    """One session of a run tree while this process runs it."""

    __slots__ = ("actor", "children", "log", "purpose", "state", "summarise", "tree")

    def __init__(self, log: Log, actor: Actor, tree: Tree, purpose: Purpose = "turn") -> None:
        self.log, self.actor, self.tree = log, actor, tree
        self.purpose: Purpose = purpose
        self.state = log.state
        self.children = 0
        self.summarise: Callable[[int, str], Awaitable[None]] | None = None

    @property
    def id(self) -> str:
        """The session's id."""
        return self.state.id

    def compact(self, keep_last: int, origin: str, summary: str = "") -> None:
        """Replace the history by its first message, the summary and the newest messages."""
        state = self.state
        messages = compacted_messages(state.messages(), keep_last, summary)
        base = state.prompt.seq if state.phase == "running" and state.prompt is not None else 0
        dropped = max(0, len(state.messages()) - len(messages) + bool(summary))
        self.log.add(Compacted(tuple(messages), summary, dropped, origin, base, state.carried()))


class Access:
    """What a hook gets: its session, signed with the occurrence of the point it runs at.

    When a hook runs again, what it wrote the first time is matched and not written twice.
    """

    __slots__ = ("_count", "_logged", "_member", "_origin")

    def __init__(self, member: Member, origin: str) -> None:
        self._member, self._origin = member, origin
        logged = member.state.writes.get(origin)
        self._logged = [_body(e) for e in logged] if logged else None
        self._count = 0

    @property
    def id(self) -> str:
        """The session's id."""
        return self._member.id

    @property
    def agent(self) -> str:
        """The agent's name."""
        return self._member.actor.name

    @property
    def parent(self) -> str:
        """The id of the session that started this one, or ""."""
        return self._member.state.header.parent

    def get_messages(self) -> list[Message]:
        """The conversation since the last compaction."""
        return self._member.state.messages()

    def get_context(self, key: str, default: Any = None) -> Any:
        """What was kept under that key."""
        return self._member.state.context.get(key, default)

    def get_summary(self) -> str:
        """The summary of the last compaction, else the last reply's text."""
        return self._member.state.summary or self._member.state.text

    def add_message(self, role: str, content: str) -> None:
        """Add to the conversation. `system` becomes an instruction; between a call and its result it waits."""
        self._write(MessageAdded(message_from(role, content), self._origin))

    def set_context(self, key: str, value: Any) -> None:
        """Keep a JSON value under a key."""
        try:
            plain = msgspec.json.decode(msgspec.json.encode(value))
        except (TypeError, UnicodeEncodeError) as error:
            raise UpcallError(f"set_context({key!r}, ...) takes what JSON can hold: {error}") from None
        self._write(ContextSet(key, plain, self._origin))

    def compact_messages(self, keep_last: int = 10) -> None:
        """Forget all but the first user message and the last few, without a model."""
        if self._done_before(Compacted, CompactionAsked):
            return
        if self._member.state.calls:
            self._write(CompactionAsked(keep_last, False, self._origin))
        else:
            self._member.compact(keep_last, self._origin)

    async def trigger_compaction(self, keep_last: int = 10) -> None:
        """Have the model summarise, now if no call is open, else before the next model call."""
        member = self._member
        if self._done_before(Compacted, CompactionAsked):
            return
        if member.state.calls or member.summarise is None:
            self._write(CompactionAsked(keep_last, True, self._origin))
        else:
            await member.summarise(keep_last, self._origin)

    async def prompt(self, text: str) -> str:
        """A side turn of this agent over its own conversation; returns what it says and leaves no trace in it."""
        self._count += 1
        return await self._member.tree.side_turn(self._member, text, f"{self._origin}.side{self._count}")

    async def start_child(self, agent: Agent | str, prompt: str) -> Reply:
        """Run another agent as a child; returns its reply."""
        self._count += 1
        name = self._origin if self._count == 1 else f"{self._origin}.{self._count}"
        return await self._member.tree.start_child(self._member, agent, prompt, name)

    def _write(self, event: AnyEvent) -> None:
        if self._logged:
            body = _body(event)
            if body in self._logged:
                self._logged.remove(body)
                return
        self._member.log.add(event)

    def _done_before(self, *kinds: type) -> bool:
        """Whether the first run of this hook compacted already: the history has changed, so bodies can't match."""
        logged = self._member.state.writes.get(self._origin, ()) if self._logged is not None else ()
        return any(isinstance(e, kinds) for e in logged)


def message_from(role: str, content: str) -> Message:
    """A message as hooks add it: `user`, `assistant`, or `system` for an instruction."""
    match role:
        case "user" | "assistant":
            return Message(role, (Text(content),))
        case "system":
            return Message("user", (Instruction(content),))
        case _:
            raise UpcallError(f"add_message({role!r}, ...): the role is 'user', 'assistant' or 'system'")


def _body(event: Any) -> bytes:
    return encode(event.replace(session="", seq=0, pos=0, time=0.0))
