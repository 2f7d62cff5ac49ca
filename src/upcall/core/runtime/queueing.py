"""Queue turns, and run what is queued or became ready."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

from upcall import errors
from upcall.agent import Agent, models_used
from upcall.contracts import Claim, Host, Reply, Store, TakeLimit
from upcall.core.log.session_log import Sink
from upcall.core.log.state import SessionState
from upcall.core.runtime.catalog import Catalog
from upcall.core.runtime.known_agents import KnownAgents
from upcall.core.runtime.retrying import DEFAULT_RETRIES, Retries, Suspects
from upcall.core.runtime.run_tree import RunTree
from upcall.core.runtime.session_data import checked_id
from upcall.core.runtime.submitting import (
    Submission,
    checked_priority,
    checked_tenant,
    checked_turn,
    queue_turns,
)
from upcall.core.runtime.taking import Rules, Taking
from upcall.core.runtime.worker import Listing, OnSegment, Resume, Worker, drain_trees
from upcall.core.turns.access import prompt_message
from upcall.events import SessionStarted
from upcall.messages import Message, Priority


class Queueing(Catalog):
    """The queue of a store, and the workers of this process."""

    def __init__(self, store: Store, host: Host | None, agents: Sequence[Agent]) -> None:
        super().__init__(store, host)
        self._agents = KnownAgents(agents)
        self._trees: dict[str, RunTree] = {}  # what runs here, by the root's id
        self._workers: list[Worker] = []
        self.suspects = Suspects()
        self._closing = False

    @abc.abstractmethod
    def header_of(
        self, agent: Agent, data: Mapping[str, Any] | None, tags: Mapping[str, str] | None
    ) -> SessionStarted:
        """The first event of a new root session."""

    @abc.abstractmethod
    def new_id(self) -> str:
        """An id for a new session."""

    @abc.abstractmethod
    def adopt_claim(self, claim: Claim) -> RunTree:
        """Register the run tree of a claim that was taken."""

    @abc.abstractmethod
    def setup_of(self, state: SessionState) -> str:
        """The digest of a session's agent as it is now."""

    @abc.abstractmethod
    async def run_claimed(self, tree: RunTree, load: Callable[[], Awaitable[SessionState | None]]) -> Reply | None:
        """Continue a tree that is claimed, and release it. `load` returns its state, or None to leave it."""

    @abc.abstractmethod
    async def resume_root(
        self, root: str, take_over: bool = False, sink: Sink | None = None, wait: bool = True, child: str = ""
    ) -> Reply:
        """Claim a run tree and continue it."""

    # --- agents ---------------------------------------------------------------------------

    def agent(self, name: str, root: str = "") -> Agent:
        """An agent by its name, as the run tree of this root knows it."""
        return self._agents.get(name, root)

    def agent_of(self, header: SessionStarted) -> Agent:
        """The agent of a session: a team says who its members are."""
        return self._agents.of(header)

    def agent_names(self, root: str = "") -> tuple[str, ...]:
        """Every agent's name, as the run tree of this root knows them."""
        return self._agents.names(root)

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
        if not isinstance(agent, str) and self._agents.register(agent) is not None:
            raise errors.SetupError(
                f"this runtime has another agent called {agent.name!r}; a worker finds an agent by its name"
            )
        return Submission(
            self.new_id() if id is None else checked_id(id), checked_turn(turn), prompt_message(text),
            self.header_of(declared, data, tags), checked_priority(priority), checked_tenant(tenant), by,
            data, tags,
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
        await self._open()
        find = Listing(self.store, resume or self._resume_ready, settled_only=settled_only).find
        if resume is None and not settled_only:
            find = Taking(self, Rules(changed, tuple(limits), retries, on_segment)).find
        worker = Worker(self.store, find, concurrency, once=once)
        self._workers.append(worker)
        try:
            await worker.run(stop)
        except asyncio.CancelledError:
            drain = 0.0
            raise
        finally:
            await worker.finish(self._trees if resume is None else None, drain)
            self._workers.remove(worker)

    async def run_if_ready(self, root: str) -> bool:
        """Run a tree if it is ready, as `work` would: for job queues whose jobs say which one to look at.

        Returns False if it is not ready, another process runs it, or this runtime does not have its agent. It
        raises nothing that the log already says of the turn.
        """
        await self._open()
        row = await self.store.row(root)
        can_run = row is not None and row.root == root and row.status in ("queued", "running", "waiting")
        if row is None or not can_run or row.owner or not self._agents.has(row.agent, root) or self._closing:
            return False
        if row.status == "waiting" and not await self._is_ready(root):
            return False
        try:
            claim = await self.store.claim(root)
        except errors.SessionBusy:
            return False
        return await Taking(self, Rules()).run(claim)

    async def _resume_ready(self, root: str) -> bool:
        """Resume a ready run tree; False where this runtime does not have its agent."""
        row = await self._row(root)
        if not self._agents.has(row.agent, root):
            return False
        if root not in self._trees:
            await self.resume_root(root, wait=False)
        return True

    def models_of_agents(self) -> Mapping[str, frozenset[str]]:
        """The agents whose trees can be taken, each with the names of the models that it and all below it use."""
        return {agent.name: models_used(agent) for agent in self._agents.all()}

    async def drain(self, seconds: float = 20.0) -> None:
        """Start nothing new, and return when nothing runs here; what is stored can still be read.

        `close(drain=...)` does this first, and says what becomes of turns. Called again while it waits, the fewer
        seconds count.
        """
        self._begin_closing()
        await drain_trees(tuple(self._trees.values()), seconds)

    def _begin_closing(self) -> None:
        self._closing = True
        for worker in self._workers:
            worker.closing.set()
