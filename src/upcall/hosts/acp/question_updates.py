"""Questions in an editor: each is an entry with who asks what, by which route it climbed, and what was answered."""

from __future__ import annotations

from typing import Any

from upcall import events
from upcall.callbacks import Callback, after, callback_raised
from upcall.hosts.acp.forms import MOST_OPTIONS, asks_secret, needs_message
from upcall.hosts.acp.protocol import Client
from upcall.hosts.acp.tool_calls import ToolCalls, text_content
from upcall.observe.hidden_question import hide_secrets
from upcall.observe.lines import Lines
from upcall.observe.path_entries import path_entries
from upcall.observe.plain import one_line, visible
from upcall.observe.quoted_question import asked_parts, choice_names, listed_choices
from upcall.observe.redact import Redactor

LONGEST_NAME = 200
"""Characters of the name of an option."""

DECLINE = "Decline to answer"
"""The name of the option that is beside the choices."""

_LOOKED_AT = 4_000
_LONGEST_TITLE = 200
_MARKS = str.maketrans("“”„‟", "''''")


class QuestionUpdates:
    """Folds the events of callbacks into updates. Approvals are shown at their calls instead."""

    def __init__(self, calls: ToolCalls, root: str) -> None:
        self._redactor, self._lines, self._root = calls.redactor, calls.lines, root
        self._open: dict[str, Callback] = {}
        self._texts: dict[str, tuple[str, str]] = {}  # of each open question: its last wording, and its text

    def raised(self, event: events.CallbackRaised) -> list[dict[str, Any]]:
        """Return the entry of a new question."""
        callback = self._open[event.callback_id] = callback_raised(event, event.session, self._root)
        if callback.gate:
            return []
        entry = {
            "toolCallId": callback.id,
            "title": self._title(callback),
            "kind": "think",
            "status": "pending",
            "content": self._content(callback),
        }
        return [{"sessionUpdate": "tool_call", **entry}]

    def changed(self, event: Any) -> list[dict[str, Any]]:
        """Return the change of a question's entry."""
        callback = self._open.get(event.callback_id)
        if callback is None:
            return []
        callback = self._open[callback.id] = after(callback, event)
        if callback.status != "open":
            del self._open[callback.id]
        if callback.gate:
            return []
        content = self._content(callback)
        if callback.status != "open":
            self._texts.pop(callback.id, None)
        status = {"open": "in_progress", "answered": "completed"}.get(callback.status, "failed")
        change = {"toolCallId": callback.id, "status": status, "content": content}
        return [{"sessionUpdate": "tool_call_update", **change}]

    def approval(self, callback_id: str) -> Callback | None:
        """Return the open approval of that id."""
        callback = self._open.get(callback_id)
        return callback if callback is not None and callback.gate else None

    def waiting_text(self, client: Client) -> str:
        """Return what a turn that ends while questions wait says about them."""
        groups = {one.group_key: one for one in self._open.values() if one.target == "user"}
        by_message = [one for one in groups.values() if needs_message(one, client, self._redactor)]
        others = [one for one in groups.values() if one not in by_message]
        parts = [f"{one_line(one.agent, 100)} asks:\n\n{self._text(one)}" for one in by_message]
        if len(parts) == 1:
            parts.append("Your next message answers it.")
        elif parts:
            parts = [f"{number}. {text}" for number, text in enumerate(parts, 1)]
            parts.append("Begin your next message with the number of the question, such as `1: your answer`.")
        for one in others:
            what = f"wants to run {visible(one.tool)}" if one.gate else f"asks: {self._lines.text(one.message)}"
            secret = asks_secret(one, self._redactor)
            how = f"Answer with `upcall answer {one.id}`." if secret else f"It waits as {one.id}."
            parts.append(f"{one_line(one.agent, 100)} {what}. {how}")
        return "\n\n".join(parts) or "The turn waits for an answer."

    def _title(self, callback: Callback) -> str:
        return one_line(f"{callback.agent} asks: {self._lines.text(callback.message)}", _LONGEST_TITLE)

    def _content(self, callback: Callback) -> list[dict[str, Any]]:
        parts = [self._text(callback)]
        if route := route_text(callback, self._redactor):
            parts.append(route)
        if callback.status != "open":
            parts.append(outcome_text(callback, self._lines))
        return [text_content("\n\n".join(parts))]

    def _text(self, callback: Callback) -> str:
        """Return the text of an open question. It is made once for each wording: hiding secrets takes long."""
        wording, text = self._texts.get(callback.id, ("", ""))
        if not text or wording != callback.reworded:
            text = question_text(hide_secrets(callback, self._redactor).callback)
            self._texts[callback.id] = (callback.reworded, text)
        return text


def question_text(shown: Callback) -> str:
    """Return what agents wrote in a question, and the choices that no dialog names. `shown` has no secrets."""
    parts = asked_parts(shown)
    few = shown.choices[:MOST_OPTIONS]
    if shown.choices != few or choice_names(few, LONGEST_NAME, [DECLINE]) != list(few):
        parts.append(listed_choices(shown.choices))
    return "\n\n".join(parts)


def route_text(callback: Callback, redactor: Redactor) -> str:
    """Return the route that a question has climbed so far, on one line; "" if the person was asked first."""

    def short(text: str, most: int) -> str:  # redacted first: a part of a secret can't be recognised
        return one_line(redactor.text(redactor.beginning(text, _LOOKED_AT)), most)

    def said(reason: str) -> str:  # in quotation marks that it can't close
        return f"“{short(reason, 200).translate(_MARKS)}”"

    steps = [
        f"{short(entry.agent, 60)} {entry.done}" + (f" ({said(entry.reason)})" if entry.reason else "")
        for entry in path_entries(callback.path)
        if entry.agent != "user"
    ]
    return f"Route: {short(callback.agent, 100)} → {' → '.join(steps)}" if steps else ""


def outcome_text(callback: Callback, lines: Lines) -> str:
    """Return how a question ended, as one line."""
    answer = callback.answer
    by = lines.whole(answer.by) if answer is not None and answer.by else "somebody"
    match callback.status:
        case "answered":
            return f"{by} answered: {lines.value(answer.value if answer is not None else None)}"
        case "declined":
            why = answer.reason if answer is not None else ""
            return f"{by} declined{': ' + lines.whole(why) if why else ''}"
        case "expired":
            return "Nobody answered in time."
        case _:
            return "It needs no answer any more."
