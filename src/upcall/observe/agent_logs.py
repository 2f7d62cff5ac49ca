"""One log file per agent, for people: a line for everything that its sessions begin and end, without secrets.

The lines come from the nodes of the run tree. A tree that this process did not begin is read from the log first, so
that calls which began elsewhere have their ends here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from upcall.contracts import Delta, Store
from upcall.errors import UpcallError
from upcall.events import FOREIGN, AnyEvent, HooksPassed, Parked, SessionStarted, TurnResumed
from upcall.observe.in_order import InOrder
from upcall.observe.labels import Labels
from upcall.observe.log_files import LogFiles
from upcall.observe.node_table import Change
from upcall.observe.nodes import RunTreeNodes
from upcall.observe.phrases import duration, money
from upcall.observe.plain import visible
from upcall.observe.redact import Redactor
from upcall.observe.weight import is_large
from upcall.prices import Cost

log = logging.getLogger("upcall")

_MOST_NODES = 200_000
"""Nodes that are kept in memory. Trees beyond that are dropped, and read again when something happens in them."""

_PAGE = 500
_LEFT_OUT = ("session", "side_turn", "request", "response", "complete", "failed", "answer")
"""Kinds of nodes without a line of their own: the node above or below them has one."""

_MARKS = {"done": "✓", "failed": "✗", "answered": "✓", "open": "?", "running": "▸"}
_UNSAFE = re.compile(r"[^\w.-]+")


class AgentLogs:
    """Writes the log files of agents into a folder. Call it with events, and `close` it.

    agent_of: returns the agent of a session that runs here; "" if it does not
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        store: Store,
        agent_of: Callable[[str], str],
        *,
        redactor: Redactor,
        labels: Labels | None = None,
        cost: Cost | None = None,
    ) -> None:
        self._files, self._store, self._agent_of = LogFiles(folder), store, agent_of
        self._make = lambda: RunTreeNodes(labels=labels, redactor=redactor, cost=cost)
        self._redactor = redactor
        self._trees: dict[str, RunTreeNodes] = {}
        self._agents: dict[str, str] = {}  # by session
        self._names: dict[str, str] = {}  # of files, by agent
        self._early: dict[str, list[AnyEvent]] = {}  # events of trees that are being read
        self._reading: set[asyncio.Task[None]] = set()
        self._order = InOrder("upcall-log-files")
        self._unwritable: set[str] = set()

    def __call__(self, item: AnyEvent | Delta) -> None:
        """Write the lines of an event. A Delta is not an event, and is ignored."""
        if isinstance(item, Delta):
            return
        root = item.session.partition("~")[0]
        if isinstance(item, SessionStarted):
            self._agents[item.session] = item.agent
        if root in self._early:
            self._early[root].append(item)
        elif root in self._trees:
            self._apply(self._trees[root], item)
        elif isinstance(item, SessionStarted) and not item.parent:
            self._apply(self._keep(root, self._make()), item)
        else:
            self._early[root] = [item]
            task = asyncio.ensure_future(self._read(root, item.pos))
            self._reading.add(task)
            task.add_done_callback(self._reading.discard)

    async def settle(self) -> None:
        """Wait until trees that are being read have been read, and everything is written."""
        if self._reading:
            await asyncio.wait(self._reading)
        await self._order.settle()

    def close(self) -> None:
        """Close the files."""
        self._order.close()
        self._files.close()

    # --- trees ----------------------------------------------------------------------------

    async def _read(self, root: str, upto: int) -> None:
        """Read what happened in a tree before, then write what has come meanwhile."""
        fold, parked = self._make(), set[str]()
        try:
            while page := await self._store.read_tree(root, fold.position, _PAGE):
                earlier = [event for event in page if event.pos < upto]
                await self._order.wait_for(partial(self._take_earlier, fold, earlier, parked))
                if page[-1].pos >= upto or len(page) < _PAGE:
                    break
        except UpcallError as error:  # the lines of what goes on are still worth having
            log.warning("the log of session %s can't be read for its log file: %s", visible(root), error)
        finally:
            self._keep(root, fold)
            for event in self._early.pop(root):
                self._apply(fold, event)

    def _take_earlier(self, fold: RunTreeNodes, events: Sequence[AnyEvent], parked: set[str]) -> None:
        """Take what happened before. What others wrote while a session was parked, nobody has written down yet."""
        for event in events:
            if isinstance(event, SessionStarted):
                self._agents[event.session] = event.agent
            elif isinstance(event, Parked):
                parked.add(event.session)
            elif isinstance(event, TurnResumed):
                parked.discard(event.session)
            if event.session in parked and isinstance(event, FOREIGN):
                self._write(fold, event, self._file_of(event.session))
            else:
                fold.apply(event)

    def _keep(self, root: str, fold: RunTreeNodes) -> RunTreeNodes:
        self._trees[root] = fold
        total = sum(len(one) for one in self._trees.values())
        for other in [*self._trees] if total > _MOST_NODES else ():
            if other != root and total > _MOST_NODES:
                total -= len(self._trees.pop(other))
        return fold

    # --- lines ----------------------------------------------------------------------------

    def _apply(self, fold: RunTreeNodes, event: AnyEvent) -> None:
        """Write the lines of an event: in a thread if it is large, or lets a large one be shown that hooks held."""
        heavy = isinstance(event, HooksPassed) or is_large(event)
        self._order.do(partial(self._write, fold, event, self._file_of(event.session)), heavy=heavy)

    def _write(self, fold: RunTreeNodes, event: AnyEvent, name: str) -> None:
        if event.pos <= fold.position:
            return
        lines = [line for change in fold.apply(event) if (line := self._line(fold, event, change))]
        if not lines:
            return
        try:
            self._files.write(name, lines)
        except OSError as error:  # a full disk must not stop a run
            if name not in self._unwritable:
                log.warning("the log file of %s can't be written: %s", name, error)
            self._unwritable.add(name)

    def _file_of(self, session: str) -> str:
        agent = self._agents.get(session) or self._agent_of(session)
        if agent not in self._names:
            self._names[agent] = _UNSAFE.sub("_", self._redactor.text(agent)).strip("._")[:100] or "agent"
        return self._names[agent]

    def _line(self, fold: RunTreeNodes, event: AnyEvent, change: Change) -> str:
        """Return the line of a node that has begun, waits or has ended; "" for all other changes."""
        text = self._text(fold, change)
        at = datetime.fromtimestamp(event.time).astimezone().isoformat(" ", "milliseconds")
        return f"{at}  {visible(event.session)}  {text}" if text else ""

    def _text(self, fold: RunTreeNodes, change: Change) -> str:
        def get(name: str) -> Any:
            return fold.field(change.id, name)

        kind, status, ended = get("kind"), change.set.get("status"), get("end") is not None
        is_new = "kind" in change.set
        if kind == "turn" and not ended:
            return f"› {get('about')}" if change.set.get("about") else ""
        if kind in ("complete", "failed") and is_new:
            return f"  → {get('about')}" if get("about") and fold.field(get("parent"), "kind") == "tool" else ""
        if kind == "hop":
            text = "is asked" if status == "open" else get("about") if status in ("passed", "skipped") else ""
            return f"↳ {get('label')} {text}" if text else ""
        if kind in _LEFT_OUT or status is None or (status in ("running", "waiting", "open") and not is_new):
            return ""
        took = f" · {duration(get('end') - get('start'))}" if ended else ""
        outcome = f" · {status}" if status not in ("done", "running", "open", "answered") else ""
        about = "" if kind == "turn" else f"  {get('about')}" if get("about") else ""
        tokens = self._tokens(get("usage"), get("cost")) if ended else ""
        return f"{_MARKS.get(status, '–')} {get('label')}{about}{outcome}{took}{tokens}"

    def _tokens(self, usage: dict[str, int] | None, cost: float | None) -> str:
        if not usage:
            return ""
        price = f" · cost {money(cost)}" if cost is not None else ""
        return f" · {usage['input']:,} tokens in, {usage['output']:,} out{price}"
