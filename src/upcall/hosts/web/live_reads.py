"""Read what has changed since a position, for the stream of a page. It runs where the log is read."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from upcall.errors import UnknownCallback
from upcall.hosts.web.callback_reads import read_card
from upcall.hosts.web.log import Log

MOST_ROWS = 100
MOST_CARDS = 100
MOST_CHANGES = 20_000
"""Changes of a tree that are told one by one; beyond that a page reads the tree again."""
AT_ONCE = 2000
"""Changes of a tree in one piece: a page takes in that many within a frame."""


class News(NamedTuple):
    """Changes as named pieces of JSON, and the position up to which they are complete."""

    pieces: tuple[tuple[str, bytes], ...]
    position: int


async def news_everywhere(log: Log, after: int, can_answer: bool) -> News:
    """The changes in all sessions after a position."""
    changes = log.kept.changes
    position = changes.position
    roots = changes.roots.since(after, MOST_ROWS)
    callbacks = changes.callbacks.since(after, MOST_CARDS)
    if roots is None or callbacks is None:  # too much to tell: the page asks for its lists again
        counts = await _counts(log)
        return News((("reset", b'{"tree":false}'), ("counts", msgspec.json.encode(counts))), position)
    pieces: list[tuple[str, bytes]] = []
    rows = [row for root in roots if (row := await log.store.row(root)) is not None]
    if rows:
        pieces.append(("rows", msgspec.json.encode(await log.kept.listing.json(log.runtime, rows))))
    if callbacks and (questions := await _questions(log, callbacks, can_answer)):
        pieces.append(("questions", msgspec.json.encode(questions)))
        pieces.append(("counts", msgspec.json.encode(await _counts(log))))
    return News(tuple(pieces), position)


async def news_in_tree(log: Log, tree: str, after: int) -> News:
    """The changes in one run tree after a position."""
    found = await log.kept.trees.get(log.store, tree)
    position = max(log.kept.changes.position, found.position)
    changed = found.since(after)
    if len(changed) > MOST_CHANGES:
        return News((("reset", b'{"tree":true}'),), position)
    if len(changed) > AT_ONCE:
        position = changed[AT_ONCE - 1].pos
        changed = [one for one in changed if one.pos <= position]
    return News((("nodes", msgspec.json.encode(changed)),) if changed else (), position)


async def _questions(log: Log, callback_ids: list[str], can_answer: bool) -> dict[str, Any]:
    """The cards of changed callbacks that a person is or was asked."""
    found: dict[str, list[Any]] = {"open": [], "settled": []}
    for callback_id in callback_ids:
        try:
            callback = await log.runtime.callback(callback_id)
        except UnknownCallback:
            continue
        if any(step.agent == "user" for step in callback.path):
            kind = "open" if callback.status == "open" else "settled"
            found[kind].append(await read_card(log, callback, can_answer, led=kind == "open"))
    return found if found["open"] or found["settled"] else {}


async def _counts(log: Log) -> dict[str, int]:
    return {
        "inbox": len(await log.kept.waiting.get(log.runtime)),
        "uncounted": int(not log.kept.waiting.has_all),
    }
