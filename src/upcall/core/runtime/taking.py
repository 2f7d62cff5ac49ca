"""The workers of a process: they take ready run trees from a store and run them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any

from upcall.contracts import Claim, Reply, Store
from upcall.core.log.load import append, load_state
from upcall.core.log.state import SessionState
from upcall.core.runtime.known_agents import KnownAgents
from upcall.core.runtime.retrying import MOST_DEATHS, Suspects, deaths, rate_limit
from upcall.core.runtime.run_tree import RunTree
from upcall.core.runtime.running_trees import RunningTrees
from upcall.core.runtime.session_options import ASKING
from upcall.core.runtime.turn_callbacks import is_ready
from upcall.core.runtime.worker import Find, Found, Resume, Segment, Worker, WorkerOptions, find_in_list
from upcall.errors import RuntimeClosed, SessionBusy, UnknownSession, UpcallError
from upcall.events import AnyEvent, TurnEnded, TurnStarted
from upcall.hooks import NO_HOOKS

log = logging.getLogger("upcall")

PAUSE_SECONDS = 30.0
"""Seconds for which a model is not used after its provider refused a request because there were too many."""

POISON = "poison: {} workers in a row died while they ran this session, and nothing new was logged"

RunClaimed = Callable[[RunTree, Callable[[], Awaitable[SessionState | None]]], Awaitable[Reply | None]]
"""Continues a tree that is claimed, and releases it. The given function returns its state, or None to leave it."""


class TreeTaker:
    """Runs what is queued or became ready, where this runtime has the agent. `Sessions.work` says how.

    agents: those whose trees can be run here
    trees: what runs here
    """

    def __init__(self, store: Store, agents: KnownAgents, trees: RunningTrees, run_claimed: RunClaimed) -> None:
        self._store, self._agents, self._trees, self._run_claimed = store, agents, trees, run_claimed
        self._working: list[Worker] = []
        self._suspects = Suspects()

    async def work(
        self, stop: asyncio.Event | None, options: WorkerOptions, resume: Resume | None, settled_only: bool
    ) -> None:
        """Run what is ready until `stop` is set or these workers are stopped; then drain what was begun."""
        find: Find = partial(self._take, options)
        if resume is not None or settled_only:
            find = partial(find_in_list, self._store, resume or self._resume, settled_only)
        worker = Worker(self._store, find, self._waits, options.concurrency, once=options.once)
        drain = options.drain
        self._working.append(worker)
        try:
            await worker.run(stop)
        except asyncio.CancelledError:
            drain = 0.0
            raise
        finally:
            await worker.finish(self._trees if resume is None else None, drain)
            self._working.remove(worker)

    def _waits(self, root: str) -> bool:
        """Tell whether nothing in a tree runs because it waits for somebody who was asked."""
        tree = self._trees.get(root)
        return tree is not None and tree.has_asked and not tree.activity.count

    def stop(self) -> None:
        """Let every worker take nothing new, drain what it has begun, and end."""
        for worker in self._working:
            worker.closing.set()

    def when_ended(self) -> Sequence[asyncio.Future[Any]]:
        """Return a future for each worker, which is done when it has ended."""
        return [asyncio.ensure_future(worker.ended.wait()) for worker in self._working]

    async def run_if_ready(self, root: str) -> bool:
        """Run one tree, as `Sessions.run_if_ready` says."""
        row = await self._store.row(root)
        can_run = row is not None and row.root == root and row.status in ("queued", "running", "waiting")
        if row is None or not can_run or row.owner or not self._agents.has(row.agent, root) or self._trees.closing:
            return False
        if row.status == "waiting" and not await is_ready(self._store, root):
            return False
        try:
            claim, options = await self._store.claim(root), WorkerOptions()
        except SessionBusy:
            return False
        try:
            return await self._run(options, self._trees.adopt(claim, options.retries), claim)
        except RuntimeClosed:
            return False

    async def _resume(self, root: str) -> bool:
        """Resume a ready tree that was found in the list; False where this runtime does not have its agent."""
        row = await self._store.row(root)
        if row is None:
            raise UnknownSession(root)
        if not self._agents.has(row.agent, root):
            return False
        if self._trees.get(root) is None:
            tree = await self._trees.claim(root, wait=False)
            await self._run_claimed(tree, lambda: load_state(self._store, root, claim=tree.claim))
        return True

    async def _take(self, options: WorkerOptions, most: int, skip: Collection[str]) -> AsyncGenerator[Found]:
        """Take ready trees, the most urgent first; each is claimed as it is found."""
        found: set[str] = set()
        agents = await self._usable_agents()
        while agents and len(found) < most:
            claim = await self._store.take(agents, exclude={*skip, *found}, limits=options.limits)
            if claim is None:
                break
            found.add(claim.root)
            yield claim.root, partial(self._run, options, self._trees.adopt(claim, options.retries), claim)

    async def _usable_agents(self) -> list[str]:
        """The names of the agents none of whose models is paused."""
        paused = {name.removeprefix("model:") for name in await self._store.pauses()}
        return [agent for agent, models in self._agents.models().items() if not models & paused]

    async def _run(self, options: WorkerOptions, tree: RunTree, claim: Claim) -> bool:
        """Run a tree that was taken; False if it is left to others."""
        started, state = time.monotonic(), None
        outcome, error = "left", ""
        alone = contextlib.AsyncExitStack()

        async def load() -> SessionState | None:
            nonlocal state, error
            state = await load_state(self._store, claim.root, claim=claim)
            died = 0 if state is None else await deaths(self._store, claim, state)
            if died == MOST_DEATHS - 1:
                await alone.enter_async_context(self._suspects.alone(tree.sinks))
                state = await load_state(self._store, claim.root, claim=claim)  # others may have written meanwhile
            error = "" if state is None else await self._why_left(options, claim, state, died)
            return None if error else state

        try:
            reply = await self._run_claimed(tree, load)
            outcome = self._outcome_of(state) if reply is None else reply.status
        except RuntimeClosed:
            outcome = "interrupted"
            raise
        except UpcallError as failure:
            error = f"{type(failure).__name__}: {failure}"
            outcome = self._outcome_of(state)
            await self._note_rate_limit(failure)
            if outcome == "left":
                raise
        except Exception as failure:
            error, outcome = f"{type(failure).__name__}: {failure}", "failed"
            raise
        finally:
            await alone.aclose()
            if options.on_segment is not None:
                agent = "" if state is None else state.header.agent
                seconds = time.monotonic() - started
                options.on_segment(Segment(claim.root, agent, outcome, seconds, claim.orphaned, error))
        if error and options.on_segment is None:
            log.warning("session %s: %s", claim.root, error)
        return outcome != "left"

    @staticmethod
    def _outcome_of(state: SessionState | None) -> str:
        """Return how a turn ended that raised: the log says whether it failed and is tried again."""
        if state is None or state.turn.phase != "failed":
            return "left"
        return "retry" if state.turn.retry else "failed"

    async def _why_left(self, options: WorkerOptions, claim: Claim, state: SessionState, died: int) -> str:
        """Return why a tree is not run here after so many of its workers died; empty if it is."""
        if died >= MOST_DEATHS:
            await self._set_aside(claim, state, why := POISON.format(died))
            return why
        if options.changed == "leave" and has_changed(self._agents, state):
            return "its agent has changed since the turn began, and this worker leaves such turns"
        return ""

    async def _set_aside(self, claim: Claim, state: SessionState, why: str) -> None:
        """Fail the turn under way; the queued one, or the beginning, where begin_session hooks have not passed."""
        number, seconds, written = state.turn.number, state.turn.ran_seconds, list[AnyEvent]()
        if state.queued and not state.begun and not state.turn.retry:
            queued = state.queued[0]
            number, seconds = max(number + 1, queued.turn), 0.0
            setup = current_setup(self._agents, state)
            written.append(TurnStarted(number, queued.message, setup, queued.by, queued.seq))
        written.append(TurnEnded(number, "failed", error=why, seconds=seconds))
        await append(self._store, claim.root, written, claim, release=True)
        for event in written:
            state.apply(event)

    async def _note_rate_limit(self, failure: BaseException) -> None:
        """Let no worker use a model for a while whose provider refused a request because there were too many."""
        limited = rate_limit(failure)
        if limited is not None:
            await self._store.pause(f"model:{limited.model}", self._store.now() + PAUSE_SECONDS)


def has_changed(agents: KnownAgents, state: SessionState) -> bool:
    """Return whether a session's agent is another one now than when the turn under way began."""
    prompt = state.turn.prompt
    if prompt is None or state.turn.phase != "running":
        return False
    return prompt.setup != current_setup(agents, state)


def current_setup(agents: KnownAgents, state: SessionState) -> str:
    """Return the digest of the instructions, tools and policy that a session's agent has now."""
    options = state.options_in_force
    hooks, agent = ASKING if options.approvals else NO_HOOKS, agents.of(state.header)
    return agents.prepared(agent, hooks, asks=state.header.asks, model=options.model).setup
