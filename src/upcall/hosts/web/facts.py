"""The facts that a list of sessions shows of a run tree: a fold over the events of the tree.

The facts follow from the log alone. Which process runs a session, and whether it lives, the store says.
"""

from __future__ import annotations

from typing import Any

import msgspec

from upcall import events
from upcall.hosts.web.work_time import WorkTime
from upcall.observe.plain import one_line
from upcall.observe.redact import Redactor

TITLE, TEXT = 200, 200
"""Characters of a title and of the beginning of a reply."""

_LOOKED_AT = 5000
"""Characters in which secrets are hidden before a text is cut: a cut must not part a secret from what marks it."""


class Facts(msgspec.Struct, gc=False):
    """The facts of a session and all below it, up to the position `pos`.

    `questions` maps the open callbacks that a person is asked to the time at which they expire.
    """

    session: str
    pos: int = 0
    title: str = ""
    text: str = ""
    status: str = "idle"
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    work: WorkTime = msgspec.field(default_factory=WorkTime)
    children: int = 0
    questions: dict[str, float | None] = {}
    reply: str = ""
    pending: str = ""
    """A response that hooks have not passed yet; it is shown to nobody."""

    @property
    def tokens(self) -> int:
        """Input and output of all model calls."""
        return self.input_tokens + self.output_tokens

    def open_questions(self, now: float) -> int:
        """The number of questions that wait for a person now."""
        return sum(expires is None or expires > now for expires in self.questions.values())

    def apply(self, event: events.AnyEvent, hides: Redactor) -> None:
        """Take in the next event of the tree; what was taken in before changes nothing."""
        if event.pos <= self.pos:
            return
        self.pos = event.pos
        self.work.apply(event, self.session)
        fold = _FOLDS.get(type(event))
        if fold is not None:
            fold(self, event)
        if event.session == self.session:
            own = _OWN_FOLDS.get(type(event))
            if own is not None:
                own(self, event, hides)


decode_facts = msgspec.json.Decoder(Facts).decode
"""Facts from their JSON. It is made here, once: two threads use it, and msgspec must not make it in both."""


# --- the whole tree ---------------------------------------------------------------------


def _started(facts: Facts, event: events.SessionStarted) -> None:
    if event.session != facts.session and event.kind != "side_turn":
        facts.children += 1


def _responded(facts: Facts, event: events.Responded) -> None:
    facts.input_tokens += event.usage.input_tokens
    facts.output_tokens += event.usage.output_tokens
    facts.cached_tokens += event.usage.cached_tokens
    facts.model_calls += 1


def _tool_started(facts: Facts, event: events.ToolStarted) -> None:
    facts.tool_calls += 1


def _asked(facts: Facts, event: events.CallbackAsked) -> None:
    if event.target == "user":
        facts.questions = {**facts.questions, event.callback_id: event.expires}


def _moved(facts: Facts, event: Any) -> None:
    if event.callback_id in facts.questions:
        facts.questions = {i: expires for i, expires in facts.questions.items() if i != event.callback_id}


def _adopted(facts: Facts, event: events.SessionAdopted) -> None:
    facts.questions = {**facts.questions, **dict.fromkeys(event.reopened)}


_FOLDS: dict[type[Any], Any] = {
    events.SessionStarted: _started,
    events.Responded: _responded,
    events.ToolStarted: _tool_started,
    events.CallbackAsked: _asked,
    events.CallbackPassed: _moved,
    events.CallbackAnswered: _moved,
    events.CallbackDeclined: _moved,
    events.CallbackExpired: _moved,
    events.CallbackWithdrawn: _moved,
    events.SessionAdopted: _adopted,
}


# --- the session at the top -------------------------------------------------------------


def _own_started(facts: Facts, event: events.SessionStarted, hides: Redactor) -> None:
    facts.title = _line(event.title, hides)


def _turn_started(facts: Facts, event: events.TurnStarted, hides: Redactor) -> None:
    facts.title = facts.title or _first_line(event.message.text, hides)
    facts.status, facts.reply = "running", ""


def _turn_resumed(facts: Facts, event: events.TurnResumed, hides: Redactor) -> None:
    facts.status = "running"


def _own_responded(facts: Facts, event: events.Responded, hides: Redactor) -> None:
    said = _line(event.message.text, hides)
    facts.pending, facts.reply = (said, facts.reply) if event.pending else ("", said)


def _hooks_passed(facts: Facts, event: events.HooksPassed, hides: Redactor) -> None:
    if event.point == "end_turn" and event.text is not None:
        facts.reply = _line(event.text, hides)
    elif event.point == "post_response":
        facts.reply = facts.pending if event.message is None else _line(event.message.text, hides)
        facts.pending = ""


def _step_ended(facts: Facts, event: events.StepEnded, hides: Redactor) -> None:
    facts.reply = _line(event.text, hides)


def _turn_ended(facts: Facts, event: events.TurnEnded, hides: Redactor) -> None:
    facts.status = event.status
    facts.text = facts.reply if event.status == "done" else _line(event.error, hides) or facts.reply


def _parked(facts: Facts, event: events.Parked, hides: Redactor) -> None:
    facts.status = "waiting"


_OWN_FOLDS: dict[type[Any], Any] = {
    events.SessionStarted: _own_started,
    events.TurnStarted: _turn_started,
    events.TurnResumed: _turn_resumed,
    events.Responded: _own_responded,
    events.HooksPassed: _hooks_passed,
    events.StepEnded: _step_ended,
    events.TurnEnded: _turn_ended,
    events.Parked: _parked,
}


def _line(text: str, hides: Redactor) -> str:
    return one_line(hides.text(hides.beginning(text, _LOOKED_AT)), TEXT)


def _first_line(text: str, hides: Redactor) -> str:
    """The first line of a text that says something."""
    lines = hides.text(hides.beginning(text, _LOOKED_AT)).splitlines()
    return one_line(next((line for line in lines if line.strip()), ""), TITLE)
