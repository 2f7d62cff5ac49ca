"""Progress of a call: one short line for what an agent does, at most a few a second."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from upcall import events
from upcall.events import AnyEvent
from upcall.observe.lines import Lines
from upcall.observe.shown_events import is_held_back

Report = Callable[[float, str], Awaitable[None]]
"""Sends a number that grows, and a line."""

INTERVAL = 0.2
"""Seconds between two lines; what happens in between is left out."""


_MOST_AGENTS = 1000


class Progress:
    """Turns events of a session and all below it into lines. `clock` gives seconds."""

    def __init__(self, report: Report, lines: Lines, clock: Callable[[], float]) -> None:
        self._report, self._lines, self._clock = report, lines, clock
        self._count = 0
        self._next = 0.0
        self._agents: dict[str, str] = {}

    async def watch(self, event: AnyEvent) -> None:
        """Report an event, if it says something and the last line is not too recent."""
        if isinstance(event, events.SessionStarted) and len(self._agents) < _MOST_AGENTS:
            self._agents[event.session] = self._lines.text(event.agent)
        if self._clock() >= self._next and (line := self._line(event)):
            await self.say(line)

    async def say(self, line: str) -> None:
        """Report a line now."""
        self._next = self._clock() + INTERVAL
        self._count += 1
        await self._report(float(self._count), line)

    def _line(self, event: AnyEvent) -> str:
        who = self._agents.get(event.session, "")
        match event:
            case events.SessionStarted():
                return f"{self._lines.text(event.agent)} begins"
            case events.Responded() if not is_held_back(event, set()):
                calls = [
                    f"{self._label(one.name)} {self._lines.call(one.name, one.args)}".strip()
                    for one in event.message.calls[:3]
                ]
                said = "; ".join(calls) or self._lines.text(event.message.text)
                return f"{who}: {said}" if who else said
            case events.CallbackRaised():
                return f"{self._lines.text(event.agent)} asks: {self._lines.text(event.message)}"
            case _:
                return ""

    def _label(self, tool: str) -> str:
        return self._lines.labels.of(tool)
