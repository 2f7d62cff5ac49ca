"""Read callbacks for the page: the inbox, and one card. It runs where the log is read."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from upcall.callbacks import Callback
from upcall.hosts.web.cards import Around, card_json
from upcall.hosts.web.led import lines_before
from upcall.hosts.web.listing import root_of
from upcall.hosts.web.log import Log
from upcall.hosts.web.runs import means_of
from upcall.observe.lines import Lines

_ROWS_PER_CARD = 20
_SETTLED = ("answered", "declined", "expired", "withdrawn")


async def read_inbox(log: Log, limit: int, can_answer: bool) -> dict[str, Any]:
    """The inbox: the cards that wait for a person, and those settled today."""
    position, now, waiting = log.kept.changes.position, log.store.now(), log.kept.waiting
    found, settled = await waiting.get(log.runtime), await _settled(log, limit)
    return {
        "open": [await read_card(log, one, can_answer) for one in found[:limit]],
        "settled": [await read_card(log, one, can_answer, led=False) for one in settled],
        "more": max(0, len(found) - limit),
        "uncounted": not waiting.has_all,
        "time": now,
        "pos": position,
    }


async def _settled(log: Log, limit: int) -> list[Callback]:
    """The callbacks that were settled today, newest first."""
    now = datetime.fromtimestamp(log.store.now()).astimezone()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
    index, runtime = log.kept.index, log.runtime
    known = index.settled_since(midnight, limit * 2) if index is not None else None
    if known is not None:
        callbacks = [await runtime.callback(one) for one in known]
        return [one for one in callbacks if any(step.agent == "user" for step in one.path)][:limit]
    found = [one for status in _SETTLED for one in await runtime.inbox(limit * _ROWS_PER_CARD, status=status)]
    today = [one for one in found if settled_at(one) >= midnight]
    return sorted(today, key=settled_at, reverse=True)[:limit]


async def read_card(
    log: Log, callback: Callback, can_answer: bool, *, led: bool = True, reveal: bool = False
) -> dict[str, Any]:
    """A callback as a card, with what the log says around it. `can_answer`: whether its reader may."""
    kept, root = log.kept, root_of(callback.session_id)
    facts = (await kept.listing.cache.get(log.store, [root]))[root]
    lines = Lines(kept.redactor, kept.labels)
    before = await lines_before(log.store, callback, lines) if led else []
    goes_on, runs_here = await _goes_on(log, callback, root)
    around = Around(
        title=facts.title,
        led=tuple(before),
        can_answer=can_answer,
        goes_on=goes_on,
        runs_here=runs_here,
        label=kept.labels.of(callback.tool) if callback.tool else "",
    )
    return card_json(callback, around, kept.redactor, reveal=reveal)


async def _goes_on(log: Log, callback: Callback, root: str) -> tuple[str, bool]:
    """A sentence about what happens after the answer, and whether that happens by itself."""
    asker = log.kept.redactor.text(callback.agent)
    row = await log.store.row(root)
    if row is not None and row.owner:
        return f"{asker} continues at once.", True
    means = await means_of(log.store, log.kept.agents, root)
    if means.here and not log.kept.view_only:
        return f"{asker} continues.", True
    if means.command:
        return f"It continues with `{means.command}`: its agents are not loaded here.", False
    return "It continues when a program with its agents resumes it.", False


def settled_at(callback: Callback) -> float:
    """The time at which a callback was settled, or expired if nobody answered it."""
    if callback.answer is not None:
        return callback.answer.at
    return callback.expires or callback.created
