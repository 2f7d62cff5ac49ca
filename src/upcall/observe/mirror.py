"""`_events.jsonl`: one line per event of a run, for programs that read files.

A callback that is raised is one `AGENT_CALLBACK` line, with who asks and who is asked first. Each line is written
at once and whole, so several runs may share a file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from upcall.contracts import Delta
from upcall.events import AnyEvent, CallbackRaised
from upcall.observe.plain import escaped

_ALWAYS_LEFT_OUT = ("session", "seq", "time", "type", "pos", "version")


class Mirror:
    """Writes each event that it is shown to a file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def __call__(self, item: AnyEvent | Delta) -> None:
        """Write an event down; text still being written is none."""
        if isinstance(item, Delta):
            return
        try:
            text = msgspec.json.encode(line(item))
        except (RecursionError, msgspec.MsgspecError, TypeError, ValueError) as error:  # of an older log
            about = {"session": item.session, "seq": item.seq, "problem": f"it can't be written: {error}"[:500]}
            text = msgspec.json.encode({"timestamp": _time(item), "event_type": _type(item), "data": about})
        shown = escaped(text.decode())  # people read such files too, in a terminal
        left = memoryview(f"{shown}\n".encode())
        while left:
            left = left[os.write(self._file, left) :]

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def line(event: AnyEvent) -> dict[str, Any]:
    """What is written of an event."""
    head = {"timestamp": _time(event), "event_type": _type(event)}
    if isinstance(event, CallbackRaised):
        return {**head, "data": _raised(event)}
    body = {k: v for k, v in msgspec.to_builtins(event).items() if k not in _ALWAYS_LEFT_OUT}
    return {**head, "data": {"session": event.session, **body}}


def _time(event: AnyEvent) -> str:
    at = datetime.fromtimestamp(event.time, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _type(event: AnyEvent) -> str:
    return "AGENT_CALLBACK" if isinstance(event, CallbackRaised) else event.type.upper()


def _first_asked(event: CallbackRaised) -> str:
    """The agent that is asked first, `user` for the person, or "" for nobody."""
    stations: Any = event.route.get("stations")
    if not isinstance(stations, list | tuple):  # of a log that was written by hand
        return ""
    for station in cast("Sequence[Any]", stations):
        match station:
            case {"agent": str() as agent, "step": "ask"}:
                return agent
            case {"agent": str(), "step": "skip"}:
                continue
            case _:
                return ""
    return "user" if event.route.get("end") == "person" else ""


def _raised(event: CallbackRaised) -> dict[str, Any]:
    data: dict[str, Any] = {
        "from": event.agent,
        "to": _first_asked(event),
        "type": event.intent,
        "message": event.message,
    }
    more: dict[str, Any] = {
        "context": event.given,
        "priority": event.priority if event.priority != "normal" else "",
        "kind": event.kind if event.kind != "callback_to_caller" else "",
        "choices": list(event.choices),
        "tool": event.tool,
        "args": event.args,
    }
    return data | {key: value for key, value in more.items() if value}
