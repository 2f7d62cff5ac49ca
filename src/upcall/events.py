"""Events: immutable facts about a session, in the order they were written.

An event is stored as its JSON body beside its session, sequence number, position and time; the store stamps
those four when it writes it. Bodies leave out what equals its default. `version` is written from 2 on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, Literal, TypeAlias, cast

import msgspec

from upcall.messages import NO_USAGE, Call, JsonSchema, Message, Priority, Purpose, Result, Usage, Value
from upcall.safety.bounds import DEPTH, is_too_deep


class Event(Value, frozen=True, tag_field="type", kw_only=True):
    """The fields of every event; each class adds its own, and `type`, its name in the log.

    session: the id of the session it belongs to
    seq: its sequence number in the session, from 1
    time: when it was stored, in seconds since 1970
    pos: its position in the whole store, from 1
    version: the version of its format
    """

    session: str = ""
    seq: int = 0
    time: float = 0.0
    pos: int = 0
    version: int = 1


# --- a session and its turns ------------------------------------------------------------


class SessionOptions(Value, frozen=True):
    """Options that an application chooses for one session, and may change between its turns.

    model: the name of one of `Agent(models={...})`; empty for the agent's own model
    approvals: `ask` has every call approved that is not `read_only`, in the session and in all that it starts. It
        only adds to what agents declare; empty leaves it at that
    """

    model: str = ""
    approvals: Literal["", "ask"] = ""


DEFAULT_OPTIONS = SessionOptions()


class SessionStarted(Event, frozen=True, tag="session_started"):
    """A session exists: the first event of its log.

    agent: the name of its agent
    parent: the id of the session that started it; empty for a root
    root: the id of the session at the top of its run tree; empty for a root
    origin: the call or hook of the parent that started it; its id is the parent's, `~` and this
    depth: how many sessions are above it; 0 for a root
    kind: `agent`; `side_turn` (an agent answers a callback over its own conversation); `coordinator` (a team or
        chain)
    reads: for a side turn: it begins with what its parent's log says up to this sequence number
    begins: whether its begin_session hooks are still to run
    asks: whether there is somebody to ask, so that the model gets the tool `ask`
    source: where its agents can be loaded from, if that is known
    role: for a team's member: its role in the team
    team: for a team's member: the name of the team
    above: the id of the session it may ask, where that is not its parent
    program: the program's main module that declares its agent; importing that would run the program again
    data: for a root: the application's own JSON object; all sessions of its run tree read it
    tags: for a root: names with values that its run tree can be found by
    title: for a root: a line that says what it is about
    folder: for a root: the folder that it works in, an absolute path
    roots: for a root: further folders that it works with
    workspace: for a root: whether it was started with a workspace of its own, which is not stored
    options: for a root: what the application chose for its turns
    servers: for a root: the names of the MCP servers that its agent was given
    """

    type: ClassVar[Literal["session_started"]] = "session_started"
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
    program: str = ""
    data: Mapping[str, Any] = {}
    tags: Mapping[str, str] = {}
    title: str = ""
    folder: str = ""
    roots: tuple[str, ...] = ()
    workspace: bool = False
    options: SessionOptions = DEFAULT_OPTIONS
    servers: tuple[str, ...] = ()


class SessionAdopted(Event, frozen=True, tag="session_adopted"):
    """The user adopted a log that somebody else made: earlier approvals are no longer valid.

    by: who adopted the log
    reopened: the ids of the approvals that were answered and whose calls have not ended; they are asked again
    """

    type: ClassVar[Literal["session_adopted"]] = "session_adopted"
    by: str = ""
    reopened: tuple[str, ...] = ()


class TurnStarted(Event, frozen=True, tag="turn_started"):
    """A turn started with a prompt.

    turn: the number of the turn in its session, from 1
    message: the prompt
    setup: a digest of the agent's instructions, tools and policy at that time
    by: who gave the prompt: a person, or the agent whose call, hook or step did; empty if that is not known
    queued: the sequence number of the TurnQueued event that the turn began from; 0 if it was not queued
    """

    type: ClassVar[Literal["turn_started"]] = "turn_started"
    turn: int
    message: Message
    setup: str = ""
    by: str = ""
    queued: int = 0


class TurnQueued(Event, frozen=True, tag="turn_queued"):
    """A prompt was submitted: a worker starts a turn with it, after the turns that were queued before.

    turn: the number that the turn is to have in its session, from 1
    message: the prompt
    priority: `low`, `normal`, `high` or `critical`; workers take the highest first
    tenant: on whose behalf; of several tenants, workers take the one with the fewest running trees first
    by: who submitted it; empty if that is not known
    """

    type: ClassVar[Literal["turn_queued"]] = "turn_queued"
    turn: int
    message: Message
    priority: Priority = "normal"
    tenant: str = ""
    by: str = ""


class TurnResumed(Event, frozen=True, tag="turn_resumed"):
    """A turn that was interrupted, failed or parked continues.

    turn: the number of the turn; 0 if the begin_session hooks run again, because the process that ran them died
    setup: the new digest, where the agent's instructions, tools or policy have changed since
    died: True if the process that owned the run tree before ended without releasing it
    """

    type: ClassVar[Literal["turn_resumed"]] = "turn_resumed"
    turn: int
    setup: str = ""
    died: bool = False


class HooksPassed(Event, frozen=True, tag="hooks_passed"):
    """A hook point is complete and never runs again; contains the changes of its hooks.

    point: the name of the point, such as `before_tool`
    at: which occurrence: the call's id at the tool points; turn and hook at `end_turn`, which is logged hook by
        hook
    replaces: the sequence number of the event whose body the new value replaces
    message: the message or response in place of the old one
    call: the call in place of the old one
    result: the result in place of the old one
    text: at `end_turn`: the reply's new text
    output: at `end_turn`: the reply's new output
    """

    type: ClassVar[Literal["hooks_passed"]] = "hooks_passed"
    point: str
    at: str = ""
    replaces: int = 0
    message: Message | None = None
    call: Call | None = None
    result: Result | None = None
    text: str | None = None
    output: Any = None


class TurnEnded(Event, frozen=True, tag="turn_ended"):
    """The turn is over.

    turn: the number of the turn
    status: how it ended
    limit: the name of the limit that ended it, if one did
    error: what failed it, if something did
    seconds: how long it ran, without the time it waited
    retry: for a failed turn, the time from which a worker may try it again; 0 if only a person resumes it
    """

    type: ClassVar[Literal["turn_ended"]] = "turn_ended"
    turn: int
    status: Literal["done", "cancelled", "limit", "failed"]
    limit: str = ""
    error: str = ""
    seconds: float = 0.0
    retry: float = 0.0


class OutputRefused(Event, frozen=True, tag="output_refused"):
    """The reply did not match the agent's output type; the model is told and asked again.

    problem: what the model is told
    """

    type: ClassVar[Literal["output_refused"]] = "output_refused"
    problem: str


class Steered(Event, frozen=True, tag="steered"):
    """A steering message for a running turn arrived; the next model call sees it.

    text: what was said
    by: who said it
    right: how that is known, such as `token`; empty if nobody said so
    """

    type: ClassVar[Literal["steered"]] = "steered"
    text: str
    by: str = ""
    right: str = ""


class OptionsSet(Event, frozen=True, tag="options_set"):
    """The application changed the options of a session; they apply from its next turn.

    options: all of them; what is left out is as the agent declares it
    """

    type: ClassVar[Literal["options_set"]] = "options_set"
    options: SessionOptions = DEFAULT_OPTIONS


class CancelRequested(Event, frozen=True, tag="cancel_requested"):
    """A cancellation of the running turn was requested; turns that are queued never start.

    by: who wants it
    reason: why
    right: how it is known who wants it, such as `token`; empty if nobody said so
    """

    type: ClassVar[Literal["cancel_requested"]] = "cancel_requested"
    by: str = ""
    reason: str = ""
    right: str = ""


# --- a team's or chain's steps ----------------------------------------------------------


class Planned(Event, frozen=True, tag="planned"):
    """A team or chain decided something before a step: it accepted a plan, or picked a branch.

    step: the name of the step
    value: what was decided, as JSON
    """

    type: ClassVar[Literal["planned"]] = "planned"
    step: str
    value: Any


class StepStarted(Event, frozen=True, tag="step_started"):
    """An agent of a team or chain is about to work on a step.

    step: the name of the step
    agent: the name of the agent
    child: the id of the session in which it works
    turn: the number of the turn in that session
    role: the agent's role in the team
    note: what was said to the team or chain meanwhile; it is added to the step's prompt
    """

    type: ClassVar[Literal["step_started"]] = "step_started"
    step: str
    agent: str
    child: str
    turn: int = 1
    role: str = ""
    note: str = ""


class StepEnded(Event, frozen=True, tag="step_ended"):
    """A step has ended and never runs again.

    step: the name of the step
    status: how it ended
    text: what its agent replied
    error: what failed it, if something did
    usage: the tokens that it used
    summary: what its agent said before, if its session was compacted
    """

    type: ClassVar[Literal["step_ended"]] = "step_ended"
    step: str
    status: Literal["done", "cancelled", "limit", "failed"]
    text: str = ""
    error: str = ""
    usage: Usage = NO_USAGE
    summary: str = ""


# --- the conversation -------------------------------------------------------------------


class MessageAdded(Event, frozen=True, tag="message_added"):
    """A message was added that is not a turn's prompt: by a hook, or a steering message.

    message: the message
    origin: the hook or callback that added it
    steer: the sequence number of the `steered` event that it takes up
    """

    type: ClassVar[Literal["message_added"]] = "message_added"
    message: Message
    origin: str = ""
    steer: int = 0


class ContextSet(Event, frozen=True, tag="context_set"):
    """A value was stored under a key.

    key: the key
    value: the value, as JSON
    origin: the call or hook that set it
    """

    type: ClassVar[Literal["context_set"]] = "context_set"
    key: str
    value: Any
    origin: str = ""


TODOS = "todos"
"""The key of an agent's to-do list: a list of objects with `content` and `status`."""


class CompactionAsked(Event, frozen=True, tag="compaction_asked"):
    """Compaction was requested while calls were open; it happens before the next model call.

    keep_last: how many of the newest messages are to stay
    summarise: whether the model is to summarise the others
    origin: the call or hook that asked for it
    """

    type: ClassVar[Literal["compaction_asked"]] = "compaction_asked"
    keep_last: int
    summarise: bool = False
    origin: str = ""


class Carried(Value, frozen=True):
    """The state that a fold which begins in the middle of a log needs.

    turn: the number of the last turn
    ordinal: the number of the last model call
    context: the values kept under keys
    summary: the summary of the last compaction
    text: what the model said last
    instructions: the content hash of the last request's instructions
    tools: the content hash of the last request's tools
    grants: approvals that hold for the session, each with its answer
    model_calls: how many model calls there were
    usage: the tokens used, by model
    seconds: how long the turns ran
    options: the content hash of the last request's reply schema and settings
    session_options: the options for the next turn
    model: the name of the last request's model
    labels: the labels of the last request's tools
    queued: the prompts that were submitted and whose turns have not started
    """

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
    options: str = ""
    session_options: SessionOptions = DEFAULT_OPTIONS
    model: str = ""
    labels: Mapping[str, str] = {}
    queued: tuple[TurnQueued, ...] = ()


class Compacted(Event, frozen=True, tag="compacted"):
    """The conversation before this is replaced by `messages`.

    messages: the conversation from here on
    summary: the model's summary of what was dropped
    dropped: how many messages were dropped
    origin: the call or hook that compacted
    base: the sequence number at which a fold may begin, the turn's start; 0 means here
    marks: the places of the turn's prompt and newest response in `messages`; -1 where there is none
    carried: what a fold that begins at `base` needs from before
    """

    type: ClassVar[Literal["compacted"]] = "compacted"
    messages: tuple[Message, ...]
    summary: str = ""
    dropped: int = 0
    origin: str = ""
    base: int = 0
    marks: tuple[int, int] = (-1, -1)
    carried: Carried | None = None


# --- the model --------------------------------------------------------------------------


NO_OPTIONS = "none"
"""The value of `ModelStarted.options` when the agent no longer has an output type or settings."""


class Change(Value, frozen=True):
    """The changes of before_model hooks to a request: hashes of changed texts, one splice of the messages.

    instructions: the content hash of the changed instructions
    tools: the content hash of the changed tools
    start: where the splice begins
    removed: how many messages it removes
    inserted: the messages it inserts
    spliced: whether there is a splice
    settings: all settings of the changed request, without values of headers, which may be keys
    headers: the names of headers whose values came from a hook, and are not kept
    output: the changed schema of the reply, null where hooks took it away
    """

    instructions: str = ""
    tools: str = ""
    start: int = 0
    removed: int = 0
    inserted: tuple[Message, ...] = ()
    spliced: bool = False
    settings: dict[str, Any] | None = None
    headers: tuple[str, ...] = ()
    output: JsonSchema | msgspec.UnsetType | None = msgspec.UNSET


class ModelStarted(Event, frozen=True, tag="model_started"):
    """A model is about to be asked.

    ordinal: the number of the model call in its session, from 1
    purpose: what it is asked for: a `turn`, a `side_turn` or a `summary`
    instructions: the content hash of the instructions, where they differ from the request before
    tools: the content hash of the tools, where they differ from the request before
    change: what before_model hooks changed
    options: the content hash of the reply's schema and the settings, where they differ from the request before
    model: the name of the model that is asked, where it differs from the request before
    labels: the labels that the tools were declared with, by name, where they differ from the request before
    """

    type: ClassVar[Literal["model_started"]] = "model_started"
    ordinal: int
    purpose: Purpose = "turn"
    instructions: str = ""
    tools: str = ""
    change: Change | None = None
    options: str = ""
    model: str = ""
    labels: Mapping[str, str] | None = None


class Responded(Event, frozen=True, tag="responded"):
    """A model answered, or a hook did in its place.

    ordinal: the number of the model call
    message: the response
    usage: the tokens used
    stop: why the model stopped, as its provider says it
    model: the model that answered
    by_hook: whether a hook answered in its place
    pending: whether post_response hooks are still to run
    """

    type: ClassVar[Literal["responded"]] = "responded"
    ordinal: int
    message: Message
    usage: Usage = NO_USAGE
    stop: str = ""
    model: str = ""
    by_hook: bool = False
    pending: bool = False


class WireExchange(Value, frozen=True):
    """One request to a provider and its answer, as the difference to the request before in the session's log.

    url: where it was sent
    status: the HTTP status of the answer; 0 if there was none
    start, end: how many characters of the request before it begins and ends with
    body: what is between them
    response: what came back; of a very long answer the beginning
    received_bytes: how many bytes came back
    """

    url: str
    status: int = 0
    start: int = 0
    end: int = 0
    body: str = ""
    response: str = ""
    received_bytes: int = 0


class WireCaptured(Event, frozen=True, tag="wire_captured"):
    """What went over the wire in a model call, where the runtime captures it.

    ordinal: the number of the model call
    exchanges: the requests that were sent, with their answers
    """

    type: ClassVar[Literal["wire_captured"]] = "wire_captured"
    ordinal: int
    exchanges: tuple[WireExchange, ...]


class ModelFailed(Event, frozen=True, tag="model_failed"):
    """A model call failed after its own retries.

    ordinal: the number of the model call
    error: what went wrong
    kind: the name of the error's class
    """

    type: ClassVar[Literal["model_failed"]] = "model_failed"
    ordinal: int
    error: str
    kind: str = ""


# --- tools ------------------------------------------------------------------------------


class ToolStarted(Event, frozen=True, tag="tool_started"):
    """A tool is about to run.

    call_id: the id of the call
    name: the tool's name
    args: the arguments, where a hook or an approver changed them
    approval: the id of the callback that approved the call
    """

    type: ClassVar[Literal["tool_started"]] = "tool_started"
    call_id: str
    name: str = ""
    args: dict[str, Any] | None = None
    approval: str = ""


class ToolEnded(Event, frozen=True, tag="tool_ended"):
    """A call has its result.

    call_id: the id of the call
    result: what the model gets
    how: where the result is from: the tool `ran`, was `refused`, `cancelled` or `interrupted`; a `hook` gave it
    pending: whether after_tool hooks are still to run
    dropped: whether a hook replaced the result later; this one is no longer kept
    """

    type: ClassVar[Literal["tool_ended"]] = "tool_ended"
    call_id: str
    result: Result
    how: Literal["ran", "refused", "cancelled", "interrupted", "hook"] = "ran"
    pending: bool = False
    dropped: bool = False


class ToolTriedAgain(Event, frozen=True, tag="tool_tried_again"):
    """A call that waited, or a repeatable one, runs again from its beginning.

    call_id: the id of the call
    attempt: the number of the attempt
    """

    type: ClassVar[Literal["tool_tried_again"]] = "tool_tried_again"
    call_id: str
    attempt: int


class InnerCalled(Event, frozen=True, tag="inner_called"):
    """A program that the agent wrote calls a tool; further events have the new call's own id.

    parent: the id of the call that runs the program
    call: the new call
    """

    type: ClassVar[Literal["inner_called"]] = "inner_called"
    parent: str
    call: Call


class ProgramSaved(Event, frozen=True, tag="program_saved"):
    """A program that the agent wrote was saved: at a call that it makes, or when it ended.

    call_id: the id of the call that runs the program
    blob: the content hash of the saved interpreter; empty where a program ended and its variables are lost
    calls: how many calls it has made so far
    seconds: how long it has run so far
    ended: whether it ended; what was saved are its variables
    """

    type: ClassVar[Literal["program_saved"]] = "program_saved"
    call_id: str
    blob: str = ""
    calls: int = 0
    seconds: float = 0.0
    ended: bool = False


class OnceStarted(Event, frozen=True, tag="once_started"):
    """An effect that must happen at most once is about to happen.

    origin: the call or hook that it belongs to
    name: the name of the effect
    """

    type: ClassVar[Literal["once_started"]] = "once_started"
    origin: str
    name: str


class OnceEnded(Event, frozen=True, tag="once_ended"):
    """An effect that must happen at most once has happened.

    origin: the call or hook that it belongs to
    name: the name of the effect
    value: what it returned, as JSON
    error: what it raised, if it did
    error_type: the type of that, with its module
    """

    type: ClassVar[Literal["once_ended"]] = "once_ended"
    origin: str
    name: str
    value: Any = None
    error: str = ""
    error_type: str = ""


# --- callbacks --------------------------------------------------------------------------


class CallbackRaised(Event, frozen=True, tag="callback_raised"):
    """A callback was raised. Its route is fixed now.

    callback_id: the id of the callback
    origin: the tool call or the occurrence of a hook that asks
    agent: the name of the agent that asks
    message: the question
    intent: what kind of answer is wanted: `query`, `clarification`, `blocker`, `error`, `approval`, or any other
        word
    kind: where to look for the answer, such as `callback_to_caller`
    route: who is asked in which order, who is skipped, and why
    digest: what a repeated question is matched by
    priority: `low`, `normal`, `high` or `critical`
    choices: the answers to choose from
    schema: the JSON schema of a typed answer
    context: what the person is shown: what the asker gave, with the task, the tool and its arguments
    given: what the asker gave as context
    tool: for an approval: the tool
    args: for an approval: the tool's arguments
    gate: whether it approves the very call it names
    patterns: for an approval: the patterns that an approver may pick, each with what it covers
    expires: when the whole callback expires, in seconds since 1970
    has_default: whether there is a default
    default: what the asker gets when no answer comes
    group: equal questions of a run tree share it
    hints: the routing hints that the asker gave; None in a log older than they are
    required: whether it must be answered, where the asker said so
    ran: how long the call that asks had run by then, in seconds, if its time is limited
    """

    type: ClassVar[Literal["callback_raised"]] = "callback_raised"
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
    ran: float = 0.0


class CallbackAsked(Event, frozen=True, tag="callback_asked"):
    """An agent or a person on the route is asked now.

    callback_id: the id of the callback
    target: the name of an agent, or `user` for the person
    station: how many agents of the route, of those that were to be asked, are behind it
    expires: when the time of the one asked is up, in seconds since 1970
    """

    type: ClassVar[Literal["callback_asked"]] = "callback_asked"
    callback_id: str
    target: str
    station: int = 0
    expires: float | None = None


class CallbackPassed(Event, frozen=True, tag="callback_passed"):
    """The agent that was asked passed the callback up, or may no longer be asked.

    callback_id: the id of the callback
    agent: the name of the agent
    reason: why
    station: how many agents of the route, of those that were to be asked, are behind it
    message: the question in other words, where the agent reworded it
    skipped: whether it was not asked, because it may no longer be
    """

    type: ClassVar[Literal["callback_passed"]] = "callback_passed"
    callback_id: str
    agent: str
    reason: str
    station: int = 0
    message: str = ""
    skipped: bool = False


class CallbackAnswered(Event, frozen=True, tag="callback_answered"):
    """A callback was answered.

    callback_id: the id of the callback
    value: the answer, as JSON
    by: who answered
    right: how that is known and why it was allowed, such as `asserted` or `agent`
    covered_by: for an approval: the id of another one whose answer, for the session, settled this one too
    """

    type: ClassVar[Literal["callback_answered"]] = "callback_answered"
    callback_id: str
    value: Any
    by: str = ""
    right: str = ""
    covered_by: str = ""


class CallbackDeclined(Event, frozen=True, tag="callback_declined"):
    """A person declined a question.

    callback_id: the id of the callback
    reason: why
    by: who declined
    right: how that is known and why it was allowed, such as `asserted` or `os-user`
    """

    type: ClassVar[Literal["callback_declined"]] = "callback_declined"
    callback_id: str
    reason: str = ""
    by: str = ""
    right: str = ""


class CallbackExpired(Event, frozen=True, tag="callback_expired"):
    """Nobody answered in time.

    callback_id: the id of the callback
    """

    type: ClassVar[Literal["callback_expired"]] = "callback_expired"
    callback_id: str


class CallbackWithdrawn(Event, frozen=True, tag="callback_withdrawn"):
    """A callback needs no answer any more, or nobody may or would answer it.

    callback_id: the id of the callback
    reason: why
    unresolved: whether nobody may or would answer it
    """

    type: ClassVar[Literal["callback_withdrawn"]] = "callback_withdrawn"
    callback_id: str
    reason: str
    unresolved: bool = False


class CallbackDelivered(Event, frozen=True, tag="callback_delivered"):
    """The outcome of a callback is about to reach the code that asked.

    callback_id: the id of the callback
    origin: the tool call or the occurrence of a hook that asked
    """

    type: ClassVar[Literal["callback_delivered"]] = "callback_delivered"
    callback_id: str
    origin: str


class CallbackRevealed(Event, frozen=True, tag="callback_revealed"):
    """Somebody who may answer a callback was shown the values in it that screens hide.

    callback_id: the id of the callback
    by: who was shown them
    right: how that is known, such as `token` or `os-user`
    """

    type: ClassVar[Literal["callback_revealed"]] = "callback_revealed"
    callback_id: str
    by: str = ""
    right: str = ""


class Parked(Event, frozen=True, tag="parked"):
    """The turn's memory was released while it waits.

    waits: the ids of the open callbacks of this session
    seconds: how long the turn has run so far
    calls: the ids of the calls that wait for children which they started
    ran: how long the calls that are not settled have run so far, in seconds by their ids
    """

    type: ClassVar[Literal["parked"]] = "parked"
    waits: tuple[str, ...]
    seconds: float = 0.0
    calls: tuple[str, ...] = ()
    ran: dict[str, float] = {}  # noqa: RUF012 - a Struct copies it; as a field it would be stored where it is empty


class HookRaised(Event, frozen=True, tag="hook_raised"):
    """An on_callback hook raised an exception; that counts as passing up.

    point: the hook point
    hook: the name of the hook
    error: what it raised
    """

    type: ClassVar[Literal["hook_raised"]] = "hook_raised"
    point: str
    hook: str
    error: str


AnyEvent: TypeAlias = (
    SessionStarted | TurnStarted | TurnResumed | HooksPassed | OutputRefused | TurnEnded | Steered
    | CancelRequested | MessageAdded | ContextSet | CompactionAsked | Compacted | ModelStarted | Responded
    | ModelFailed | ToolStarted | ToolEnded | ToolTriedAgain | InnerCalled | ProgramSaved | OnceStarted
    | OnceEnded | CallbackRaised | CallbackAsked | CallbackPassed | CallbackAnswered | CallbackDeclined
    | CallbackExpired | CallbackWithdrawn | CallbackDelivered | Parked | HookRaised | Planned
    | StepStarted | StepEnded | SessionAdopted | OptionsSet | CallbackRevealed
    | WireCaptured | TurnQueued
)  # fmt: skip

_encoder = msgspec.json.Encoder()
_canonical = msgspec.json.Encoder(order="deterministic")

_decoder: Callable[[], msgspec.json.Decoder[AnyEvent]] = cache(lambda: msgspec.json.Decoder(AnyEvent))
"""Created at first use, because that takes as long as importing everything else here."""


def prepare_decoder() -> None:
    """Make the decoder of events now; call it before a second thread reads a log.

    msgspec crashes where one thread decodes a type that another one is looking at for the first time.
    """
    _decoder()


def encode(event: Event) -> bytes:
    """Return the body to store: everything but the stamps. Call it before the event is stamped."""
    return _encoder.encode(event)


FORMAT = 1
"""The newest format of events. One with a newer format is refused: its fields may mean something else."""

_AROUND = 10
"""Nesting levels of an event around the asker's values."""


def decode(body: bytes, session: str, seq: int, pos: int, time: float) -> AnyEvent:
    """Return an event from its stored body and stamps; ValueError says why a body can't be read."""
    try:
        event = _decoder().decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if event.version > FORMAT:
        raise ValueError(
            f"it has format {event.version}, but this version of upcall reads only formats up to {FORMAT}"
        )
    if type(event) in _LISTED:
        _check_listed(event, body)
    return stamp(event, session, seq, pos, time)


_LISTED = (CallbackRaised, CallbackAnswered, SessionStarted)
"""Events whose values appear in lists together with others."""


def _check_listed(event: AnyEvent, body: bytes) -> None:
    """Raise ValueError for an event that can't be read as part of a list: it would hide the rest of the list."""
    if is_too_deep(body, DEPTH + _AROUND):
        raise ValueError("it is nested too deeply")
    if isinstance(event, CallbackRaised) and not _is_route(event.route):
        raise ValueError("its route is not valid")


def _is_route(route: dict[str, Any]) -> bool:
    """Return whether a route has the shape that all readers expect."""
    stations = route.get("stations")
    if not (isinstance(stations, list) and isinstance(route.get("end"), str) and isinstance(route.get("why"), str)):
        return False
    for station in cast("list[Any]", stations):
        if not isinstance(station, dict) or not {"agent", "step", "reason"} <= {*cast("dict[str, Any]", station)}:
            return False
    return True


def stamp(event: AnyEvent, session: str, seq: int, pos: int, time: float) -> AnyEvent:
    """Write the four stamps into a new event, once, before any other code has it."""
    put = msgspec.structs.force_setattr
    put(event, "session", session)
    put(event, "seq", seq)
    put(event, "pos", pos)
    put(event, "time", time)
    return event


def digest(*values: Any) -> str:
    """Return a short hash of JSON values that does not depend on the order of keys."""
    return hashlib.sha256(_canonical.encode(values)).hexdigest()[:24]


def content_hash(body: bytes) -> str:
    """Return the name under which a body is stored once."""
    return hashlib.sha256(body).hexdigest()[:32]


ANSWERING = (CallbackAnswered, CallbackDeclined)
"""Events that can settle a callback only before it expires."""
SETTLING = (*ANSWERING, CallbackExpired, CallbackWithdrawn)
FOREIGN = (Steered, TurnQueued, CancelRequested, OptionsSet, SessionAdopted, CallbackRevealed, *SETTLING)
"""Events that a process without a claim on the session may append."""
