"""Rows of sessions: what the store lists, with the facts of each run tree beside it.

The facts of a tree come from the index where there is one, and from the tree's own events since. They are kept for
the trees that were listed last, and the follower of the log keeps them up to date.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from upcall.app import Runtime
from upcall.contracts import Row, Store
from upcall.events import AnyEvent
from upcall.hosts.web.facts import Facts
from upcall.observe.redact import Redactor

_MOST_TREES = 5000
_MOST_EVENTS = 20_000
"""Events of one tree that are read for its row; the facts of a larger tree come from the index alone."""
_PAGE = 1000


class KnownFacts(Protocol):
    """Facts that somebody has kept; the index is it."""

    def facts(self, roots: Sequence[str]) -> dict[str, Facts]:
        """The facts of those of these run trees that it has."""
        ...


class FactsCache:
    """The facts of run trees by their root's id. `take` keeps those up to date that are here."""

    def __init__(self, hides: Redactor, known: KnownFacts | None = None) -> None:
        self._hides, self._known = hides, known
        self._facts: dict[str, Facts] = {}
        self._loading: dict[str, list[AnyEvent]] = {}

    def take(self, event: AnyEvent) -> None:
        """Take in an event that the follower of the log has read."""
        root = root_of(event.session)
        if root in self._loading:
            self._loading[root].append(event)
        elif root in self._facts:
            self._facts[root].apply(event, self._hides)

    async def get(self, store: Store, roots: Iterable[str]) -> dict[str, Facts]:
        """The facts of run trees as they are now."""
        wanted = list(dict.fromkeys(roots))
        missing = [root for root in wanted if root not in self._facts]
        known = self._known.facts(missing) if self._known is not None and missing else {}
        found: dict[str, Facts] = {}
        for root in wanted:
            facts = self._facts.pop(root, None)  # those that were used last are kept
            found[root] = self._facts[root] = facts or await self._load(store, root, known.get(root))
        while len(self._facts) > max(_MOST_TREES, len(wanted)):
            del self._facts[next(iter(self._facts))]
        return found

    async def _load(self, store: Store, root: str, known: Facts | None) -> Facts:
        facts, meanwhile = known or Facts(root), self._loading.setdefault(root, [])
        try:
            await fold_tree(store, facts, self._hides)
            for event in meanwhile:
                facts.apply(event, self._hides)
        finally:
            self._loading.pop(root, None)
        return facts


async def fold_tree(store: Store, facts: Facts, hides: Redactor) -> None:
    """Bring facts up to date with the events of their session and all below it."""
    read = 0
    while page := await store.read_tree(facts.session, facts.pos, _PAGE):
        for event in page:
            facts.apply(event, hides)
        read += len(page)
        if len(page) < _PAGE or read >= _MOST_EVENTS:
            return


def root_of(session: str) -> str:
    """The id of the session at the top of a run tree."""
    return session.partition("~")[0]


def row_json(row: Row, facts: Facts, redactor: Redactor, now: float) -> dict[str, Any]:
    """One session as the API lists it."""
    until = now if row.current_status in ("running", "waiting") else facts.work.last
    return {
        "id": row.id,
        "agent": redactor.text(row.agent),
        "status": row.current_status,
        "title": facts.title or redactor.text(row.title),
        "text": facts.text,
        "created": row.created,
        "updated": row.updated,
        "tokens": facts.tokens,
        "ran_seconds": facts.work.worked(until),
        "waited_seconds": facts.work.waited(until),
        "questions": facts.open_questions(now),
        "parent": row.parent or None,
        "tags": redactor.show(dict(row.tags)),
        "folder": redactor.text(row.folder) or None,
        "owner": redactor.text(row.owner),
    }


class Listing:
    """Lists sessions as rows of JSON. It lives where the log is read."""

    def __init__(self, redactor: Redactor, known: KnownFacts | None = None) -> None:
        self._redactor = redactor
        self.cache = FactsCache(redactor, known)

    async def rows(self, runtime: Runtime, **which: Any) -> list[dict[str, Any]]:
        """Sessions that match, as `runtime.rows` takes it."""
        return await self.json(runtime, await runtime.rows(**which))

    async def json(self, runtime: Runtime, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """These sessions as JSON: roots by the facts of their tree, others by their own."""
        roots = await self.cache.get(runtime.store, [row.id for row in rows if not row.parent])
        found = [roots[one.id] if one.id in roots else await self.facts(runtime, one) for one in rows]
        return [self.row(runtime, one, facts) for one, facts in zip(rows, found, strict=True)]

    def row(self, runtime: Runtime, row: Row, facts: Facts) -> dict[str, Any]:
        """One session with its facts as JSON."""
        return row_json(row, facts, self._redactor, runtime.store.now())

    async def facts(self, runtime: Runtime, row: Row) -> Facts:
        """The facts of one session and all below it, up to the newest event."""
        if row.parent:
            facts = Facts(row.id)
        else:
            facts = (await self.cache.get(runtime.store, [row.id]))[row.id]
        await fold_tree(runtime.store, facts, self._redactor)
        return facts
