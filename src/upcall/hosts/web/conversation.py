"""A session's conversation as people read it: a fold over its events, redacted.

A response or a result is shown once no hook can replace it any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from upcall import events
from upcall.messages import Message, Result
from upcall.observe.labels import Labels
from upcall.observe.plain import shortened
from upcall.observe.redact import Redactor

LONGEST_RESULT = 20_000
"""Characters of a result that are shown; the whole is in its event."""


class Conversation:
    """The conversation of one session: feed it the session's events in order, then read `entries`."""

    def __init__(self, redactor: Redactor, labels: Labels) -> None:
        self._redactor, self._labels = redactor, labels
        self.entries: list[dict[str, Any]] = []
        self._prompt: dict[str, Any] | None = None
        self._calls: dict[str, dict[str, Any]] = {}
        self._responses: dict[int, events.Responded] = {}
        self._results: dict[str, events.ToolEnded] = {}

    def apply(self, event: events.AnyEvent) -> None:
        """Take in the next event."""
        fold = _FOLDS.get(type(event))
        if fold is not None:
            fold(self, event)

    def _add(self, role: str, text: str, time: float, by: str = "") -> dict[str, Any]:
        entry: dict[str, Any] = {
            "role": role,
            "text": self._redactor.text(text),
            "calls": [],
            "time": time,
            "by": self._redactor.text(by),
        }
        self.entries.append(entry)
        return entry

    def turn_started(self, event: events.TurnStarted) -> None:
        """Add a prompt."""
        self._prompt = self._add("user", event.message.text, event.time, getattr(event, "by", ""))

    def responded(self, event: events.Responded) -> None:
        """Add what a model said, or keep it until hooks have passed it."""
        if event.pending:
            self._responses[event.ordinal] = event
        else:
            self._say(event.message, event.time)

    def tool_ended(self, event: events.ToolEnded) -> None:
        """Add a result, or keep it until hooks have passed it."""
        if event.pending:
            self._results[event.call_id] = event
        else:
            self._end_call(event, event.result)

    def hooks_passed(self, event: events.HooksPassed) -> None:
        """Show what hooks have passed, or what they put in its place."""
        if event.point == "pre_request" and event.message is not None and self._prompt is not None:
            self._prompt["text"] = self._redactor.text(event.message.text)
        elif event.point == "post_response" and event.at.isdecimal():
            responded = self._responses.pop(int(event.at), None)
            if responded is not None:
                self._say(event.message or responded.message, responded.time)
        elif event.point == "after_tool":
            ended = self._results.pop(event.at, None)
            if ended is not None:
                self._end_call(ended, event.result or ended.result)

    def inner_called(self, event: events.InnerCalled) -> None:
        """Remember a call of a program, so that its result is not taken for another's."""
        self._calls[event.call.id] = {}

    def note(self, text: str, time: float, by: str = "") -> None:
        """Add a line of the log that nobody said."""
        self._add("note", text, time, by)

    def _say(self, message: Message, time: float) -> None:
        entry = self._add("assistant", message.text, time)
        for call in message.calls:
            shown: dict[str, Any] = {
                "id": call.id,
                "label": self._redactor.text(self._labels.of(call.name)),
                "args": self._redactor.show(call.args),
                "status": "running",
                "result": None,
                "ended": None,
            }
            self._calls[call.id] = shown
            entry["calls"].append(shown)

    def _end_call(self, ended: events.ToolEnded, result: Result) -> None:
        call = self._calls.get(ended.call_id)
        if call:
            failed = "failed" if result.is_error else "done"
            call["status"] = ended.how if ended.how in ("cancelled", "interrupted") else failed
            call["ended"] = ended.time
            call["result"] = shortened(self._redactor.text(result.text), LONGEST_RESULT)


def _steered(talk: Conversation, event: events.Steered) -> None:
    talk.note(event.text, event.time, event.by or "somebody")


def _compacted(talk: Conversation, event: events.Compacted) -> None:
    talk.note(event.summary or f"{event.dropped} messages were dropped", event.time)


def _failed(talk: Conversation, event: events.TurnEnded) -> None:
    if event.status != "done":
        why = f"limit {event.limit} reached" if event.limit else event.error
        talk.note(f"{event.status}: {why}" if why else event.status, event.time)


_FOLDS: dict[type[Any], Callable[[Conversation, Any], None]] = {
    events.TurnStarted: Conversation.turn_started,
    events.Responded: Conversation.responded,
    events.ToolEnded: Conversation.tool_ended,
    events.HooksPassed: Conversation.hooks_passed,
    events.InnerCalled: Conversation.inner_called,
    events.Steered: _steered,
    events.Compacted: _compacted,
    events.TurnEnded: _failed,
    events.StepEnded: lambda talk, event: talk.note(event.text or event.error, event.time, event.step),
}
