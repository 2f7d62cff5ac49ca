"""Sessions over a given store: start, prompt, stream, resume, cancel."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from upcall import errors
from upcall.agent import Agent
from upcall.contracts import Host, Model, OutputT_co, Reply, Store, TakeLimit, Workspace
from upcall.core.log.load import load_state, refresh
from upcall.core.log.session_log import Sink
from upcall.core.log.state import SessionState
from upcall.core.routing.answer import checked_by, checked_reason
from upcall.core.runtime.beginning import begin_stored
from upcall.core.runtime.broadcast import Subscription
from upcall.core.runtime.catalog import Catalog
from upcall.core.runtime.children import make_ready
from upcall.core.runtime.known_agents import KnownAgents
from upcall.core.runtime.needed_servers import given_servers
from upcall.core.runtime.own_workspaces import OwnWorkspaces, checked_workspace
from upcall.core.runtime.retrying import DEFAULT_RETRIES, Retries
from upcall.core.runtime.routes import can_ask_anyone
from upcall.core.runtime.run_tree import RunTree
from upcall.core.runtime.running_trees import STOP_LIMIT, RunningTrees, drain_trees
from upcall.core.runtime.session import Session
from upcall.core.runtime.session_data import (
    TitleAndFolders,
    checked_data,
    checked_id,
    checked_tags,
    checked_title_and_folders,
)
from upcall.core.runtime.session_options import check_is_root, checked_options
from upcall.core.runtime.submitting import Submission, make_submission, queue_turns
from upcall.core.runtime.taking import TreeTaker
from upcall.core.runtime.turn_callbacks import is_ready, last_reply, waiting_error
from upcall.core.runtime.worker import OnSegment, Resume, WorkerOptions
from upcall.core.turns.access import prompt_message
from upcall.core.turns.compaction import summarise_between_turns
from upcall.core.turns.process_limit import ProcessLimit
from upcall.core.turns.reply import reply_of, typed_reply_of, with_callbacks
from upcall.core.turns.thread_cache import Threads
from upcall.core.turns.timeouts import Deadlines
from upcall.core.turns.turn import Turn
from upcall.events import (
    DEFAULT_OPTIONS,
    AnyEvent,
    CallbackWithdrawn,
    CancelRequested,
    OptionsSet,
    SessionOptions,
    SessionStarted,
    Steered,
)
from upcall.hooks import NO_HOOKS
from upcall.messages import Message, Priority, replace_surrogates

if TYPE_CHECKING:
    from pathlib import PurePath

log = logging.getLogger("upcall")
R = TypeVar("R")

_MOST, _STEP = 0xFFFF_FFFF_FFFF, 0x9E37_79B9_7F4B  # an odd step passes every number before it repeats one


class Sessions(Catalog):
    """The sessions of one store, as this process may run them."""

    def __init__(
        self,
        store: Store,
        agents: Sequence[Agent],
        model: Callable[[Agent], Model],
        host: Host | None = None,
        hold: float = 30.0,
        deps: Any = None,
        processes: int | None = None,
    ) -> None:
        super().__init__(store, host)
        self.hold, self.deps = hold, deps
        self.capture = False  # whether what goes over the wire to models is logged
        self.workspaces = OwnWorkspaces()
        self.can_ask_cache: dict[tuple[Any, ...], bool] = {}  # see `can_ask_anyone`
        self.threads, self.processes, self.deadlines = Threads(), ProcessLimit(processes), Deadlines()
        self._newest_id = int.from_bytes(os.urandom(6))
        self.agents = KnownAgents(agents, model)
        self._trees = RunningTrees(self)
        self._taker = TreeTaker(store, self.agents, self._trees, self.run_claimed)

    # --- opening and closing --------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Open the store."""
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()

    async def close(self, drain: float = 0.0) -> None:
        """Stop what runs (it can be resumed), and let go of everything.

        Without `drain` everything stops where it is. With it nothing new starts, and calls and model calls that
        are under way have so many seconds to end; then turns stop between two steps. Turns with an open question
        are left waiting, the others interrupted and ready for whoever runs `work`. A second
        `close()` waits no longer.
        """
        self._begin_closing()
        if drain > 0 and not self._closed:
            await drain_trees(self._trees.all(), drain)
        if self._closed:
            return
        self._closed = True
        for turn in tuple(self.turns.values()):
            turn.stop(errors.RuntimeClosed())
        self.host_inbox.close()
        ends = [*[tree.when_ended() for tree in self._trees.all()], *self._tasks, *self._taker.when_ended()]
        if ends:
            await asyncio.wait(ends, timeout=STOP_LIMIT)
        if self._stop_listening is not None:
            self._stop_listening()
        self.threads.close()
        self.deadlines.close()
        await self.agents.close()
        self.broadcast.close()
        await self.store.close()

    async def drain(self, seconds: float = 20.0) -> None:
        """Start nothing new, and return when nothing runs here; what is stored can still be read.

        `close(drain=...)` does this first, and says what becomes of turns. Called again while it waits, the fewer
        seconds count.
        """
        self._begin_closing()
        await drain_trees(self._trees.all(), seconds)

    def _begin_closing(self) -> None:
        self._trees.closing = True
        self._taker.stop()

    # --- agents ---------------------------------------------------------------------------

    def agent(self, name: str, root: str = "") -> Agent:
        """An agent by its name, as the run tree of this root knows it."""
        return self.agents.get(name, root)

    def agent_names(self, root: str = "") -> tuple[str, ...]:
        """Every agent's name, as the run tree of this root knows them."""
        return self.agents.names(root)

    def models_of_agents(self) -> Mapping[str, frozenset[str]]:
        """The agents whose trees can be taken, each with the names of the models that it and all below it use."""
        return self.agents.models()

    # --- sessions -------------------------------------------------------------------------

    async def start(
        self,
        agent: Agent[OutputT_co] | str,
        id: str | None = None,
        *,
        data: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        title: str = "",
        folder: str | PurePath | None = None,
        roots: Sequence[str | PurePath] = (),
        workspace: Workspace | None = None,
        options: SessionOptions | None = None,
    ) -> Session[OutputT_co]:
        """A new session. Its begin_session hooks have run; if one raises, there is no session.

        agent: the agent, or the name of one that this runtime has. If the runtime has another agent of its name,
            this session uses the given one in this process; elsewhere it is found by its name
        id: the session's id; without one it gets a new one
        data: a JSON object of the application, kept in the log; the session and all below it read it as `data`
        tags: names with short values, by which `rows` and `inbox` find the session and all below it
        title: a line that says what the session is about
        folder: the absolute path of the folder that it works in, by which `rows` finds it; nothing is opened there
        roots: absolute paths of further folders
        workspace: where its files are, in place of its agent's workspace. It is not stored: to continue the session
            in another process, give it to `load` or `resume` there
        options: which of the agent's models it uses, and whether more is approved than agents declare
        """
        if self._stop_listening is None or self._trees.closing:
            await self._open()
        if self._trees.closing:
            raise errors.RuntimeClosed(begun=False)
        declared = self.agent(agent) if isinstance(agent, str) else agent
        own = None if isinstance(agent, str) else self.agents.register(agent)
        session_id = self.new_id() if id is None else checked_id(id)
        where: TitleAndFolders = ("", "", ())
        if title != "" or folder is not None or roots != ():
            where = checked_title_and_folders(title, folder, roots)
        if workspace is not None:
            checked_workspace(workspace)
        started = self.header_of(declared, data, tags, where, workspace, options)
        state = SessionState(session_id)
        if started.begins:
            if id is not None and await self.store.row(id) is not None:
                raise errors.SessionExists(id)
            self._bind(session_id, own, workspace)  # its begin_session hooks may start children
            try:
                await self._begin(RunTree(self, session_id), state, declared, started)
            except BaseException:
                self._unbind([session_id])
                raise
        else:
            stored = self.store.append(session_id, [started], None)
            if stored is not None:
                await stored
            state.apply(started)
            if self.sinks or self.broadcast.sinks:
                for sink in (*self.sinks, *self.broadcast.sinks):
                    sink(started)
            self._bind(session_id, own, workspace)
        return Session(state, self)

    def header_of(
        self,
        agent: Agent,
        data: Mapping[str, Any] | None,
        tags: Mapping[str, str] | None,
        where: TitleAndFolders = ("", "", ()),
        workspace: Workspace | None = None,
        options: SessionOptions | None = None,
    ) -> SessionStarted:
        """The first event of a new root session."""
        asks = self.can_ask_cache.get((agent, self.host is None))
        if asks is None:
            asks = can_ask_anyone(self, agent, agent.policy, [])
        declared = self.agents.declaration_of(agent)
        title, folder, roots = where
        return SessionStarted(
            agent.name, kind="coordinator" if agent.run_program else "agent",
            begins=bool(agent.hooks.begin_session), asks=asks, source=declared.source, program=declared.program,
            data={} if data is None else checked_data(data), tags={} if tags is None else checked_tags(tags),
            title=title, folder=folder, roots=roots, workspace=workspace is not None,
            options=DEFAULT_OPTIONS if options is None else checked_options(agent, options),
            servers=given_servers(agent),
        )  # fmt: skip

    def _bind(self, session_id: str, agents: Mapping[str, Agent] | None, workspace: Workspace | None) -> None:
        """Have a new session use what it was started with."""
        if agents is not None:
            self.agents.bind(session_id, agents)
        if workspace is not None:
            self.workspaces.bind(session_id, workspace)

    def _unbind(self, session_ids: Sequence[str]) -> None:
        """Drop what sessions were started with that are gone."""
        self.agents.forget(session_ids)
        self.workspaces.forget(session_ids)

    def new_id(self) -> str:
        """As good as random among runtimes and never the same twice in one; asking the system each time is slow."""
        self._newest_id = (self._newest_id + _STEP) & _MOST
        return f"{self._newest_id:012x}"

    async def _begin(self, tree: RunTree, state: SessionState, agent: Agent, started: SessionStarted) -> None:
        state.header = started
        state.next_options = started.options
        turn = tree.make_turn(state, agent, NO_HOOKS)
        turn.log.add(started)
        try:
            begun = await tree.begin_root(turn)
        except BaseException as error:
            if tree.claim is not None:  # a hook needed the session to be there already
                await self.store.release(tree.claim)
                await self.store.delete([state.id])
            if isinstance(error, errors.HookFailed):
                raise errors.HookFailed(error.hook, error.point, error.error, stored=False) from error.error
            raise
        if begun:
            await turn.log.flush(release=tree.claim is not None)

    async def load(
        self, id: str, *, workspace: Workspace | None = None, agent: Agent[Any] | None = None
    ) -> Session:
        """A session from the store, whoever made it.

        workspace: that of `start(workspace=...)`, for a session that was started with one in another process
        agent: an agent of the name that the log has, which the session uses here in place of the runtime's
        """
        await self._open()
        row = await self._row(id)
        state = await load_state(self.store, id, claim=row)
        assert state is not None
        if workspace is not None:
            self.workspaces.bind_again(state.root_header, state.header.root or id, workspace)
        if agent is not None:
            self.agents.bind_again(state.root_header, state.header.root or id, agent)
        reply = await last_reply(self.store, state, self.agents.of)
        return Session(state, self, reply, (row.seq, row.current_status))

    async def run_turn(
        self, state: SessionState, text: str | Message, take_over: bool = False, sink: Sink | None = None,
        by: str = "",
    ) -> Reply:  # fmt: skip
        """One turn of a session, finishing an interrupted one first. `by`: who gave the prompt."""
        message, by = prompt_message(text), checked_by(by)
        tree = await self._claim(state.header.root or state.id, take_over, sink)
        outcome: Reply | Exception | None = None
        try:
            outcome = await self._prompt(tree, state, message, take_over, by)
            return outcome
        except Exception as error:
            outcome = error
            raise
        finally:
            await self._trees.end(tree, outcome, state)

    async def _prompt(
        self, tree: RunTree, state: SessionState, message: Message, take_over: bool, by: str
    ) -> Reply:
        if state.in_doubt or tree.claim is None or state.id != tree.claim.root or state.seq != tree.claim.seq:
            await self._refresh(state)
        waits = state.turn.parked and (state.turn.phase == "running" or not state.begun)
        if waits and not await is_ready(self.store, state.header.root or state.id):
            raise await waiting_error(self.store, state)
        turn = await tree.prepare_turn(state)
        if not state.begun and not await tree.begin_root(turn):
            raise await waiting_error(self.store, state)
        if state.turn.phase == "running":
            tree.record_resume(turn)
            reply = await tree.run_root(turn)
            if reply.status == "waiting":
                raise await waiting_error(self.store, state)
            await self._trees.own(tree, take_over)
            turn = await tree.prepare_turn(state)
        while state.queued:  # what was submitted before comes first
            if (await self._run_queued(tree, turn)).status == "waiting":
                raise await waiting_error(self.store, state)
            await self._trees.own(tree, take_over)
            turn = await tree.prepare_turn(state)
        await self._end_failed(tree, turn)
        tree.record_prompt(turn, message, by)
        reply = await tree.run_root(turn)
        if tree.has_asked or reply.status == "waiting":
            reply = await with_callbacks(self.store, reply, state)
        return reply

    async def _end_failed(self, tree: RunTree, turn: Turn) -> None:
        """End what a failed turn left below it, before another turn begins."""
        if turn.state.turn.phase == "failed" and not turn.actor.agent.run_program:  # a team continues with it
            await tree.end_below(turn.id, "its turn failed, and another one began")

    async def _run_queued(self, tree: RunTree, turn: Turn) -> Reply:
        """Start the next queued turn and run it."""
        queued = turn.state.queued[0]
        await self._end_failed(tree, turn)
        tree.record_prompt(turn, queued.message, queued.by, queued)
        await turn.log.flush()  # from here on, who takes the tree over resumes this turn
        return await tree.run_root(turn)

    async def resume(
        self,
        id: str,
        *,
        take_over: bool = False,
        sink: Sink | None = None,
        workspace: Workspace | None = None,
    ) -> Reply:
        """Continue an interrupted, failed or answered turn; with nothing to do, return the last reply.

        A turn that runs here already is joined. A child's id resumes its root. `workspace` is that of
        `start(workspace=...)`, for a session that was started with one in another process.
        """
        await self._open()
        root = (await self._row(id)).root if "~" in id else id
        if workspace is not None:
            await self.load(root, workspace=workspace)
        while not take_over and (running := self._trees.get(root)) is not None:
            reply = await running.join(sink)
            if reply is not None and reply.status != "waiting":
                return reply
        return await self.resume_root(root, take_over, sink, child=id if id != root else "")

    async def resume_root(
        self,
        root: str,
        take_over: bool = False,
        sink: Sink | None = None,
        wait: bool = True,
        child: str = "",
    ) -> Reply:
        """Claim a run tree and continue it; `child` is the session that was asked for, where it is not the root."""
        tree = await self._claim(root, take_over, sink, wait=wait)

        async def load() -> SessionState | None:
            state = await load_state(self.store, root, claim=tree.claim)
            if child and state is not None and state.turn.phase not in ("running", "failed") and not state.queued:
                state = await load_state(self.store, child) or state  # the child was prompted by itself
            return state

        reply = await self.run_claimed(tree, load)
        assert reply is not None
        return reply

    async def run_claimed(self, tree: RunTree, load: Callable[[], Awaitable[SessionState | None]]) -> Reply | None:
        """Continue a tree that is claimed, and release it. `load` returns its state, or None to leave it."""
        outcome: Reply | Exception | None = None
        state: SessionState | None = None
        try:
            state = await load()
            outcome = None if state is None else await self._resume(tree, state)
            return outcome
        except Exception as error:
            outcome = error
            raise
        finally:
            await self._trees.end(tree, outcome, state)

    async def _resume(self, tree: RunTree, state: SessionState) -> Reply:
        agent = self.agents.of(state.header)
        beginning = not state.begun and (state.turn.phase in ("idle", "failed") or bool(state.queued))
        if state.turn.phase not in ("running", "failed") and not beginning and not state.queued:
            return await with_callbacks(self.store, await typed_reply_of(state, agent.output), state)
        turn = await tree.prepare_turn(state)
        if beginning and not await begin_stored(tree, turn):
            reply = reply_of(state, waits=state.turn.phase not in ("cancelled", "limit"))
        elif state.queued and state.turn.phase != "running" and not state.turn.retry:
            reply = await self._run_queued(tree, turn)
        elif state.turn.phase == "idle":
            await turn.log.flush(release=True)
            reply = await typed_reply_of(state, agent.output)
        elif self.host is not None or not state.turn.parked or await is_ready(self.store, tree.root):
            tree.record_resume(turn)
            if tree.claim is not None and tree.claim.orphaned:  # a run that kills its worker is found by this event
                await turn.log.flush(lazy=True)
            reply = await tree.run_root(turn)
        else:
            reply = reply_of(state, waits=True)
        return await with_callbacks(self.store, reply, state)

    async def reread(self, state: SessionState) -> Reply:
        """Bring a session up to date and return its last reply."""
        await self._refresh(state)
        waits = state.turn.phase == "running" and state.turn.parked
        output = None if waits else self.agents.of(state.header).output
        reply = reply_of(state, waits=True) if waits else await typed_reply_of(state, output)
        return await with_callbacks(self.store, reply, state)

    async def compact(self, state: SessionState, keep_last: int) -> None:
        """Have a session's model summarise while no turn runs."""
        async with self._owned(state.header.root or state.id) as tree:
            await self._refresh(state)
            await summarise_between_turns(await tree.prepare_turn(state), keep_last)

    async def _refresh(self, state: SessionState) -> None:
        """Be sure of the state: what others wrote, and nothing that was never stored."""
        if state.in_doubt:
            fresh = await load_state(self.store, state.id)
            if fresh is None:
                raise errors.UnknownSession(state.id)
            state.copy_from(fresh)
        await refresh(self.store, state)

    async def _claim(
        self, root: str, take_over: bool = False, sink: Sink | None = None, *, wait: bool = True
    ) -> RunTree:
        if self._stop_listening is None or self._closed:
            await self._open()
        return await self._trees.claim(root, take_over, sink, wait=wait)

    @contextlib.asynccontextmanager
    async def _owned(self, root: str) -> AsyncGenerator[RunTree]:
        tree = await self._claim(root)
        try:
            yield tree
        finally:
            await self._trees.end(tree, None)

    # --- queueing -------------------------------------------------------------------------

    async def submit(
        self,
        agent: Agent[Any] | str,
        text: str | Message,
        id: str | None = None,
        *,
        turn: int = 1,
        priority: Priority = "normal",
        tenant: str = "",
        data: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        queue_limit: int | None = None,
        by: str = "",
    ) -> str:
        """Queue a turn for whoever runs `work()` or `upcall worker`, and return the session's id. It runs nothing.

        Submitting the same again does nothing; TurnExists if the turn was submitted with another text.

        agent: the agent, or the name of one that this runtime has; the worker finds it by its name
        text: the prompt
        id: the session's id, of a new session or of an existing one; without one it is a new session
        turn: the number of the turn in its session; the turns before it must exist
        priority: workers take `critical` before `high`, `normal` and `low`
        tenant: on whose behalf; of several tenants workers take the one with the fewest running sessions first
        data, tags: those of `start`, for a new session
        queue_limit: QueueFull if more sessions than this would be queued
        by: who submits it
        """
        await self._open()
        one = self.submission(
            agent, text, id, turn=turn, priority=priority, tenant=tenant, data=data, tags=tags, by=by
        )
        await queue_turns(self.store, [one], queue_limit)
        return one.id

    def submission(
        self,
        agent: Agent[Any] | str,
        text: str | Message,
        id: str | None = None,
        *,
        turn: int = 1,
        priority: Priority = "normal",
        tenant: str = "",
        data: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        by: str = "",
    ) -> Submission:
        """Check what is to be submitted; nothing is stored yet."""
        declared = self.agent(agent) if isinstance(agent, str) else agent
        if not isinstance(agent, str):
            self.agents.register_for_workers(agent)
        return make_submission(
            self.new_id() if id is None else id, text, self.header_of(declared, data, tags),
            turn=turn, priority=priority, tenant=tenant, by=by, data=data, tags=tags,
        )  # fmt: skip

    async def submit_all(
        self, submissions: Sequence[Submission], queue_limit: int | None = None
    ) -> dict[tuple[str, int], bool]:
        """Queue several turns; returns which of them are new, by session and turn."""
        await self._open()
        return await queue_turns(self.store, submissions, queue_limit)

    # --- running what is ready ------------------------------------------------------------

    async def work(
        self,
        stop: asyncio.Event | None = None,
        *,
        drain: float = 20.0,
        concurrency: int = 100,
        resume: Resume | None = None,
        settled_only: bool = False,
        once: bool = False,
        changed: Literal["run", "leave"] = "run",
        limits: Sequence[TakeLimit] = (),
        retries: Retries = DEFAULT_RETRIES,
        on_segment: OnSegment | None = None,
    ) -> None:
        """Run queued turns and resume run trees as they become ready, until `stop` is set or this is closed.

        It takes the trees whose agents this runtime has and leaves all others alone. When told to stop it drains
        what it took, as `close(drain=...)` does. At most `concurrency` trees run at once. A turn whose failure may
        pass (its model is unavailable, a connection was lost) is tried again after a while; a tree whose workers
        died three times with nothing new in its log fails.

        once: return when nothing is left that can be taken now
        changed: `leave` leaves turns to others that began with other instructions, tools or policies of the agent
        limits: how many trees all workers of the store together may run
        retries: how often, and after how many seconds, a failed turn is tried again
        on_segment: called with what was done with each tree

        resume: called with the id of each ready root to run it in place of this runtime; it returns False to skip
            the tree until it changes. After `stop` its calls have `drain` seconds to end. What is above does not
            apply then
        settled_only: with `resume`, only trees that hold a callback which was settled or has expired; a tree whose
            process died in the middle of something else waits until somebody resumes it
        """
        options = WorkerOptions(concurrency, drain, once, changed, limits, retries, on_segment)
        options.check()
        await self._open()
        await self._taker.work(stop, options, resume, settled_only)

    async def run_if_ready(self, root: str) -> bool:
        """Run a tree if it is ready, as `work` would: for job queues whose jobs say which one to look at.

        Returns False if it is not ready, another process runs it, or this runtime does not have its agent. It
        raises nothing that the log already says of the turn.
        """
        await self._open()
        return await self._taker.run_if_ready(root)

    # --- from outside ---------------------------------------------------------------------

    def subscribe(self, session: str | None = None, *, buffer: int = 10_000) -> Subscription:
        """Subscribe to the events, deltas and questions of all turns that run here, from any moment on.

        session: only this one and all below it
        buffer: items kept for a slow subscriber; then it gets a Missed in place of what is dropped
        """
        return Subscription(self.broadcast, session, buffer)

    async def set_options(self, state: SessionState, options: SessionOptions) -> None:
        """Choose options for a session, which count from its next turn on."""
        check_is_root(state)
        chosen = OptionsSet(checked_options(self.agents.of(state.header), options))
        await self._open()
        await self.store.append_all({state.id: [chosen]})
        state.absorb(chosen)

    async def steer(self, id: str, text: str, by: str = "", right: str = "") -> None:
        """Say something to a session that its next model call sees."""
        prompt_message(text)
        await self._open()
        await self.store.append_all({id: [Steered(replace_surrogates(text), checked_by(by), right)]})

    async def cancel(self, id: str, reason: str = "", by: str = "", right: str = "") -> None:
        """End a session's running or waiting turn, in whichever process it runs; an ownerless one is ended here.

        Every open callback below it is withdrawn in the same transaction. Turns of the session that are queued are
        dropped, too.
        """
        by, reason = checked_by(by), checked_reason(reason)
        await self._open()
        turn = self.turns.get(id)
        if turn is not None:
            await turn.log.flush()  # that it runs may not have been written yet
        row = await self._row(id)
        events: dict[str, list[AnyEvent]] = {}
        if row.status in ("running", "waiting", "queued"):  # of another turn, only what it asks may still be open
            events[id] = [CancelRequested(by, reason, right)]
        why = f"cancelled: {reason}" if reason else "cancelled"
        for one in await self.store.callbacks(root=row.root):
            if one.status == "open" and f"{one.session_id}~".startswith(f"{id}~"):
                events.setdefault(one.session_id, []).append(CallbackWithdrawn(one.id, why))
        await self.store.append_all(events)
        running = self._trees.get(row.root)
        if running is not None and not running.is_released:  # it hears of the request and ends by itself
            return
        if events and not (await self._row(id)).owner:
            async with self._owned(row.root) as tree:
                await tree.end_below(id, why)
                if id != row.root:
                    await make_ready(self.store, tree.claim, row.root)

    async def delete(self, *ids: str) -> int:
        """Remove sessions with all they started; returns how many went."""
        await self._open()
        deleted = await self.store.delete(ids)
        self._unbind(ids)
        return deleted
