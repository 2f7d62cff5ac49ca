"""The SQL that lists sessions and callbacks. All filtering is done by the query."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from upcall.contracts import Row, Selection

_BELOW = "({0} = {1} OR ({0} > {1} || '~' AND {0} < {1} || char(127)))"
"""A session's id equals another's, or begins with it and `~`, which is character 126."""

_ASKED = (
    "FROM callbacks k JOIN sessions a ON a.n = k.raised >> 32 WHERE k.root = s.root AND k.status = 'open' AND "
    + _BELOW.format("a.id", "s.id")
)
_ASKS_PERSON = (
    "(CASE WHEN s.status = 'running' THEN "
    f"EXISTS (SELECT 1 {_ASKED}) AND NOT EXISTS (SELECT 1 {_ASKED} AND k.target <> 'user') ELSE 0 END)"
)
"""True if all open callbacks of a session and below it wait for a person; only for running sessions."""

COLUMNS = (
    "s.id, s.agent, s.status, coalesce(p.id, ''), r.id, s.kind, s.created, e.time, e.key - (s.n << 32), s.base, "
    "(SELECT json_group_object(name, value) FROM tags WHERE tags.root = s.root), "
    f"{_ASKS_PERSON}, w.title, w.folder, w.roots, o.id, o.name, o.machine, o.pid, o.born, o.beat "
    "FROM sessions s JOIN sessions r ON r.n = s.root "
    "JOIN events e ON e.key = (SELECT max(key) FROM events WHERE key > s.n << 32 AND key < (s.n + 1) << 32) "
    "LEFT JOIN sessions p ON p.n = s.parent LEFT JOIN processes o ON o.id = r.owner "
    "LEFT JOIN places w ON w.root = s.root"
)
"""The columns that `row_of` reads."""

_OWNER = "(SELECT owner FROM sessions r WHERE r.n = s.root)"
_STATUS = {
    "running": f"s.status = 'running' AND {_OWNER} IN (SELECT value FROM json_each(?))",
    "interrupted": (
        f"s.status = 'running' AND {_OWNER} NOT IN (SELECT value FROM json_each(?)) AND NOT {_ASKS_PERSON}"
    ),
    "waiting": (
        "(s.status = 'waiting' OR "
        f"s.status = 'running' AND {_OWNER} NOT IN (SELECT value FROM json_each(?)) AND {_ASKS_PERSON})"
    ),
}
"""Statuses that depend on which processes are alive; every other status is the stored one."""

COUNTS = (
    "SELECT CASE WHEN s.status <> 'running' OR s.owner IN (SELECT value FROM json_each(?)) THEN s.status "
    f"WHEN {_ASKS_PERSON} THEN 'waiting' ELSE 'interrupted' END, count(*) "
    "FROM sessions s WHERE s.parent IS NULL GROUP BY 1"
)
"""How many roots have each status; a parameter has the ids of the living processes."""

ENDED_BEFORE = (
    "SELECT s.id FROM sessions s WHERE s.parent IS NULL AND s.status IN (SELECT value FROM json_each(?)) "
    "AND s.owner NOT IN (SELECT value FROM json_each(?)) AND "
    "(SELECT time FROM events WHERE key > s.n << 32 AND key < (s.n + 1) << 32 ORDER BY key DESC LIMIT 1) < ? "
    "ORDER BY s.n LIMIT ?"
)
"""The roots whose last turn ended before a time and that nobody owns."""

_WITH_TAG = "SELECT root FROM tags WHERE name = ? AND value = ?"
_TAGGED = f"(s.n IN ({_WITH_TAG}) OR s.parent IS NOT NULL AND s.root IN ({_WITH_TAG}))"
"""Roots and children separately: there is an index for each."""

_WITH_FOLDER = "SELECT root FROM places WHERE folder = ?"
_IN_FOLDER = f"(s.n IN ({_WITH_FOLDER}) OR s.parent IS NOT NULL AND s.root IN ({_WITH_FOLDER}))"

_ROOT_TAGGED = "EXISTS (SELECT 1 FROM tags t WHERE t.name = ? AND t.value = ? AND t.root = s.n)"
_ROOT_IN_FOLDER = "EXISTS (SELECT 1 FROM places f WHERE f.root = s.n AND f.folder = ?)"

TREE_EVENTS = f"""
WITH RECURSIVE
tree (n, last) AS MATERIALIZED (
    SELECT n, (SELECT key FROM events WHERE key > n << 32 AND key < (n + 1) << 32 ORDER BY key DESC LIMIT 1)
    FROM sessions WHERE {_BELOW.format("id", ":session")}
),
search (n, low, high) AS (
    SELECT n, (n << 32) + 1, last FROM tree WHERE (SELECT pos FROM events WHERE key = last) > :after
    UNION ALL
    SELECT n,
        CASE WHEN (SELECT pos FROM events WHERE key = (low + high) / 2) > :after
            THEN low ELSE (low + high) / 2 + 1 END,
        CASE WHEN (SELECT pos FROM events WHERE key = (low + high) / 2) > :after
            THEN (low + high) / 2 ELSE high END
    FROM search WHERE low < high
),
page (key, pos) AS (
    SELECT e.key, e.pos FROM search CROSS JOIN events e
        ON e.key >= low AND e.key < min(low + :limit, (n + 1) << 32)
    WHERE low = high ORDER BY e.pos LIMIT :limit
)
SELECT s.id, e.key, e.pos, e.time, e.body
FROM page CROSS JOIN events e ON e.key = page.key CROSS JOIN sessions s ON s.n = page.key >> 32 ORDER BY page.pos
"""
"""The next events of a session and all below it. No index is needed for that: sequence numbers have no gaps and
positions rise with them, so a binary search finds where the page begins in each session. CROSS JOIN keeps the order
of the joins: the planner does not know that a page is small."""

_tags = msgspec.json.Decoder(dict[str, str])
_roots = msgspec.json.Decoder(tuple[str, ...])


class Condition(NamedTuple):
    """A WHERE condition, and the values for its question marks."""

    sql: str
    values: tuple[Any, ...]


def tree_values(session: str, after: int, limit: int) -> dict[str, Any]:
    """Return the values for TREE_EVENTS."""
    return {"session": session, "after": after, "limit": limit}


def row_of(values: Sequence[Any], living: Callable[[Sequence[Any]], str]) -> Row:
    """Return a row of COLUMNS. `living` returns a process's name from its columns, or "" if it has died."""
    title, folder, roots = values[12:15]
    owner = living(values[15:]) if values[15] else ""
    tags = _tags.decode(values[10]) if values[10] != "{}" else {}
    row = Row(*values[:10], owner=owner, tags=tags, asks_person=bool(values[11]) and not owner)
    return row if title is None else row.replace(title=title, folder=folder, roots=_roots.decode(roots))


def sessions_listing(
    which: Selection, parent: str | None, alive: Callable[[], str], before: str | None, limit: int
) -> Condition:
    """Return the statement that lists the sessions that match.

    The numbers of the page are found first: only for these is the rest read. `alive` returns the ids of living
    processes, as a JSON list.
    """
    source, found = _source(which, parent)
    number = "g.root" if found else "s.n"
    parts = [*found, *_matching(which, parent, alive, bool(found))]
    if before is not None:
        parts.append(Condition(f"{number} < (SELECT n FROM sessions WHERE id = ?)", (before,)))
    where, values = _all(parts)
    order = "" if parent else " DESC"
    page = f"SELECT s.n FROM {source} WHERE {where} ORDER BY {number}{order} LIMIT ?"
    return Condition(f"SELECT {COLUMNS} WHERE s.n IN ({page}) ORDER BY s.n{order}", (*values, limit))


def _source(which: Selection, parent: str | None) -> tuple[str, list[Condition]]:
    """Return the tables to read, and the condition by which the first is read.

    Roots with the same tag, or in the same folder, lie side by side there, newest last.
    """
    if parent == "" and which.tags:
        tag = next(iter(which.tags.items()))
        return "tags g CROSS JOIN sessions s ON s.n = g.root", [Condition("g.name = ? AND g.value = ?", tag)]
    if parent == "" and which.folder is not None:
        return "places g CROSS JOIN sessions s ON s.n = g.root", [Condition("g.folder = ?", (which.folder,))]
    return "sessions s", []


def _matching(which: Selection, parent: str | None, alive: Callable[[], str], found: bool) -> Iterator[Condition]:
    """The conditions that are left; `found`: by one of them, the first, the sessions were found."""
    if parent:
        yield Condition("s.parent = (SELECT n FROM sessions WHERE id = ?)", (parent,))
    elif parent is not None:
        yield Condition("s.parent IS NULL", ())
    if which.session is not None:
        yield Condition(_BELOW.format("s.id", "?"), (which.session,) * 3)
    if which.agent is not None:
        yield Condition("s.agent = ?", (which.agent,))
    if which.status is not None:
        by_owner = _STATUS.get(which.status)
        yield Condition(by_owner, (alive(),)) if by_owner else Condition("s.status = ?", (which.status,))
    for tag in list(which.tags.items())[found:]:
        yield Condition(_ROOT_TAGGED, tag) if found else Condition(_TAGGED, (*tag, *tag))
    if which.folder is not None and not (found and not which.tags):
        yield Condition(_ROOT_IN_FOLDER, (which.folder,)) if found else Condition(_IN_FOLDER, (which.folder,) * 2)


def callbacks_where(which: Selection, now: float) -> Condition:
    """Return the condition for callbacks for a person that match; without a status, the open ones."""
    parts = [_of_status(which.status or "open", now)]
    asker = "EXISTS (SELECT 1 FROM sessions a WHERE a.n = callbacks.raised >> 32 AND {})"
    if which.session is not None:
        parts.append(Condition(asker.format(_BELOW.format("a.id", "?")), (which.session,) * 3))
    if which.agent is not None:
        parts.append(Condition(asker.format("a.agent = ?"), (which.agent,)))
    tagged = "EXISTS (SELECT 1 FROM tags t WHERE t.name = ? AND t.value = ? AND t.root = callbacks.root)"
    return _all([*parts, *(Condition(tagged, tag) for tag in which.tags.items())])


def _of_status(status: str, now: float) -> Condition:
    if status == "open":
        return Condition("status = 'open' AND target = 'user' AND (expires IS NULL OR expires > ?)", (now,))
    if status == "expired":  # even if no process has recorded that yet
        return Condition("target = 'user' AND (status = 'expired' OR status = 'open' AND expires <= ?)", (now,))
    return Condition("target = 'user' AND status = ?", (status,))


def _all(parts: Sequence[Condition]) -> Condition:
    sql = " AND ".join(part.sql for part in parts)
    return Condition(sql or "1", tuple(value for part in parts for value in part.values))
