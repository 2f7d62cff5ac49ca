"""The callback, its answer, and its routing hints."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from upcall import events
from upcall.messages import JsonSchema, Priority, Value

Kind = Literal["callback_to_caller", "request_user_input", "request_resolution", "callback"]
KINDS: tuple[Kind, ...] = ("callback_to_caller", "request_user_input", "request_resolution", "callback")
PERSON_ONLY = ("user_input", "preference")
"""Intents that only a person can settle."""
MUST_ANSWER = ("blocker", "error", "approval", *PERSON_ONLY)
"""Intents that raise when nobody answers; every other word is treated as a query."""
INTENTS = ("query", "clarification", *MUST_ANSWER)
"""Intents with a meaning here; any other word is kept as it was written."""
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
"""A host's return value: the answer, alone or in an Answer that says who gave it; None leaves it in the inbox."""


class CoveredCall(Value, frozen=True):
    """A call that waits for approval and that a pattern of another approval covers."""

    id: str
    args: dict[str, Any]


class Step(Value, frozen=True):
    """One station of a callback's route: who, what happened there, and why."""

    agent: str
    step: Literal["asked", "skipped", "passed", "reworded"]
    reason: str = ""


Status: TypeAlias = Literal["open", "answered", "declined", "expired", "withdrawn"]


class Callback(Value, frozen=True):
    """A question, approval, blocker or error that waits for somebody above, or was settled.

    In `context`, `task`, `tool` and `arguments` are always the runtime's; `given` is what the asker gave, whole.
    `reworded` is how the last agent that passed it up put it. `problem` says why a host's answer was not taken.
    `tags` are those of its run tree.

    Of an approval, `patterns` are those that the approver may pick, each with what it matches. `covers` lists, for
    each pattern, the other calls of the session that wait now and that the pattern covers. It is filled in where
    the callback is shown to somebody who may answer it: in the inbox and for a host.

    `delivered` is True once its outcome has reached the code that asked. An answer that a cancel overtook stays
    undelivered.

    The fields from `origin` on are the runtime's own. They are neither shown nor in the command's JSON:

    origin: the tool call or the occurrence of a hook that asks
    root: the id of the session at the top of its run tree
    pos: the position in the store of the event that raised it
    gate: it approves the very call that it names
    route: who is asked in which order, as the log stores it
    hints: the routing hints that the asker gave; None in a log older than they are
    required: whether it must be answered, where the asker said so
    has_default, default: what the asker gets when no answer comes
    digest_of_group: equal questions of a run tree share it; empty if it is never grouped
    target: who is asked now: an agent, or `user` for the person
    settled_at: when it was settled
    awaited: its session is parked and waits for it; only stores keep this
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
    status: Status = "open"
    answer: Answer | None = None
    group: tuple[str, ...] = ()
    reworded: str = ""
    problem: str = ""
    given: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    tags: Mapping[str, str] = {}
    patterns: Mapping[str, str] = {}
    covers: Mapping[str, tuple[CoveredCall, ...]] = {}
    delivered: bool = False

    origin: str = ""
    root: str = ""
    pos: int = 0
    gate: bool = False
    route: Mapping[str, Any] = {}
    hints: Mapping[str, Any] | None = None
    required: bool | None = None
    has_default: bool = False
    default: Any = None
    digest_of_group: str = ""
    target: str = ""
    settled_at: float = 0.0
    awaited: bool = False

    def __repr__(self) -> str:
        """The public fields."""
        return f"Callback({', '.join(f'{name}={getattr(self, name)!r}' for name in PUBLIC_FIELDS)})"

    @property
    def station(self) -> int:
        """The number of agents on its route that were to be asked and are behind it."""
        stations: Sequence[Mapping[str, Any]] = self.route.get("stations") or ()
        behind = stations[: _stations_behind(self.path)] if stations else ()
        return len([one for one in behind if one["step"] == "ask"])

    @property
    def group_key(self) -> tuple[str, ...]:
        """The key that groups equal questions of one run tree. A callback that is never grouped uses its id."""
        if not self.digest_of_group:
            return (self.id,)
        return (self.root, self.digest_of_group, self.reworded or self.message)

    def ends_wait(self, now: float) -> bool:
        """Return whether a parked session that waits for it can continue: settled, expired, or an agent is next."""
        return self.awaited and (self.status != "open" or self.target != "user" or self.is_late(now))

    def is_late(self, now: float) -> bool:
        """Return whether its time is up."""
        return self.expires is not None and self.expires <= now


def can_continue(callbacks: Sequence[Callback], now: float) -> bool:
    """Return whether a parked run tree with these callbacks can continue.

    An agent that is asked next lets it continue, unless an on_callback hook of that agent waits for an answer to a
    question of its own: then that question decides.
    """
    held = {one.origin for one in callbacks if one.status == "open" and one.origin.startswith(HOOK_ORIGIN)}
    return any(
        one.ends_wait(now) and (one.status != "open" or f"{HOOK_ORIGIN}{one.id}" not in held or one.is_late(now))
        for one in callbacks
    )


HOOK_ORIGIN = "on_callback."
"""Begins the origin of a question that an on_callback hook asks; the id of the hook's callback follows."""

PUBLIC_FIELDS = Callback.__struct_fields__[: Callback.__struct_fields__.index("origin")]
"""The fields of a callback that people and programs are shown."""

_public_values = attrgetter(*PUBLIC_FIELDS)


def public(callback: Callback, **changed: Any) -> Callback:
    """Return the callback without the runtime's own fields, for code that may write it as JSON."""
    shown = Callback(*_public_values(callback))
    return replace(shown, **changed) if changed else shown


# --- a callback and its events -----------------------------------------------------------


def callback_raised(
    event: events.CallbackRaised, session_id: str, root: str = "", tags: Mapping[str, str] | None = None
) -> Callback:
    """Return the callback that an event raises. `root` and `tags` are those of its run tree."""
    priority: Any = event.priority if event.priority in PRIORITIES else "normal"  # of another version
    kind: Any = event.kind
    return Callback(
        event.callback_id, session_id, event.agent, event.message, event.intent, kind, priority, event.choices,
        event.schema, event.context, event.tool, event.args, event.digest, event.time, event.expires,
        _with_skipped((), event.route), given=event.given, tags={} if tags is None else tags,
        patterns=event.patterns, origin=event.origin, root=root, pos=event.pos, gate=event.gate,
        route=event.route, hints=event.hints, required=event.required, has_default=event.has_default,
        default=event.default, digest_of_group=event.group,
    )  # fmt: skip


def after(callback: Callback, event: events.AnyEvent) -> Callback:
    """Return the callback as it is once this event of it is written.

    After the event that settles it, only its delivery changes it.
    """
    if type(event) is events.CallbackDelivered:
        return replace(callback, delivered=True)
    if callback.status != "open":
        return callback
    if type(event) is events.CallbackAsked:
        path = with_step(callback.path, callback.route, event.target, "asked")
        expires = callback.expires if event.expires is None else event.expires
        return replace(callback, target=event.target, path=path, expires=expires)
    if type(event) is events.CallbackPassed:
        step = "skipped" if event.skipped else "reworded" if event.message else "passed"
        path = with_step(callback.path, callback.route, event.agent, step, event.reason)
        return replace(callback, target="", path=path, reworded=_rewording(callback, event.message))
    return settled(callback, event)


def settled(callback: Callback, event: events.AnyEvent) -> Callback:
    """Return the callback as this event settles it."""
    answer: Answer | None = None
    if type(event) is events.CallbackAnswered:
        value = decode_approval(event.value) if callback.gate else event.value
        answer = Answer(value, event.by, event.right, event.time)
    elif type(event) is events.CallbackDeclined:
        answer = Answer(None, event.by, event.right, event.time, event.reason)
    status: Any = event.type.removeprefix("callback_")
    return replace(callback, status=status, answer=answer, settled_at=event.time)


def reopened(callback: Callback) -> Callback:
    """Return the callback as the person is asked again: its log was adopted, so no earlier answer counts."""
    path = callback.path
    for station in _stations_ahead(path, callback.route):
        if station["step"] == "ask":
            path = with_step(path, callback.route, station["agent"], "skipped", ADOPTED)
    path = with_step(path, callback.route, "user", "asked")
    return replace(callback, status="open", answer=None, settled_at=0.0, delivered=False, target="user", path=path)


def decode_approval(stored: Mapping[str, Any]) -> Approve | Reject:
    """Return the answer of an approval from what the log stores."""
    if stored.get("approve"):
        also = tuple(stored.get("also", ()))
        return Approve(stored.get("args"), stored.get("for_session", False), stored.get("pattern"), also)
    return Reject(stored.get("reason", ""), stored.get("for_session", False))


def _rewording(callback: Callback, message: str) -> str:
    """The reworded question after somebody passed it up; "" for the original words."""
    return "" if message == callback.message else message or callback.reworded


# --- the path of a callback --------------------------------------------------------------
#
# Each station of a route leaves one step in the path that is not `asked`: the route skips the agent, or the agent
# passed the callback up, or it may not be asked any more. So the path says how far the callback has come.


def with_step(
    path: tuple[Step, ...], route: Mapping[str, Any], agent: str, step: str, reason: str = ""
) -> tuple[Step, ...]:
    """Return the path with one more step, and with the agents that the route skips after it."""
    done: Any = step
    if step != "asked":
        return _with_skipped((*path, Step(agent, done, reason)), route)
    ahead = _stations_ahead(path, route)
    return (*path, Step(agent, done, ahead[0]["reason"] if ahead else route.get("why", "")))


def steps_taken(callback: Callback) -> list[tuple[str, str, str]]:
    """Return agent, step and reason of the steps that events added to its path; `with_step` adds them again."""
    stations, taken = iter(callback.route.get("stations") or ()), list[tuple[str, str, str]]()
    for one in callback.path:
        if one.step == "asked":
            taken.append((one.agent, one.step, ""))
        elif next(stations, {"step": "ask"})["step"] == "ask":
            taken.append((one.agent, one.step, one.reason))
    return taken


def _with_skipped(path: tuple[Step, ...], route: Mapping[str, Any]) -> tuple[Step, ...]:
    """Return the path with the agents that the route skips next."""
    for station in _stations_ahead(path, route):
        if station["step"] == "ask":
            break
        path = (*path, Step(station["agent"], "skipped", station["reason"]))
    return path


def _stations_ahead(path: tuple[Step, ...], route: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The route's stations that a callback with this path has not come to yet."""
    stations: Sequence[Mapping[str, Any]] = route.get("stations") or ()
    return stations[_stations_behind(path) :] if stations else ()


def _stations_behind(path: tuple[Step, ...]) -> int:
    """The number of the route's stations that are behind a callback with this path."""
    return len([one for one in path if one.step != "asked"])


# --- intents and kinds -------------------------------------------------------------------


def meant_intent(intent: str) -> str:
    """Return the known intent that a word equals or nearly equals; "" for any other word.

    A near miss has at least five letters. It has one letter more, less or another one than the known word, two of
    its letters swapped, or differs in case or by `-` or a blank for `_`. What must not be ignored can't be ignored
    because of a typo.
    """
    if intent in INTENTS:
        return intent
    return _near(intent) if _SHORTEST_MISS <= len(intent) <= _LONGEST_INTENT + 5 else ""


_LONGEST_INTENT = max(map(len, INTENTS))
_SHORTEST_MISS = 5


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
    """Return a warning for an intent that nearly equals a known one; "" for every other."""
    meant = meant_intent(intent)
    if meant in ("", intent):
        return ""
    treated = " and must be answered as that one" if meant in MUST_ANSWER else ", but is not a known intent"
    return f"the intent {intent!r} looks like {meant!r}{treated}"


def normal_kind(kind: str, intent: str) -> Kind:
    """Return the kind, with the old `callback` replaced by its meaning; ValueError lists the kinds."""
    if kind not in KINDS:
        raise ValueError(f"unknown callback kind {kind!r}; the kinds are {', '.join(KINDS)}")
    if kind == "callback":
        return "request_user_input" if meant_intent(intent) in PERSON_ONLY else "callback_to_caller"
    return kind


# --- routing hints ----------------------------------------------------------------------


class Hints(Value, frozen=True):
    """Routing hints of one callback: they narrow what the asker's sidecar allows and never widen it."""

    max_bubble_hops: Annotated[int, Meta(ge=0)] | None = None
    fallback_target: Annotated[str, Meta(min_length=1)] | None = None
    passthrough_agents: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    resolvable_by: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    passthrough_child_callbacks: bool = False

    @classmethod
    def build(cls, **hints: Any) -> Hints:
        """Make hints from values that code or a model wrote. Nothing is coerced; TypeError says what is wrong."""
        for name, value in hints.items():
            if name not in _HINTS:
                raise TypeError(f"unknown hint {name!r}; the hints are {', '.join(_HINTS)}")
            try:
                msgspec.convert({name: value}, cls)
            except msgspec.ValidationError:
                raise TypeError(f"{name} must be {_HINTS[name]}, not {value!r}") from None
        return msgspec.convert(hints, cls)


_HINTS = {
    "max_bubble_hops": "a whole number of 0 or more, or None",
    "fallback_target": "'user', 'fail', an agent's name or None",
    "passthrough_agents": "a list of agents' names, such as ['lead']",
    "resolvable_by": "a list of agents' names, such as ['lead']",
    "passthrough_child_callbacks": "True or False",
}


# --- equality of callbacks --------------------------------------------------------------


def question_digest(
    message: str,
    intent: str,
    kind: Kind,
    choices: Sequence[str] = (),
    schema: JsonSchema | None = None,
    key: str | None = None,
) -> str:
    """Return the digest by which a replayed question is matched. An explicit `key` replaces the whole question.

    Context, hints and times are left out: they differ between runs of the same code.
    """
    if key is not None:
        return _digest("key", key)
    return _digest("question", message, intent, kind, list(choices), schema)


def approval_digest(tool: str, args: dict[str, Any]) -> str:
    """Return the digest that an approval is bound to: this tool with exactly these arguments."""
    return _digest("approval", tool, args)


def same_json(one: Any, other: Any) -> bool:
    """Return whether two values are the same JSON; `==` would treat `1` as equal to `true` and `1.0`."""
    return one is other or msgspec.json.encode(one, order="sorted") == msgspec.json.encode(other, order="sorted")


def _digest(*parts: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()
