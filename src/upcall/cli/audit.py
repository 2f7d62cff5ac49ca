"""The command `audit`: who answered, approved, cancelled and saw what, and what was refused."""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

from upcall.callbacks import Callback
from upcall.cli.options import Commands, json_option, positive_number
from upcall.cli.output import dump, local_time, report_no_log, say
from upcall.cli.places import has_log, redactor, view_log
from upcall.contracts import Store
from upcall.errors import StoreDamaged, UnknownCallback
from upcall.events import (
    AnyEvent,
    CallbackAnswered,
    CallbackDeclined,
    CallbackRevealed,
    CancelRequested,
    SessionAdopted,
    Steered,
)
from upcall.hosts.terminal.host import outcome_text
from upcall.observe.hidden_question import callback_json, hide_secrets
from upcall.observe.plain import one_line, visible
from upcall.tokens import RefusedRequest

if TYPE_CHECKING:
    from upcall.app import Runtime
    from upcall.observe.redact import Redactor

PAGE = 1000
"""Entries that are read at once."""

_WIDENING = 8
_AUDITED = (CallbackAnswered, CallbackDeclined, CallbackRevealed, CancelRequested, Steered, SessionAdopted)
_Entry = AnyEvent | RefusedRequest
_LONGEST = 200


def add(commands: Commands) -> None:
    """Add the command `audit`."""
    parser = commands.add(
        "audit",
        "list who answered, approved or cancelled what, and what was refused",
        _audit,
        about="The newest entry is last. Each entry shows the time, who acted and how they were\n"
        "identified, what they did, and in which session. Answers from agents and hooks are\n"
        "listed too. The newest 100000 refused requests are kept, in a separate table. With\n"
        "--json: one object per line.",
        examples=["upcall audit", "upcall audit --limit 20", "upcall audit --session readme --json"],
    )
    only = "only this session, its descendants, and refused requests that name it"
    parser.add_argument("--session", metavar="ID", help=only)
    parser.add_argument(
        "--limit", metavar="N", type=positive_number, help="only the newest N entries (default: all)"
    )
    json_option(parser)


async def _audit(args: argparse.Namespace) -> int:
    if not has_log(args):
        report_no_log(args, "so nobody has done anything")
        return 0
    async with view_log(args) as runtime:
        if args.session is not None:
            await runtime.status(args.session)  # UnknownSession if there is none
        hides, found = redactor(), False
        async for entry in entries(runtime.store, args.session, args.limit):
            found = True
            if args.json:
                dump(await _json(runtime, entry, hides), lines=True)
            else:
                say(await _line(runtime, entry, hides))
        if not found and not args.json:
            say("Nobody has answered, cancelled or been refused anything.")
    return 0


# --- reading ----------------------------------------------------------------------------


async def entries(store: Store, session: str | None, limit: int | None) -> AsyncIterator[_Entry]:
    """All entries, or the newest, oldest first. At most a page, or `limit` entries, is in memory."""
    if limit is None:
        async for entry in _merged(_from_log(store, session, 0), _refusals(store, session)):
            yield entry
        return
    newest = await _newest_of_log(store, session, limit)
    refused: deque[_Entry] = deque(maxlen=limit)
    async for one in _refusals(store, session):
        refused.append(one)
    kept: deque[_Entry] = deque(maxlen=limit)
    async for entry in _merged(_as_stream(newest), _as_stream(refused)):
        kept.append(entry)
    for entry in kept:
        yield entry


async def _newest_of_log(store: Store, session: str | None, limit: int) -> deque[_Entry]:
    """The newest entries of the log. A longer and longer end of it is read, until there are enough."""
    last, window = await store.last(), PAGE
    while True:
        after, kept = max(0, last - window), deque[_Entry](maxlen=limit)
        async for one in _from_log(store, session, after):
            kept.append(one)
        if len(kept) == limit or not after:
            return kept
        window *= _WIDENING


async def _from_log(store: Store, session: str | None, after: int) -> AsyncIterator[_Entry]:
    while page := await (store.read_all(after, PAGE) if session is None else store.read_tree(session, after, PAGE)):
        for event in page:
            if isinstance(event, _AUDITED):
                yield event
        after = page[-1].pos


async def _refusals(store: Store, session: str | None) -> AsyncIterator[_Entry]:
    after = 0
    while page := await store.refusals(after, PAGE):
        for one in page:
            if session is None or session in one.target.split("/"):
                yield one
        after = page[-1].number


async def _as_stream(entries: Iterable[_Entry]) -> AsyncIterator[_Entry]:
    for one in entries:
        yield one


async def _merged(one: AsyncIterator[_Entry], other: AsyncIterator[_Entry]) -> AsyncIterator[_Entry]:
    """The entries of both, by time."""
    first, second = await anext(one, None), await anext(other, None)
    while first is not None or second is not None:
        if second is None or (first is not None and first.time <= second.time):
            assert first is not None
            yield first
            first = await anext(one, None)
        else:
            yield second
            second = await anext(other, None)


# --- showing ----------------------------------------------------------------------------


async def _callback(runtime: Runtime, entry: _Entry) -> Callback | None:
    """The callback that an entry is about; None if it is about none, or can't be read."""
    if not isinstance(entry, CallbackAnswered | CallbackDeclined | CallbackRevealed):
        return None
    try:
        return await runtime.callback(entry.callback_id)
    except (UnknownCallback, StoreDamaged):
        return None


async def _json(runtime: Runtime, entry: _Entry, hides: Redactor) -> dict[str, Any]:
    """An entry for programs: the same keys in all of them, and what belongs to its kind."""
    if isinstance(entry, RefusedRequest):
        made = {"time": entry.time, "kind": "refused", "by": entry.by, "right": "", "session": ""}
        made |= {"action": entry.action, "target": entry.target, "reason": entry.reason, "address": entry.address}
        return hides.show(made)
    made = {"time": entry.time, "kind": entry.type, "by": getattr(entry, "by", "")}
    made |= {"right": getattr(entry, "right", ""), "session": entry.session}
    callback = await _callback(runtime, entry)
    if callback is not None:
        shown = callback_json(callback, hides)
        names = ("id", "agent", "message", "tool", "args", "status", "answer")
        made["callback"] = {name: shown[name] for name in names}
    if isinstance(entry, CancelRequested):
        made["reason"] = hides.text(entry.reason)
    if isinstance(entry, Steered):
        made["text"] = hides.text(entry.text)
    return made


async def _line(runtime: Runtime, entry: _Entry, hides: Redactor) -> str:
    by, right = visible(getattr(entry, "by", "")) or "unknown", visible(getattr(entry, "right", ""))
    who = f"{by} ({right})" if right else by
    what = await _what(runtime, entry, hides)
    return f"{local_time(entry.time)}  {who}  {what}"


async def _what(runtime: Runtime, entry: _Entry, hides: Redactor) -> str:
    callback = await _callback(runtime, entry)
    match entry:
        case RefusedRequest():
            origin = f", from {visible(entry.address)}" if entry.address else ""
            asked = hides.text(f"{entry.action} {entry.target}".strip())
            return f"was refused: {visible(asked)}: {visible(hides.text(entry.reason))}{origin}"
        case CancelRequested():
            why = f": {one_line(hides.text(entry.reason), _LONGEST)}" if entry.reason else ""
            return f"cancelled session {visible(entry.session)}{why}"
        case Steered():
            return f"said to session {visible(entry.session)}: {one_line(hides.text(entry.text), _LONGEST)}"
        case SessionAdopted():
            return f"adopted session {visible(entry.session)}"
        case CallbackRevealed():
            return f"saw what is hidden in {_about(callback, entry.callback_id, entry.session, hides)}"
        case CallbackAnswered() | CallbackDeclined():
            about = _about(callback, entry.callback_id, entry.session, hides)
            said = entry.type if callback is None else outcome_text(hide_secrets(callback, hides).callback)
            return f"{said}; {about}"
        case _:
            return entry.type


def _about(callback: Callback | None, callback_id: str, session: str, hides: Redactor) -> str:
    where = f"{visible(callback_id)} of session {visible(session)}"
    if callback is None:
        return where
    shown = hide_secrets(callback, hides).callback
    asked = f"call of {visible(shown.tool)}" if shown.gate else one_line(shown.message, _LONGEST)
    return f"{where}: {asked}"
