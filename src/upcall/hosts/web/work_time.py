"""The time that a run tree worked and waited: a fold over its turns and its questions to people.

The tree works while any session in it does. A session works while its turn is in memory, unless it waits for a
person or for the sessions below it. So parallel work counts once, and a team works while its workers do.
"""

from __future__ import annotations

import msgspec

from upcall import events

_BEGIN = (events.TurnStarted, events.TurnResumed)
_END = (events.Parked, events.TurnEnded)
_RELEVANT = (*_BEGIN, *_END, events.CallbackAsked, events.CallbackPassed, *events.SETTLING)


class WorkTime(msgspec.Struct, gc=False):
    """The time of one run tree, up to its newest event.

    live: the sessions whose turns are in memory
    asking: the callbacks that wait for a person, with the sessions that asked
    ran: seconds of work, without the work since `since`
    since: when the tree began to work; 0 while it does not
    open: seconds in which a turn of its top was open, without the turn that began at `open_since`
    last: the time of the newest event
    """

    live: list[str] = []
    asking: dict[str, str] = {}
    ran: float = 0.0
    since: float = 0.0
    open: float = 0.0
    open_since: float = 0.0
    last: float = 0.0

    def apply(self, event: events.AnyEvent, top: str) -> None:
        """Take in the next event of the tree whose top is this session."""
        if isinstance(event, _RELEVANT):
            if isinstance(event, events.TurnResumed) and event.session == top and top in self.live:
                self._forget()  # its process died; nothing worked after its last event
            self._note(event)
            if event.session == top:
                self._note_turn(event)
            self._move(event.time)
        self.last = event.time

    def worked(self, now: float) -> float:
        """Seconds of work until now."""
        return self.ran + (max(0.0, now - self.since) if self.since else 0.0)

    def waited(self, now: float) -> float:
        """Seconds until now in which a turn was open and nothing worked."""
        opened = self.open + (max(0.0, now - self.open_since) if self.open_since else 0.0)
        return max(0.0, opened - self.worked(now))

    def _forget(self) -> None:
        self.live = []
        self._move(self.last)

    def _note(self, event: events.AnyEvent) -> None:
        match event:
            case events.TurnStarted() | events.TurnResumed():
                if event.session not in self.live:
                    self.live = [*self.live, event.session]
            case events.Parked() | events.TurnEnded():
                self.live = [one for one in self.live if one != event.session]
            case events.CallbackAsked(target="user"):
                self.asking = {**self.asking, event.callback_id: event.session}
            case events.CallbackAsked():
                pass
            case _:
                settled: str = getattr(event, "callback_id", "")
                self.asking = {i: session for i, session in self.asking.items() if i != settled}

    def _note_turn(self, event: events.AnyEvent) -> None:
        if isinstance(event, _BEGIN) and not self.open_since:
            self.open_since = event.time
        elif isinstance(event, events.TurnEnded) and self.open_since:
            self.open += max(0.0, event.time - self.open_since)
            self.open_since = 0.0

    def _move(self, time: float) -> None:
        above = {session.rpartition("~")[0] for session in self.live}
        works = not {*self.live} - above <= {*self.asking.values()}
        if works and not self.since:
            self.since = time
        elif not works and self.since:
            self.ran += max(0.0, time - self.since)
            self.since = 0.0
