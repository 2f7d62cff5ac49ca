"""Short texts for single lines: values, calls, plans and durations."""

from __future__ import annotations

from itertools import takewhile
from typing import Any, cast

import msgspec

from upcall.events import TODOS, ContextSet
from upcall.messages import Call, Usage
from upcall.observe.plain import one_line, visible

LONGEST_TEXT = 200
"""The longest text in one line, in characters."""

_LONGEST_VALUE = 2000


def args_line(args: dict[str, Any], most: int = 160) -> str:
    """Format arguments as `name=value`, shortened. Only those that have room are formatted."""
    shown: list[str] = []
    room = most
    for name, value in args.items():
        shown.append(f"{one_line(visible(str(name)[:most]), most)}={value_line(value)}")
        room -= len(shown[-1]) + 1
        if room < 0:
            break
    return one_line(" ".join(shown), most)


def value_line(value: Any) -> str:
    """Format a value as JSON, shortened, with invisible characters escaped."""
    text = msgspec.json.encode(beginning(value, _LONGEST_VALUE)).decode("utf-8", "replace")
    return one_line(visible(text[:_LONGEST_VALUE]), 60)


def beginning(value: Any, most: int) -> Any:
    """Return the beginning of a JSON value: at least its first `most` characters, if it has so many."""
    return _Beginning(most).take(value)


class _Beginning:
    """Copies a value until enough of it is copied."""

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self, value: Any) -> Any:
        self._left -= 1
        if isinstance(value, str):
            kept = value[: max(self._left, 0) + 1]
            self._left -= len(kept)
            return kept
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value).items()
            return {self.take(name): self.take(one) for name, one in takewhile(self._has_room, fields)}
        if isinstance(value, list | tuple):
            return [self.take(one) for one in takewhile(self._has_room, cast("list[Any]", value))]
        return value

    def _has_room(self, _: Any) -> bool:
        return self._left > 0


def plan_list(text: str) -> str:
    """Format a manager's plan as a Markdown list; "" if the text is not a plan."""
    try:
        entries = msgspec.json.decode(text[text.find("[") : text.rfind("]") + 1], type=list[dict[str, Any]])
        rows = sorted(entries, key=lambda entry: entry["sequence"])
        steps = [
            (a["sequence"], a["role"], one_line(a["task"], _LONGEST_VALUE), a.get("caller") or "nobody")
            for a in rows
        ]
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError):
        return ""
    return "\n".join(f"- {at} · {role}: {task} (may ask {whom})" for at, role, task, whom in steps)


def read_todos(event: ContextSet) -> list[tuple[str, str]] | None:
    """Return the content and the status of each item of a to-do list; None if the event does not set one."""
    value: Any = event.value
    if event.key != TODOS or not isinstance(value, list):
        return None
    todos: list[tuple[str, str]] = []
    for one in cast("list[Any]", value):
        match one:
            case {"content": str(content), **rest}:
                todos.append((content, str(rest.get("status", ""))))
            case _:
                pass
    return todos


def approval_text(value: Any) -> str:
    """Describe the answer to an approval."""
    match value:
        case {"approve": True, "args": dict()}:
            return f"approved with {value_line(value['args'])}"
        case {"approve": True, "for_session": True}:
            return "approved for the session"
        case {"approve": True}:
            return "approved"
        case {"approve": False, "reason": str(why)} if why:
            return f"rejected: {one_line(why, LONGEST_TEXT)}"
        case _:
            return "rejected"


def edited_args(value: Any) -> dict[str, Any] | None:
    """Return the arguments that an approver changed, or None."""
    match value:
        case {"approve": True, "args": dict()}:
            return cast("dict[str, Any]", value["args"])
        case _:
            return None


def call_change(original: Call, final: Call) -> str:
    """Describe the difference between two versions of a call, as old → new."""
    changes = [f"{original.name} → {final.name}"] if original.name != final.name else []
    room = LONGEST_TEXT
    for name in {**original.args, **final.args}:
        if name in original.args and name in final.args and original.args[name] == final.args[name]:
            continue
        before, after = (
            value_line(call.args[name]) if name in call.args else "nothing" for call in (original, final)
        )
        if before != after:
            changes.append(f"{one_line(visible(str(name)[:room]), room)} {before} → {after}")
        if sum(map(len, changes)) > room:
            break
    return one_line(", ".join(changes), LONGEST_TEXT)


def changed_part(before: str, after: str) -> str:
    """Return the first line that differs. Only the new text is in the log, and most changes are small."""
    known = set(before.splitlines())
    rows = [row for row in after.splitlines() if row not in known] if before else []
    return rows[0] if rows else after


def duration(seconds: float | None) -> str:
    """Format a duration."""
    if seconds is None:
        return ""
    if seconds < 0.9995:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def count_noun(count: int, what: str) -> list[str]:
    """Format a count with its noun, as a list; empty for zero."""
    return [f"{count} {what}{'s' if count != 1 else ''}"] if count else []


def token_usage(usage: Usage) -> list[str]:
    """Format token usage, as a list; empty if the model reports none."""
    if not usage.total:
        return []
    cached = f" ({usage.cached_tokens:,} cached)" if usage.cached_tokens else ""
    return [f"{usage.input_tokens:,} tokens in{cached}, {usage.output_tokens:,} out"]


def money(amount: float) -> str:
    """Format an amount in the currency of the price list, with the digits that say something."""
    return (
        f"{amount:.2f}" if amount >= 1 or not amount else f"{amount:.2g}" if amount >= 0.0001 else f"{amount:.1e}"
    )
