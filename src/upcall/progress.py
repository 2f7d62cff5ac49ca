"""What a turn waits for: a tool call and a callback, each on its way from asked to settled.

May import: events, messages.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from upcall import events
from upcall.messages import Call, Result

_NO_CALL = Call("", "", {})


def origin(point: str, at: str | int = "") -> str:
    """The name of one occurrence of a hook point; what its hooks write, ask and start is signed with it.

    `at` is the turn, the model call's ordinal, the tool call's id, or turn and index at `end_turn`.
    """
    return f"{point}.{at}" if at != "" else point


class Asked(msgspec.Struct, eq=False):
    """One callback of this session, on its way from raised to delivered."""

    raised: events.CallbackRaised
    message: str
    expires: float | None
    station: int = 0  # how many stations of the route are behind it
    target: str = ""
    path: list[tuple[str, str, str]] = []
    status: Literal["open", "answered", "expired", "withdrawn"] = "open"
    unresolved: str = ""
    answer: events.CallbackAnswered | None = None
    delivered: bool = False

    def ask(self, event: events.CallbackAsked) -> None:
        """Somebody is asked."""
        self.target, self.station = event.target, event.station
        self.path.append((event.target, "asked", ""))
        self.expires = event.expires if event.expires is not None else self.raised.expires

    def pass_up(self, event: events.CallbackPassed) -> None:
        """It was passed up."""
        self.target, self.station = "", event.station + 1
        self.path.append((event.agent, "reworded" if event.message else "passed", event.reason))
        self.message = event.message or self.message

    def settle(self, event: events.CallbackAnswered | events.CallbackExpired | events.CallbackWithdrawn) -> None:
        """It was open, and is settled."""
        if isinstance(event, events.CallbackAnswered):
            self.status, self.answer = "answered", event
        elif isinstance(event, events.CallbackExpired):
            self.status = "expired"
        else:
            self.status, self.unresolved = "withdrawn", event.reason if event.unresolved else ""


class CallState(msgspec.Struct, eq=False):
    """One tool call of the last response, or of a program that runs as one, on its way from asked to settled.

    `last` is its last own event: after a raise or a park it waits, after its start, a `once` or a delivery it is
    interrupted when its process dies.
    """

    call: Call
    passed: bool = False  # its before_tool hooks are done
    started: bool = False
    attempts: int = 0
    last: Literal["", "started", "raised", "once", "delivered", "parked"] = ""
    result: Result | None = None
    ended: events.ToolEnded | None = None
    settled: bool = False  # its after_tool hooks are done
    given: Call = _NO_CALL  # of a program: as it made it
    saved: events.ProgramSaved | None = None

    def start(self, event: events.ToolStarted) -> None:
        """Its tool is about to run."""
        self.passed = self.started = True
        self.last = "started"
        if event.name or event.args is not None:
            args = self.call.args if event.args is None else event.args
            self.call = Call(event.call_id, event.name or self.call.name, args)
