"""The writes of a store: each becomes one value of `jobs` for the function `upcall.write`."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from upcall.callbacks import HOOK_ORIGIN, Callback, reopened, steps_taken
from upcall.contracts import Claim, TakeLimit
from upcall.errors import QueueFull, SessionTakenOver, StoreError, TurnExists, UnknownSession
from upcall.events import (
    ANSWERING,
    FOREIGN,
    SETTLING,
    AnyEvent,
    CallbackRaised,
    HooksPassed,
    Parked,
    SessionAdopted,
    SessionStarted,
    TurnEnded,
    TurnQueued,
    decode,
    encode,
    stamp,
)
from upcall.store.rules import (
    CALLBACK_EVENTS,
    INDEXED_EVENTS,
    NOBODY,
    Effects,
    all_open,
    callback_changes,
    check_append,
    check_id,
    effects_of,
    findable,
    is_moot,
    priority_rank,
    rank,
    ready_records,
    required_sessions,
    settle_open,
    without_body,
)

_RELATIVE = 1 << 40
"""Sequence numbers from here on count from the first event of the append: the database gives the real ones."""

_LOOKED_UP = CALLBACK_EVENTS - {CallbackRaised}


class Needs(NamedTuple):
    """What a job must know of the database before it can be written.

    callbacks: their ids
    bodies: sessions and sequence numbers of events whose bodies a hook replaced
    """

    callbacks: set[str]
    bodies: set[tuple[str, int]]


class Known(NamedTuple):
    """What was found for the needs of several jobs.

    callbacks: those that exist, each with the version of its row
    bodies: events, by session and sequence number
    seqs: the newest sequence number of each session of which a body was needed
    now: the store's time
    """

    callbacks: Mapping[str, tuple[Callback, int]]
    bodies: Mapping[tuple[str, int], bytes]
    seqs: Mapping[str, int]
    now: float


NOTHING = Known({}, {}, {}, 0.0)


class Stamps(NamedTuple):
    """The stamps of one part of a job: the number of the part, its first sequence number and position, its time."""

    part: int
    first: int
    start: int
    at: float


class Part(NamedTuple):
    """The events for one session, with their bodies."""

    session: str
    events: Sequence[AnyEvent]
    bodies: Sequence[bytes]


class Bodies:
    """The values of `bodies`: everything that a model can word."""

    def __init__(self) -> None:
        self.values: list[bytes] = []

    def add(self, body: bytes) -> int:
        """Add a value; return its number, from 1."""
        self.values.append(body)
        return len(self.values)

    def text(self, text: str) -> int:
        """Add a text; return its number."""
        return self.add(text.encode("utf-8", "surrogatepass"))


class Job:
    """A write that is done whole or not at all.

    claim: the claim that it needs, and that it marks if it fails
    number: its number among the appends of its claim; None for what needs no claim
    fence: it is written only while this claim holds, but needs no claim otherwise
    """

    claim: Claim | None = None
    fence: Claim | None = None
    number: int | None = None
    releases = False
    lazy = False
    error: Exception | None = None
    blobs: Mapping[str, bytes] | None = None

    def __init__(self) -> None:
        self.id = str(uuid.uuid4())
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.parts: list[Part] = []
        self.ready = False
        self._find_used: dict[str, int | None] = {}

    @property
    def tree(self) -> str:
        """The claimed run tree, or a name of its own: jobs of one tree are written in their order."""
        claim = self.claim or self.fence
        return claim.root if claim is not None else self.id

    def needs(self) -> Needs:
        """Return what has to be read before."""
        needs = Needs(set(), set())
        for part in self.parts:
            _add_needs(needs, part)
        return needs

    def check_ids(self, where: str) -> None:
        """Raise if no session can have one of the ids."""
        for part in self.parts:
            check_id(where, part.session, part.events[0])

    def plan(self, known: Known, bodies: Bodies) -> dict[str, Any] | None:
        """Return the value for `upcall.write`; None if nothing is to be written."""
        self._find_used = {}

        def find(callback_id: str) -> Callback | None:
            found = known.callbacks.get(callback_id)
            if found is None and findable(callback_id) == NOBODY:
                return None
            self._find_used[callback_id] = None if found is None else found[1]
            return None if found is None else found[0]

        limit = self.decide(known, find)
        if limit is None:
            return None
        claim = self.claim or self.fence
        planned: dict[str, Any] = {"parts": [self._plan_part(p, known, find, bodies) for p in self.parts]}
        if claim is not None:
            planned["claim"], planned["epoch"] = claim.root, claim.epoch
        if self.number is not None:
            planned["k"] = self.number
        else:
            planned["id"] = self.id
        if self.releases:
            planned["release"] = True
        if limit:
            planned["before"] = limit
        if self._find_used:
            planned["expect"] = list(self._find_used.items())
        if self.blobs:
            planned["blobs"] = [(name, bodies.add(body)) for name, body in self.blobs.items()]
        if self.ready or (
            self.number is None and any(isinstance(e, FOREIGN) for p in self.parts for e in p.events)
        ):
            planned["notify"] = True
        return planned

    def decide(self, known: Known, find: Any) -> float | None:
        """Choose the parts; return the time before which to write them, 0.0 for any, None to write nothing."""
        return 0.0

    def _plan_part(self, part: Part, known: Known, find: Any, bodies: Bodies) -> dict[str, Any]:
        planned: dict[str, Any] = {"s": part.session, "b": [bodies.add(body) for body in part.bodies]}
        first = part.events[0]
        if type(first) is SessionStarted:
            planned["new"] = _new_session(part.session, first, bodies)
        if self.number is None:
            planned["foreign"] = all(isinstance(event, FOREIGN) for event in part.events)
        if any(type(event) in INDEXED_EVENTS for event in part.events):
            effects = effects_of(part.events, _RELATIVE)
            planned["effects"] = self._plan_effects(part, effects, find, bodies)
            if effects.queued:
                planned["turns"] = planned["effects"]["queued"]
            if effects.replaced:
                planned["seq"] = known.seqs.get(part.session, 0)
                planned["effects"]["drop"] = _drops(part, effects, known, planned, bodies)
        return planned

    def _plan_effects(self, part: Part, effects: Effects, find: Any, bodies: Bodies) -> dict[str, Any]:
        planned: dict[str, Any] = {}
        if effects.status is not None:
            planned["status"] = effects.status
        if effects.queued:
            planned["queued"] = [(e.turn, priority_rank(e.priority), plain(e.tenant)) for e in effects.queued]
        if effects.begun:
            planned["begun"] = effects.begun
        if effects.unqueued:
            planned["unqueued"] = True
        if effects.retry:
            planned["retry"] = effects.retry
        if effects.base is not None:
            relative = effects.base >= _RELATIVE
            planned["base_at" if relative else "base"] = effects.base - (_RELATIVE if relative else 0)
        again = [
            (one, reopened(before)) for one in effects.reopened if (before := find(one)) and before.status != "open"
        ]
        changes = callback_changes([event for _, event in effects.callbacks], find)
        raised = [
            {"at": _at(one, effects, CallbackRaised), "rank": rank(callback)[0], "awaited": one in effects.waits}
            | _callback_row(callback, effects, bodies)
            | ({"hook_of": callback.origin[len(HOOK_ORIGIN) :]} if callback.origin.startswith(HOOK_ORIGIN) else {})
            for one, callback in changes.raised.items()
        ]
        changed = [_callback_row(callback, effects, bodies) for callback in changes.changed.values()]
        changed += [{**_callback_row(callback, effects, bodies), "reopened": True} for _, callback in again]
        waits = [one for one in effects.waits if one not in changes.raised]
        lists = {
            "raised": raised,
            "changed": changed,
            "delivered": [*map(findable, changes.delivered)],
            "waits": [*map(findable, waits)],
        }
        planned.update({name: values for name, values in lists.items() if values})
        ended = self.releases and part.session != self.tree and any(type(e) is TurnEnded for e in part.events)
        look = {**changes.raised, **changes.changed}

        def find_now(callback_id: str) -> Callback | None:
            return look.get(callback_id) or find(callback_id)

        if ready_records("", effects, changes.changed.values(), find_now, child_ended=ended):
            self.ready = True
        return planned

    def stamp(self, stamps: Sequence[Stamps]) -> None:
        """Stamp the events as they were stored."""
        for part, first, start, at in stamps:
            session, events, _ = self.parts[part]
            for i, event in enumerate(events):
                stamp(event, session, first + i, start + i, at)

    def refusal(self, where: str, problem: str, part: int, detail: str) -> Exception:
        """Return the exception for a job that the database refused."""
        claim = self.claim or self.fence
        if problem in ("taken", "failed") and claim is not None:
            return claim.failure or SessionTakenOver(claim.root)
        session, events, _ = self.parts[part]
        if detail.startswith("turn "):
            return TurnExists(session, int(detail[5:]))
        if detail == "child":
            return StoreError(where, f"a turn of {session!r} can't be queued: another session started it")
        try:
            check_append(where, session, events, self.claim, exists=detail == "present", covered=False)
        except Exception as error:
            return error
        return UnknownSession(detail.removeprefix("needs "))

    def notifications(self) -> Sequence[AnyEvent]:
        """Return the events for listeners of the store in this process."""
        return [e for p in self.parts for e in p.events] if self.number is None else ()

    def result(self) -> Any:
        """Return the value for the code that awaits the job."""
        return None


class Append(Job):
    """Append events to one session."""

    def __init__(
        self,
        session: str,
        events: Sequence[AnyEvent],
        claim: Claim | None,
        blobs: Mapping[str, bytes] | None,
        release: bool,
    ) -> None:
        super().__init__()
        self.parts = [Part(session, events, [encode(event) for event in events])]
        self.claim, self.blobs, self.releases = claim, blobs, release and claim is not None


class MultiAppend(Job):
    """Append events to several sessions, all or none. With a claim it parks: it releases the claim.

    A run tree parks only if every callback in `waits` is still open; the result is False if one is not.
    """

    def __init__(
        self,
        events: Mapping[str, Sequence[AnyEvent]],
        claim: Claim | None = None,
        waits: Sequence[str] = (),
        blobs: Mapping[str, bytes] | None = None,
        queue_limit: int | None = None,
    ) -> None:
        super().__init__()
        self._queue_limit = queue_limit
        self.claim, self.releases, self.blobs, self._waits = claim, claim is not None, blobs, waits
        self._all = [Part(session, added, [encode(e) for e in added]) for session, added in events.items() if added]
        self.parts = self._all
        self._may_park = True

    def needs(self) -> Needs:
        """Return also the callbacks that the tree waits for."""
        self.parts = self._all
        needs = super().needs()
        needs.callbacks.update(self._waits)
        return needs

    def decide(self, known: Known, find: Any) -> float | None:
        """Leave out what is moot; None if the tree may not park, or nothing is left."""
        self._may_park = all_open(self._waits, find)
        if not self._may_park:
            self.parts, self.releases = [], False
            return None
        self.parts = []
        for session, events, bodies in self._all:
            left = [(e, b) for e, b in zip(events, bodies, strict=True) if not is_moot(e, find)]
            if left:
                self.parts.append(Part(session, [e for e, _ in left], [b for _, b in left]))
        return 0.0 if self.parts or self.claim is not None else None

    def plan(self, known: Known, bodies: Bodies) -> dict[str, Any] | None:
        """Add the limit of the queue."""
        planned = super().plan(known, bodies)
        queues = self._queues()
        if planned is not None and queues and self._queue_limit is not None:
            planned["queue_limit"], planned["queues"] = self._queue_limit, len(queues)
        return planned

    def _queues(self) -> list[str]:
        """The sessions of which a turn is queued."""
        return [part.session for part in self._all if any(type(e) is TurnQueued for e in part.events)]

    def refusal(self, where: str, problem: str, part: int, detail: str) -> Exception:
        """Return the exception for a job that the database refused."""
        if detail == "full" and self._queue_limit is not None:
            return QueueFull(self._queues()[0], self._queue_limit)
        return super().refusal(where, problem, part, detail)

    def result(self) -> bool:
        """Return False if the run tree may not park."""
        return self._may_park


class Operation(Job):
    """Run one statement, in order with the writes of its run tree; the result is its rows.

    again: the statement to use if the first one may have been done
    repair: returns a statement to run before it is tried again
    lost: it may have been done before, and the answer was lost
    """

    def __init__(
        self,
        sql: str,
        values: tuple[Any, ...],
        root: str = "",
        *,
        again: tuple[str, tuple[Any, ...]] | None = None,
        repair: Callable[[], tuple[str, tuple[Any, ...]]] | None = None,
        lost: bool = False,
    ) -> None:
        super().__init__()
        self.statement, self.again, self.repair, self._root = (sql, values), again, repair, root
        self.lost = lost
        self.rows: list[Any] = []

    @property
    def tree(self) -> str:
        """The run tree, or a name of its own."""
        return self._root or self.id

    def result(self) -> list[Any]:
        """Return the rows."""
        return self.rows


class Claiming(Job):
    """Claim a run tree; many are claimed with one statement. The result is the row of `upcall.claim_all`.

    who: the values of this process
    beat: a heartbeat is due
    gone: an owner that is known to have ended
    """

    def __init__(self, root: str, who: tuple[Any, ...], *, beat: bool, take_over: bool, gone: str) -> None:
        super().__init__()
        self.root, self.who, self.beat, self.take_over, self.gone = root, who, beat, take_over, gone
        self.row: Any = None

    @property
    def tree(self) -> str:
        """The run tree."""
        return self.root

    def result(self) -> Any:
        """Return the row."""
        return self.row


class Settle(Job):
    """Settle a callback, and others with it: the first valid attempt wins."""

    def __init__(self, callback_id: str, events: Mapping[str, AnyEvent], fence: Claim | None) -> None:
        super().__init__()
        self._callback_id, self._events, self.fence = callback_id, events, fence
        self._encoded = {id(event): encode(event) for one, event in events.items() if findable(one) != NOBODY}
        self._refused: Callback | None = None

    def needs(self) -> Needs:
        """Return the callbacks to settle."""
        return Needs(set(self._events), set())

    def decide(self, known: Known, find: Any) -> float | None:
        """Choose the callbacks that are open; None if the first one is not."""
        self._refused, chosen = settle_open(self._callback_id, self._events, find, known.now)
        self.parts = _joined([(session, event, self._encoded[id(event)]) for session, event in chosen])
        if self._refused is not None or not self.parts:
            return None
        first = find(self._callback_id)
        expires = first.expires if isinstance(self._events[self._callback_id], ANSWERING) else None
        return expires or 0.0

    def result(self) -> Callback | None:
        """Return the callback as it was already settled, or None."""
        return self._refused


def limits_json(limits: Sequence[TakeLimit]) -> str:
    """Return the limits of a take as `upcall.take` reads them."""
    shown = [
        {"agents": limit.agents, "tenant": None if limit.tenant is None else plain(limit.tenant),
         "running": limit.running, "per_minute": limit.per_minute}
        for limit in limits
    ]  # fmt: skip
    return msgspec.json.encode(shown).decode()


def plain(text: str) -> str:
    """Return a name as PostgreSQL takes it in a text: without the character zero."""
    return text.replace("\0", "\\0")


def _joined(chosen: Sequence[tuple[str, AnyEvent, bytes]]) -> list[Part]:
    """Return one part for each session, in the order of its first event."""
    sessions: dict[str, tuple[list[AnyEvent], list[bytes]]] = {}
    for session, event, body in chosen:
        events, bodies = sessions.setdefault(session, ([], []))
        events.append(event)
        bodies.append(body)
    return [Part(session, events, bodies) for session, (events, bodies) in sessions.items()]


def _add_needs(needs: Needs, part: Part) -> None:
    raised: set[str] = set()
    for event in part.events:
        kind = type(event)
        if kind not in INDEXED_EVENTS:
            continue
        if kind is CallbackRaised:
            raised.add(cast("CallbackRaised", event).callback_id)
        elif kind in _LOOKED_UP and event.type != "callback_delivered":
            needs.callbacks.add(cast("Any", event).callback_id)
        elif kind is Parked:
            needs.callbacks.update(cast("Parked", event).waits)
        elif kind is SessionAdopted:
            needs.callbacks.update(cast("SessionAdopted", event).reopened)
        elif kind is HooksPassed and (replaced := cast("HooksPassed", event).replaces):
            needs.bodies.add((part.session, replaced))
    needs.callbacks.difference_update(raised)


def _new_session(session: str, event: SessionStarted, bodies: Bodies) -> dict[str, Any]:
    """Return the values of a new session's row."""
    new: dict[str, Any] = {"agent": event.agent, "kind": event.kind, "needs": [*required_sessions(session, event)]}
    if event.parent:
        new["parent"] = event.parent
    if event.root and event.root != session:
        new["root"] = event.root
        return new
    if event.tags:
        new["tags"] = bodies.add(msgspec.json.encode(event.tags))
        new["tag_rows"] = [(bodies.text(name), bodies.text(value)) for name, value in event.tags.items()]
    if event.title or event.folder or event.roots:
        new["title"], new["folder"] = bodies.text(event.title), bodies.text(event.folder)
        new["roots"] = bodies.add(msgspec.json.encode(event.roots))
    return new


def _drops(part: Part, effects: Effects, known: Known, planned: dict[str, Any], bodies: Bodies) -> list[Any]:
    """Return stored events whose bodies a hook replaced, with what is left; those of this append are changed."""
    drops: list[tuple[int, int]] = []
    for seq in effects.replaced:
        at = seq - known.seqs.get(part.session, 0) - 1
        body = part.bodies[at] if at >= 0 else known.bodies[part.session, seq]
        slim = encode(without_body(decode(body, "", 0, 0, 0.0)))
        if at >= 0:
            bodies.values[planned["b"][at] - 1] = slim
        else:
            drops.append((seq, bodies.add(slim)))
    return drops


def _callback_row(callback: Callback, effects: Effects, bodies: Bodies) -> dict[str, Any]:
    """Return the columns of a callback that change."""
    row: dict[str, Any] = {"id": callback.id, "status": callback.status, "target": callback.target}
    row["path"] = bodies.add(msgspec.json.encode(steps_taken(callback)))
    if callback.reworded:
        row["message"] = bodies.text(callback.reworded)
    if callback.expires is not None:
        row["expires"] = callback.expires
    settled = _at(callback.id, effects, SETTLING)
    if settled is not None:
        row["settled"] = settled
    return row


def _at(callback_id: str, effects: Effects, kind: Any) -> int | None:
    """Return which event of the append is the first of that kind and of that callback, from 0."""
    found = (
        seq for seq, e in effects.callbacks if isinstance(e, kind) and cast("Any", e).callback_id == callback_id
    )
    seq = next(found, None)
    return None if seq is None else seq - _RELATIVE
