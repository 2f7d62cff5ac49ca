"""Frozen facts: what happened in a session, in the order it was written down.

An event is stored as its JSON body beside its session, sequence number, position and time; the store stamps
those four when it writes it. Bodies leave out what equals its default. `version` is written from 2 on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal

import msgspec

from upcall.messages import NO_USAGE, Call, Message, Purpose, Result, Usage, Value


class Event(Value, frozen=True, tag_field="type", kw_only=True):
    """What every event has. `seq` counts per session from 1, `pos` over the whole store."""

    session: str = ""
    seq: int = 0
    time: float = 0.0
    pos: int = 0
    version: int = 1

    @property
    def type(self) -> str:
        """The event's name, as `upcall events` prints it."""
        return str(self.__struct_config__.tag)


# --- a session and its turns ------------------------------------------------------------


class SessionStarted(Event, frozen=True, tag="session_started"):
    """A session exists. A child names its parent and the call (or hook) that started it.

    A side turn begins with what its parent's log says up to sequence number `reads`. `begins`: begin_session hooks
    are still to come; `asks`: there is somebody to ask, so the model gets the tool `ask`. A team's member has its
    `role` and the `team` it belongs to; `above` is the session it may ask where that is not its parent.
    """

    agent: str
    parent: str = ""
    root: str = ""
    origin: str = ""
    depth: int = 0
    kind: Literal["agent", "side_turn", "coordinator"] = "agent"
    reads: int = 0
    begins: bool = False
    asks: bool = False
    source: str = ""
    role: str = ""
    team: str = ""
    above: str | None = None


class TurnStarted(Event, frozen=True, tag="turn_started"):
    """A prompt came in. `setup` is a digest of instructions, tools and policy as they are now."""

    turn: int
    message: Message
    setup: str = ""


class TurnResumed(Event, frozen=True, tag="turn_resumed"):
    """A turn that was interrupted, failed or parked goes on. `setup` is set where it has changed since."""

    turn: int
    setup: str = ""


class HooksPassed(Event, frozen=True, tag="hooks_passed"):
    """A hook point was passed and never runs again; holds what its hooks changed, if they did.

    `at` is the call id at the tool points, turn and hook at `end_turn`, which is logged hook by hook;
    `replaces` is the sequence number of the event whose body this one's value takes the place of.
    """

    point: str
    at: str = ""
    replaces: int = 0
    message: Message | None = None
    call: Call | None = None
    result: Result | None = None
    text: str | None = None
    output: Any = None


class TurnEnded(Event, frozen=True, tag="turn_ended"):
    """The turn is over."""

    turn: int
    status: Literal["done", "cancelled", "limit", "failed"]
    limit: str = ""
    error: str = ""
    seconds: float = 0.0


class OutputRefused(Event, frozen=True, tag="output_refused"):
    """The reply did not match the agent's output type; the model is told and asked again."""

    problem: str


class Steered(Event, frozen=True, tag="steered"):
    """Somebody said something to a running turn; the next model call sees it."""

    text: str
    by: str = ""


class CancelRequested(Event, frozen=True, tag="cancel_requested"):
    """Somebody wants the running turn to end."""

    by: str = ""
    reason: str = ""


# --- a team's or chain's steps ----------------------------------------------------------


class Planned(Event, frozen=True, tag="planned"):
    """What a team or chain decided before a step: a plan that was accepted, the branch that was picked."""

    step: str
    value: Any


class StepStarted(Event, frozen=True, tag="step_started"):
    """A step's agent is about to work, in its child session's turn of that number.

    `note` is what was said to the team or chain meanwhile, and is added to the step's prompt.
    """

    step: str
    agent: str
    child: str
    turn: int = 1
    role: str = ""
    note: str = ""


class StepEnded(Event, frozen=True, tag="step_ended"):
    """A step has ended and never runs again. `summary` is what it said before, if its session was compacted."""

    step: str
    status: Literal["done", "cancelled", "limit", "failed"]
    text: str = ""
    error: str = ""
    usage: Usage = NO_USAGE
    summary: str = ""


# --- what the session holds -------------------------------------------------------------


class MessageAdded(Event, frozen=True, tag="message_added"):
    """A message that no turn brought: from a hook, or steering taken up (`steer` is its seq)."""

    message: Message
    origin: str = ""
    steer: int = 0


class ContextSet(Event, frozen=True, tag="context_set"):
    """A value kept under a key."""

    key: str
    value: Any
    origin: str = ""


class CompactionAsked(Event, frozen=True, tag="compaction_asked"):
    """Compaction was asked for while calls were open; it is done before the next model call."""

    keep_last: int
    summarise: bool = False
    origin: str = ""


class Carried(Value, frozen=True):
    """What a fold that begins in the middle of a log needs from before."""

    turn: int = 0
    ordinal: int = 0
    context: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    summary: str = ""
    text: str = ""
    instructions: str = ""
    tools: str = ""
    grants: tuple[tuple[CallbackRaised, CallbackAnswered], ...] = ()
    model_calls: int = 0
    usage: Mapping[str, Usage] = {}
    seconds: float = 0.0


class Compacted(Event, frozen=True, tag="compacted"):
    """The history before this is replaced by `messages`.

    A fold may begin at sequence number `base` (the turn's start; 0 means here) with what is in `carried`. `marks`
    are the places of the turn's prompt and newest response in `messages`.
    """

    messages: tuple[Message, ...]
    summary: str = ""
    dropped: int = 0
    origin: str = ""
    base: int = 0
    marks: tuple[int, int] = (-1, -1)
    carried: Carried | None = None


# --- the model --------------------------------------------------------------------------


class Change(Value, frozen=True):
    """What `before_model` hooks made of a request: hashes of changed texts, one splice of the messages."""

    instructions: str = ""
    tools: str = ""
    start: int = 0
    removed: int = 0
    inserted: tuple[Message, ...] = ()
    spliced: bool = False


class ModelStarted(Event, frozen=True, tag="model_started"):
    """A model is about to be asked. Hashes are only there where they differ from the request before."""

    ordinal: int
    purpose: Purpose = "turn"
    instructions: str = ""
    tools: str = ""
    change: Change | None = None


class Responded(Event, frozen=True, tag="responded"):
    """A model answered, or a hook did in its place. `pending`: post_response hooks are still to come."""

    ordinal: int
    message: Message
    usage: Usage = NO_USAGE
    stop: str = ""
    model: str = ""
    by_hook: bool = False
    pending: bool = False


class ModelFailed(Event, frozen=True, tag="model_failed"):
    """A model call failed after its own retries."""

    ordinal: int
    error: str
    kind: str = ""


# --- tools ------------------------------------------------------------------------------


class ToolStarted(Event, frozen=True, tag="tool_started"):
    """The tool is about to run. `args` only where a hook or an approver changed them."""

    call_id: str
    name: str = ""
    args: dict[str, Any] | None = None
    approval: str = ""


class ToolEnded(Event, frozen=True, tag="tool_ended"):
    """The call has its result. `pending`: after_tool hooks are still to come.

    `dropped`: the body was replaced later and is no longer kept.
    """

    call_id: str
    result: Result
    how: Literal["ran", "refused", "cancelled", "interrupted", "hook"] = "ran"
    pending: bool = False
    dropped: bool = False


class ToolTriedAgain(Event, frozen=True, tag="tool_tried_again"):
    """A call that waited, or a repeatable one, is entered again from its top."""

    call_id: str
    attempt: int


class InnerCalled(Event, frozen=True, tag="inner_called"):
    """The program that runs as the call `parent` calls a tool; what follows is told under the new call's own id."""

    parent: str
    call: Call


class ProgramSaved(Event, frozen=True, tag="program_saved"):
    """Where a program stands, by content hash: at a call out or, `ended`, with the variables it leaves behind.

    `calls` and `seconds` are what it has used so far. One that ended without a body has lost its variables.
    """

    call_id: str
    blob: str = ""
    calls: int = 0
    seconds: float = 0.0
    ended: bool = False


class OnceStarted(Event, frozen=True, tag="once_started"):
    """A side effect that must happen at most once is about to happen."""

    origin: str
    name: str


class OnceEnded(Event, frozen=True, tag="once_ended"):
    """It happened: what it returned, or what it raised."""

    origin: str
    name: str
    value: Any = None
    error: str = ""


# --- callbacks --------------------------------------------------------------------------


class CallbackRaised(Event, frozen=True, tag="callback_raised"):
    """Somebody asks. `origin` is the tool call or the hook's occurrence; `route` is fixed from here on.

    `gate` marks the approval of the very call it names. `expires` is the whole callback's deadline. `hints` are the
    asker's own routing hints, for every later check of who may answer; None in logs from before they were kept.
    `required`: whether it must be answered, where the asker said so.
    """

    callback_id: str
    origin: str
    agent: str
    message: str
    intent: str
    kind: str
    route: dict[str, Any]
    digest: str
    priority: str = "normal"
    choices: tuple[str, ...] = ()
    schema: dict[str, Any] | None = None
    context: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    given: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    tool: str = ""
    args: dict[str, Any] | None = None
    gate: bool = False
    patterns: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    expires: float | None = None
    has_default: bool = False
    default: Any = None
    group: str = ""
    hints: dict[str, Any] | None = None
    required: bool | None = None


class CallbackAsked(Event, frozen=True, tag="callback_asked"):
    """Somebody on the route is asked now: an agent, or `user` for the person."""

    callback_id: str
    target: str
    station: int = 0
    expires: float | None = None


class CallbackPassed(Event, frozen=True, tag="callback_passed"):
    """Who was asked passed it up; with `message`, in other words. `skipped`: it may no longer be asked."""

    callback_id: str
    agent: str
    reason: str
    station: int = 0
    message: str = ""
    skipped: bool = False


class CallbackAnswered(Event, frozen=True, tag="callback_answered"):
    """It is settled. `by` is the principal, `right` how that is known and why it was allowed."""

    callback_id: str
    value: Any
    by: str = ""
    right: str = ""


class CallbackExpired(Event, frozen=True, tag="callback_expired"):
    """Nobody answered in time."""

    callback_id: str


class CallbackWithdrawn(Event, frozen=True, tag="callback_withdrawn"):
    """It needs no answer any more; or, `unresolved`, nobody may or would give one."""

    callback_id: str
    reason: str
    unresolved: bool = False


class CallbackDelivered(Event, frozen=True, tag="callback_delivered"):
    """Its outcome is about to reach the code that asked."""

    callback_id: str
    origin: str


class Parked(Event, frozen=True, tag="parked"):
    """The turn's memory was given up while these callbacks wait."""

    waits: tuple[str, ...]
    seconds: float = 0.0


class HookRaised(Event, frozen=True, tag="hook_raised"):
    """An on_callback hook raised: that counts as passing up."""

    point: str
    hook: str
    error: str


AnyEvent = (
    SessionStarted | TurnStarted | TurnResumed | HooksPassed | OutputRefused | TurnEnded | Steered
    | CancelRequested | MessageAdded | ContextSet | CompactionAsked | Compacted | ModelStarted | Responded
    | ModelFailed | ToolStarted | ToolEnded | ToolTriedAgain | InnerCalled | ProgramSaved | OnceStarted
    | OnceEnded | CallbackRaised | CallbackAsked | CallbackPassed | CallbackAnswered | CallbackExpired
    | CallbackWithdrawn | CallbackDelivered | Parked | HookRaised | Planned
    | StepStarted | StepEnded
)  # fmt: skip

_encoder = msgspec.json.Encoder()
_canonical = msgspec.json.Encoder(order="deterministic")

_decoder: Callable[[], msgspec.json.Decoder[AnyEvent]] = cache(lambda: msgspec.json.Decoder(AnyEvent))
"""Made when it is needed: that takes as long as all else here."""


def encode(event: Event) -> bytes:
    """The body to store: everything but the stamps. Call it before the event is stamped."""
    return _encoder.encode(event)


def decode(body: bytes, session: str, seq: int, pos: int, time: float) -> AnyEvent:
    """An event from its stored body and stamps."""
    return stamp(_decoder().decode(body), session, seq, pos, time)


def stamp(event: AnyEvent, session: str, seq: int, pos: int, time: float) -> AnyEvent:
    """Write the four stamps into a fresh event, once, before anybody else has seen it."""
    put = msgspec.structs.force_setattr
    put(event, "session", session)
    put(event, "seq", seq)
    put(event, "pos", pos)
    put(event, "time", time)
    return event


def digest(*values: Any) -> str:
    """A short hash of JSON values that does not depend on the order of keys."""
    return hashlib.sha256(_canonical.encode(values)).hexdigest()[:24]


def content_hash(body: bytes) -> str:
    """The name under which a body is stored once."""
    return hashlib.sha256(body).hexdigest()[:32]


SETTLING = (CallbackAnswered, CallbackExpired, CallbackWithdrawn)
FOREIGN = (Steered, CancelRequested, *SETTLING)
"""What may be appended by a process that does not own the session."""
