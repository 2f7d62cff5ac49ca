"""The usage of a run tree, and of one agent's side turns: from the log and from the turns that run."""

from __future__ import annotations

import asyncio
import re

import msgspec

from upcall.agent import Limits
from upcall.contracts import Selection, Spent, Store
from upcall.core.log.load import load_state
from upcall.core.log.state import SessionState
from upcall.core.runtime.children import ALL_CHILDREN
from upcall.core.turns.turn import Turn
from upcall.events import ModelStarted, Responded

_CALLBACK = "q[0-9a-f]+"
"""A regular expression for the ids of callbacks."""


class Spending(msgspec.Struct, eq=False):
    """The usage of each session of a run tree, over all its turns. Sessions that run are asked each time.

    `loaded`: the others have been looked up.
    """

    store: Store
    running: dict[str, SessionState]
    loaded: bool = False
    ended: dict[str, Spent] = {}

    def end(self, state: SessionState) -> None:
        """Remember a session that no longer runs."""
        self.running.pop(state.id, None)
        self.ended[state.id] = self._spent(state)

    async def total(self, root: str) -> Spent:
        """The usage of all sessions. Those that have not run here are looked up in the log once."""
        if not self.loaded and await self.store.rows(parent=root, limit=1):  # most have no children
            for row in await self.store.rows(which=Selection(session=root), limit=ALL_CHILDREN):
                if row.id == root and root in self.running:
                    continue
                state = await load_state(self.store, row.id)
                if state is not None:
                    self.ended.setdefault(row.id, self._spent(state))  # what ended here meanwhile is known better
        self.loaded = True
        if not self.ended and len(self.running) == 1 and root in self.running:
            return self._spent(self.running[root])
        each = self.ended | {name: self._spent(state) for name, state in self.running.items()}
        return sum(each.values(), Spent())

    def _spent(self, state: SessionState) -> Spent:
        (calls, seconds), turn = state.totals_before_turn, state.turn
        seconds += turn.running_seconds(self.store.now())
        return Spent(calls + turn.model_calls, state.usage_by_model, seconds)


class SideTurns:
    """The usage of the side turns in which one agent answers questions, during one of its own turns.

    Those that ended before this process are counted in the log, so that a crash or a park resets no limit.
    """

    def __init__(self, store: Store, parent: str, since: float, name: re.Pattern[str]) -> None:
        """`parent`: the session below which they are; `name`: what the rest of their ids looks like."""
        self._store, self._parent, self._since, self._name = store, parent, since, name
        self._loading = asyncio.Lock()
        self._loaded = False
        self._ended: dict[str, tuple[int, int]] = {}  # model calls and tokens, by id
        self._running: dict[str, SessionState] = {}

    async def load(self) -> None:
        """Count those in the log, once."""
        async with self._loading:
            if not self._loaded:
                for row in await self._store.rows(parent=self._parent, limit=ALL_CHILDREN):
                    is_one = row.kind == "side_turn" and self._name.fullmatch(row.id[len(self._parent) + 1 :])
                    if is_one and row.created >= self._since:
                        self._ended.setdefault(row.id, await self._in_log(row.id))
            self._loaded = True

    async def _in_log(self, session: str) -> tuple[int, int]:
        calls = tokens = after = 0
        while events := await self._store.read(session, after):
            calls += sum(isinstance(e, ModelStarted) for e in events)
            tokens += sum(e.usage.total for e in events if isinstance(e, Responded))
            after = events[-1].seq
        return calls, tokens

    def begin(self, state: SessionState) -> None:
        """Count a side turn as it runs."""
        self._running[state.id] = state

    def end(self, state: SessionState) -> None:
        """Count a side turn as it ended."""
        self._running.pop(state.id, None)
        self._ended[state.id] = _calls_and_tokens(state)

    def exceeded(self, asked: SessionState, limits: Limits) -> str:
        """Return the name of the limit of the asked agent's turn that leaves no room for a model call, or "".

        One call is left to a turn that still has to continue: nobody ends it by asking.
        """
        each = [*(self._ended | {i: _calls_and_tokens(s) for i, s in self._running.items()}).values()]
        own = (0, 0) if asked.id in self._running or asked.id in self._ended else _calls_and_tokens(asked)
        calls = own[0] + sum(c for c, _ in each) + (asked.turn.phase == "running")
        if limits.model_calls is not None and calls >= limits.model_calls:
            return "model_calls"
        tokens = own[1] + sum(t for _, t in each)
        return "tokens" if limits.tokens is not None and tokens >= limits.tokens else ""


async def side_turns_of(asker: Turn, asked: Turn, known: dict[tuple[str, int, str], SideTurns]) -> SideTurns:
    """The side turns of the asked agent in its turn; of an agent outside the chain, in the turn of who asks.

    `known` keeps them while a run tree is owned.
    """
    of, name = asked, _CALLBACK
    if asked.state.header.kind == "side_turn":
        of, name = asker, re.escape(asked.actor.name) + r"\." + _CALLBACK
    key = (of.id, of.state.turn.number, name)
    if key not in known:
        since = of.state.turn.prompt.time if of.state.turn.prompt is not None else 0.0
        known[key] = SideTurns(of.log.store, of.id, since, re.compile(name))
    await known[key].load()
    return known[key]


def side_turn_id(asked: Turn, name: str) -> str:
    """The id of a side turn of the asked session; a session that holds only the question is its own."""
    return asked.id if asked.state.header.kind == "side_turn" else f"{asked.id}~{name}"


def _calls_and_tokens(state: SessionState) -> tuple[int, int]:
    return state.turn.model_calls, state.turn.usage.total


def no_room(limits: Limits, name: str) -> str:
    """Say why a question is passed up for a limit of the asked agent's turn."""
    most = {"model_calls": f"{limits.model_calls} model calls", "tokens": f"{limits.tokens} tokens"}
    return f"its limit of {most[name]} is used up"
