"""The SQL that lists sessions and callbacks: everything that is asked for is decided by the query."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from upcall.contracts import Row, Selection

_BELOW = "({0} = {1} OR ({0} > {1} || '~' AND {0} < {1} || char(127)))"
"""A session's id is another's, or begins with it and `~`, which is character 126."""

_ASKED = (
    "FROM callbacks k JOIN sessions a ON a.n = k.raised >> 32 WHERE k.root = s.root AND k.status = 'open' AND "
    + _BELOW.format("a.id", "s.id")
)
_ASKS_PERSON = (
    "(CASE WHEN s.status = 'running' THEN "
    f"EXISTS (SELECT 1 {_ASKED}) AND NOT EXISTS (SELECT 1 {_ASKED} AND k.target <> 'user') ELSE 0 END)"
)
"""Whether all that is open in a session and below it is for a person; told of running ones only."""

COLUMNS = (
    "s.id, s.agent, s.status, coalesce(p.id, ''), r.id, s.kind, s.created, e.time, e.key - (s.n << 32), s.base, "
    "(SELECT json_group_object(name, value) FROM tags WHERE tags.root = s.root), "
    f"{_ASKS_PERSON}, w.title, w.folder, w.roots, o.id, o.name, o.machine, o.pid, o.born, o.beat "
    "FROM sessions s JOIN sessions r ON r.n = s.root "
    "JOIN events e ON e.key = (SELECT max(key) FROM events WHERE key > s.n << 32 AND key < (s.n + 1) << 32) "
    "LEFT JOIN sessions p ON p.n = s.parent LEFT JOIN processes o ON o.id = r.owner "
    "LEFT JOIN places w ON w.root = s.root"
)
"""What `row_of` reads."""

_STATUS = {
    "running": "s.status = 'running' AND r.owner IN (SELECT value FROM json_each(?))",
    "interrupted": (
        f"s.status = 'running' AND r.owner NOT IN (SELECT value FROM json_each(?)) AND NOT {_ASKS_PERSON}"
    ),
    "waiting": (
        "(s.status = 'waiting' OR "
        f"s.status = 'running' AND r.owner NOT IN (SELECT value FROM json_each(?)) AND {_ASKS_PERSON})"
    ),
}
"""Those that depend on which processes live; every other status is the stored one."""

_WITH_TAG = "SELECT root FROM tags WHERE name = ? AND value = ?"
_TAGGED = f"(s.n IN ({_WITH_TAG}) OR s.parent IS NOT NULL AND s.root IN ({_WITH_TAG}))"
"""Roots and those below them apart: there is an index for each."""

_WITH_FOLDER = "SELECT root FROM places WHERE folder = ?"
_IN_FOLDER = f"(s.n IN ({_WITH_FOLDER}) OR s.parent IS NOT NULL AND s.root IN ({_WITH_FOLDER}))"

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
    """What follows WHERE, and the values for its question marks."""

    sql: str
    values: tuple[Any, ...]


def tree_values(session: str, after: int, limit: int) -> dict[str, Any]:
    """The values for TREE_EVENTS."""
    return {"session": session, "after": after, "limit": limit}


def row_of(values: Sequence[Any], living: Callable[[Sequence[Any]], str]) -> Row:
    """A row of COLUMNS; `living` names a process, given its columns, if it lives."""
    title, folder, roots = values[12:15]
    owner = living(values[15:]) if values[15] else ""
    tags = _tags.decode(values[10]) if values[10] != "{}" else {}
    row = Row(*values[:10], owner=owner, tags=tags, asks_person=bool(values[11]) and not owner)
    return row if title is None else row.replace(title=title, folder=folder, roots=_roots.decode(roots))


def sessions_where(
    which: Selection, parent: str | None, alive: Callable[[], str], before: str | None = None
) -> Condition:
    """The sessions that match; `alive` gives the ids of the processes that live, as a JSON list."""
    parts: list[Condition] = []
    if parent:
        parts.append(Condition("p.id = ?", (parent,)))
    elif parent is not None:
        parts.append(Condition("s.parent IS NULL", ()))
    if before is not None:
        parts.append(Condition("s.n < (SELECT n FROM sessions WHERE id = ?)", (before,)))
    if which.session is not None:
        parts.append(Condition(_BELOW.format("s.id", "?"), (which.session,) * 3))
    if which.agent is not None:
        parts.append(Condition("s.agent = ?", (which.agent,)))
    if which.status is not None:
        by_owner = _STATUS.get(which.status)
        parts.append(Condition(by_owner, (alive(),)) if by_owner else Condition("s.status = ?", (which.status,)))
    if which.folder is not None:
        parts.append(Condition(_IN_FOLDER, (which.folder,) * 2))
    return _all([*parts, *(Condition(_TAGGED, (*tag, *tag)) for tag in which.tags.items())])


def callbacks_where(which: Selection, now: float) -> Condition:
    """The callbacks for a person that match; without a status those that wait."""
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
    if status == "expired":  # also where nobody has noticed it yet
        return Condition("target = 'user' AND (status = 'expired' OR status = 'open' AND expires <= ?)", (now,))
    return Condition("target = 'user' AND status = ?", (status,))


def _all(parts: Sequence[Condition]) -> Condition:
    sql = " AND ".join(part.sql for part in parts)
    return Condition(sql or "1", tuple(value for part in parts for value in part.values))
