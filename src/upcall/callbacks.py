"""A question on its way up, and what settles it.

May import: messages.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from upcall.messages import JsonSchema, Value

Kind = Literal["callback_to_caller", "request_user_input", "request_resolution", "callback"]
Priority = Literal["low", "normal", "high", "critical"]
PRIORITIES: tuple[Priority, ...] = ("low", "normal", "high", "critical")


class Answer(Value, frozen=True):
    """What settles a callback: the value, who gave it, by what right, and when."""

    value: Any
    by: str = ""
    right: str = ""
    at: float = 0.0


class Approve(Value, frozen=True):
    """Let the call run: as it is, or with `args` in place of its own; once or for the session."""

    args: dict[str, Any] | None = None
    for_session: bool = False
    pattern: str | None = None


class Reject(Value, frozen=True):
    """Do not let the call run, and say why."""

    reason: str = ""
    for_session: bool = False


class Step(Value, frozen=True):
    """One station of a callback's way: who, what happened there, and why."""

    agent: str
    step: Literal["asked", "skipped", "passed", "reworded"]
    reason: str = ""


class Callback(Value, frozen=True):
    """A question, approval, blocker or error that waits for somebody above, or was settled."""

    id: str
    session_id: str
    agent: str
    message: str
    intent: str = "query"
    kind: Kind = "callback_to_caller"
    priority: Priority = "normal"
    choices: tuple[str, ...] = ()
    schema: JsonSchema | None = None
    context: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    tool: str = ""
    args: dict[str, Any] | None = None
    digest: str = ""
    created: float = 0.0
    expires: float | None = None
    path: tuple[Step, ...] = ()
    status: Literal["open", "answered", "expired", "withdrawn"] = "open"
    answer: Answer | None = None
    group: tuple[str, ...] = ()
