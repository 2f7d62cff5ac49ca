"""Queue turns for workers: check what is submitted, and store it once, however often it is submitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from upcall.callbacks import PRIORITIES
from upcall.contracts import Store
from upcall.core.log.load import load_state
from upcall.core.log.state import SessionState
from upcall.core.routing.answer import checked_by
from upcall.core.runtime.session_data import check_unchanged, checked_id
from upcall.core.turns.access import SessionView, prompt_message
from upcall.errors import SessionExists, SetupError, TurnExists
from upcall.events import AnyEvent, SessionStarted, TurnQueued, TurnStarted
from upcall.messages import Message, Priority
from upcall.safety.bounds import TAG_VALUE, brief

_TRIES = 5
"""Attempts to store submissions while other processes submit the same."""

_PAGE = 1000
MOST_AT_ONCE = 500
"""Submissions that one transaction stores."""


class Submission(msgspec.Struct, frozen=True):
    """A turn to queue.

    id: the session's id
    turn: the number of the turn in its session
    message: the prompt
    header: the first event of the session, if it does not exist yet
    data, tags: as they were given; None if they were not
    """

    id: str
    turn: int
    message: Message
    header: SessionStarted
    priority: Priority = "normal"
    tenant: str = ""
    by: str = ""
    data: Mapping[str, Any] | None = None
    tags: Mapping[str, str] | None = None

    def event(self) -> TurnQueued:
        """The event that queues the turn."""
        return TurnQueued(self.turn, self.message, self.priority, self.tenant, self.by)


def make_submission(
    id: str,
    text: str | Message,
    header: SessionStarted,
    *,
    turn: int,
    priority: Priority,
    tenant: str,
    by: str,
    data: Mapping[str, Any] | None,
    tags: Mapping[str, str] | None,
) -> Submission:
    """Return a submission; SetupError says what is wrong with its values."""
    return Submission(
        checked_id(id), _checked_turn(turn), prompt_message(text), header, _checked_priority(priority),
        _checked_tenant(tenant), checked_by(by), data, tags,
    )  # fmt: skip


def _checked_priority(priority: Any) -> Priority:
    """Return a priority; SetupError if it is not one."""
    if priority not in PRIORITIES:
        raise SetupError(f"priority must be one of {', '.join(PRIORITIES)}, not {brief(priority)}")
    return priority


def _checked_tenant(tenant: Any) -> str:
    """Return the name of a tenant; SetupError if it can't be one."""
    if type(tenant) is not str or len(tenant) > TAG_VALUE or not tenant.isprintable():
        raise SetupError(f"tenant must be a name of at most {TAG_VALUE} printable characters, not {brief(tenant)}")
    return tenant


def _checked_turn(turn: Any) -> int:
    """Return the number of a turn; SetupError if it can't be one."""
    if type(turn) is not int or not 1 <= turn < 1 << 31:
        raise SetupError(f"turn must be a whole number of 1 or more, not {brief(turn)}")
    return turn


def _checked_limit(queue_limit: Any) -> int | None:
    """Return a limit of the queue; SetupError if it can't be one."""
    if queue_limit is not None and (type(queue_limit) is not int or not 0 <= queue_limit < 1 << 31):
        raise SetupError(
            f"queue_limit must be a whole number of 0 or more, or None for no limit, not {brief(queue_limit)}"
        )
    return queue_limit


async def queue_turns(
    store: Store, submissions: Sequence[Submission], queue_limit: int | None = None
) -> dict[tuple[str, int], bool]:
    """Store submissions; returns which of them are new, by session and turn.

    One that was submitted before with the same text is not stored again. TurnExists if it has another text, or if
    the turns before it are missing; QueueFull past the limit. Nothing of a group of `MOST_AT_ONCE` is stored if one
    of it is refused.
    """
    queue_limit = _checked_limit(queue_limit)
    new: dict[tuple[str, int], bool] = {}
    for start in range(0, len(submissions), MOST_AT_ONCE):
        group = submissions[start : start + MOST_AT_ONCE]
        for attempt in range(_TRIES):
            events = await _events_for(store, group, new)
            try:
                if events:
                    await store.append_all(events, queue_limit=queue_limit)
                break
            except (SessionExists, TurnExists):  # another process was faster: it may have submitted the same
                if attempt == _TRIES - 1:
                    raise
    return new


async def _events_for(
    store: Store, group: Sequence[Submission], new: dict[tuple[str, int], bool]
) -> dict[str, list[AnyEvent]]:
    """Return the events that are missing in the store, by session; `new` is told which submissions they store."""
    events: dict[str, list[AnyEvent]] = {}
    for one in group:
        before = events.get(one.id)
        if before is None and await store.row(one.id) is None:
            _check_next(one, 1)
            events[one.id] = [one.header.replace(), one.event()]
            new[one.id, one.turn] = True
            continue
        known = None if before is None else _queued_in(before, one.turn)
        if known is None:
            is_stored, last = await _stored_turn(store, one)
            last = max([last, *[e.turn for e in before or () if isinstance(e, TurnQueued)]])
            if not is_stored:
                _check_next(one, last + 1)
                events.setdefault(one.id, []).append(one.event())
            new[one.id, one.turn] = not is_stored
        elif known.message != one.message:
            raise TurnExists(one.id, one.turn)
    return events


def _queued_in(events: Sequence[AnyEvent], turn: int) -> TurnQueued | None:
    return next((e for e in events if isinstance(e, TurnQueued) and e.turn == turn), None)


def _check_next(one: Submission, following: int) -> None:
    if one.turn != following:
        raise TurnExists(one.id, one.turn, f"the next turn of this session is turn {following}")


async def _stored_turn(store: Store, one: Submission) -> tuple[bool, int]:
    """Return whether a session has this turn already, and the number of its last turn.

    TurnExists if the turn has another prompt, SetupError if the session is another one than was meant.
    """
    state = await load_state(store, one.id)
    if state is None:  # it was submitted in the same group
        return False, 0
    _check_same(state, one)
    last = max([state.turn.number, *[queued.turn for queued in state.queued]])
    prompt = await _prompt_of(store, one)
    if prompt is not None:
        if prompt != one.message:
            raise TurnExists(one.id, one.turn)
        return True, last
    if one.turn <= last:
        raise TurnExists(one.id, one.turn)
    return False, max(last, await _last_queued(store, state))


def _check_same(state: SessionState, one: Submission) -> None:
    if state.header.parent:
        raise SetupError(f"{one.id!r} was started by another session, so its turns can't be queued")
    if state.header.agent != one.header.agent:
        problem = f"{one.id!r} is a session of {state.header.agent!r}, not of {one.header.agent!r}"
        raise SetupError(f"{problem}; use another id")
    check_unchanged(SessionView(state), one.data, one.tags)


async def _prompt_of(store: Store, one: Submission) -> Message | None:
    """Return the prompt of a turn that was queued or has started; None if the session does not have that turn."""
    found: Message | None = None
    after = 0
    while page := await store.read(one.id, after, _PAGE):
        for event in page:
            if isinstance(event, TurnQueued) and event.turn == one.turn:
                return event.message
            if isinstance(event, TurnStarted) and event.turn == one.turn and not event.queued:
                found = event.message
        after = page[-1].seq
    return found


async def _last_queued(store: Store, state: SessionState) -> int:
    """Return the highest number of a turn that was ever queued: those that were cancelled count, too."""
    last = after = 0
    while state.unqueued is not None and (page := await store.read(state.id, after, _PAGE)):
        last = max([last, *[event.turn for event in page if isinstance(event, TurnQueued)]])
        after = page[-1].seq
    return last
