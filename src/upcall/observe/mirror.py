"""`_events.jsonl`: one line per event of a run, for programs that read files.

A callback that is raised is one `AGENT_CALLBACK` line, with who asks and who is asked first. Each line is written
at once and whole, so several runs may share a file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

import msgspec

from upcall.contracts import Delta
from upcall.events import AnyEvent, CallbackRaised
from upcall.observe.in_order import InOrder
from upcall.observe.plain import escaped
from upcall.observe.redact import Redactor
from upcall.observe.shown_events import HeldBack
from upcall.observe.weight import is_large

_ALWAYS_LEFT_OUT = ("session", "seq", "time", "type", "pos", "version")


class Mirror:
    """Writes each event that it gets to a file, without its secrets.

    An event whose body hooks may still replace is written when they have passed it. A large event is written by a
    thread, and so is what comes after it until the thread has nothing left to write: the order stays.
    """

    def __init__(self, path: str | os.PathLike[str], redactor: Redactor | None = None) -> None:
        self._redactor, self._held = redactor or Redactor(), HeldBack()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._order = InOrder("upcall-events-file")

    def __call__(self, item: AnyEvent | Delta) -> None:
        """Write an event. A Delta is not an event, and is ignored."""
        if not isinstance(item, Delta):
            for event in self._held.take(item):
                self._order.do(partial(self._write, event), heavy=is_large(event))

    async def settle(self) -> None:
        """Return when everything is written that was given to it."""
        await self._order.settle()

    def _write(self, item: AnyEvent) -> None:
        try:
            text = msgspec.json.encode(line(self._redactor.copy(item)))
        except (RecursionError, msgspec.MsgspecError, TypeError, ValueError) as error:  # of an older log
            about = {
                "session": item.session,
                "seq": item.seq,
                "problem": f"it can't be written: {type(error).__name__}",
            }
            text = msgspec.json.encode({"timestamp": _time(item), "event_type": _type(item), "data": about})
        shown = escaped(text.decode())  # people read such files too, in a terminal
        left = memoryview(f"{shown}\n".encode())
        while left:
            left = left[os.write(self._file, left) :]

    def close(self) -> None:
        """Write what was held back, without its body, and close the file."""
        self._order.close()
        for event in self._held.rest():
            self._write(event)
        os.close(self._file)


def line(event: AnyEvent) -> dict[str, Any]:
    """Return the line's JSON object for an event."""
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
    """Return the agent that is asked first, `user` for the person, or "" for nobody."""
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
