"""Keep the index up to date: a fold over the whole log, a page at a time, in a thread of its own.

Several processes may do that at once. Each page is one transaction, which checks that nobody else was faster.
"""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apsw
import msgspec

from upcall.app import Runtime
from upcall.contracts import Store
from upcall.errors import StoreError
from upcall.events import SETTLING, AnyEvent, HooksPassed, SessionStarted
from upcall.hosts.web.facts import Facts, decode_facts
from upcall.hosts.web.index.file import first_event, open_index, position, remove_index
from upcall.hosts.web.index.texts import Found, body_of, tags_text, texts_of
from upcall.hosts.web.listing import root_of
from upcall.observe.redact import Redactor
from upcall.observe.shown_events import HeldBack, is_held_back, passed_in

log = logging.getLogger("upcall")

PAGE = 200
_WAIT, _AGAIN, _PAUSE = 2.0, 1.0, 0.002
_SLICE, _BREATH = 50, 0.0002
"""Events after which the interpreter is left to the server's other threads, and for how many seconds."""
_YIELD, _MOST_YIELDED = 0.01, 0.2
"""Seconds between two looks at whether somebody waits for the log, and seconds that a page is put off at most."""

_MOST_FACTS = 5000
_LOOK_BACK = 100
_PASSES_BODIES = ("post_response", "after_tool")


class IndexWriter:
    """Follows a log and writes its index."""

    def __init__(self, path: Path, redactor: Redactor, is_busy: Callable[[], bool] = lambda: False) -> None:
        """`is_busy` tells whether somebody waits for a read of the log; the index can wait for that."""
        self._path, self._redactor, self._is_busy = path, redactor, is_busy
        self._db: apsw.Connection | None = None
        self._position = 0
        self._facts: dict[str, Facts] = {}

    async def follow(self, runtime: Runtime) -> None:
        """Index what is in the log and what is added to it, until cancelled."""
        try:
            while True:
                try:
                    await self._step(runtime.store)
                except (apsw.Error, OSError, StoreError) as error:
                    log.warning("the index %s can't be written right now: %s", self._path, error)
                    self._close()
                    await asyncio.sleep(_AGAIN)
        finally:
            self._close()

    async def _step(self, store: Store) -> None:
        db = await self._open(store)
        events = await store.read_all(self._position, PAGE)
        if not events:
            await store.wait(self._position, _WAIT)
            return
        found, held = list[tuple[AnyEvent, Found]](), HeldBack()
        for number, event in enumerate(events):
            found += [(event, text) for text in await self._texts(store, event, held)]
            if number % _SLICE == 0:
                await asyncio.sleep(_BREATH)
        for root in {root_of(event.session) for event in events}:
            self._load(db, root)
        self._write(db, events, found)
        await asyncio.sleep(_PAUSE)  # the event loop of the server runs in the same process
        yielded = 0.0
        while self._is_busy() and yielded < _MOST_YIELDED:
            await asyncio.sleep(_YIELD)
            yielded += _YIELD

    async def _open(self, store: Store) -> apsw.Connection:
        """The connection; an index of another log is made anew."""
        if self._db is None:
            db = open_index(self._path)
            known, indexed = first_event(db), position(db)  # before the log: another server may index what is added
            first = [f"{one.session} {one.pos} {one.time}" for one in await store.read_all(0, 1)]
            if (known and [known] != first) or indexed > await store.last():
                db.close()
                remove_index(self._path)
                db = open_index(self._path)
            if first:
                db.execute("INSERT OR IGNORE INTO state VALUES ('first', ?)", (first[0],))
            self._db, self._position = db, position(db)
        return self._db

    def _close(self) -> None:
        db, self._db = self._db, None
        self._facts.clear()
        if db is not None:
            db.close()

    async def _texts(self, store: Store, event: AnyEvent, held: HeldBack) -> list[Found]:
        """The texts of an event; a body that waited for hooks comes with the event that says they passed it."""
        shown = held.take(event)
        if len(shown) == 1 and isinstance(event, HooksPassed) and event.point in _PASSES_BODIES:
            shown = [*await _held_before(store, event), event]
        return [text for one in shown for text in texts_of(body_of(one), self._redactor)]

    def _load(self, db: apsw.Connection, root: str) -> None:
        """Have the facts of a tree as they were before a page."""
        facts = self._facts.pop(root, None)
        if facts is None:
            row: Any = db.execute("SELECT facts FROM trees WHERE root = ?", (root,)).get
            facts = Facts(root) if row is None else decode_facts(row)
        self._facts[root] = facts
        while len(self._facts) > _MOST_FACTS:
            del self._facts[next(iter(self._facts))]

    def _write(
        self, db: apsw.Connection, events: Sequence[AnyEvent], found: Sequence[tuple[AnyEvent, Found]]
    ) -> None:
        changed: dict[str, Facts] = {}
        for event in events:
            facts = self._facts[root_of(event.session)]
            facts.apply(event, self._redactor)
            changed[facts.session] = facts
        db.execute("BEGIN IMMEDIATE")
        try:
            if position(db) != self._position:  # another process was faster
                db.execute("ROLLBACK")
                self._position = position(db)
                self._facts.clear()
                return
            self._write_trees(db, events, changed)
            self._write_texts(db, found)
            self._position = events[-1].pos
            db.execute("INSERT OR REPLACE INTO state VALUES ('position', ?)", (str(self._position),))
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    def _write_trees(self, db: apsw.Connection, events: Sequence[AnyEvent], changed: dict[str, Facts]) -> None:
        begun = {one.session: one for one in events if isinstance(one, SessionStarted) and not one.parent}
        db.executemany(
            "INSERT OR IGNORE INTO trees VALUES (?, ?, '', '')", [(one.pos, root) for root, one in begun.items()]
        )
        agents = [self._redactor.text(one.agent) for one in begun.values()]
        db.executemany(
            "INSERT OR IGNORE INTO names VALUES (?, '', ?, ?, ?, '')",
            [
                (one.pos, agent, tags_text(one.tags, self._redactor), agent.casefold())
                for one, agent in zip(begun.values(), agents, strict=True)
            ],
        )
        db.executemany(
            "UPDATE trees SET status = ?, facts = ? WHERE root = ?",
            [
                (facts.status, msgspec.json.encode(msgspec.structs.replace(facts, pending="")), root)
                for root, facts in changed.items()
            ],
        )
        db.executemany(
            "UPDATE names SET status = ?, folded_name = ? WHERE n = (SELECT n FROM trees WHERE root = ?)",
            [(facts.status, f"{facts.title}\n{root}".casefold(), root) for root, facts in changed.items()],
        )
        db.executemany(
            "INSERT OR IGNORE INTO settled VALUES (?, ?)",
            [(one.callback_id, one.time) for one in events if isinstance(one, SETTLING)],
        )

    def _write_texts(self, db: apsw.Connection, found: Sequence[tuple[AnyEvent, Found]]) -> None:
        last: Any = db.execute("SELECT coalesce(max(n), 0) FROM texts").get
        rows = list(enumerate(found, last + 1))
        db.executemany(
            "INSERT INTO texts VALUES (?, ?, ?, ?, ?, ?)",
            [(n, event.session, event.seq, one.kind, one.node, event.time) for n, (event, one) in rows],
        )
        db.executemany("INSERT INTO words (rowid, body) VALUES (?, ?)", [(n, one.text) for n, (_, one) in rows])


async def _held_before(store: Store, event: HooksPassed) -> list[AnyEvent]:
    """The events before a page whose bodies hooks pass with this one; none if they replace them."""
    if event.result is not None or event.message is not None:
        return []
    before = await store.read(event.session, max(0, event.seq - _LOOK_BACK), _LOOK_BACK)
    passed = passed_in([event])
    return [
        one for one in before if one.seq < event.seq and is_held_back(one, set()) and not is_held_back(one, passed)
    ]
