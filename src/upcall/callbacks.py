"""A question on its way up, and what settles it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from upcall import events
from upcall.messages import JsonSchema, Value

Kind = Literal["callback_to_caller", "request_user_input", "request_resolution", "callback"]
KINDS: tuple[Kind, ...] = ("callback_to_caller", "request_user_input", "request_resolution", "callback")
PERSON_ONLY = ("user_input", "preference")
"""Intents that only a person can settle."""
MUST_ANSWER = ("blocker", "error", "approval", *PERSON_ONLY)
"""Intents that raise when nobody answers; every other word is treated as a query."""
INTENTS = ("query", "clarification", *MUST_ANSWER)
"""Intents that mean something here; any other word is kept as it was written."""
Priority = Literal["low", "normal", "high", "critical"]
PRIORITIES: tuple[Priority, ...] = ("low", "normal", "high", "critical")


ADOPTED = "the log was adopted"


class Answer(Value, frozen=True):
    """The answer to a callback: its value, who gave it, by what right, and when.

    `by` is the principal. `right` says how that is known and why it was allowed, such as `os-user` or `oidc`. If
    the question was declined, `value` is None and `reason` says why. A hook returns `Answer(value)`; a host that
    knows who answered returns `Answer(value, by=..., right=...)`.
    """

    value: Any
    by: str = ""
    right: str = ""
    at: float = 0.0
    reason: str = ""


class Approve(Value, frozen=True):
    """Let the call run: as it is, or with `args` in place of its own; once or for the session.

    For the session it also settles the open approvals of equal calls. By a `pattern` it settles only those that
    `also` names: the ids that `callback.covers[pattern]` listed when the approver saw the callback.
    """

    args: dict[str, Any] | None = None
    for_session: bool = False
    pattern: str | None = None
    also: tuple[str, ...] = ()


class Reject(Value, frozen=True):
    """Do not let the call run, and say why."""

    reason: str = ""
    for_session: bool = False


class Decline(Value, frozen=True):
    """Refuse to answer a question, and say why. Whoever asked gets what no answer gives."""

    reason: str = ""


HostAnswer: TypeAlias = Answer | Approve | Reject | Decline | str | int | float | list[Any] | dict[str, Any] | None
"""What a host returns: the answer, alone or inside an Answer that says who gave it; None leaves it in the inbox."""


class CoveredCall(Value, frozen=True):
    """A call that waits for approval and that a pattern of another approval covers."""

    id: str
    args: dict[str, Any]


class Step(Value, frozen=True):
    """One station of a callback's way: who, what happened there, and why."""

    agent: str
    step: Literal["asked", "skipped", "passed", "reworded"]
    reason: str = ""


class Callback(Value, frozen=True):
    """A question, approval, blocker or error that waits for somebody above, or was settled.

    In `context`, `task`, `tool` and `arguments` are always the runtime's; `given` is what the asker gave, whole.
    `reworded` is how the last agent that passed it up put it. `problem` says why a host's answer was not taken.
    `tags` are those of its run tree.

    Of an approval, `patterns` are those that the approver may pick, each with what it matches. `covers` lists, for
    each pattern, the other calls of the session that wait now and that the pattern covers. It is filled in where
    the callback is shown to somebody who may answer it: in the inbox and for a host.
    """

    type: ClassVar[Literal["callback"]] = "callback"
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
    status: Literal["open", "answered", "declined", "expired", "withdrawn"] = "open"
    answer: Answer | None = None
    group: tuple[str, ...] = ()
    reworded: str = ""
    problem: str = ""
    given: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    tags: Mapping[str, str] = {}
    patterns: Mapping[str, str] = {}
    covers: Mapping[str, tuple[CoveredCall, ...]] = {}


class Held(msgspec.Struct, gc=False):
    """A callback: how it was raised, how far it came, how it was settled.

    A session's own takes each event as it is written; what a store lists stays as it was then.
    """

    raised: events.CallbackRaised
    root: str = ""
    status: str = "open"
    target: str = ""
    message: str = ""
    path: list[tuple[str, str, str]] = []
    expires: float | None = None
    settled: events.AnyEvent | None = None
    delivered: bool = False
    awaited: bool = False
    """Whether its session is parked and waits for it. Only stores keep this."""
    tags: Mapping[str, str] = {}
    """The tags of its run tree."""

    def ends_wait(self, now: float) -> bool:
        """Tell whether the parked session that waits for it can continue: settled, expired, or an agent is next."""
        if not self.awaited:
            return False
        return self.status != "open" or self.target != "user" or (self.expires is not None and self.expires <= now)

    @property
    def station(self) -> int:
        """How many stations of its route are behind it."""
        return len([step for _, step, _ in self.path if step != "asked"])

    @property
    def answer(self) -> events.CallbackAnswered | None:
        """What answered it, if it was answered."""
        return self.settled if type(self.settled) is events.CallbackAnswered else None

    @property
    def declined(self) -> events.CallbackDeclined | None:
        """The event that declined it, if it was declined."""
        return self.settled if type(self.settled) is events.CallbackDeclined else None

    def group_in(self, root: str) -> tuple[str, ...]:
        """What equal questions of one run tree have in common; a callback that is never grouped has only its id."""
        return (root, self.raised.group, self.message) if self.raised.group else (self.raised.callback_id,)

    def reopen(self) -> None:
        """Ask the person again, whoever answered before: the log was adopted, so that answer counts no more."""
        stations: list[dict[str, Any]] = self.raised.route.get("stations") or []
        agents = [str(one.get("agent")) for one in stations if one.get("step") == "ask"][self.station :]
        self.status, self.settled, self.delivered, self.target = "open", None, False, "user"
        self.path = [*self.path, *((agent, "skipped", ADOPTED) for agent in agents), ("user", "asked", "")]

    def take(self, event: events.AnyEvent) -> None:
        """One more event of it is written; what comes after it is settled changes nothing but its delivery."""
        if type(event) is events.CallbackDelivered:
            self.delivered = True
        elif self.status != "open":
            return
        elif type(event) is events.CallbackAsked:
            self.target = event.target
            self.path = [*self.path, (event.target, "asked", "")]
            self.expires = event.expires if event.expires is not None else self.raised.expires
        elif type(event) is events.CallbackPassed:
            self.target = ""
            step = "skipped" if event.skipped else "reworded" if event.message else "passed"
            self.path = [*self.path, (event.agent, step, event.reason)]
            self.message = event.message or self.message
        else:
            self.status, self.settled = event.type.removeprefix("callback_"), event


# --- intents and kinds -------------------------------------------------------------------


def meant_intent(intent: str) -> str:
    """The known intent that a word is, or that it is a near miss of; "" for any other word.

    A near miss has one letter more, less or another one than the known word, two of its letters swapped, or differs
    in case or by `-` or a blank for `_`. What must not be ignored can't be ignored because of a typo.
    """
    if intent in INTENTS:
        return intent
    return _near(intent) if len(intent) <= _LONGEST_INTENT + 5 else ""


_LONGEST_INTENT = max(map(len, INTENTS))


@lru_cache(1000)
def _near(intent: str) -> str:
    folded = re.sub(r"[-\s]", "_", intent.strip().casefold())
    is_word = folded.replace("_", "").isalpha()
    for known in INTENTS:
        if folded == known or _is_one_edit(intent, known) or (is_word and _is_one_edit(folded, known)):
            return known
    return ""


def _is_one_edit(word: str, known: str) -> bool:
    if abs(len(word) - len(known)) > 1:
        return False
    start = next(
        (i for i, (a, b) in enumerate(zip(word, known, strict=False)) if a != b), min(len(word), len(known))
    )
    rest, left = word[start:], known[start:]
    swapped = rest[:2] == left[1::-1] and rest[2:] == left[2:]
    return rest[1:] == left[1:] or rest[1:] == left or rest == left[1:] or swapped


def intent_warning(intent: str) -> str:
    """What is wrong with an intent that is a near miss of a known one; "" for every other."""
    meant = meant_intent(intent)
    if meant in ("", intent):
        return ""
    treated = " and must be answered as that one" if meant in MUST_ANSWER else ", but is not a known intent"
    return f"the intent {intent!r} looks like {meant!r}{treated}"


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

    max_bubble_hops: Annotated[int, Meta(ge=0)] | None = None
    fallback_target: Annotated[str, Meta(min_length=1)] | None = None
    passthrough_agents: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    resolvable_by: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    passthrough_child_callbacks: bool = False

    @classmethod
    def build(cls, **hints: Any) -> Hints:
        """From what code or a model wrote; TypeError says what is wrong, nothing is coerced."""
        for name, value in hints.items():
            if name not in _HINTS:
                raise TypeError(f"there is no option {name!r}; hints are {', '.join(_HINTS)}")
            try:
                msgspec.convert({name: value}, cls)
            except msgspec.ValidationError:
                raise TypeError(f"{name} must be {_HINTS[name]}, not {value!r}") from None
        return msgspec.convert(hints, cls)


_HINTS = {
    "max_bubble_hops": "0 or more, a whole number, or None",
    "fallback_target": "'user', 'fail', an agent's name or None",
    "passthrough_agents": "a list of agents' names, such as ['lead']",
    "resolvable_by": "a list of agents' names, such as ['lead']",
    "passthrough_child_callbacks": "True or False",
}


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


def same_json(one: Any, other: Any) -> bool:
    """Tell whether two values are the same JSON; `==` would take `1` for `true` and for `1.0`."""
    return one is other or msgspec.json.encode(one, order="sorted") == msgspec.json.encode(other, order="sorted")


def _digest(*parts: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()
