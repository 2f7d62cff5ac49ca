"""The progress of one tool call, from the model's response to its result."""

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


class CallState(msgspec.Struct, eq=False):
    """One tool call of the last response, or of a program that the response runs, until it is settled.

    `last_event` says whether the call waits or runs: its last start, question, effect, delivery or park. Answers do
    not change it. After "raised" or "parked" the call waits. Otherwise it runs: if its process dies, the call is
    interrupted.
    """

    call: Call
    hooks_passed: bool = False  # its before_tool hooks are done
    started: bool = False
    attempts: int = 0
    last_event: Literal["", "started", "raised", "once", "delivered", "parked"] = ""
    result: Result | None = None
    ended: events.ToolEnded | None = None
    settled: bool = False  # its after_tool hooks are done
    as_written: Call = _NO_CALL  # of a program: as it made it
    snapshot: events.ProgramSaved | None = None
    waited_for_child: bool = False  # it was parked while it waited for a child that it had started
    ran_seconds: float = 0.0  # in earlier attempts, without the time in which it waited
    recheck: bool = False  # it had started before its log was adopted: before it runs again, it is approved again

    def start(self, event: events.ToolStarted) -> None:
        """Note that the tool is about to run."""
        self.hooks_passed = self.started = True
        self.recheck = False
        self.last_event = "started"
        if event.name or event.args is not None:
            args = self.call.args if event.args is None else event.args
            self.call = Call(event.call_id, event.name or self.call.name, args)
