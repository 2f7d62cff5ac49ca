"""The seams: what the core asks of models, stores and hosts, and what it gives to hooks and tools."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar

import msgspec

from upcall.callbacks import Callback, Held, HostAnswer, Priority
from upcall.events import AnyEvent
from upcall.messages import NO_USAGE, Message, Purpose, Request, Response, Status, Usage, Value

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    OutputT_co = TypeVarWithDefault("OutputT_co", covariant=True, default=Any)
    DepsT_co = TypeVarWithDefault("DepsT_co", covariant=True, default=Any)
else:  # `default` is in Python from 3.13 on, and only type checkers need it
    OutputT_co = TypeVar("OutputT_co", covariant=True)
    DepsT_co = TypeVar("DepsT_co", covariant=True)

R = TypeVar("R")

Emit = Callable[[str, str], None]
"""Takes `(kind, text)` while a model is still writing: "text", "thinking", or "drop" (forget what came so far)."""


class Delta(Value, frozen=True):
    """Text still being written: live only, never stored.

    session: the id of the session that writes it
    text: the new piece of text
    kind: `text` or `thinking` of a model; `drop`, which takes back what came before; `output` of a tool
    call_id: the tool call, for `output`
    """

    type: ClassVar[Literal["delta"]] = "delta"
    session: str
    text: str
    kind: str = "text"
    call_id: str = ""


class Missed(Value, frozen=True):
    """Items that a subscriber did not get, because its buffer was full.

    count: how many items were dropped
    after: `runtime.events(after=...)` with this position has all dropped events; None if no event was dropped.
        Deltas are not stored; questions are in `runtime.inbox()`
    """

    type: ClassVar[Literal["missed"]] = "missed"
    count: int
    after: int | None = None


_NO_OUTPUT: Any = None


class Reply(Value, Generic[OutputT_co], frozen=True):
    """The result of a turn. `output` has the type that the agent declares; without one it is None.

    It is also None while the turn waits and where it was cancelled or reached a limit.
    """

    text: str
    status: Status = "done"
    session_id: str = ""
    usage: Usage = Usage()
    callbacks: tuple[Callback, ...] = ()
    output: OutputT_co = _NO_OUTPUT
    limit: str = ""


class Spent(Value, frozen=True):
    """What sessions have used: model calls, tokens by model, seconds of running time."""

    calls: int = 0
    usage: Mapping[str, Usage] = {}
    seconds: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        usage = dict(self.usage)
        for model, used in other.usage.items():
            usage[model] = usage.get(model, NO_USAGE) + used
        return Spent(self.calls + other.calls, usage, self.seconds + other.seconds)

    @property
    def tokens(self) -> int:
        """Input and output of all models."""
        return sum(used.total for used in self.usage.values())


# --- what is plugged in below -----------------------------------------------------------


class Model(Protocol):
    """Something that answers requests. `emit` is None when nobody watches."""

    @property
    def name(self) -> str:
        """How people call it, such as `openai:gpt-6`."""
        ...

    async def respond(self, request: Request, emit: Emit | None) -> Response:
        """Answer one request, telling `emit` about text as it comes; raises a ModelError after its own retries."""
        ...


class Claim(msgspec.Struct, eq=False):
    """The right to append to a run tree, until it ends or is lost. `epoch` fences older owners.

    `seq` is the newest sequence number of the root session when it was claimed: who knows all up to there need
    not read. `base` is where its last compaction lets a fold begin.

    `failure` is set by the store when the claim is lost or an append failed; `on_failure` is then called, once,
    on the event loop.
    """

    root: str
    epoch: int
    seq: int = 0
    base: int = 0
    released: bool = False
    failure: Exception | None = None
    on_failure: Callable[[Exception], None] | None = None

    @property
    def is_active(self) -> bool:
        """True until it is lost, an append fails, or it is released."""
        return self.failure is None and not self.released

    def fail(self, error: Exception) -> None:
        """Note that nothing can be appended any more, and tell whoever holds the claim. On the event loop only."""
        if self.failure is None:
            self.failure = error
        if self.on_failure is not None:
            tell, self.on_failure = self.on_failure, None
            tell(self.failure)


class Row(Value, frozen=True):
    """A session as the store lists it.

    From the runtime, `status` says what the session is doing now. From a store it is what the newest event says: a
    turn that is `running` without an `owner` was interrupted. With `asks_person` it waits nevertheless: everything
    that is open in it and below it is for a person to answer. `tags`, `title`, `folder` and `roots` are those of
    its run tree; the folder is empty where none was given.
    """

    id: str
    agent: str
    status: str
    parent: str
    root: str
    kind: str
    created: float
    updated: float
    seq: int
    base: int
    owner: str = ""
    tags: Mapping[str, str] = {}
    asks_person: bool = False
    title: str = ""
    folder: str = ""
    roots: tuple[str, ...] = ()

    @property
    def current_status(self) -> str:
        """What the session is doing: a turn without a living owner waits for a person, or was interrupted."""
        if self.status != "running" or self.owner:
            return self.status
        return "waiting" if self.asks_person else "interrupted"


class Selection(Value, frozen=True):
    """Which sessions or callbacks to list: everything that is given must match.

    session: the session itself and all below it
    agent: the name of the session's agent
    status: for sessions what they are doing, `interrupted` too; for callbacks their own
    tags: names with their values; the run tree has them all
    folder: for sessions the folder that their run tree works in, as it was given
    """

    session: str | None = None
    agent: str | None = None
    status: str | None = None
    tags: Mapping[str, str] = {}
    folder: str | None = None


EVERYTHING = Selection()


class Ready(Value, frozen=True):
    """A run tree that can be resumed: a record for a job queue, written with what made the tree ready.

    root: the id of its root session
    reason: `settled`: a callback that it waits for was settled; `parked`: it waits for an agent, or for a callback
        that expires; `child_ended`: a child's turn ended, and its owner released the tree
    due: the moment from which it can be resumed, by the store's clock; 0 for now
    """

    root: str
    reason: Literal["settled", "parked", "child_ended"]
    due: float = 0.0


OnReady = Callable[[Any, Ready], None]
"""Called by a store inside the transaction that makes a run tree ready, with that transaction and the record.

Rows that it adds to the transaction are committed with the cause, or not at all. If it raises, a durable store
commits nothing.
"""


class Store(Protocol):
    """An append-only log of events per session, with one owner at a time per run tree."""

    where: str
    """The place of the log, as messages name it."""
    durable: bool
    """True if the log outlives the process."""
    lease: float
    """Seconds that a claim holds without a sign of life from its owner; 0 if only this process can own anything."""

    def now(self) -> float:
        """The store's clock, in seconds since 1970."""
        ...

    def append(
        self,
        session: str,
        events: Sequence[AnyEvent],
        claim: Claim | None,
        *,
        blobs: Mapping[str, bytes] | None = None,
        release: bool = False,
        lazy: bool = False,
    ) -> asyncio.Future[None] | None:
        """Add events to one session, all or none, and stamp them.

        None means done; otherwise the events are stored, in the order of the calls, once the future is done.
        With a claim that is no longer the newest, nothing is written and SessionTakenOver is raised. Without one
        only `SessionStarted` of a new session and the types in `events.FOREIGN` are taken. A failed append marks
        the claim: every later one fails too. `release` gives the claim up in the same transaction. What is `lazy`
        survives this process's death at once, and a power cut only with the next append that is not.
        """
        ...

    async def claim(self, root: str, *, take_over: bool = False) -> Claim:
        """Become the owner of a run tree; SessionBusy if a living process owns it, unless `take_over`.

        An owner is alive until the store knows that it ended, or has not heard of it for `lease` seconds. The store
        renews the leases of its own claims. `SessionBusy.is_local` is set if this very process is the owner.
        """
        ...

    async def release(self, claim: Claim) -> None:
        """Stop owning; nothing happens if the claim was lost."""
        ...

    async def read(self, session: str, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        """Events of one session with `seq` above `after`, oldest first."""
        ...

    async def read_all(self, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        """Events of all sessions with `pos` above `after`, in the order of their positions.

        Positions become readable in their order: who has seen position N, here, from `last` or in an event, never
        later finds anything at or below N that was not there. So whoever follows the log by position misses
        nothing, however many processes write. A store that numbers events before it commits them must not show an
        event while one with a lower position may still be committed.
        """
        ...

    async def read_tree(self, session: str, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        """Events of a session and all below it with `pos` above `after`, in the order of their positions.

        Positions become readable in their order, as for `read_all`.
        """
        ...

    async def last(self) -> int:
        """The position of the newest event."""
        ...

    async def row(self, session: str) -> Row | None:
        """One session as listed, or None."""
        ...

    async def rows(
        self,
        *,
        parent: str | None = None,
        which: Selection = EVERYTHING,
        before: str | None = None,
        limit: int = 1000,
    ) -> list[Row]:
        """Sessions that match, newest first; with `parent`, its children, oldest first.

        parent: the id of a session, or "" for the sessions without a parent, newest first
        before: only sessions that were started before this one; the last id of one page gives the next page
        limit: at most so many that match
        """
        ...

    async def blob(self, name: str) -> bytes:
        """A body stored once under its content hash."""
        ...

    async def wait(self, after: int, timeout: float) -> None:
        """Return when an event with `pos` above `after` may be there, or after `timeout` seconds."""
        ...

    async def append_all(self, events: Mapping[str, Sequence[AnyEvent]]) -> None:
        """Add events that need no claim to several sessions, all or none."""
        ...

    async def park(
        self,
        claim: Claim,
        events: Mapping[str, Sequence[AnyEvent]],
        waits: Sequence[str],
        blobs: Mapping[str, bytes] | None = None,
    ) -> bool:
        """Append to several sessions and release the claim, if all these callbacks are still open; else nothing.

        `blobs` are stored with the events.
        """
        ...

    async def settle(
        self, callback_id: str, events: Mapping[str, AnyEvent], claim: Claim | None = None
    ) -> Held | None:
        """Settle a callback, and others with it, if it is open and not expired: the first one wins.

        `events` has an event for each callback id; others than the first that are no longer open are left as they
        are. Returns None, or what the first one already is. An answer after `expires` is refused.
        """
        ...

    async def callback(self, callback_id: str) -> Held | None:
        """One callback, or None."""
        ...

    async def callbacks(
        self,
        *,
        root: str | None = None,
        inbox: bool = False,
        which: Selection = EVERYTHING,
        limit: int = 100_000,
    ) -> list[Held]:
        """Callbacks of a run tree, oldest first; or those for a person that match, highest priority first.

        Without a status in `which`, those that wait for a person. One whose time is up is expired, noticed or not.
        """
        ...

    async def unfinished(self, limit: int | None = None) -> list[Row]:
        """Root sessions that are ready to continue, oldest first; without a limit, all of them.

        No living process owns them, and their turn was interrupted, or it is parked and something that it waits
        for (in any session of the run tree) is settled, expired, or to be asked of an agent next.
        """
        ...

    async def next_deadline(self, after: float) -> float | None:
        """When the next callback that a parked session waits for expires, after that moment; None if none does."""
        ...

    def listen(self, hear: Callable[[AnyEvent], None]) -> Callable[[], None]:
        """Call `hear` on the event loop for each event that any process appends without a claim; returns a stop."""
        ...

    async def delete(self, sessions: Sequence[str]) -> int:
        """Remove whole run trees that nobody owns; returns how many sessions went."""
        ...

    async def open(self) -> None:
        """Get ready; called once before anything else."""
        ...

    async def close(self) -> None:
        """Finish what was begun and let go of everything."""
        ...


class Host(Protocol):
    """What stands between the runtime and a person."""

    async def ask(self, callback: Callback) -> HostAnswer:
        """Return the person's answer: a value, Approve, Reject or Decline; None leaves the question in the inbox.

        A host that knows who answered returns `Answer(value, by=..., right=...)`: the principal, and how the host
        knows. Without it the log says `user` and `asserted`. An answer that is not accepted is asked for again,
        with the reason in `callback.problem`.
        """
        ...

    def withdraw(self, callback_id: str, reason: str) -> None:
        """An open ask ended elsewhere."""
        ...


class Entry(Value, frozen=True):
    """What lies at a path of a workspace. `path` is the whole one, from the root, as the workspace spells it."""

    path: str
    kind: Literal["file", "folder", "link", "other"] = "file"
    size: int = 0


class Files(Protocol):
    """A workspace as one session has it. Paths begin at its root, so that `/a` and `a` are the same file.

    Whatever a path says, nothing outside is read or written. All that can't be done is a WorkspaceError.
    """

    @property
    def folder(self) -> str | None:
        """Where a program could work in it on this machine, or None."""
        ...

    async def look(self, path: str) -> Entry:
        """What lies there, links followed; `missing` is set on the error if there is nothing."""
        ...

    async def entries(self, path: str) -> list[Entry]:
        """What lies in a folder, by name; links are not followed."""
        ...

    async def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        """A file's bytes from `start` on, `size` of them or all; fewer at its end."""
        ...

    async def write(self, path: str, data: bytes, expected: str | None = None) -> None:
        """Replace a file, or make it and the folders above it: whole or not at all.

        With `expected` only while it still has the content of that hash (`events.content_hash`).
        """
        ...


class TreeStorage(Protocol):
    """What a whole run tree shares, kept in its root's log."""

    async def values(self) -> Mapping[str, Any]:
        """All that was put, by key; the root session's own context is among it."""
        ...

    async def body(self, name: str) -> bytes:
        """A body that was put with a value, by its content hash."""
        ...

    async def put(self, key: str, value: Any, bodies: Mapping[str, bytes]) -> None:
        """Keep a JSON value and the bodies it names by their content hash; stored when it returns."""
        ...


class Workspace(Protocol):
    """A declared place for files: what `Agent(workspace=...)` takes."""

    def open(self, storage: TreeStorage) -> Files:
        """Its files, for one session; nothing is touched yet."""
        ...


class SessionReads(Protocol):
    """What a Toolset may read of the session that asks it."""

    @property
    def id(self) -> str:
        """The session's id."""
        ...

    @property
    def agent(self) -> str:
        """The agent's name."""
        ...

    @property
    def parent(self) -> str | None:
        """The id of the session that started this one, if one did."""
        ...

    @property
    def purpose(self) -> Purpose:
        """What runs: `turn` or `side_turn`."""
        ...

    @property
    def data(self) -> dict[str, Any]:
        """A copy of what the application gave with `start(data=...)`; children have their root's."""
        ...

    @property
    def tags(self) -> dict[str, str]:
        """A copy of the tags of `start(tags=...)`; children have their root's."""
        ...

    @property
    def title(self) -> str:
        """The title of `start(title=...)`, or ""; children have their root's."""
        ...

    @property
    def folder(self) -> str | None:
        """The folder of `start(folder=...)`, or None; children have their root's."""
        ...

    @property
    def roots(self) -> tuple[str, ...]:
        """The further folders of `start(roots=...)`; children have their root's."""
        ...

    @property
    def deps(self) -> Any:
        """The object of `Runtime(deps=...)`, which is never stored; None where none was given."""
        ...


class Toolset(Protocol):
    """A source of tools that may change while a session runs: `Agent(tools=[read, toolset])`."""

    @property
    def name(self) -> str:
        """How errors call it."""
        ...

    async def list_tools(self, session: SessionReads) -> Sequence[Any]:
        """The tools, or typed functions, that the session has now.

        Called before each model call. What it raises, and more time than `Limits(toolset_seconds=...)`, fails the
        turn: catch what should not, and return the tools that are there.
        """
        ...


# --- what hooks and tools get -----------------------------------------------------------


class InSession(Protocol):
    """What hooks and tools of every kind know of their session, and write into it."""

    @property
    def id(self) -> str:
        """The session's id."""
        ...

    @property
    def agent(self) -> str:
        """The agent's name."""
        ...

    @property
    def data(self) -> dict[str, Any]:
        """A copy of what the application gave with `start(data=...)`; children have their root's."""
        ...

    @property
    def tags(self) -> dict[str, str]:
        """A copy of the tags of `start(tags=...)`; children have their root's."""
        ...

    @property
    def title(self) -> str:
        """The title of `start(title=...)`, or ""; children have their root's."""
        ...

    @property
    def folder(self) -> str | None:
        """The folder of `start(folder=...)`, or None; children have their root's."""
        ...

    @property
    def roots(self) -> tuple[str, ...]:
        """The further folders of `start(roots=...)`; children have their root's."""
        ...

    def get_context(self, key: str, default: Any = None) -> Any:
        """What was kept under that key."""
        ...

    def set_context(self, key: str, value: Any) -> None:
        """Keep a JSON value under a key. Text under `pinned.…` is shown to the model again after a compaction."""
        ...

    @property
    def parent(self) -> str | None:
        """The id of the session that started this one, if one did."""
        ...

    @property
    def purpose(self) -> Purpose:
        """What runs: `turn`, or `side_turn`, whose writes stay in it."""
        ...

    def get_messages(self) -> list[Message]:
        """The conversation since the last compaction."""
        ...

    def get_summary(self) -> str:
        """The summary of the last compaction, else the last reply's text."""
        ...

    def add_message(self, role: str, content: str) -> None:
        """Add to the conversation. `system` becomes an instruction; between a call and its result it waits."""
        ...

    def compact_messages(self, keep_last: int = 10) -> None:
        """Forget all but the first user message and the last few, without a model."""
        ...


class InCall(Protocol):
    """What every tool has of the call that it serves."""

    @property
    def call_id(self) -> str:
        """The id of the tool call that is running."""
        ...

    def show(self, text: str) -> None:
        """Let people who watch see text while the tool runs; it is not stored."""
        ...


class InRuntime(Protocol[DepsT_co]):
    """What hooks and tools of every kind get from the runtime that runs them."""

    @property
    def deps(self) -> DepsT_co:
        """The object of `Runtime(deps=...)`, which is never stored; None where none was given."""
        ...


class SessionAccess(InSession, InRuntime[DepsT_co], Protocol[DepsT_co]):
    """What a hook may do with its session. Each write is an event, durable before the next effect.

    `SessionAccess[Deps]` tells type checkers the type of `deps`.
    """

    @property
    def workspace(self) -> Files | None:
        """The files of this agent, or of the nearest one above it that has a workspace."""
        ...

    async def get_history(self) -> list[Message]:
        """The whole conversation from the log, what was compacted away too."""
        ...

    async def spent(self) -> Spent:
        """What the whole run tree has used so far: the root session, all below it, and their side turns."""
        ...

    async def prompt(self, text: str) -> str:
        """A side turn of this agent over its own conversation; returns what it says and leaves no trace in it."""
        ...

    async def start_child(self, agent: Any, prompt: str) -> Reply:
        """Run another agent (or a named one below this) as a child; returns its reply."""
        ...

    async def trigger_compaction(self, keep_last: int = 10) -> None:
        """Have the model summarise, now if no call is open, else before the next model call."""
        ...

    async def raise_callback(
        self,
        message: str,
        callback_type: str = "query",
        *,
        kind: str = "callback_to_caller",
        choices: Sequence[str] = (),
        schema: Mapping[str, Any] | None = None,
        context: Any = None,
        priority: Priority = "normal",
        timeout: float | None = None,
        default: Any = None,
        key: str | None = None,
        required: bool | None = None,
        max_bubble_hops: int | None = None,
        fallback_target: str | None = None,
        passthrough_agents: Sequence[str] = (),
        resolvable_by: Sequence[str] = (),
        passthrough_child_callbacks: bool = False,
    ) -> Any:
        """Ask whoever is above, by policy; returns the answer's value."""
        ...

    async def once(self, name: str, effect: Callable[..., Awaitable[R] | R], *args: Any, **kwargs: Any) -> R:
        """Run a side effect at most once, its result kept in the log."""
        ...


class Context(SessionAccess[DepsT_co], InCall, Protocol[DepsT_co]):
    """What an async tool gets when a parameter is annotated with it; `Context[Deps]` types its `deps`."""

    async def raise_callback_full(self, message: str, callback_type: str = "query", **options: Any) -> Callback:
        """Like `raise_callback`, returning the settled callback: who answered, by what right, by which path."""
        ...


class SyncContext(InSession, InRuntime[DepsT_co], InCall, Protocol[DepsT_co]):
    """What a plain `def` tool gets: the same calls without `await`, from its own thread.

    `SyncContext[Deps]` tells type checkers the type of `deps`.
    """

    def raise_callback(self, message: str, callback_type: str = "query", **options: Any) -> Any:
        """Ask whoever is above, by policy; blocks this thread until there is an answer."""
        ...

    def raise_callback_full(self, message: str, callback_type: str = "query", **options: Any) -> Callback:
        """Like `raise_callback`, returning the settled callback."""
        ...

    def once(self, name: str, effect: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        """Run a side effect at most once, its result kept in the log."""
        ...

    def get_history(self) -> list[Message]:
        """The whole conversation from the log, what was compacted away too."""
        ...

    def spent(self) -> Spent:
        """What the whole run tree has used so far."""
        ...

    def prompt(self, text: str) -> str:
        """A side turn of this agent over its own conversation."""
        ...

    def start_child(self, agent: Any, prompt: str) -> Reply:
        """Run another agent as a child; returns its reply."""
        ...

    def trigger_compaction(self, keep_last: int = 10) -> None:
        """Have the model summarise before the next model call."""
        ...
