"""The last lines of the asker's session before a question: they tell what led to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from upcall.callbacks import Callback
from upcall.contracts import Store
from upcall.errors import StoreDamaged
from upcall.events import AnyEvent, CallbackRaised, ModelStarted, Responded, Steered, ToolEnded, TurnStarted
from upcall.observe.lines import Lines
from upcall.observe.shown_events import is_held_back, passed_in

LINES = 5
_EVENTS = 200


class _Line(NamedTuple):
    """A line of text; the line of a call has the tool's label, too."""

    text: str
    label: str = ""


async def lines_before(store: Store, callback: Callback, lines: Lines) -> list[dict[str, Any]]:
    """The asker's last five lines before it asked, each with its label, text and time, oldest first.

    A call has its tool's label, and the argument that tells most about it, as in the tree.
    """
    row = await store.row(callback.session_id)
    if row is None:
        return []
    try:
        events = await store.read(callback.session_id, max(0, row.seq - _EVENTS), _EVENTS)
    except StoreDamaged:
        return []
    passed, found, labels = passed_in(events), list[dict[str, Any]](), dict[str, str]()
    for event in events:
        if isinstance(event, CallbackRaised) and event.callback_id == callback.id:
            break
        if isinstance(event, ModelStarted):
            labels = event.labels if event.labels is not None else labels
        elif not is_held_back(event, passed):
            found += [
                {"label": one.label, "text": one.text, "time": event.time} for one in _lines(event, lines, labels)
            ]
    return found[-LINES:]


def _lines(event: AnyEvent, lines: Lines, labels: Mapping[str, str]) -> Iterator[_Line]:
    match event:
        case TurnStarted():
            yield _Line(lines.whole(event.message.text))
        case Responded():
            if text := lines.whole(event.message.text):
                yield _Line(text)
            for call in event.message.calls:
                label = lines.labels.of(call.name, labels.get(call.name, ""))
                yield _Line(lines.call(call.name, call.args), lines.redactor.text(label))
        case ToolEnded() if not event.dropped:
            if text := lines.whole(event.result.text):
                yield _Line(text)
        case Steered():
            yield _Line(lines.whole(event.text))
        case _:
            return
