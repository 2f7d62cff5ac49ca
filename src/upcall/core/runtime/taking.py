"""Take ready run trees from a store and run them: what `runtime.work()` and `upcall worker` do with each."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

from upcall.contracts import Claim, Reply, Store, TakeLimit
from upcall.core.log.load import load_state
from upcall.core.log.state import SessionState
from upcall.core.runtime.retrying import MOST_DEATHS, Retries, Suspects, deaths, rate_limit
from upcall.core.runtime.run_tree import RunTree
from upcall.core.runtime.worker import OnSegment, Run, Segment
from upcall.errors import RuntimeClosed, UpcallError
from upcall.events import TurnEnded

log = logging.getLogger("upcall")

PAUSE_SECONDS = 30.0
"""Seconds for which a model is not used after its provider refused a request because there were too many."""

POISON = "poison: {} workers in a row died while they ran this session, and nothing new was logged"


class Rules(NamedTuple):
    """How a worker treats the run trees that it takes; see `Sessions.work`."""

    changed: Literal["run", "leave"] = "run"
    limits: tuple[TakeLimit, ...] = ()
    retries: Retries = Retries()
    on_segment: OnSegment | None = None


class TreeRunner(Protocol):
    """The parts of a runtime that take and run trees."""

    store: Store
    suspects: Suspects

    def models_of_agents(self) -> Mapping[str, frozenset[str]]:
        """The agents whose trees can be taken, each with the names of the models that it and all below it use."""
        ...

    def adopt_claim(self, claim: Claim) -> RunTree:
        """Register the run tree of a claim that was taken."""
        ...

    def setup_of(self, state: SessionState) -> str:
        """The digest of a session's agent as it is now."""
        ...

    async def run_claimed(self, tree: RunTree, load: Callable[[], Any]) -> Reply | None:
        """Continue a tree that is claimed, and release it. `load` returns its state, or None to leave it."""
        ...


class Taking:
    """Finds ready trees by `Store.take`, so that each is claimed as it is found."""

    def __init__(self, home: TreeRunner, rules: Rules) -> None:
        self._home, self._store, self._rules = home, home.store, rules

    async def find(self, most: int, skip: Collection[str]) -> Sequence[tuple[str, Run]]:
        """Take ready trees, the most urgent first."""
        found: dict[str, Run] = {}
        agents = await self._usable_agents()
        while agents and len(found) < most:
            claim = await self._store.take(agents, exclude={*skip, *found}, limits=self._rules.limits)
            if claim is None:
                break
            found[claim.root] = partial(self._run, self._adopt(claim), claim)
        return [*found.items()]

    def _adopt(self, claim: Claim) -> RunTree:
        tree = self._home.adopt_claim(claim)
        tree.retries = self._rules.retries
        return tree

    async def run(self, claim: Claim) -> bool:
        """Run a tree that was claimed; False if it is left to others, or this runtime is closed meanwhile."""
        try:
            return await self._run(self._adopt(claim), claim)
        except RuntimeClosed:
            return False

    async def _usable_agents(self) -> list[str]:
        """The names of the agents none of whose models is paused."""
        paused = {name.removeprefix("model:") for name in await self._store.pauses()}
        return [agent for agent, models in self._home.models_of_agents().items() if not models & paused]

    async def _run(self, tree: RunTree, claim: Claim) -> bool:
        """Run a tree that was taken; False if it is left to others."""
        started, state = time.monotonic(), None
        outcome, error = "left", ""
        alone = contextlib.AsyncExitStack()

        async def load() -> SessionState | None:
            nonlocal state, error
            state = await load_state(self._store, claim.root, claim=claim)
            died = 0 if state is None else await deaths(self._store, claim, state)
            if died == MOST_DEATHS - 1:
                await alone.enter_async_context(self._home.suspects.alone(tree.sinks))
                state = await load_state(self._store, claim.root, claim=claim)  # others may have written meanwhile
            error = "" if state is None else await self._why_left(claim, state, died)
            return None if error else state

        try:
            reply = await self._home.run_claimed(tree, load)
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
            self._report(claim, state, outcome, time.monotonic() - started, error)
        if error and self._rules.on_segment is None:
            log.warning("session %s: %s", claim.root, error)
        return outcome != "left"

    @staticmethod
    def _outcome_of(state: SessionState | None) -> str:
        """Return how a turn ended that raised: the log says whether it failed and is tried again."""
        if state is None or state.turn.phase != "failed":
            return "left"
        return "retry" if state.turn.retry else "failed"

    async def _why_left(self, claim: Claim, state: SessionState, died: int) -> str:
        """Return why a tree is not run here after so many of its workers died; empty if it is."""
        if died >= MOST_DEATHS:
            why = POISON.format(died)
            end = TurnEnded(state.turn.number, "failed", error=why, seconds=state.turn.ran_seconds)
            stored = self._store.append(claim.root, [end], claim, release=True)
            if stored is not None:
                await stored
            state.apply(end)
            return why
        prompt = state.turn.prompt if state.turn.phase == "running" and self._rules.changed == "leave" else None
        if prompt is not None and prompt.setup != self._home.setup_of(state):
            return "its agent has changed since the turn began, and this worker leaves such turns"
        return ""

    async def _note_rate_limit(self, failure: BaseException) -> None:
        """Let no worker use a model for a while whose provider refused a request because there were too many."""
        limited = rate_limit(failure)
        if limited is not None:
            await self._store.pause(f"model:{limited.model}", self._store.now() + PAUSE_SECONDS)

    def _report(self, claim: Claim, state: SessionState | None, outcome: str, seconds: float, error: str) -> None:
        if self._rules.on_segment is not None:
            agent = "" if state is None else state.header.agent
            self._rules.on_segment(Segment(claim.root, agent, outcome, seconds, claim.orphaned, error))
