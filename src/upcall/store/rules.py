"""The rules that every store keeps, as pure functions.

A store decides how rows are written and committed. These functions say what it may commit: who may append which
events, what an append changes beside the log, and how a callback changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from upcall.callbacks import PRIORITIES, Callback, after, callback_raised
from upcall.contracts import Claim, Ready, Selection, TakeLimit
from upcall.errors import (
    QueueFull,
    SessionExists,
    SessionTakenOver,
    StoreError,
    TurnExists,
    UnknownCallback,
    UnknownSession,
)
from upcall.events import (
    ANSWERING,
    FOREIGN,
    SETTLING,
    AnyEvent,
    CallbackAsked,
    CallbackDelivered,
    CallbackPassed,
    CallbackRaised,
    CallbackWithdrawn,
    CancelRequested,
    Compacted,
    HooksPassed,
    Parked,
    Responded,
    SessionAdopted,
    SessionStarted,
    ToolEnded,
    TurnEnded,
    TurnQueued,
    TurnResumed,
    TurnStarted,
)
from upcall.messages import Message, Priority, Result

Find = Callable[[str], Callback | None]
"""Looks a callback up by its id."""

# --- ids --------------------------------------------------------------------------------

NOBODY = "\ufffe"
"""An id that no session and no callback has."""


def findable(id: str) -> str:
    """Return an id or a name to look for; NOBODY if no log can have it.

    PostgreSQL has no texts with the character zero, and no store can write half a character (a lone surrogate).
    """
    if "\0" in id or id == NOBODY:
        return NOBODY
    if not id.isascii():
        try:
            id.encode()
        except UnicodeEncodeError:
            return NOBODY
    return id


def findable_selection(which: Selection) -> Selection:
    """Return a selection whose session and agent can be looked for."""
    if which.session is not None:
        which = which.replace(session=findable(which.session))
    return which if which.agent is None else which.replace(agent=findable(which.agent))


def check_id(where: str, session: str, first: AnyEvent) -> None:
    """Raise if no session can have the id to which events are appended, or that of a parent or a root."""
    if findable(session) == NOBODY:
        if not isinstance(first, SessionStarted):
            raise UnknownSession(session)
        raise StoreError(
            where, f"{session[:80]!r} can't be the id of a session: it has a character that can't be stored as text"
        )
    if type(first) is SessionStarted and (first.parent or first.root):
        for one in required_sessions(session, first):
            if findable(one) == NOBODY:
                raise UnknownSession(one)


# --- who may append what ----------------------------------------------------------------


def claim_error(claim: Claim, where: str) -> Exception:
    """Return the exception for an append with a claim that is no longer active."""
    return claim.failure or StoreError(where, f"the claim on {claim.root!r} was given up")


def check_fence(claim: Claim, epoch: int | None) -> None:
    """Raise if the claim failed or is not the newest one.

    epoch: the epoch of its root session, None if that was deleted
    """
    if claim.failure is not None:
        raise claim.failure
    if epoch != claim.epoch:
        raise SessionTakenOver(claim.root)


def check_append(
    where: str, session: str, events: Sequence[AnyEvent], claim: Claim | None, *, exists: bool, covered: bool
) -> None:
    """Raise if these events may not be appended.

    exists: the session is in the store
    covered: the claim is on the session's run tree; counts only for a session that exists
    """
    first = events[0]
    if not exists:
        check_id(where, session, first)
        if not isinstance(first, SessionStarted):
            raise UnknownSession(session)
        allowed = claim is None or claim.root == (first.root or session)
    elif isinstance(first, SessionStarted):
        raise SessionExists(session)
    elif claim is None:
        allowed = all(isinstance(event, FOREIGN) for event in events)
    else:
        allowed = covered
    if not allowed:
        raise StoreError(where, f"only the owner of the run tree of session {session!r} may append {first.type}")


def required_sessions(session: str, started: SessionStarted) -> set[str]:
    """Return the ids of the sessions that must exist before this one can start: its parent and its root."""
    return {one for one in (started.parent, started.root) if one and one != session}


# --- what an append changes beside the log ----------------------------------------------

CALLBACK_EVENTS = {CallbackRaised, CallbackAsked, CallbackPassed, CallbackDelivered, *SETTLING}
STATUS: dict[type[Any], str] = {TurnStarted: "running", TurnResumed: "running", Parked: "waiting"}
QUEUE_EVENTS = {TurnQueued, CancelRequested}
INDEXED_EVENTS = {*STATUS, TurnEnded, HooksPassed, Compacted, SessionAdopted, *QUEUE_EVENTS, *CALLBACK_EVENTS}
"""The events that have effects; an append of others changes nothing but the log."""


class Effects(msgspec.Struct, gc=False):
    """The changes that one append makes beside the log. A store writes them in the same transaction.

    status: the new status of the session; with it the session waits for `waits` and for nothing else
    waits: the ids of the callbacks for which the session is parked
    base: the sequence number from which the session is loaded since its last compaction
    callbacks: the callback events, each with its sequence number
    reopened: the ids of callbacks that are asked again
    replaced: the sequence numbers of events whose body a hook replaced; see `without_body`
    queued: the turns that are queued
    begun: how many queued turns started
    unqueued: True if queued turns are cancelled
    retry: the time from which the failed turn may be tried again; 0.0 if it is not
    """

    status: str | None = None
    waits: tuple[str, ...] = ()
    base: int | None = None
    callbacks: tuple[tuple[int, AnyEvent], ...] = ()
    reopened: tuple[str, ...] = ()
    replaced: tuple[int, ...] = ()
    queued: tuple[TurnQueued, ...] = ()
    begun: int = 0
    unqueued: bool = False
    retry: float = 0.0


def effects_of(events: Sequence[AnyEvent], first: int) -> Effects:
    """Return the effects of appending these events; `first` is the first sequence number."""
    effects = Effects()
    for seq, event in enumerate(events, first):
        kind = type(event)
        if kind not in INDEXED_EVENTS:
            continue
        if kind in CALLBACK_EVENTS:
            effects.callbacks += ((seq, event),)
        elif kind in STATUS:
            effects.status = STATUS[kind]
            effects.waits = event.waits if type(event) is Parked else ()
            effects.begun += type(event) is TurnStarted and event.queued > 0
        elif type(event) is TurnEnded:
            effects.status, effects.waits, effects.retry = event.status, (), event.retry
        elif type(event) is TurnQueued:
            effects.queued += (event,)
        elif kind is CancelRequested:
            effects.unqueued = True
        elif type(event) is Compacted:
            effects.base = event.base or seq
        elif type(event) is SessionAdopted:
            effects.reopened += event.reopened
        elif type(event) is HooksPassed and event.point == "begin_session":  # a hook may have waited
            effects.status, effects.waits = "idle", ()
        elif type(event) is HooksPassed and event.replaces:
            effects.replaced += (event.replaces,)
    return effects


def without_body(event: AnyEvent) -> AnyEvent:
    """Return the event without the body that a hook replaced; the event itself stays in the log."""
    match event:
        case ToolEnded():
            return event.replace(result=Result(event.call_id, ""), dropped=True)
        case Responded() | TurnStarted():
            return event.replace(message=Message(event.message.role, ()))
        case _:
            return event


# --- the queue ---------------------------------------------------------------------------


class QueueEntry(msgspec.Struct, gc=False):
    """A root session's entry in the queue, from its first TurnQueued, or from the first time a worker takes it.

    agent: the session's agent
    tenant, rank: those of its newest TurnQueued, or of a normal one without a tenant; the lowest rank comes first
    turn: the highest turn number of its TurnQueued events
    queued: how many queued turns have not started
    due: with the status `queued`, the time from which it is ready; 0.0 for now
    taken: True from `take` until its turn ends or parks; counts while its owner lives
    """

    agent: str
    tenant: str = ""
    rank: int = -1
    turn: int = 0
    queued: int = 0
    due: float = 0.0
    taken: bool = False


def check_queued(
    where: str, session: str, events: Sequence[AnyEvent], entry: QueueEntry | None, *, is_root: bool
) -> None:
    """Raise TurnExists if one of the events queues a turn that was queued before.

    entry: the session's entry in the queue; None if it has none
    is_root: the session is at the top of its run tree; turns of others can't be queued
    """
    last = 0 if entry is None else entry.turn
    for event in events:
        if type(event) is TurnQueued:
            if not is_root:
                raise StoreError(where, f"{session!r} was started by another session, so its turns can't be queued")
            if event.turn <= last:
                raise TurnExists(session, event.turn)
            last = event.turn


def check_room(events: Mapping[str, Sequence[AnyEvent]], queued: int, limit: int | None) -> None:
    """Raise QueueFull if these events queue more sessions than the limit allows. `queued`: how many are now."""
    added = [one for one, more in events.items() if any(type(event) is TurnQueued for event in more)]
    if limit is not None and added and queued + len(added) > limit:
        raise QueueFull(added[0], limit)


def queue_after(entry: QueueEntry, before: str, effects: Effects) -> str:
    """Apply an append to a session's entry in the queue, and return the session's status after it.

    before: its status before the append
    """
    for event in effects.queued:
        entry.tenant, entry.rank, entry.turn = event.tenant, priority_rank(event.priority), event.turn
    entry.queued = 0 if effects.unqueued else max(0, entry.queued + len(effects.queued) - effects.begun)
    if effects.status is not None:
        entry.due = effects.retry
        entry.taken = entry.taken and effects.status == "running"
    status = effects.status or before
    if effects.retry:
        return "queued"
    if status in ("running", "waiting"):
        return status
    if effects.unqueued and before == "queued":
        entry.due = 0.0
        return "cancelled"
    return "queued" if entry.queued else status


def priority_rank(priority: Priority) -> int:
    """Return the rank of a priority: the highest has the lowest."""
    return _RANKS[priority]


class Candidate(NamedTuple):
    """Run trees of one agent, tenant and rank that can be taken.

    rank, agent, tenant: of all of them
    oldest: the number of the oldest session
    """

    rank: int
    agent: str
    tenant: str
    oldest: int


Groups = Mapping[tuple[str, str], int]
"""How many trees there are of each agent and tenant."""


def take_order(
    candidates: Iterable[Candidate],
    agents: Collection[str] | None,
    limits: Sequence[TakeLimit],
    running: Groups,
    taken: Groups,
) -> list[Candidate]:
    """Return the candidates that may be taken, the next one first.

    running: the trees that workers run now
    taken: the trees that were taken within the last minute
    """
    by_tenant: dict[str, int] = {}
    for (_, tenant), trees in running.items():
        by_tenant[tenant] = by_tenant.get(tenant, 0) + trees

    def count(groups: Groups, limit: TakeLimit) -> int:
        return sum(trees for group, trees in groups.items() if limit.covers(*group))

    full = [
        limit
        for limit in limits
        if (limit.running is not None and count(running, limit) >= limit.running)
        or (limit.per_minute is not None and count(taken, limit) >= limit.per_minute)
    ]
    allowed = [
        one
        for one in candidates
        if (agents is None or one.agent in agents)
        and not any(limit.covers(one.agent, one.tenant) for limit in full)
    ]
    return sorted(allowed, key=lambda one: (one.rank, by_tenant.get(one.tenant, 0), one.oldest))


def counts_takes(limits: Sequence[TakeLimit]) -> bool:
    """Return whether a take with these limits is counted."""
    return any(limit.per_minute is not None for limit in limits)


TAKE_WINDOW = 60.0
"""Seconds for which a take counts."""

ENDED = ("done", "failed", "cancelled", "limit")
"""Statuses of sessions whose last turn is over."""

# --- callbacks --------------------------------------------------------------------------

_RANKS = {word: -number for number, word in enumerate(PRIORITIES)}


class CallbackChanges(NamedTuple):
    """The callbacks that an append changes, by id.

    raised: new ones
    changed: those that were passed on, asked or settled
    delivered: the ids of those whose answer was delivered
    """

    raised: dict[str, Callback]
    changed: dict[str, Callback]
    delivered: list[str]


def callback_changes(
    events: Iterable[Any], find: Find, root: str = "", tags: Mapping[str, str] | None = None
) -> CallbackChanges:
    """Apply callback events to the callbacks that `find` has. `root` and `tags` are those of new ones."""
    changes = CallbackChanges({}, {}, [])
    raised, changed, delivered = changes
    for event in events:
        callback_id: str = event.callback_id
        if isinstance(event, CallbackRaised):
            raised[callback_id] = callback_raised(event, event.session, root, tags)
        elif isinstance(event, CallbackDelivered):
            delivered.append(callback_id)
        elif callback_id in raised:
            raised[callback_id] = after(raised[callback_id], event)
        else:
            before = changed.get(callback_id) or find(callback_id)
            if before is not None and before.status == "open":
                changed[callback_id] = after(before, event)
    return changes


def as_of(callback: Callback, now: float) -> Callback:
    """Return the callback at that moment: an open one whose time is up has expired."""
    late = callback.status == "open" and callback.expires is not None and callback.expires <= now
    return replace(callback, status="expired") if late else callback


def waits_for_person(callback: Callback) -> bool:
    """Return whether the callback is in the inbox."""
    return callback.status == "open" and callback.target == "user"


def rank(callback: Callback) -> tuple[int, float, int]:
    """Return the sort key of the inbox: highest priority first, then oldest."""
    return (_RANKS[callback.priority], callback.created, callback.pos)


def all_open(callback_ids: Iterable[str], find: Find) -> bool:
    """Return whether a run tree may park: every callback that it waits for is still open."""
    return all((found := find(one)) is not None and found.status == "open" for one in callback_ids)


def is_moot(event: AnyEvent, find: Find) -> bool:
    """Return whether the event withdraws a callback that is already settled: the first settlement wins."""
    if not isinstance(event, CallbackWithdrawn):
        return False
    callback = find(event.callback_id)
    return callback is not None and callback.status != "open"


class Settlement(NamedTuple):
    """The outcome of an attempt to settle callbacks.

    refused: what the first callback already is, or None
    events: the events to append, each with its session
    """

    refused: Callback | None
    events: list[tuple[str, AnyEvent]]


def settle_open(callback_id: str, events: Mapping[str, AnyEvent], find: Find, now: float) -> Settlement:
    """Settle a callback if it is open, and those of the others that are open.

    An answer to a callback whose time is up is refused; UnknownCallback if there is no such callback.
    """
    first = find(callback_id)
    if first is None:
        raise UnknownCallback(callback_id)
    current = as_of(first, now) if isinstance(events[callback_id], ANSWERING) else first
    if current.status != "open":
        return Settlement(current, [])
    found = ((first if one == callback_id else find(one), event) for one, event in events.items())
    return Settlement(
        None, [(one.session_id, event) for one, event in found if one is not None and one.status == "open"]
    )


def queue_record(root: str, due: float) -> Ready:
    """Return the record for a run tree whose root got the status `queued` by an append."""
    return Ready(root, "retry" if due else "queued", due)


def release_record(root: str, status: str) -> Ready | None:
    """Return the record for a run tree that its owner releases in the middle of a turn, or before a queued one."""
    return Ready(root, "released") if status in ("running", "queued") else None


def ready_records(
    root: str, effects: Effects, changed: Iterable[Callback], find: Find, *, child_ended: bool
) -> list[Ready]:
    """Return the reasons why a run tree can be resumed after an append, now or later.

    changed: the callbacks that the append changed
    child_ended: it ended the turn of a child and released the claim on the tree
    """
    records: list[Ready] = []
    if any(one.awaited and one.status != "open" for one in changed):
        records.append(Ready(root, "settled"))
    waits = [found for one in effects.waits if (found := find(one)) is not None]
    moments = [one.expires if one.target == "user" else 0.0 for one in waits]
    due = [moment for moment in moments if moment is not None]
    if due:
        records.append(Ready(root, "parked", min(due)))
    if child_ended:
        records.append(Ready(root, "child_ended"))
    return records


# --- listing ----------------------------------------------------------------------------


def matches(which: Selection, session: str, agent: str, tags: Mapping[str, str]) -> bool:
    """Return whether a session is selected by its id, its agent and its tags."""
    if which.session is not None and not f"{session}~".startswith(f"{which.session}~"):
        return False
    return (which.agent is None or agent == which.agent) and which.tags.items() <= tags.items()
