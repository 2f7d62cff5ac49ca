"""Run trees as nodes, kept up to date for those who look at them. They live where the log is read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from upcall.contracts import Store
from upcall.events import AnyEvent
from upcall.hosts.web.listing import root_of
from upcall.observe.node_table import BriefNode, Change, Node
from upcall.observe.nodes import RunTreeNodes

MOST_NODES = 300_000
"""Nodes that are kept in memory; the trees that nobody has asked for longest are dropped first."""

MOST_CHANGES = 20_000
"""Newest changes of a tree that are kept ready; older ones are found in the nodes' histories."""

PAGE = 500
BEGINNING = 3000
"""Events of a large tree that are shown while the others are read: a tenth of a second of work."""


class Tree:
    """One run tree as nodes, with its newest changes."""

    def __init__(self, fold: RunTreeNodes) -> None:
        self._fold = fold
        self._recent: deque[Change] = deque()
        self._recent_after = 0  # all changes after this position are among the recent ones

    def __len__(self) -> int:
        return len(self._fold)

    @property
    def position(self) -> int:
        """The position of its newest event."""
        return self._fold.position

    def take(self, event: AnyEvent) -> None:
        """Take in the next event; one that was taken in before changes nothing."""
        if event.pos <= self._fold.position:
            return
        self._recent.extend(self._fold.apply(event))
        while len(self._recent) > MOST_CHANGES:
            self._recent_after = self._recent.popleft().pos

    def nodes(self) -> list[Node]:
        """All nodes as they are now."""
        return self._fold.nodes()

    def brief_nodes(self) -> list[BriefNode]:
        """All nodes as they are now, without what is empty and what their histories repeat."""
        return self._fold.brief_nodes()

    def since(self, position: int) -> list[Change]:
        """The changes after a position, in order."""
        if position < self._recent_after:
            return self._fold.since(position)
        found: list[Change] = []
        for change in reversed(self._recent):
            if change.pos <= position:
                break
            found.append(change)
        return found[::-1]


class _Loading(NamedTuple):
    """A tree that is being read. `begun` is set when its beginning, or all of it, was read."""

    tree: Tree
    begun: asyncio.Event
    whole: asyncio.Future[Tree]


class Trees:
    """The run trees that were asked for last. `take` keeps them up to date."""

    def __init__(self, make: Callable[[], RunTreeNodes]) -> None:
        self._make = make
        self._trees: dict[str, Tree] = {}
        self._loading: dict[str, _Loading] = {}

    def take(self, events: Sequence[AnyEvent]) -> None:
        """Take in what the follower of the log has read."""
        for event in events:
            tree = self._trees.get(root_of(event.session))
            if tree is not None:
                tree.take(event)

    async def get(self, store: Store, root: str) -> Tree:
        """A run tree with every event that is in the log now."""
        tree = self._trees.pop(root, None)
        if tree is None:
            return await asyncio.shield(self._load_once(store, root).whole)
        self._trees[root] = tree  # those that were used last stay
        return tree

    async def beginning(self, store: Store, root: str) -> tuple[Tree, bool]:
        """A run tree, or the beginning of a large one that is being read; whether it is the whole."""
        if root in self._trees:
            return await self.get(store, root), True
        loading = self._load_once(store, root)
        await loading.begun.wait()
        return (await loading.whole, True) if loading.whole.done() else (loading.tree, False)

    def _load_once(self, store: Store, root: str) -> _Loading:
        """Load a tree; all who want it meanwhile wait for the same one."""
        if root not in self._loading:
            tree, begun = Tree(self._make()), asyncio.Event()
            whole = asyncio.ensure_future(self._load(store, root, tree, begun))
            whole.add_done_callback(lambda _: self._loading.pop(root, None))
            self._loading[root] = _Loading(tree, begun, whole)
        return self._loading[root]

    async def _load(self, store: Store, root: str, tree: Tree, begun: asyncio.Event) -> Tree:
        read = 0
        try:
            while page := await store.read_tree(root, tree.position, PAGE):
                for event in page:
                    tree.take(event)
                read += len(page)
                if len(page) < PAGE:
                    break
                if read >= BEGINNING:
                    begun.set()
                await asyncio.sleep(0)  # the follower of the log runs in the same thread
        finally:
            begun.set()
        # nothing is waited for between the last read and here, so the follower misses nothing
        self._trees[root] = tree
        self._make_room(root)
        return tree

    def _make_room(self, wanted: str) -> None:
        total = sum(len(tree) for tree in self._trees.values())
        for root in tuple(self._trees):
            if total <= MOST_NODES or root == wanted:
                return
            total -= len(self._trees.pop(root))
