"""The SQL that reads: sessions, events and callbacks. All filtering is done by the query."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from upcall.callbacks import Callback, callback_raised, settled, with_step
from upcall.contracts import Row, Selection
from upcall.errors import StoreDamaged
from upcall.events import AnyEvent, CallbackRaised, decode

log = logging.getLogger("upcall")

_BELOW = "({0} = {1} OR ({0} > {1} || '~' AND {0} < {1} || chr(127)))"
"""A session's id equals another's, or begins with it and `~`, which is character 126."""

_ASKED = (
    "FROM upcall.callbacks k JOIN upcall.sessions a ON a.n = k.n WHERE k.root = s.root AND k.status = 'open' AND "
    + _BELOW.format("a.id", "s.id")
)
_ASKS_PERSON = (
    "(s.status = 'running' AND "
    f"EXISTS (SELECT 1 {_ASKED}) AND NOT EXISTS (SELECT 1 {_ASKED} AND k.target <> 'user'))"
)
"""True if all open callbacks of a session and below it wait for a person; only for running sessions."""

_COLUMNS = (
    "s.id, s.agent, s.status, coalesce(p.id, ''), r.id, s.kind, s.created, s.updated, s.seq, s.base, r.tags, "
    f"{_ASKS_PERSON}, r.title, r.folder, r.roots, o.id, o.name, o.machine, o.pid, o.born "
    "FROM upcall.sessions s JOIN upcall.sessions r ON r.n = s.root LEFT JOIN upcall.sessions p ON p.n = s.parent "
    "LEFT JOIN upcall.processes o ON o.id = r.owner AND "
    "(SELECT upcall.clock()) - greatest(o.beat, (SELECT upcall.started())) <= o.lease"
)
"""The columns that `row_of` reads. A process that sends no heartbeats is left out."""

ROW = f"SELECT {_COLUMNS} WHERE s.id = %s"

_LIVING = (
    "(SELECT id FROM upcall.processes o WHERE o.id <> ALL (%s::text[]) AND "
    "(SELECT upcall.clock()) - greatest(o.beat, (SELECT upcall.started())) <= o.lease)"
)
"""Living processes; the value is a list of those that are known to have ended before their lease."""

_OWNER = "(SELECT r.owner FROM upcall.sessions r WHERE r.n = s.root)"
_STATUS = {
    "running": f"s.status = 'running' AND {_OWNER} IN {_LIVING}",
    "interrupted": f"s.status = 'running' AND {_OWNER} NOT IN {_LIVING} AND NOT {_ASKS_PERSON}",
    "waiting": f"(s.status = 'waiting' OR s.status = 'running' AND {_OWNER} NOT IN {_LIVING} AND {_ASKS_PERSON})",
}
"""Statuses that depend on which processes are alive, each with the value of `_LIVING`. Others are as stored."""

_DUE = "CASE WHEN status = 'open' AND target = 'user' THEN expires ELSE 0 END"
"""The time at which an awaited callback lets its session continue, as in the index `callbacks_due`."""

UNFINISHED = (
    f"SELECT {_COLUMNS} WHERE s.n = ANY (ARRAY(SELECT upcall.ready_roots() "
    "UNION ALL SELECT root FROM upcall.queue WHERE ready AND due = 0)) "
    f"AND s.status IN ('running', 'waiting', 'queued') AND s.owner NOT IN {_LIVING} ORDER BY s.n LIMIT %s"
)
NEXT_DEADLINE = (
    f"SELECT least((SELECT min({_DUE}) FROM upcall.callbacks WHERE awaited AND {_DUE} > %s), "
    "(SELECT min(due) FROM upcall.queue WHERE ready AND due > 0 AND due > %s))"
)
COUNTS = (
    f"SELECT CASE WHEN s.status <> 'running' OR s.owner IN {_LIVING} THEN s.status "
    f"WHEN {_ASKS_PERSON} THEN 'waiting' ELSE 'interrupted' END, count(*) "
    "FROM upcall.sessions s WHERE s.parent IS NULL GROUP BY 1"
)
ENDED_BEFORE = (
    "SELECT s.id FROM upcall.sessions s WHERE s.parent IS NULL AND s.status = ANY (%s) "
    f"AND s.owner NOT IN {_LIVING} AND s.updated < %s ORDER BY s.n LIMIT %s"
)
PAUSE = (
    "INSERT INTO upcall.pauses VALUES (%s, %s) "
    "ON CONFLICT (name) DO UPDATE SET until = greatest(pauses.until, excluded.until)"
)
PAUSES = "SELECT name, until FROM upcall.pauses WHERE until > upcall.clock()"

EVENTS = (
    "SELECT s.id, e.seq, e.pos, e.time, e.body FROM upcall.events e JOIN upcall.sessions s ON s.n = e.n "
    "WHERE s.id = %s AND e.seq > %s ORDER BY e.seq LIMIT %s"
)
_EVENT = "(SELECT s.id FROM upcall.sessions s WHERE s.n = e.n), e.seq, e.pos, e.time, e.body"
"""An event's columns. Its session is looked up: for a join, the planner may read all sessions."""

ALL_EVENTS = (
    f"SELECT {_EVENT} FROM upcall.events e "
    "WHERE e.pos > %s AND e.pos < (SELECT upcall.horizon()) ORDER BY e.pos LIMIT %s"
)
LAST = "SELECT coalesce(max(pos), 0) FROM upcall.events WHERE pos < (SELECT upcall.horizon())"

NEWS = (
    "SELECT upcall.horizon(), upcall.clock(), "
    "coalesce((SELECT max(pos) FROM upcall.events WHERE pos < (SELECT upcall.horizon())), 0), "
    "pg_current_snapshot()::text"
)
"""The horizon, the time, the newest position that can be read, and the snapshot.

Two equal snapshots see the same rows.
"""

BY_OTHERS = f"SELECT {_EVENT} FROM upcall.events e WHERE e.by_others IS NOT NULL AND e.pos > %s ORDER BY e.pos"

TREE_EVENTS = f"""
WITH RECURSIVE
tree (n, last) AS MATERIALIZED (SELECT n, seq FROM upcall.sessions WHERE {_BELOW.format("id", "%(session)s")}),
search (n, low, high) AS (
    SELECT n, 1::bigint, last FROM tree
    WHERE (SELECT pos FROM upcall.events e WHERE e.n = tree.n AND e.seq = last) > %(after)s
    UNION ALL
    SELECT n,
        CASE WHEN pos > %(after)s THEN low ELSE (low + high) / 2 + 1 END,
        CASE WHEN pos > %(after)s THEN (low + high) / 2 ELSE high END
    FROM (SELECT n, low, high, (SELECT pos FROM upcall.events e WHERE e.n = x.n AND e.seq = (x.low + x.high) / 2)
        FROM search x WHERE low < high) y (n, low, high, pos)
)
SELECT {_EVENT} FROM search CROSS JOIN LATERAL (
    SELECT * FROM upcall.events e WHERE e.n = search.n AND e.seq >= low ORDER BY e.seq LIMIT %(limit)s) e
WHERE low = high ORDER BY e.pos LIMIT %(limit)s
"""
"""The next events of a session and all below it. Sequence numbers have no gaps and positions rise with them, so a
binary search finds where the page begins in each session."""

_CALLBACK = (
    "SELECT k.id, k.version, upcall.clock(), s.id, r.id, r.tags, k.status, k.target, k.message, k.path, k.expires, "
    "k.delivered, k.awaited, e.seq, e.pos, e.time, e.body, f.seq, f.pos, f.time, f.body FROM upcall.callbacks k "
    "JOIN upcall.sessions s ON s.n = k.n JOIN upcall.sessions r ON r.n = k.root "
    "JOIN upcall.events e ON e.n = k.n AND e.seq = k.raised "
    "LEFT JOIN upcall.events f ON f.n = k.n AND f.seq = k.settled WHERE "
)
CALLBACKS_BY_ID = f"{_CALLBACK}k.id = ANY (%s)"
CALLBACKS_OF_TREE = (
    f"{_CALLBACK}k.root = (SELECT n FROM upcall.sessions WHERE id = %s AND parent IS NULL) ORDER BY k.pos LIMIT %s"
)
BODIES = (
    "SELECT s.id, s.seq, e.seq, e.body FROM unnest(%s::text[], %s::integer[]) x (id, seq) "
    "JOIN upcall.sessions s ON s.id = x.id LEFT JOIN upcall.events e ON e.n = s.n AND e.seq = x.seq"
)

_steps = msgspec.json.Decoder(list[tuple[str, str, str]])
_tags = msgspec.json.Decoder(dict[str, str])
_roots = msgspec.json.Decoder(tuple[str, ...])


class Condition(NamedTuple):
    """A WHERE condition, and the values for its placeholders."""

    sql: str
    values: tuple[Any, ...]


def text_of(body: bytes) -> str:
    """Return a text that is stored as bytes."""
    return body.decode("utf-8", "surrogatepass")


def event_of(where: str, values: Sequence[Any]) -> AnyEvent:
    """Return a row of events as an event; StoreDamaged if it can't be read. `where` is shown in the error."""
    session, seq, pos, at, body = values
    try:
        return decode(body, session, seq, pos, at)
    except ValueError as error:
        problem = f"event {seq} of session {session!r} can't be read ({error}); upgrade upcall, or restore a backup"
        raise StoreDamaged(where, problem) from error


@contextlib.contextmanager
def left_out(what: str) -> Generator[None]:
    """Log a warning instead of raising StoreDamaged: one bad row does not hide the others."""
    try:
        yield
    except StoreDamaged as error:
        log.warning("%s is left out: %s", what, error)


def row_of(values: Sequence[Any], living: Callable[[Sequence[Any]], str]) -> Row:
    """Return a row of the columns above. `living` returns a process's name, or "" if it has ended."""
    tags, asks, title, folder, roots = values[10:15]
    owner = living(values[15:]) if values[15] else ""
    row = Row(*values[:10], owner=owner, tags=_tags.decode(tags) if tags else {}, asks_person=asks and not owner)
    if title is None:
        return row
    return row.replace(title=text_of(title), folder=text_of(folder), roots=_roots.decode(roots))


def callback_of(values: Sequence[Any]) -> Callback:
    """Return a callback from its row; ValueError says why it can't be read."""
    session, root, tags, status, target, message, path, expires, delivered, awaited = values[3:13]
    raised = _event(session, values[13:17])
    if not isinstance(raised, CallbackRaised):
        wrong = f"event {values[13]} of session {session!r} does not raise a callback"
        raise ValueError(wrong)  # noqa: TRY004 - of the log, not of an argument
    end = _event(session, values[17:21]) if values[17] is not None else None
    try:
        callback = callback_raised(raised, session, root, _tags.decode(tags) if tags else {})
        steps = callback.path
        for agent, step, reason in _steps.decode(path):
            steps = with_step(steps, callback.route, agent, step, reason)
        callback = callback if end is None else settled(callback, end)
    except (msgspec.MsgspecError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"the callback's path or answer can't be read ({error})") from None
    return replace(
        callback, status=status, target=target, reworded=text_of(message) if message else "", path=steps,
        expires=expires, delivered=delivered, awaited=awaited,
    )  # fmt: skip


def _event(session: str, values: Sequence[Any]) -> AnyEvent:
    seq, pos, at, body = values
    try:
        return decode(body, session, seq, pos, at)
    except ValueError as error:
        raise ValueError(f"event {seq} of session {session!r} can't be read ({error})") from None


# --- listing ----------------------------------------------------------------------------


def sessions_listing(
    which: Selection, gone: list[str], parent: str | None, before: str | None, limit: int
) -> Condition:
    """Return the statement that lists the sessions that match. `gone`: processes that are known to have ended.

    The numbers of the page are found first: only for these is the rest read.
    """
    parts = list(_matching(which, gone, parent))
    if before is not None:
        parts.append(Condition("s.n < (SELECT n FROM upcall.sessions WHERE id = %s)", (before,)))
    where, values = _all(parts)
    order = "" if parent else " DESC"
    page = f"SELECT s.n FROM upcall.sessions s WHERE {where} ORDER BY s.n{order} LIMIT %s"
    return Condition(f"SELECT {_COLUMNS} WHERE s.n IN ({page}) ORDER BY s.n{order}", (*values, limit))


def _matching(which: Selection, gone: list[str], parent: str | None) -> Iterator[Condition]:
    if parent:
        yield Condition("s.parent = (SELECT n FROM upcall.sessions WHERE id = %s)", (parent,))
    elif parent is not None:
        yield Condition("s.parent IS NULL", ())
    if which.session is not None:
        yield Condition(_BELOW.format("s.id", "%s"), (which.session,) * 3)
    if which.agent is not None:
        yield Condition("s.agent = %s", (which.agent,))
    if which.status is not None:
        by_owner = _STATUS.get(which.status)
        yield Condition(by_owner, (gone,)) if by_owner else Condition("s.status = %s", (which.status,))
    for name, value in which.tags.items():
        tagged = "s.root IN (SELECT root FROM upcall.tags WHERE name = %s AND value = %s)"
        yield Condition(tagged, (_bytes(name), _bytes(value)))
    if which.folder is not None:
        found = "s.root IN (SELECT n FROM upcall.sessions WHERE folder = %s)"
        if which.folder:
            yield Condition(found, (_bytes(which.folder),))
        else:  # most sessions have none
            yield Condition(
                "NOT EXISTS (SELECT 1 FROM upcall.sessions f WHERE f.n = s.root AND f.folder <> '')", ()
            )


def inbox_listing(which: Selection, limit: int) -> Condition:
    """Return the statement that lists callbacks for a person that match; without a status, the open ones."""
    parts = [Condition(_of_status(which.status or "open"), (which.status,) if _is_plain(which.status) else ())]
    if which.session is not None:
        parts.append(Condition(_BELOW.format("s.id", "%s"), (which.session,) * 3))
    if which.agent is not None:
        parts.append(Condition("s.agent = %s", (which.agent,)))
    tagged = "EXISTS (SELECT 1 FROM upcall.tags t WHERE t.name = %s AND t.value = %s AND t.root = k.root)"
    parts += [Condition(tagged, (_bytes(name), _bytes(value))) for name, value in which.tags.items()]
    where, values = _all(parts)
    return Condition(f"{_CALLBACK}{where} ORDER BY k.rank, k.created, k.pos LIMIT %s", (*values, limit))


def _is_plain(status: str | None) -> bool:
    return status not in (None, "open", "expired")


def _of_status(status: str) -> str:
    clock = "(SELECT upcall.clock())"
    if status == "open":
        return f"k.status = 'open' AND k.target = 'user' AND (k.expires IS NULL OR k.expires > {clock})"
    if status == "expired":  # even if no process has recorded that yet
        return f"k.target = 'user' AND (k.status = 'expired' OR k.status = 'open' AND k.expires <= {clock})"
    return "k.target = 'user' AND k.status = %s"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _all(parts: Sequence[Condition]) -> Condition:
    sql = " AND ".join(part.sql for part in parts)
    return Condition(sql or "true", tuple(value for part in parts for value in part.values))
