"""The protocols of models, stores, hosts and workspaces, and of what hooks and tools get."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar

import msgspec

from upcall.callbacks import Callback, HostAnswer
from upcall.events import AnyEvent
from upcall.messages import NO_USAGE, Message, Priority, Purpose, Request, Response, Status, Usage, Value
from upcall.tokens import RefusedRequest, Token

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    OutputT_co = TypeVarWithDefault("OutputT_co", covariant=True, default=Any)
    DepsT_co = TypeVarWithDefault("DepsT_co", covariant=True, default=Any)
else:  # Python has `default` since 3.13, and only type checkers need it
    OutputT_co = TypeVar("OutputT_co", covariant=True)
    DepsT_co = TypeVar("DepsT_co", covariant=True)

R = TypeVar("R")

Emit = Callable[[str, str], None]
"""Gets `(kind, text)` while a model is writing. Kinds: "text", "thinking", or "drop" (discard the text so far)."""


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
    """The usage of sessions: model calls, tokens by model, seconds of running time."""

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
        """Input and output tokens of all models."""
        return sum(used.total for used in self.usage.values())


class Exchange(Value, frozen=True):
    """One request to a provider over HTTP, and its answer.

    url: where it was sent
    status: the HTTP status of the answer; 0 if there was none
    request: the body that was sent
    response: what came back; of a very long answer the beginning
    received_bytes: how many bytes came back
    """

    url: str
    status: int = 0
    request: str = ""
    response: str = ""
    received_bytes: int = 0


class ModelCall(Value, frozen=True):
    """A model call, rebuilt from the log.

    session: the id of its session
    ordinal: its number in the session; a summary has the number of the call before it
    purpose: what the model was asked for: a `turn`, a `side_turn` or a `summary`
    seq: the sequence number of the event that began it
    started: when that was
    model: the name of the model that was asked, as it was declared; empty in a log older than that field
    request: what the model got, with what hooks changed; the values of headers are not kept
    response: what came back, as the hooks left it; None while it runs, while its hooks run, and if it failed
    by_hook: whether a hook answered in the model's place
    changed_by_hook: whether a hook replaced the response
    error: why it failed
    end_seq: the sequence number of the event with its outcome; 0 if there is none
    ended: when it ended
    wire: what went over the wire, if the runtime captured it; a request that was sent again is another exchange
    """

    session: str
    ordinal: int
    purpose: Purpose
    seq: int
    started: float
    model: str
    request: Request
    response: Response | None = None
    by_hook: bool = False
    changed_by_hook: bool = False
    error: str = ""
    end_seq: int = 0
    ended: float | None = None
    wire: tuple[Exchange, ...] = ()


# --- models, stores, hosts, workspaces --------------------------------------------------


class Model(Protocol):
    """Something that answers requests. `emit` is None when nobody watches."""

    @property
    def name(self) -> str:
        """The model's name for people, such as `openai:gpt-6`."""
        ...

    async def respond(self, request: Request, emit: Emit | None) -> Response:
        """Answer one request, and pass text to `emit` as it arrives. Raises a ModelError after its own retries."""
        ...


class Claim(msgspec.Struct, eq=False):
    """The right to append to a run tree, until it ends or is lost. `epoch` fences older owners.

    `seq` is the newest sequence number of the root session when it was claimed: who knows all up to there need
    not read. `base` is where its last compaction lets a fold begin. `orphaned`: the process that owned the tree
    before died without releasing it.

    `until` is the moment, by `time.monotonic()`, up to which no other process can have taken the tree over without
    `take_over`. The store moves it on with each heartbeat. After it, `Store.confirm` comes before the next effect.

    `failure` is set by the store when the claim is lost or an append failed; `on_failure` is then called, once,
    on the event loop.
    """

    root: str
    epoch: int
    seq: int = 0
    base: int = 0
    orphaned: bool = False
    until: float = math.inf
    released: bool = False
    failure: Exception | None = None
    on_failure: Callable[[Exception], None] | None = None

    @property
    def is_active(self) -> bool:
        """True until it is lost, an append fails, or it is released."""
        return self.failure is None and not self.released

    def fail(self, error: Exception) -> None:
        """Mark the claim as lost, and notify its holder. Call it on the event loop only."""
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
        """The session's status now: a turn without a living owner waits for a person, or was interrupted."""
        if self.status != "running" or self.owner:
            return self.status
        return "waiting" if self.asks_person else "interrupted"


class Selection(Value, frozen=True):
    """A filter for lists of sessions or callbacks. All fields that are set must match.

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
        that expires; `child_ended`: a child's turn ended, and its owner released the tree; `queued`: a turn was
        submitted, or is next; `retry`: its turn failed and may be tried again; `released`: its owner released it
        in the middle of a turn
    due: the moment from which it can be resumed, by the store's clock; 0 for now
    """

    root: str
    reason: Literal["settled", "parked", "child_ended", "queued", "retry", "released"]
    due: float = 0.0


class TakeLimit(Value, frozen=True):
    """A limit on the run trees that workers have, over all processes that use the store.

    agents: the names of the agents that it counts; empty for all
    tenant: the tenant that it counts; None for all
    running: how many trees may run at once; None for no limit. A tree counts from `take` until it is released
    per_minute: how many trees may be taken within a minute; None for no limit
    """

    agents: tuple[str, ...] = ()
    tenant: str | None = None
    running: int | None = None
    per_minute: int | None = None

    def covers(self, agent: str, tenant: str) -> bool:
        """Return whether the limit counts a tree of this agent and tenant."""
        return (not self.agents or agent in self.agents) and self.tenant in (None, tenant)


OnReady = Callable[[Any, Ready], None]
"""Called by a store inside the transaction that makes a run tree ready, with that transaction and the record.

Rows that it adds to the transaction are committed with the cause, or not at all. If it raises, a durable store
commits nothing.
"""


class Store(Protocol):
    """An append-only log of events per session, with one owner at a time per run tree.

    Other code looks for three more attributes, which a store may have. `private_paths` are the files that agents
    must not read or write: every store in files needs it. `duplicate()` returns another store on the same log that
    is not open yet, for a thread of its own. `foreign` is True if this is a read-only copy of somebody else's log.

    Ids and names to look for may be any text. One with the character zero, or with half a character (a lone
    surrogate), is that of nothing: nothing is found, or UnknownSession or UnknownCallback is raised. No session is
    started with such an id.
    """

    where: str
    """The log's path or address, for messages."""
    durable: bool
    """True if the log outlives the process."""
    lease: float
    """Seconds that a claim lasts without a heartbeat of its owner; 0 if only this process can have claims."""

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

    async def confirm(self, claim: Claim) -> None:
        """Return when a new heartbeat has been stored and the claim still holds; raise what it was lost to.

        A process that was stopped, or could not reach the store, calls this before it starts a tool, an effect or
        a side turn: after `claim.until` another process may own the run tree. While the store can't be reached,
        this waits.
        """
        ...

    async def release(self, claim: Claim) -> None:
        """Stop owning; nothing happens if the claim was lost."""
        ...

    async def read(self, session: str, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        """Return the events of one session with `seq` above `after`, oldest first."""
        ...

    async def read_all(self, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        """Return the events of all sessions with `pos` above `after`, in the order of their positions.

        Positions become readable in their order: who has read up to position N here, or got N from `last`, never
        later finds anything at or below N that was not there. So whoever follows the log by position misses
        nothing, however many processes write. A store that numbers events before it commits them must not show an
        event here while one with a lower position may still be committed. Numbers may be left out.
        """
        ...

    async def read_tree(self, session: str, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        """Return the events of a session and all below it with `pos` above `after`, in order of position.

        Positions become readable in their order, as for `read_all`; here a position from any event of the same run
        tree may be given, too.
        """
        ...

    async def last(self) -> int:
        """Return the position of the newest event."""
        ...

    async def row(self, session: str) -> Row | None:
        """Return one session's row, or None."""
        ...

    async def rows(
        self,
        *,
        parent: str | None = None,
        which: Selection = EVERYTHING,
        before: str | None = None,
        limit: int = 1000,
    ) -> list[Row]:
        """Return the sessions that match, newest first; with `parent`, its children, oldest first.

        parent: the id of a session, or "" for the sessions without a parent, newest first
        before: only sessions that were started before this one; the last id of one page gives the next page
        limit: at most so many that match
        """
        ...

    async def blob(self, name: str) -> bytes:
        """Return the body with this content hash."""
        ...

    async def wait(self, after: int, timeout: float) -> None:
        """Return when an event with `pos` above `after` may be there, or after `timeout` seconds."""
        ...

    async def append_all(self, events: Mapping[str, Sequence[AnyEvent]], *, queue_limit: int | None = None) -> None:
        """Add events that need no claim to several sessions, all or none.

        A TurnQueued is taken for a root session only, and only if its `turn` is above that of every TurnQueued
        before it: TurnExists otherwise, so that of several who submit the same turn one does.

        queue_limit: QueueFull if more sessions than this would be queued
        """
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
    ) -> Callback | None:
        """Settle a callback, and others with it, if it is open and not expired: the first one wins.

        `events` has an event for each callback id; others than the first that are no longer open are left as they
        are. Returns None, or what the first one already is. An answer after `expires` is refused.
        """
        ...

    async def callback(self, callback_id: str) -> Callback | None:
        """Return one callback, or None."""
        ...

    async def callbacks(
        self,
        *,
        root: str | None = None,
        inbox: bool = False,
        which: Selection = EVERYTHING,
        limit: int = 100_000,
    ) -> list[Callback]:
        """Return a run tree's callbacks, oldest first; or those for a person that match, highest priority first.

        Without a status in `which`, those that wait for a person. One whose time is up is expired, noticed or not.
        """
        ...

    async def unfinished(self, limit: int | None = None) -> list[Row]:
        """Return the root sessions that are ready to continue, oldest first; without a limit, all of them.

        No living process owns them, and a turn of theirs is queued (after a failure: once its retry is due), or
        was interrupted, or is parked and something that it waits for (in any session of the run tree) is settled,
        expired, or to be asked of an agent next.
        """
        ...

    async def take(
        self,
        agents: Collection[str] | None = None,
        *,
        exclude: Collection[str] = (),
        limits: Sequence[TakeLimit] = (),
    ) -> Claim | None:
        """Claim the next run tree that is ready to continue (see `unfinished`), or return None.

        Choosing and claiming are one transaction: of several processes that take, each gets another tree. The
        highest priority comes first; of equal ones the tenant with the fewest trees that workers run now; then the
        oldest session. The priority and tenant of a tree are those of its newest TurnQueued. What it costs does
        not depend on how many trees wait or are queued.

        agents: only trees whose root has one of these agents
        exclude: the ids of roots that are skipped
        limits: a tree that would exceed one of them is skipped. Those who share limits give the same ones: a take
            counts for `per_minute` if it is made with a limit that has it
        """
        ...

    async def counts(self) -> Mapping[str, int]:
        """Return how many root sessions have each status, as `Row.current_status` has it; not those with none."""
        ...

    async def pause(self, name: str, until: float) -> None:
        """Note for all processes that something, such as a model, is not to be used before this time.

        The later of two times counts. `until` is by the store's clock.
        """
        ...

    async def pauses(self) -> Mapping[str, float]:
        """Return what is paused now, with the time until when."""
        ...

    async def prune(self, before: float, limit: int = 1000) -> int:
        """Delete run trees that ended before this time, oldest first; return the number of deleted sessions.

        Deleted are at most `limit` trees that nobody owns and whose root is done, failed, cancelled or at a limit,
        with nothing queued, and whose newest event of the root is older than `before`.
        """
        ...

    async def next_deadline(self, after: float) -> float | None:
        """Return the first time after `after` at which a parked session's callback expires or a retry is due."""
        ...

    def listen(self, hear: Callable[[AnyEvent], None]) -> Callable[[], None]:
        """Call `hear` on the event loop for each event appended without a claim; return a function to stop it."""
        ...

    async def delete(self, sessions: Sequence[str]) -> int:
        """Delete whole run trees that nobody owns; return the number of deleted sessions."""
        ...

    async def tokens(self) -> list[Token]:
        """Return the tokens of people, in the order in which they were made; revoked ones too."""
        ...

    async def token(self, digest: str) -> Token | None:
        """Return the token with this digest, revoked or not; None if there is none.

        It is asked often: an index finds it. What was committed before the call is seen, whoever wrote it.
        """
        ...

    async def add_token(self, token: Token) -> Token:
        """Keep a token; return it with `created` by the store's clock. It is durable when this returns.

        TokenExists if a token that is not revoked has the name, in the same transaction.
        """
        ...

    async def revoke_token(self, name: str) -> Token:
        """Revoke the valid token with this name, by the store's clock; return it. It is durable when this returns.

        Its row is kept, and the name may be given again. UnknownToken if no valid token has it.
        """
        ...

    async def add_refusal(self, refusal: RefusedRequest) -> None:
        """Keep a refused request, with the next number and a time by the store's clock.

        Only the newest `tokens.KEPT_REFUSALS` are kept; older ones are deleted in the same transaction.
        """
        ...

    async def refusals(self, after: int = 0, limit: int = 1000) -> list[RefusedRequest]:
        """Return the refused requests with a `number` above `after`, oldest first.

        Numbers are never given twice. They become readable in their order, as positions do.
        """
        ...

    async def open(self) -> None:
        """Open the store; called once before anything else."""
        ...

    async def close(self) -> None:
        """Finish pending writes and close the store."""
        ...


class Host(Protocol):
    """The connection between the runtime and a person."""

    async def ask(self, callback: Callback) -> HostAnswer:
        """Return the person's answer: a value, Approve, Reject or Decline; None leaves the question in the inbox.

        A host that knows who answered returns `Answer(value, by=..., right=...)`: the principal, and how the host
        knows. Without it the log says `user` and `asserted`. An answer that is not accepted is asked for again,
        with the reason in `callback.problem`.
        """
        ...

    def withdraw(self, callback_id: str, reason: str) -> None:
        """Stop asking: the callback was settled elsewhere."""
        ...


class Entry(Value, frozen=True):
    """A file, folder or link in a workspace. `path` starts at the root and is spelled as in the workspace."""

    path: str
    kind: Literal["file", "folder", "link", "other"] = "file"
    size: int = 0


class Files(Protocol):
    """A workspace as one session has it. Paths begin at its root, so that `/a` and `a` are the same file.

    Whatever a path says, nothing outside is read or written. All that can't be done is a WorkspaceError.
    """

    @property
    def folder(self) -> str | None:
        """The folder in which programs can run on this machine, or None."""
        ...

    async def look(self, path: str) -> Entry:
        """Return the entry at a path; links are followed. If there is none, the error has `missing` set."""
        ...

    async def entries(self, path: str) -> list[Entry]:
        """Return a folder's entries, sorted by name; links are not followed."""
        ...

    async def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        """Return a file's bytes from `start`, all of them or `size`; fewer at the end of the file."""
        ...

    async def write(self, path: str, data: bytes, expected: str | None = None) -> None:
        """Replace a file, or create it and its parent folders, atomically.

        With `expected` only while it still has the content of that hash (`events.content_hash`).
        """
        ...


class TreeStorage(Protocol):
    """Values that a whole run tree shares, stored in its root's log."""

    async def values(self) -> Mapping[str, Any]:
        """Return all stored values by key, including the root session's own context."""
        ...

    async def body(self, name: str) -> bytes:
        """Return a body that was stored with a value, by its content hash."""
        ...

    async def put(self, key: str, value: Any, bodies: Mapping[str, bytes]) -> None:
        """Store a JSON value and the bodies that it names by content hash; both are durable when it returns."""
        ...


class Workspace(Protocol):
    """A declared place for files, for `Agent(workspace=...)`."""

    def open(self, storage: TreeStorage) -> Files:
        """Return the files for one session. Nothing is read or written yet."""
        ...


class SessionReads(Protocol):
    """The parts of a session that a Toolset may read."""

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
        """The kind of turn that runs: `turn` or `side_turn`."""
        ...

    @property
    def data(self) -> dict[str, Any]:
        """A copy of the data of `start(data=...)`; children have their root's."""
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
        """The object of `Runtime(deps=...)`, which is never stored; None by default."""
        ...

    @property
    def servers(self) -> tuple[str, ...]:
        """The names of the MCP servers that the session was given; children have their root's."""
        ...

    @property
    def own_tools(self) -> tuple[str, ...]:
        """The names of the tools that the agent itself has; a toolset may not offer them again."""
        ...

    @property
    def open_calls(self) -> tuple[str, ...]:
        """The names of the tools whose calls are open, while a turn is being resumed; their tools are needed."""
        ...


class Toolset(Protocol):
    """A source of tools that may change while a session runs: `Agent(tools=[read, toolset])`.

    Other code looks for three more attributes, which a toolset may have. `servers` are the names that the log of a
    session with this toolset keeps. `available` are all names that it can serve: a session runs only where those
    in its log are. `close()` is async and called when the runtime is closed.
    """

    @property
    def name(self) -> str:
        """The name for errors."""
        ...

    async def list_tools(self, session: SessionReads) -> Sequence[Any]:
        """Return the tools, or typed functions, that the session has now.

        Called before each model call. What it raises, and more time than `Limits(toolset_seconds=...)`, fails the
        turn: catch what should not, and return the tools that are there.
        """
        ...


# --- for hooks and tools ----------------------------------------------------------------


class InSession(Protocol):
    """The session, for hooks and tools of every kind: values to read, and values they may write."""

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
        """A copy of the data of `start(data=...)`; children have their root's."""
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
        """Return the value of a key."""
        ...

    def set_context(self, key: str, value: Any) -> None:
        """Store a JSON value under a key. Text under `pinned.…` is shown to the model again after a compaction."""
        ...

    @property
    def parent(self) -> str | None:
        """The id of the session that started this one, if one did."""
        ...

    @property
    def purpose(self) -> Purpose:
        """The kind of turn that runs: `turn`, or `side_turn`, whose writes stay in it."""
        ...

    def get_messages(self) -> list[Message]:
        """Return the conversation since the last compaction."""
        ...

    def get_summary(self) -> str:
        """Return the summary of the last compaction, else the last reply's text."""
        ...

    def add_message(self, role: str, content: str) -> None:
        """Add a message. `system` becomes an instruction; while calls are open it is added after their results."""
        ...

    def compact_messages(self, keep_last: int = 10) -> None:
        """Remove all messages but the first user message and the last ones, without a model."""
        ...


class InCall(Protocol):
    """The running tool call, for every tool."""

    @property
    def call_id(self) -> str:
        """The id of the tool call that is running."""
        ...

    def show(self, text: str) -> None:
        """Show text to people who watch the run; it is not stored."""
        ...


class InRuntime(Protocol[DepsT_co]):
    """The runtime's `deps`, for hooks and tools of every kind."""

    @property
    def deps(self) -> DepsT_co:
        """The object of `Runtime(deps=...)`, which is never stored; None by default."""
        ...


class SessionAccess(InSession, InRuntime[DepsT_co], Protocol[DepsT_co]):
    """The session, for hooks. Each write is an event, durable before the next effect.

    `SessionAccess[Deps]` tells type checkers the type of `deps`.
    """

    @property
    def workspace(self) -> Files | None:
        """The files of this agent, or of the nearest one above it that has a workspace."""
        ...

    async def get_history(self) -> list[Message]:
        """Return the whole conversation from the log, including compacted messages."""
        ...

    async def spent(self) -> Spent:
        """Return the usage of the whole run tree so far: the root session, all below it, and their side turns."""
        ...

    async def prompt(self, text: str) -> str:
        """Run a side turn of this agent over its own conversation, and return the reply.

        The conversation is unchanged.
        """
        ...

    async def start_child(self, agent: Any, prompt: str) -> Reply:
        """Run another agent (or a named one below this) as a child, and return its reply."""
        ...

    async def submit(
        self,
        agent: Any,
        text: str,
        *,
        priority: Priority = "normal",
        tenant: str = "",
        tags: Mapping[str, str] | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> str:
        """Queue a session of its own for a worker, and return its id without waiting for it.

        It is queued once for this occurrence: a hook or tool that runs again does not queue it again. The worker,
        or `runtime.work()`, runs it; nothing of it comes back here.
        """
        ...

    async def trigger_compaction(self, keep_last: int = 10) -> None:
        """Let the model summarise the conversation: now if no call is open, else before the next model call."""
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
        """Ask the agents above or a person, by policy, and return the answer's value."""
        ...

    async def once(self, name: str, effect: Callable[..., Awaitable[R] | R], *args: Any, **kwargs: Any) -> R:
        """Run a side effect at most once, and return its result, which is stored in the log."""
        ...


class Context(SessionAccess[DepsT_co], InCall, Protocol[DepsT_co]):
    """The context of an async tool that has a parameter of this type; `Context[Deps]` types its `deps`."""

    async def raise_callback_full(self, message: str, callback_type: str = "query", **options: Any) -> Callback:
        """Ask like `raise_callback`; return the settled callback: who answered, by what right, by which path."""
        ...


class SyncContext(InSession, InRuntime[DepsT_co], InCall, Protocol[DepsT_co]):
    """The context of a plain `def` tool: the same calls without `await`, from its own thread.

    `SyncContext[Deps]` tells type checkers the type of `deps`.
    """

    def raise_callback(self, message: str, callback_type: str = "query", **options: Any) -> Any:
        """Ask the agents above or a person, by policy; block this thread until there is an answer."""
        ...

    def raise_callback_full(self, message: str, callback_type: str = "query", **options: Any) -> Callback:
        """Ask like `raise_callback`, and return the settled callback."""
        ...

    def once(self, name: str, effect: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        """Run a side effect at most once, and return its result, which is stored in the log."""
        ...

    def get_history(self) -> list[Message]:
        """Return the whole conversation from the log, including compacted messages."""
        ...

    def spent(self) -> Spent:
        """Return the usage of the whole run tree so far."""
        ...

    def prompt(self, text: str) -> str:
        """Run a side turn of this agent over its own conversation, and return the reply."""
        ...

    def start_child(self, agent: Any, prompt: str) -> Reply:
        """Run another agent as a child, and return its reply."""
        ...

    def submit(
        self,
        agent: Any,
        text: str,
        *,
        priority: Priority = "normal",
        tenant: str = "",
        tags: Mapping[str, str] | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> str:
        """Queue a session of its own for a worker, and return its id without waiting for it."""
        ...

    def trigger_compaction(self, keep_last: int = 10) -> None:
        """Let the model summarise the conversation before the next model call."""
        ...
