"""The run trees that run in this process: claimed, registered, drained and released."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from upcall.contracts import Claim, Reply
from upcall.core.log.session_log import Sink
from upcall.core.log.state import SessionState
from upcall.core.runtime.home import RuntimeServices
from upcall.core.runtime.retrying import Retries
from upcall.core.runtime.run_tree import RunTree
from upcall.errors import RuntimeClosed, SessionBusy, UpcallError

CLAIM_WAIT = 1.2
"""Leases to wait for another process's claim: a dead owner's ends after one."""

CLAIM_ATTEMPTS = 60
"""Attempts to claim a run tree during that time."""

STOP_LIMIT = 6.0
"""Seconds that turns have to end once they were stopped where they are."""


class RunningTrees:
    """Run trees by their roots' ids, from the moment this process begins to claim one until it has released it.

    home: the runtime that runs them
    """

    def __init__(self, home: RuntimeServices) -> None:
        self._home, self._store = home, home.store
        self._trees: dict[str, RunTree] = {}
        self.closing = False
        """Nothing new is claimed."""

    def get(self, root: str) -> RunTree | None:
        """The tree of that root, if it runs here."""
        return self._trees.get(root)

    def all(self) -> tuple[RunTree, ...]:
        """Every tree that runs here."""
        return tuple(self._trees.values())

    async def claim(
        self, root: str, take_over: bool = False, sink: Sink | None = None, *, wait: bool = True
    ) -> RunTree:
        """Own a tree; with `wait`, give another process's claim a little more than one lease to end."""
        if self.closing:
            raise RuntimeClosed(begun=False)
        while not take_over and (running := self._trees.get(root)) is not None:
            if not running.is_released:
                raise SessionBusy(root, "this program", is_local=True)
            await asyncio.wait({running.when_ended()})
        before = self._trees.get(root)
        ended = None if before is None else before.when_ended()
        tree = self._trees[root] = RunTree(self._home, root, sink)
        try:
            await self.own(tree, take_over, wait=wait)
        except BaseException:
            self._forget(tree, None)
            if before is not None and ended is not None and not ended.done():  # it was not taken over
                self._trees.setdefault(root, before)
            raise
        return tree

    def adopt(self, claim: Claim, retries: Retries) -> RunTree:
        """Register the tree of a claim that a worker has taken, with the worker's rule for failed turns."""
        tree = self._trees[claim.root] = RunTree(self._home, claim.root)
        tree.own(claim)
        tree.draining, tree.retries = self.closing, retries
        return tree

    async def own(self, tree: RunTree, take_over: bool, *, wait: bool = True) -> None:
        """Claim a registered tree, also once more after its claim was released."""
        attempts = CLAIM_ATTEMPTS if wait else 0
        while True:
            try:
                tree.own(await self._store.claim(tree.root, take_over=take_over))
                return
            except SessionBusy as error:
                if not attempts or tree.draining or error.is_local:
                    raise
            attempts -= 1
            await asyncio.sleep(self._store.lease * CLAIM_WAIT / CLAIM_ATTEMPTS)

    async def end(
        self, tree: RunTree, outcome: Reply | Exception | None, state: SessionState | None = None
    ) -> None:
        """Release a tree that no longer runs here, and tell those who joined it what came of it.

        state: the state of its root, which is in doubt if the claim failed
        """
        try:
            if state is not None and tree.claim is not None and tree.claim.failure is not None:
                state.in_doubt = True
            elif tree.claim is not None and not tree.claim.released:
                with contextlib.suppress(UpcallError):
                    await self._store.release(tree.claim)
        finally:
            self._forget(tree, outcome)

    def _forget(self, tree: RunTree, outcome: Reply | Exception | None) -> None:
        if self._trees.get(tree.root) is tree:
            del self._trees[tree.root]
        tree.end(outcome)


async def drain_trees(trees: Sequence[RunTree], seconds: float) -> None:
    """Let run trees stop between two steps; what has not stopped in time is stopped where it is."""
    if not trees:
        return
    for tree in trees:
        tree.drain()
    _, running = await asyncio.wait([tree.when_ended() for tree in trees], timeout=seconds)
    if running:
        for tree in trees:
            tree.stop(RuntimeClosed())
        await asyncio.wait(running, timeout=STOP_LIMIT)
