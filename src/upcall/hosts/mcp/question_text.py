"""A callback as a text: who asks what and why, and every argument of a call that is to be approved."""

from __future__ import annotations

from typing import Any

import msgspec

from upcall.callbacks import Callback
from upcall.observe.hidden_question import HiddenQuestion, hidden_note, is_approval
from upcall.observe.path_entries import path_entries
from upcall.observe.plain import one_line, shortened, visible
from upcall.observe.quoted_question import asked_parts, quoted

LONGEST = 30_000
"""Characters of a question that a client shows in a form."""

_LONGEST_FACT = 2000
_MOST_FACTS = 40
_PATTERN = "pattern"


def question_text(question: HiddenQuestion, command: str = "") -> str:
    """The question with what a person needs to answer it. `question` is without its secrets.

    Of an approval every argument is shown whole, with invisible characters written as escapes. What agents wrote is
    quoted, and facts of the runtime have a line each. `command` shows what is hidden.
    """
    callback = question.callback
    parts = [f"Invalid answer:\n{quoted(callback.problem)}"] if callback.problem else []
    parts += [_head(callback), *asked_parts(callback)]
    if question.hidden:
        parts.append(f"({hidden_note(question.hidden)}{f'; to see it: {command}' if command else ''})")
    facts = [f"{name}: {_fact(name, text)}" for name, text in _facts(callback)]
    if len(facts) > _MOST_FACTS:
        facts = [*facts[:_MOST_FACTS], f"({len(facts) - _MOST_FACTS} more facts; `upcall inbox --json` shows them)"]
    return "\n\n".join([*parts, *(["\n".join(facts)] if facts else [])])


def _fact(name: str, text: str) -> str:
    """A fact on one line. A pattern is whole: it may be approved."""
    return visible(text) if name == _PATTERN else shortened(visible(text), _LONGEST_FACT)


def _head(callback: Callback) -> str:
    """Who asks, and what would run."""
    if not is_approval(callback):
        intent = f" ({one_line(callback.intent, 50)})" if callback.intent != "query" else ""
        return f"{one_line(callback.agent, 100)} asks{intent}:"
    lines = [f"{one_line(callback.agent, 100)} wants to run {visible(callback.tool)}:"]
    lines += [f"  {visible(str(name))} = {json_text(value)}" for name, value in (callback.args or {}).items()]
    return "\n".join(lines if callback.args else [*lines, "  without arguments"])


def _facts(callback: Callback) -> list[tuple[str, str]]:
    """What the runtime knows. What the asker gave is quoted instead."""
    facts: list[tuple[str, str]] = []
    if callback.priority in ("high", "critical"):
        facts.append(("priority", callback.priority))
    if task := callback.context.get("task"):
        facts.append(("task", str(task)))
    for entry in path_entries(callback.path):
        if entry.agent != "user":
            reason = f": {entry.reason}" if entry.reason and entry.step != "asked" else ""
            facts.append(("route", f"{entry.agent} {entry.done}{reason}"))
    facts += [(_PATTERN, f"{name}: {made}") for name, made in callback.patterns.items()]
    if len(callback.group) > 1:
        facts.append(("equal", f"{len(callback.group) - 1} more like it; one answer settles all"))
    return facts


def json_text(value: Any) -> str:
    """A value as JSON in which every character can be seen; long ones on several lines."""
    body = msgspec.json.encode(value)
    text = body.decode("utf-8", "replace")
    if len(text) > 80 and isinstance(value, dict | list):
        text = msgspec.json.format(body, indent=2).decode("utf-8", "replace").replace("\n", "\n    ")
    return visible(text, lines=True)
