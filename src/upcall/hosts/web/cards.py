"""A callback as the page shows it: who asks what, why it came to this person, and what happens after the answer.

Everything in a card is redacted. `seen` is a digest of what the card showed; an answer that carries it is bound to
that, so nobody approves what was not on the screen.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from upcall.callbacks import Approve, Callback, Reject
from upcall.events import digest
from upcall.observe.form_fields import form_fields
from upcall.observe.hidden_question import hide_secrets, is_approval
from upcall.observe.path_entries import PathEntry, path_entries
from upcall.observe.plain import one_line, visible
from upcall.observe.public_json import all_fields
from upcall.observe.redact import Redactor

_KEY = re.compile(r"^(?P<plain>.*?) \((?P<key>[^()]*)\)$", re.DOTALL)
"""A reason of a route: plain words, and in parentheses the policy that says so."""

_LONGEST_OUTCOME = 200
_LOOKED_AT = 10_000
_REVEALED = ("args", "message", "context", "given", "reworded", "choices")


class Around(NamedTuple):
    """The part of a card that is not in the callback itself.

    title: the title of the root session
    led: the asker's last lines, each with its label, text and time
    can_answer: whether this principal may answer here
    goes_on: what happens after the answer, as a sentence
    runs_here: whether the session continues by itself once it is answered
    label: the tool's label
    """

    title: str = ""
    led: tuple[dict[str, Any], ...] = ()
    can_answer: bool = True
    goes_on: str = ""
    runs_here: bool = True
    label: str = ""


def card_json(callback: Callback, around: Around, redactor: Redactor, *, reveal: bool = False) -> dict[str, Any]:
    """A callback as a card. With `reveal`, what it asks for approval is shown as it is."""
    question = hide_secrets(callback, redactor)
    shown: dict[str, Any] = all_fields(question.callback)
    if reveal:
        whole = all_fields(callback)
        shown |= {name: whole[name] for name in _REVEALED}
    approval = is_approval(callback)
    label = redactor.text(around.label or visible(callback.tool)) if approval else ""
    why, key = _why(callback, label)
    return {
        **shown,
        "title": around.title,
        "root": callback.session_id.partition("~")[0],
        "asks": f"wants to run {label}" if approval else "asks",
        "label": label,
        "why": f"because {redactor.text(why)}" if why else "",
        "why_key": redactor.text(key),
        "steps": [_step(entry, redactor) for entry in path_entries(callback.path)],
        "led": list(around.led),
        "fields": None if approval else form_fields(shown.get("schema")),
        "program": _program(shown.get("context")),
        "hidden": 0 if reveal else question.hidden,
        "seen": seen(callback),
        "outcome": outcome(question.callback),
        "can_answer": around.can_answer and callback.status == "open",
        "goes_on": around.goes_on,
        "after": _after(callback, around, label, redactor),
    }


def _after(callback: Callback, around: Around, label: str, redactor: Redactor) -> str:
    """The sentence of an open card about what an answer leads to; "" if that is not known."""
    if not is_approval(callback):
        until = "" if callback.expires is not None else " Until then it waits."
        return f"After your answer: {around.goes_on}{until}" if around.goes_on else ""
    runs = f"{label} runs with these values" if callback.args else f"{label} runs"
    said = f"After you approve, {runs}. If you reject, {redactor.text(callback.agent)} is told why."
    return said if around.runs_here else f"{said} {around.goes_on}"


# --- how it came here -------------------------------------------------------------------


def _why(callback: Callback, label: str) -> tuple[str, str]:
    """The reason why a person is asked, and the policy's key that allows it."""
    last = callback.path[-1] if callback.path else None
    if last is None or last.agent != "user":
        return "", ""
    plain, key = split_reason(last.reason)
    return (f"{label} needs an approval", key or plain) if is_approval(callback) else (plain, key)


def _step(entry: PathEntry, redactor: Redactor) -> dict[str, str]:
    plain, key = split_reason(entry.reason)
    person = entry.agent == "user"
    text = plain if person else f"{entry.done}: {plain}" if plain and entry.step != "asked" else entry.done
    return {
        "who": "you" if person else _short(entry.agent, 100, redactor),
        "text": _short(text, 500, redactor),
        "state": "you" if person else entry.step,
        "key": _short(key, 500, redactor),
    }


def _short(text: str, most: int, redactor: Redactor) -> str:
    """Redact first: a secret of which a part is cut off can't be recognised."""
    return one_line(redactor.text(redactor.beginning(text, _LOOKED_AT)), most)


def split_reason(reason: str) -> tuple[str, str]:
    """A route's reason in plain words, and the policy's key that says so."""
    found = _KEY.match(reason)
    plain, key = (found["plain"], found["key"]) if found else (reason, "")
    return plain.replace("may ask a person", "may ask people"), key


def _program(context: Any) -> dict[str, Any] | None:
    """The program that asks, where agent-written code does."""
    match context:
        case {"tool": "run_python", "arguments": {"code": str(text)}}:
            return {"text": text}
        case _:
            return None


# --- how it ended -----------------------------------------------------------------------


def outcome(callback: Callback) -> str:
    """The end of a settled callback, which is redacted, as one sentence; "" while it is open."""
    match callback.status:
        case "open":
            return ""
        case "expired":
            return "Nobody answered in time."
        case "withdrawn":
            return "It needs no answer any more."
        case _:
            answer = callback.answer
            by = visible(answer.by) if answer is not None and answer.by else "Somebody"
            return f"{by} {_said(callback)}."


def _said(callback: Callback) -> str:
    assert callback.answer is not None
    match callback.answer.value:
        case Approve(args=dict()):
            return "approved it with other arguments"
        case Approve(for_session=True):
            return "approved it for the session"
        case Approve():
            return "approved it"
        case Reject(reason=why):
            return f"rejected it: {one_line(why, _LONGEST_OUTCOME)}" if why else "rejected it"
        case _ if callback.status == "declined":
            why = callback.answer.reason
            return f"declined it: {one_line(why, _LONGEST_OUTCOME)}" if why else "declined it"
        case str(text):
            return f"answered: {one_line(text, _LONGEST_OUTCOME)}"
        case value:
            return f"answered: {one_line(msgspec.json.encode(value).decode(), _LONGEST_OUTCOME)}"


# --- what was seen ----------------------------------------------------------------------


def seen(callback: Callback) -> str:
    """The digest of what a card shows: what is asked, then, after a dot, what its patterns cover."""
    asked = (
        callback.digest, callback.message, callback.reworded, callback.choices, callback.schema, callback.tool,
        callback.args, callback.context,
    )  # fmt: skip
    covers = {name: sorted(one.id for one in calls) for name, calls in callback.covers.items()}
    return f"{digest(*asked)}.{digest(callback.patterns, covers)}"


def differs(callback: Callback, given: str | None, *, pattern: bool) -> bool:
    """Tell whether something else was seen than is asked now; what a pattern covers counts only if it is used."""
    if given is None:
        return False
    now, was = seen(callback), given
    if not pattern:
        now, was = now.partition(".")[0], was.partition(".")[0]
    return now != was
