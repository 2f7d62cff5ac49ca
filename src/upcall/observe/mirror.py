"""`_events.jsonl`: one line per event of a run, for programs that read files.

A callback that is raised is one `AGENT_CALLBACK` line, with who asks and who is asked first. Each line is written
at once and whole, so several runs may share a file.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

import msgspec

from upcall.answers import route_of
from upcall.contracts import Delta
from upcall.events import AnyEvent, CallbackRaised

_ALWAYS_LEFT_OUT = ("session", "seq", "time", "type", "pos", "version")


class Mirror:
    """Writes each event that it is shown to a file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def __call__(self, item: AnyEvent | Delta) -> None:
        """Write an event down; text still being written is none."""
        if isinstance(item, Delta):
            return
        left = memoryview(msgspec.json.encode(line(item)) + b"\n")
        while left:
            left = left[os.write(self._file, left) :]

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def line(event: AnyEvent) -> dict[str, Any]:
    """What is written of an event."""
    at = datetime.fromtimestamp(event.time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(event, CallbackRaised):
        return {"timestamp": at, "event_type": "AGENT_CALLBACK", "data": _raised(event)}
    body = {k: v for k, v in msgspec.to_builtins(event).items() if k not in _ALWAYS_LEFT_OUT}
    return {"timestamp": at, "event_type": event.type.upper(), "data": {"session": event.session, **body}}


def _raised(event: CallbackRaised) -> dict[str, Any]:
    way = route_of(event)
    first = way.asks[0].agent if way.asks else "user" if way.end == "person" else ""
    data: dict[str, Any] = {"from": event.agent, "to": first, "type": event.intent, "message": event.message}
    more: dict[str, Any] = {
        "context": event.given,
        "priority": event.priority if event.priority != "normal" else "",
        "kind": event.kind if event.kind != "callback_to_caller" else "",
        "choices": list(event.choices),
        "tool": event.tool,
        "args": event.args,
    }
    return data | {key: value for key, value in more.items() if value}
