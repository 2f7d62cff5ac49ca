"""The texts of an event that a search finds, each with the node of the tree that shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from upcall import events
from upcall.messages import Message
from upcall.observe.redact import Redactor

MOST = 200_000
"""Characters of one text that are indexed."""


class Found(NamedTuple):
    """A text of an event: what kind of text, the node that shows it, and the text as it may be shown."""

    kind: str
    node: str
    text: str


def texts_of(event: events.AnyEvent, redactor: Redactor) -> Iterator[Found]:
    """The texts of one event, as they may be shown; none of a body that hooks may still replace."""
    extract = _TEXTS.get(type(event))
    if extract is None:
        return
    for kind, node, value in extract(event):
        text = value if isinstance(value, str) else "\n".join(_strings(redactor.show(value)))
        if isinstance(value, str):
            text = redactor.text(redactor.beginning(value, MOST))
        if text.strip():
            yield Found(kind, f"{event.session}/{node}" if node else event.session, text[:MOST])


def tags_text(tags: Mapping[str, str], redactor: Redactor) -> str:
    """The tags of a run tree as the index keeps them; what it keeps of one tag is a part of it."""
    return ",".join(msgspec.json.encode(redactor.show({name: value})).decode() for name, value in tags.items())


def body_of(event: events.AnyEvent) -> events.AnyEvent:
    """The event as one whose body hooks have passed."""
    if isinstance(event, events.ToolEnded | events.Responded):
        return event.replace(pending=False)
    return event


_Text = tuple[str, str, Any]


def _started(event: events.SessionStarted) -> Iterator[_Text]:
    yield "session", "", f"{event.title}\n{event.agent}"


def _prompt(event: events.TurnStarted) -> Iterator[_Text]:
    yield "prompt", f"t{event.turn}", event.message.text


def _responded(event: events.Responded) -> Iterator[_Text]:
    if not event.pending:
        yield from _message(event.message, f"m{event.ordinal}")


def _message(message: Message, node: str) -> Iterator[_Text]:
    yield "reply", node, message.text
    for call in message.calls:
        yield "call", call.id, [call.name, call.args]


def _tool_ended(event: events.ToolEnded) -> Iterator[_Text]:
    if not event.pending and not event.dropped:
        yield "result", event.call_id, event.result.text


def _hooks_passed(event: events.HooksPassed) -> Iterator[_Text]:
    if event.result is not None:
        yield "result", event.at, event.result.text
    if event.message is not None:
        yield "reply", f"m{event.at}" if event.point == "post_response" else "", event.message.text
    if event.text is not None:
        yield "reply", "", event.text


def _raised(event: events.CallbackRaised) -> Iterator[_Text]:
    yield "question", f"q:{event.callback_id}", event.message
    if event.given:
        yield "question", f"q:{event.callback_id}", event.given


def _answered(event: events.CallbackAnswered) -> Iterator[_Text]:
    yield "answer", f"q:{event.callback_id}:a", event.value


_TEXTS: dict[type[Any], Callable[[Any], Iterator[_Text]]] = {
    events.SessionStarted: _started,
    events.TurnStarted: _prompt,
    events.Responded: _responded,
    events.ToolEnded: _tool_ended,
    events.HooksPassed: _hooks_passed,
    events.CallbackRaised: _raised,
    events.CallbackAnswered: _answered,
    events.CallbackDeclined: lambda e: iter([("answer", f"q:{e.callback_id}:a", e.reason)]),
    events.Steered: lambda e: iter([("steer", f"s{e.seq}", e.text)]),
    events.StepEnded: lambda e: iter([("reply", f"step:{e.step}", e.text or e.error)]),
    events.ModelFailed: lambda e: iter([("failure", f"m{e.ordinal}", e.error)]),
    events.TurnEnded: lambda e: iter([("failure", f"t{e.turn}", e.error)]),
}


def _strings(value: Any) -> Iterator[str]:
    """Every text in a JSON value, names of fields too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in cast("dict[str, Any]", value).items():
            yield key
            yield from _strings(one)
    elif isinstance(value, list | tuple):
        for one in cast("Sequence[Any]", value):
            yield from _strings(one)
    elif value is not None and not isinstance(value, bool):
        yield msgspec.json.encode(value).decode()
