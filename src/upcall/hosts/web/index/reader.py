"""Ask the index. Every answer is checked against the log by whoever shows it."""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

from upcall.hosts.web.facts import Facts, decode_facts
from upcall.hosts.web.index.file import BUSY_MS

log = logging.getLogger("upcall")

SHORTEST = 3
"""Characters of a word that full text finds; shorter ones are looked for in titles."""

_SEARCH = (
    "SELECT t.n, t.session, t.seq, t.kind, t.node, t.time FROM "
    "(SELECT rowid AS n FROM words WHERE words MATCH ? AND rowid < ? ORDER BY rowid DESC LIMIT ?) f "
    "JOIN texts t USING (n) ORDER BY n DESC"
)
_FAILED = (apsw.Error, msgspec.MsgspecError)


class Hit(NamedTuple):
    """A text that was found: where it is in the log, and the node that shows it."""

    session: str
    seq: int
    kind: str
    node: str
    time: float


class Hits(NamedTuple):
    """The hits of a search, newest first. If there may be others, pass `more` as `before` to get them."""

    found: tuple[Hit, ...]
    more: int | None


class Filters(NamedTuple):
    """Further conditions on run trees: a status by the log, an agent, and tags as the index keeps them."""

    statuses: tuple[str, ...] = ()
    agent: str = ""
    tags: tuple[str, ...] = ()


NO_FILTERS = Filters()


class IndexReader:
    """Reads an index through a connection of its own; where there is none yet, it knows nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: apsw.Connection | None = None

    def close(self) -> None:
        """Let go of the file."""
        if self._db is not None:
            self._db.close()
            self._db = None

    def facts(self, roots: Sequence[str]) -> dict[str, Facts]:
        """The facts of those of these run trees that are indexed."""
        sql = "SELECT root, facts FROM trees WHERE facts <> '' AND root IN (SELECT value FROM json_each(?))"
        found = self._query(sql, (json.dumps(list(roots)),)) or []
        return {root: decode_facts(facts) for root, facts in found}

    def counts(self) -> dict[str, int] | None:
        """The number of run trees by their status in the log; None if nothing is indexed."""
        found = self._query("SELECT status, count(*) FROM trees GROUP BY status")
        return None if not found else dict(found)

    def roots(self, text: str, before: str | None, limit: int, which: Filters = NO_FILTERS) -> list[str] | None:
        """The run trees whose title, id or agent holds a text, newest first; None without an index.

        They are as they were when they were indexed: a moment ago.
        """
        parts = [("(instr(folded_name, ?1) OR instr(folded_agent, ?1))", text.casefold())]
        if before:
            parts.append(("n < (SELECT n FROM trees WHERE root = ?)", before))
        if which.statuses:
            parts.append(("status IN (SELECT value FROM json_each(?))", json.dumps(which.statuses)))
        if which.agent:
            parts.append(("agent = ?", which.agent))
        parts += [("instr(tags, ?)", tag) for tag in which.tags]
        found = " AND ".join(sql for sql, _ in parts)
        page = f"SELECT n FROM names WHERE {found} ORDER BY n DESC LIMIT ?"
        sql = f"SELECT root FROM trees WHERE n IN ({page}) ORDER BY n DESC"
        rows = self._query(sql, [*(value for _, value in parts), limit])
        return None if rows is None else [root for (root,) in rows]

    def roots_by_id(self, beginning: str, limit: int) -> list[str]:
        """The run trees whose id begins with a text, newest first."""
        sql = "SELECT root FROM trees WHERE root >= ?1 AND root < ?1 || char(1114111) ORDER BY n DESC LIMIT ?2"
        return [root for (root,) in self._query(sql, (beginning, limit)) or []]

    def settled_since(self, moment: float, limit: int) -> list[str] | None:
        """The callbacks that were settled after a moment, newest first; None without an index."""
        found = self._query("SELECT callback FROM settled WHERE at >= ? ORDER BY at DESC LIMIT ?", (moment, limit))
        return None if found is None else [callback for (callback,) in found]

    def position(self) -> int:
        """The position up to which the log is indexed."""
        found = self._query("SELECT value FROM state WHERE name = 'position'")
        return int(found[0][0]) if found else 0

    def search(self, text: str, limit: int, before: int | None = None) -> Hits:
        """The newest texts that hold all words of a text; with `before`, those older than one that was found."""
        query = _query_of(text)
        if query is None:
            return Hits((), None)
        rows = self._query(_SEARCH, (query, before or 1 << 62, limit)) or []
        return Hits(tuple(Hit(*row[1:]) for row in rows), rows[-1][0] if len(rows) == limit else None)

    def _query(self, sql: str, values: Sequence[Any] = ()) -> list[Any] | None:
        try:
            if self._db is None:
                if not self._path.exists():
                    return None
                flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW
                self._db = apsw.Connection(str(self._path), flags=flags)
                self._db.set_busy_timeout(BUSY_MS)
            return self._db.execute(sql, tuple(values)).fetchall()
        except _FAILED as error:
            log.debug("the index can't be read: %s", error)
            self.close()
            return None


def _query_of(text: str) -> str | None:
    """The full-text query for a text: its words, or the whole text if a word is too short; None if that is, too."""
    words = text.split()
    if any(len(word) < SHORTEST for word in words):
        words = [text.strip()]
    if not words or len(words[0]) < SHORTEST:
        return None
    return " AND ".join('"' + word.replace('"', '""') + '"' for word in words)
