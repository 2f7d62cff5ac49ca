"""Values, calls, plans and durations in the few words that one line of a screen has room for."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from upcall.messages import Call, Usage
from upcall.observe.plain import one_line, visible

MOST = 200
"""Letters of a text that is told in one line."""

_LONG = 2000


def args_line(args: dict[str, Any], most: int = 160) -> str:
    """Arguments as people write them, short."""
    shown = (f"{visible(str(name))}={value_line(value)}" for name, value in args.items())
    return one_line(" ".join(shown), most)


def value_line(value: Any) -> str:
    """A value as JSON, short, with whatever can't be seen written as what it is."""
    text = msgspec.json.encode(value).decode("utf-8", "replace")
    return one_line(visible(text[:_LONG]), 60)


def plan_list(text: str) -> str:
    """A manager's plan as a list to read, in Markdown; "" where it is none."""
    try:
        entries = msgspec.json.decode(text[text.find("[") : text.rfind("]") + 1], type=list[dict[str, Any]])
        rows = sorted(entries, key=lambda entry: entry["sequence"])
        told = [(a["sequence"], a["role"], one_line(a["task"], _LONG), a.get("caller") or "nobody") for a in rows]
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError):
        return ""
    return "\n".join(f"- {at} · {role}: {task} (may ask {whom})" for at, role, task, whom in told)


def verdict(value: Any) -> str:
    """An approval's answer in words."""
    match value:
        case {"approve": True, "args": dict()}:
            return f"approved with {value_line(value['args'])}"
        case {"approve": True, "for_session": True}:
            return "approved for the session"
        case {"approve": True}:
            return "approved"
        case {"approve": False, "reason": str(why)} if why:
            return f"rejected: {one_line(why, MOST)}"
        case _:
            return "rejected"


def edited_args(value: Any) -> dict[str, Any] | None:
    """The arguments that an approval's answer puts in the place of those that were asked for, if it does."""
    match value:
        case {"approve": True, "args": dict()}:
            return cast("dict[str, Any]", value["args"])
        case _:
            return None


def call_change(asked: Call, final: Call) -> str:
    """The difference between two versions of a call, as old → new."""
    changes = [f"{asked.name} → {final.name}"] if asked.name != final.name else []
    for name in {**asked.args, **final.args}:
        before, after = (value_line(call.args[name]) if name in call.args else "nothing" for call in (asked, final))
        if before != after:
            changes.append(f"{visible(str(name))} {before} → {after}")
    return one_line(", ".join(changes), MOST)


def changed_part(before: str, after: str) -> str:
    """The first line that differs: long results are changed in small places. A log keeps only the new text."""
    known = set(before.splitlines())
    rows = [row for row in after.splitlines() if row not in known] if before else []
    return rows[0] if rows else after


def lasted(seconds: float | None) -> str:
    """A duration for people."""
    if seconds is None:
        return ""
    if seconds < 0.9995:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def counted(count: int, what: str) -> list[str]:
    """So many of something; nothing where there are none."""
    return [f"{count} {what}{'s' if count != 1 else ''}"] if count else []


def tokens(usage: Usage) -> list[str]:
    """What a turn used; nothing where its model counts nothing."""
    if not usage.total:
        return []
    cached = f" ({usage.cached_tokens:,} cached)" if usage.cached_tokens else ""
    return [f"{usage.input_tokens:,} tokens in{cached}, {usage.output_tokens:,} out"]
