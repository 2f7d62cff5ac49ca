"""A callback as a text: who asks what and why, and every argument of a call that is to be approved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from upcall.callbacks import Callback
from upcall.observe.hidden_question import HiddenQuestion, hidden_note, is_approval
from upcall.observe.path_entries import path_entries
from upcall.observe.plain import one_line, plain, shortened, visible

LONGEST = 30_000
"""Characters of a question that a client shows in a form."""

_LONGEST_FACT = 2000
_MOST_FACTS = 40


def question_text(question: HiddenQuestion, command: str = "") -> str:
    """The question with what a person needs to answer it. `question` is without its secrets.

    Of an approval every argument is shown whole, with invisible characters written as escapes. `command` shows
    what is hidden.
    """
    callback = question.callback
    lines = [f"Invalid answer: {plain(callback.problem)}", ""] if callback.problem else []
    lines += _approval(callback) if is_approval(callback) else _question(callback)
    if question.hidden:
        lines.append(f"({hidden_note(question.hidden)}{f'; to see it: {command}' if command else ''})")
    facts = [f"{name}: {shortened(plain(text), _LONGEST_FACT)}" for name, text in _facts(callback)[:_MOST_FACTS]]
    return "\n".join([*lines, *(["", *facts] if facts else [])]).strip()


def _approval(callback: Callback) -> list[str]:
    lines = [f"{one_line(callback.agent, 100)} wants to run {visible(callback.tool)}:"]
    lines += [f"  {visible(str(name))} = {json_text(value)}" for name, value in (callback.args or {}).items()]
    if not callback.args:
        lines.append("  without arguments")
    if callback.reworded:
        lines.append(plain(callback.reworded))
    return lines


def _question(callback: Callback) -> list[str]:
    head = f"{one_line(callback.agent, 100)} asks"
    if callback.intent != "query":
        head += f" ({one_line(callback.intent, 50)})"
    return [f"{head}:", plain(callback.reworded or callback.message).strip()]


def _facts(callback: Callback) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    if callback.reworded:
        facts.append(("asked as", callback.message))
    if callback.priority in ("high", "critical"):
        facts.append(("priority", callback.priority))
    if task := callback.context.get("task"):
        facts.append(("task", str(task)))
    for entry in path_entries(callback.path):
        if entry.agent != "user":
            reason = f": {entry.reason}" if entry.reason and entry.step != "asked" else ""
            facts.append(("route", f"{entry.agent} {entry.done}{reason}"))
    facts += [("pattern", f"{name}: {made}") for name, made in callback.patterns.items()]
    if len(callback.group) > 1:
        facts.append(("equal", f"{len(callback.group) - 1} more like it; one answer settles all"))
    given: Mapping[str, Any] = callback.given
    facts += [
        ("context", f"{name}: {value if isinstance(value, str) else json_text(value)}")
        for name, value in given.items()
    ]
    return facts


def json_text(value: Any) -> str:
    """A value as JSON in which every character can be seen; long ones on several lines."""
    body = msgspec.json.encode(value)
    text = body.decode("utf-8", "replace")
    if len(text) > 80 and isinstance(value, dict | list):
        text = msgspec.json.format(body, indent=2).decode("utf-8", "replace").replace("\n", "\n    ")
    return visible(text, lines=True)
