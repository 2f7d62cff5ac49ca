"""A question on its way up, and what settles it.

May import: messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal, cast

import msgspec

from upcall.messages import JsonSchema, Value

Kind = Literal["callback_to_caller", "request_user_input", "request_resolution", "callback"]
KINDS: tuple[Kind, ...] = ("callback_to_caller", "request_user_input", "request_resolution", "callback")
PERSON_ONLY = ("user_input", "preference")
"""Intents that only a person can settle."""
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
    """A question, approval, blocker or error that waits for somebody above, or was settled.

    `reworded` is how the last agent that passed it up put it; `problem` says why a host's answer was not taken.
    """

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
    reworded: str = ""
    problem: str = ""


def normal_kind(kind: str, intent: str) -> Kind:
    """The kind with the old `callback` made into what it means; ValueError names the kinds there are."""
    if kind not in KINDS:
        raise ValueError(f"no callback kind is called {kind!r}; there are {', '.join(KINDS)}")
    if kind == "callback":
        return "request_user_input" if intent in PERSON_ONLY else "callback_to_caller"
    return kind


# --- what one callback may say about its own way ----------------------------------------


class Hints(Value, frozen=True):
    """Routing hints of one callback: they narrow what the asker's sidecar allows and never widen it."""

    max_bubble_hops: int | None = None
    fallback_target: str | None = None
    passthrough_agents: tuple[str, ...] = ()
    resolvable_by: tuple[str, ...] = ()
    passthrough_child_callbacks: bool = False

    @classmethod
    def build(
        cls,
        max_bubble_hops: Any = None,
        fallback_target: Any = None,
        passthrough_agents: Any = (),
        resolvable_by: Any = (),
        passthrough_child_callbacks: Any = False,
    ) -> Hints:
        """From what code or a model wrote; TypeError or ValueError says what is wrong, nothing is coerced."""
        hops, target, through = max_bubble_hops, fallback_target, passthrough_child_callbacks
        if hops is not None and type(hops) is not int:
            raise TypeError(f"max_bubble_hops must be a whole number from 0 on, or None, not {hops!r}")
        if hops is not None and hops < 0:
            raise ValueError(f"max_bubble_hops must be 0 or more, not {hops}")
        if target is not None and not (isinstance(target, str) and target):
            raise TypeError(f"fallback_target must be 'user', 'fail', an agent's name or None, not {target!r}")
        if through is not True and through is not False:
            raise TypeError(f"passthrough_child_callbacks must be True or False, not {through!r}")
        passed = _names("passthrough_agents", passthrough_agents)
        return cls(hops, target, passed, _names("resolvable_by", resolvable_by), through)


def _names(hint: str, value: Any) -> tuple[str, ...]:
    # a bare string is a sequence of letters: resolvable_by="lead" would name l, e, a and d
    if isinstance(value, list | tuple | set | frozenset):
        names = tuple(cast("Sequence[Any]", value))
        if all(isinstance(name, str) and name for name in names):
            return names
    raise TypeError(f"{hint} must be a list of agents' names, such as ['lead'], not {value!r}")


# --- what makes two callbacks the same --------------------------------------------------


def question_digest(
    message: str,
    intent: str,
    kind: Kind,
    choices: Sequence[str] = (),
    schema: JsonSchema | None = None,
    key: str | None = None,
) -> str:
    """What a replayed question is matched by. An explicit `key` stands for the whole question.

    Context, hints and times are left out: they differ between runs of the same code.
    """
    if key is not None:
        return _digest("key", key)
    return _digest("question", message, intent, kind, list(choices), schema)


def approval_digest(tool: str, args: dict[str, Any]) -> str:
    """What an approval is bound to: this tool with exactly these arguments."""
    return _digest("approval", tool, args)


def _digest(*parts: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()
