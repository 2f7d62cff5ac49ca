"""A session from its log: read, folded, and refused where the log can't be."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from upcall.contracts import Claim, Row, Store
from upcall.core.log.state import SessionState
from upcall.errors import StoreDamaged
from upcall.events import AnyEvent, CallbackWithdrawn, Compacted, SessionStarted, TurnEnded
from upcall.messages import Message

log = logging.getLogger("upcall")

_PAGE = 1000


async def load_state(
    store: Store, session_id: str, upto: int = 0, claim: Claim | Row | None = None
) -> SessionState | None:
    """A session folded from its log, from its last compaction on; None if there is no such session.

    upto: ignore later events
    claim: a claim on the session, or its row, which saves looking whether there is such a session
    """
    row = await store.row(session_id) if claim is None else claim
    if row is None:
        return None
    base = 0 if upto else row.base
    before = max(base - 1, 0)
    events = await _pages(store, session_id, before, upto)
    state = SessionState(session_id)
    head = await store.read(session_id, 0, 1) if base > 1 else events[:1]
    first = head[0] if head else None
    if isinstance(first, SessionStarted) and first.root:
        await _read_root(store, state, first.root)
    if base > 1:
        fold(store, state, head)
        carried = next((e.carried for e in events if isinstance(e, Compacted)), None)
        if carried is not None:
            state.restore(carried)
    if base <= 1 and isinstance(first, SessionStarted) and first.kind == "side_turn" and first.reads:
        asked = await load_state(store, first.parent, first.reads)
        if asked is not None:
            state.read_from(asked)
    fold(store, state, events)
    return state


async def _read_root(store: Store, state: SessionState, root: str) -> None:
    """Give a session below a root what the application gave that root."""
    for event in await store.read(root, 0, 1):
        if isinstance(event, SessionStarted):
            state.root_header = event


async def conversation(store: Store, session_id: str, upto: int = 0) -> list[Message]:
    """A session's whole conversation, as if nothing of it had ever been compacted."""
    state = SessionState(session_id)
    for event in await _pages(store, session_id, 0, upto):
        if isinstance(event, SessionStarted) and event.kind == "side_turn" and event.reads:
            state.conversation.history = await conversation(store, event.parent, event.reads)
        if not isinstance(event, Compacted):
            fold(store, state, [event])
    return state.conversation.messages()


async def end_session(store: Store, claim: Claim | None, session_id: str, why: str) -> list[AnyEvent]:
    """End a session that nobody runs: its turn, and the callbacks that it has open; returns the stored events."""
    state = await load_state(store, session_id)
    assert state is not None
    asks = [i for i, ask in state.turn.callbacks.items() if ask.status == "open"]
    ended: list[AnyEvent] = [CallbackWithdrawn(i, why) for i in asks]
    if state.turn.phase == "running" or not state.begun:
        ended.append(TurnEnded(state.turn.number, "cancelled", seconds=state.turn.ran_seconds))
    if ended:
        await append(store, session_id, ended, claim)
    return ended


async def _pages(store: Store, session_id: str, after: int, upto: int) -> list[AnyEvent]:
    events = page = await store.read(session_id, after, _PAGE)
    while len(page) == _PAGE:
        page = await store.read(session_id, page[-1].seq, _PAGE)
        events = [*events, *page]
    return [e for e in events if e.seq <= upto] if upto else events


async def readable_events(store: Store, session_id: str, after: int) -> tuple[list[AnyEvent], int]:
    """The next events of a session that can be read, and the number of the last one that was looked at.

    What can't be read is told of in a warning and left out: it hides no other.
    """
    try:
        page = await store.read(session_id, after, _PAGE)
        return page, page[-1].seq if page else after
    except StoreDamaged:
        pass
    found: list[AnyEvent] = []
    for seq in range(after, after + _PAGE):
        try:
            one = await store.read(session_id, seq, 1)
        except StoreDamaged as error:
            log.warning("an event is left out: %s", error)
            continue
        if not one:
            return found, seq
        found += one
    return found, after + _PAGE


def fold(store: Store, state: SessionState, events: Sequence[AnyEvent]) -> None:
    """Take events of the log into account; an impossible one is a damaged log."""
    for event in events:
        try:
            state.apply(event)
        except (LookupError, ValueError, TypeError, AttributeError, AssertionError) as error:
            problem = f"event {event.seq} ({event.type}) of session {state.id!r} does not fit the events before it"
            raise StoreDamaged(store.where, problem) from error


async def refresh(store: Store, state: SessionState) -> None:
    """Fold what was appended since."""
    while page := await store.read(state.id, state.seq, _PAGE):
        fold(store, state, page)


async def append(
    store: Store, session_id: str, events: Sequence[AnyEvent], claim: Claim | None, *, release: bool = False
) -> None:
    """Append events, and return when they are stored."""
    stored = store.append(session_id, events, claim, release=release)
    if stored is not None:
        await stored
