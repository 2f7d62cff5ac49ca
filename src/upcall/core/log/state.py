"""What a session is now: a fold over its log. Nothing here reads or writes anything.

Only events of the session's owner change the conversation; what others append (steering, a cancel request) waits
here until the owner takes it up with an event of its own, so that the order of the log never changes a history.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, cast

from upcall import events
from upcall.callbacks import Held
from upcall.core.log.call_state import CallState, origin
from upcall.messages import NO_USAGE, Call, Instruction, Message, Result, Text, Usage, user

Phase = Literal["idle", "running", "done", "cancelled", "limit", "failed"]


_NO_HEADER = events.SessionStarted("")
_NOTHING = events.Carried()


class SessionState:
    """One session, folded. `apply` takes events in the order they were written."""

    __slots__ = (
        "alone",
        "applied_steers",
        "before_turn",
        "begun",
        "callbacks",
        "calls",
        "cancel",
        "compaction",
        "context",
        "deferred",
        "end_passed",
        "error",
        "failed",
        "grants",
        "header",
        "history",
        "hollow",
        "hook_writes",
        "id",
        "inner",
        "instructions",
        "last_time",
        "limit",
        "model_calls",
        "model_text",
        "next_options",
        "once_effects",
        "open_model_call",
        "options",
        "ordinal",
        "output",
        "output_retries",
        "parked",
        "phase",
        "post_passed",
        "pre_passed",
        "program",
        "prompt",
        "prompt_at",
        "ran_seconds",
        "reply_text",
        "response",
        "response_at",
        "root_header",
        "running_since",
        "seq",
        "stale",
        "steers",
        "steps",
        "summary",
        "tools",
        "totals_before_turn",
        "turn",
        "turn_options",
        "usage",
        "usage_by_model",
    )  # fmt: skip

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.turn_options = self.next_options = (
            events.DEFAULT_OPTIONS
        )  # of the newest turn, and of the one after it
        self.header = self.root_header = _NO_HEADER  # the root's has what the application gave the run tree
        self.seq, self.last_time = 0, 0.0
        # stale: it holds what was never stored, so the log must be folded anew; alone: it surely started no others
        self.begun = self.stale = self.alone = False
        # the conversation
        self.history: list[Message] = []
        self.hollow = False  # whether a message in the history has no parts: its body was replaced by a later event
        self.calls: dict[str, CallState] = {}
        self.inner: dict[str, CallState] = {}  # calls of programs: the settled ones in the order they were settled
        self.program: events.ProgramSaved | None = None  # with the variables that this turn's programs left
        self.deferred: list[Message] = []
        self.context: dict[str, Any] = {}
        self.summary = self.instructions = self.tools = self.options = ""
        self.grants: tuple[tuple[events.CallbackRaised, events.CallbackAnswered], ...] = ()  # they hold on
        self.steers: dict[int, events.Steered] = {}
        self.applied_steers: set[int] = set()  # steering that is in the conversation already
        self.compaction: events.CompactionAsked | None = None
        # the turn
        self.phase: Phase = "idle"
        self.turn = self.ordinal = 0
        self.before_turn = _NOTHING
        self.prompt: events.TurnStarted | None = None
        self.prompt_at = self.response_at = -1  # where in the history they are
        self.reply_text = self.model_text = ""  # the reply, and as the model gave it
        self.output: Any = None  # the reply's value where an end_turn hook replaced it
        self.limit = self.error = ""
        self.usage = NO_USAGE
        self.usage_by_model: dict[str, Usage] = {}  # in all turns, by model
        self.totals_before_turn = (0, 0.0)  # model calls and seconds of the turns before this one
        self.model_calls = self.output_retries = 0  # output_retries: replies that did not match the output type
        self.ran_seconds = self.running_since = 0.0  # seconds it ran before its newest segment; when that began
        self.parked = False  # its memory was given up while it waits
        self.pre_passed = self.post_passed = False
        self.end_passed = 0
        self.open_model_call: events.ModelStarted | None = None  # a model call without its response
        # one whose model_failed hooks have not ended
        self.failed: tuple[events.ModelStarted, events.ModelFailed] | None = None
        self.response: events.Responded | None = None  # the newest
        self.cancel: events.CancelRequested | None = None
        self.hook_writes: dict[str, list[events.Event]] = {}
        self.callbacks: dict[str, Held] = {}  # by callback id
        self.once_effects: dict[tuple[str, str], events.OnceEnded | None] = {}
        # a team's or chain's, by kind of event and name
        self.steps: dict[tuple[type[events.Event], str], events.Event] = {}

    def apply(self, event: events.AnyEvent) -> None:
        """Take one more event into account."""
        FOLDS[type(event)](self, event)
        if event.seq > self.seq:
            self.seq, self.last_time = event.seq, event.time

    def become(self, other: SessionState) -> None:
        """Be what another fold of the same log is: whoever holds this one sees it."""
        for name in self.__slots__:
            setattr(self, name, getattr(other, name))

    def read_from(self, other: SessionState) -> None:
        """Begin with another session's conversation, as a side turn does; what is written stays here."""
        self.history, self.context, self.summary = other.messages(), other.context, other.summary
        self.root_header = other.root_header
        self.ordinal = other.ordinal  # one request never holds two calls of one id

    def absorb(self, event: events.AnyEvent) -> None:
        """Take in what somebody else appended, out of turn; twice is harmless."""
        FOLDS[type(event)](self, event)

    # --- what a model would read now ------------------------------------------------------

    def messages(self) -> list[Message]:
        """The conversation, valid for every provider: an open call has a result too, "in progress"."""
        history = [m for m in self.history if m.parts] if self.hollow else self.history
        if not self.calls:
            return [*history, *self.deferred] if self.deferred else history.copy()
        return [*history, self._results("in progress: it is still running", is_error=False), *self.deferred]

    def wants_model(self) -> bool:
        """Whether the turn's next step is to ask the model."""
        if self.response is None:
            return True
        for call in self.calls.values():
            if not call.settled:
                return False
        return bool(self.calls)

    def settle_calls(self, why: str = "the turn ended before it was completed") -> None:
        """Move the calls' results into the history, in call order, then what was added meanwhile."""
        if self.calls:
            self.history.append(self._results(f"cancelled: {why}"))
            for call in self.calls.values():
                if call.snapshot is not None and call.snapshot.ended:
                    self.program = call.snapshot
            self.calls, self.inner = {}, {}
        if self.deferred:
            self.history.extend(self.deferred)
            self.deferred = []

    def _results(self, text: str, *, is_error: bool = True) -> Message:
        results = [c.result or Result(i, text, is_error=is_error) for i, c in self.calls.items()]
        return Message("tool", tuple(results))

    def call(self, call_id: str) -> CallState | None:
        """An open call of the response, or of a program that runs as one."""
        return self.calls.get(call_id) or self.inner.get(call_id)

    @property
    def options_in_force(self) -> events.SessionOptions:
        """The options of the turn that runs, or else of the next one."""
        return self.turn_options if self.phase == "running" else self.next_options

    def running_seconds(self, now: float) -> float:
        """How long this turn has run, waiting not counted."""
        return self.ran_seconds + (now - self.running_since) if 0.0 < self.running_since < now else self.ran_seconds

    # --- folds, one per type --------------------------------------------------------------

    def _session_started(self, event: events.SessionStarted) -> None:
        self.header = event
        if not event.root:
            self.root_header = event
            self.turn_options = self.next_options = event.options
        self.begun = not event.begins

    def _session_adopted(self, _: events.SessionAdopted) -> None:
        for ask in self.approvals_in_doubt():
            ask.reopen()
        self.grants, self.before_turn = (), self.before_turn.replace(grants=())
        for call in (*self.calls.values(), *self.inner.values()):
            call.recheck = call.started and call.result is None

    def approvals_in_doubt(self) -> list[Held]:
        """The approvals that were answered and whose calls have not ended: adopting the log asks them again."""
        gates = [ask for ask in self.callbacks.values() if ask.raised.gate and ask.answer is not None]
        calls = [(ask, self.call(ask.raised.origin)) for ask in gates]
        return [ask for ask, call in calls if call is not None and call.result is None]

    def _turn_started(self, event: events.TurnStarted) -> None:
        if self.calls or self.deferred:
            self.settle_calls("the turn failed before this call was completed")
        self.phase = "idle"
        self.before_turn = self.carried() if self.turn or self.ordinal or self.context else _NOTHING
        self.totals_before_turn = (
            self.totals_before_turn[0] + self.model_calls,
            self.totals_before_turn[1] + self.ran_seconds,
        )
        self.phase = "running"
        self.turn = event.turn
        self.prompt = event
        self.turn_options = self.next_options
        self.usage, self.model_calls = NO_USAGE, 0
        self.ran_seconds, self.running_since = 0.0, event.time
        self.parked = self.pre_passed = self.post_passed = False
        self.end_passed = self.output_retries = 0
        self.open_model_call = self.response = self.cancel = self.output = self.failed = self.program = None
        self.callbacks, self.once_effects, self.steps, self.hook_writes = {}, {}, {}, {}
        self.limit = self.error = ""
        self.prompt_at = self._append(event.message)

    def _append(self, message: Message) -> int:
        self.history.append(message)
        if not message.parts:
            self.hollow = True
        return len(self.history) - 1

    def _put(self, at: int, message: Message) -> None:
        """Replace a message of the history; an empty one goes, unless it may still be replaced."""
        if at >= 0:
            self.history[at] = message
            self.hollow = self.hollow or not message.parts

    def _options_set(self, event: events.OptionsSet) -> None:
        self.next_options = event.options

    def _turn_resumed(self, event: events.TurnResumed) -> None:
        if self.phase == "running" and self.running_since:
            self.ran_seconds += max(0.0, self.last_time - self.running_since)
        if self.phase == "limit":  # what its last response called is settled, and the model has not seen it
            self.response = None
        if self.phase != "running":  # it has ended, and goes on after that
            self.turn_options = self.next_options
        self.phase, self.running_since = "running", event.time
        self.parked, self.output_retries = False, 0
        self.limit = self.error = ""

    def _hooks_passed(self, event: events.HooksPassed) -> None:
        if self.hook_writes:
            self.hook_writes.pop(origin(event.point, event.at), None)
        match event.point:
            case "begin_session":
                self.begun, self.parked = True, False
            case "pre_request":
                self.pre_passed = True
                if event.message is not None and self.prompt is not None:
                    self.prompt = self.prompt.replace(message=event.message)
                    self._put(self.prompt_at, event.message)
            case "post_response":
                self.post_passed = True
                if event.message is not None and self.response is not None:
                    self._put(self.response_at, event.message)
                    self.calls = {}
                    self._take_response(self.response.replace(message=event.message))
            case "before_tool":
                call = self._call(event.at)
                call.hooks_passed = True
                call.call = event.call or call.call
            case "after_tool":
                self._settle(event.at).result = event.result or self._call(event.at).result
            case "end_turn":
                self.end_passed = int(event.at.rpartition(".")[2]) + 1
                self.reply_text = self.reply_text if event.text is None else event.text
                self.output = self.output if event.output is None else event.output
            case _:
                pass

    def _output_refused(self, event: events.OutputRefused) -> None:
        self.output_retries += 1
        self.response = None
        self.history.append(user(event.problem))

    def _turn_ended(self, event: events.TurnEnded) -> None:
        if self.calls and event.status != "failed":  # a failed turn may be resumed, and then its open calls go on
            self.settle_calls()
        self.phase = event.status
        self.limit, self.error = event.limit, event.error
        self.ran_seconds, self.running_since = event.seconds, 0.0
        self.open_model_call = self.failed = None
        if self.hook_writes and event.status != "failed":
            self.hook_writes = {}

    def _steered(self, event: events.Steered) -> None:
        if event.seq not in self.applied_steers:
            self.steers[event.seq] = event

    def _cancel_requested(self, event: events.CancelRequested) -> None:
        self.cancel = event

    def _wrote(self, event: Any) -> None:
        if event.origin:
            self.hook_writes.setdefault(event.origin, []).append(event)

    def _message_added(self, event: events.MessageAdded) -> None:
        if event.steer:
            self.steers.pop(event.steer, None)
            self.applied_steers.add(event.steer)
            if not self.calls:
                self.response = None  # it wants an answer of its own
        self._wrote(event)
        (self.deferred if self.calls else self.history).append(event.message)

    def _context_set(self, event: events.ContextSet) -> None:
        if event.origin:
            self.hook_writes.setdefault(event.origin, []).append(event)
        self.context = {**self.context, event.key: event.value}  # never changed in place: snapshots hold it

    def _compaction_asked(self, event: events.CompactionAsked) -> None:
        self._wrote(event)
        self.compaction = event

    def _compacted(self, event: events.Compacted) -> None:
        self._wrote(event)
        self.settle_calls()
        self.history, self.hollow = list(event.messages), False
        self.prompt_at, self.response_at = event.marks
        self.summary = event.summary or self.summary
        self.compaction = None
        self.open_model_call = None

    def _model_started(self, event: events.ModelStarted) -> None:
        self.model_calls += 1
        self.open_model_call, self.failed = event, None
        if event.purpose == "summary":
            return
        self.ordinal = event.ordinal
        self.instructions = event.instructions or self.instructions
        self.tools = event.tools or self.tools
        if event.options:
            self.options = "" if event.options == events.NO_OPTIONS else event.options
        self.pre_passed = True
        if self.calls or self.deferred:
            self.settle_calls()
        self.response = None
        if self.hook_writes:
            self.hook_writes = {}

    def _responded(self, event: events.Responded) -> None:
        if event.usage is not NO_USAGE:
            self.usage = self.usage + event.usage
            self.usage_by_model = {
                **self.usage_by_model,
                event.model: self.usage_by_model.get(event.model, NO_USAGE) + event.usage,
            }
        if self.open_model_call is not None and self.open_model_call.purpose == "summary":
            self.open_model_call = self.compaction = None
            return
        self.open_model_call = self.failed = None
        self.post_passed = not event.pending
        self._take_response(event)
        self.response_at = self._append(event.message) if event.message.parts or event.pending else -1

    def _take_response(self, event: events.Responded) -> None:
        self.response, text = event, ""
        for part in event.message.parts:
            if type(part) is Call:
                self.calls[part.id] = CallState(part)
            elif type(part) is Text or type(part) is Instruction:
                text += part.text
        self.reply_text = self.model_text = text

    def _model_failed(self, event: events.ModelFailed) -> None:
        if self.open_model_call is not None and self.open_model_call.purpose == "summary":
            self.compaction = None  # a failed summary changes nothing
        elif self.open_model_call is not None:
            self.failed = (self.open_model_call, event)
        self.open_model_call = None

    def _call(self, call_id: str) -> CallState:
        return self.calls.get(call_id) or self.inner[call_id]

    def _settle(self, call_id: str) -> CallState:
        call = self._call(call_id)
        call.settled = True
        if call_id in self.inner:
            self.inner[call_id] = self.inner.pop(call_id)
        return call

    def _inner_called(self, event: events.InnerCalled) -> None:
        self.inner[event.call.id] = CallState(event.call, as_written=event.call)

    def _program_saved(self, event: events.ProgramSaved) -> None:
        self.calls[event.call_id].snapshot = event

    def _tool_started(self, event: events.ToolStarted) -> None:
        self._call(event.call_id).start(event)

    def _tool_ended(self, event: events.ToolEnded) -> None:
        call = self._call(event.call_id) if event.pending else self._settle(event.call_id)
        call.result, call.ended = event.result, event

    def _tried_again(self, event: events.ToolTriedAgain) -> None:
        self._call(event.call_id).attempts = event.attempt

    def _once(self, event: events.OnceStarted | events.OnceEnded) -> None:
        self.once_effects[event.origin, event.name] = event if isinstance(event, events.OnceEnded) else None
        self._own(event.origin, "once")

    def _own(self, at: str, last: Any) -> None:
        call = self.call(at)
        if call is not None:
            call.last_event = last

    # --- callbacks ------------------------------------------------------------------------

    def callbacks_of(self, at: str) -> list[Held]:
        """The callbacks that a tool call or a hook's occurrence raised, in order."""
        return [a for a in self.callbacks.values() if a.raised.origin == at] if self.callbacks else []

    def _raised(self, event: events.CallbackRaised) -> None:
        self.callbacks[event.callback_id] = Held(
            event, message=event.message, expires=event.expires, tags=self.root_header.tags
        )
        self._own(event.origin, "raised")
        if event.gate:  # the call as it was when it left its hooks: they never see it again
            call = self._call(event.origin)
            call.hooks_passed, call.call = True, Call(event.origin, event.tool, event.args or {})

    def _walked(self, event: events.CallbackAsked | events.CallbackPassed) -> None:
        self.callbacks[event.callback_id].take(event)

    def _settled(
        self,
        event: events.CallbackAnswered
        | events.CallbackDeclined
        | events.CallbackExpired
        | events.CallbackWithdrawn,
    ) -> None:
        ask = self.callbacks.get(event.callback_id)
        if ask is None or ask.status != "open":
            return
        ask.take(event)
        if ask.raised.gate and ask.answer and cast("dict[str, Any]", ask.answer.value).get("for_session"):
            self.grants = (*self.grants, (ask.raised, ask.answer))

    def _delivered(self, event: events.CallbackDelivered) -> None:
        ask = self.callbacks[event.callback_id]
        ask.take(event)
        if not ask.raised.gate:  # an approval is part of the tool's start, not of its run
            self._own(event.origin, "delivered")

    def _parked(self, event: events.Parked) -> None:
        self.ran_seconds, self.running_since, self.parked = event.seconds, 0.0, True
        for at in {self.callbacks[i].raised.origin for i in event.waits if i in self.callbacks}:
            self._own(at, "parked")
        for call_id in event.calls:
            if (call := self.call(call_id)) is not None:
                call.last_event, call.below = "parked", True

    def _noted(self, _: events.HookRaised) -> None:
        pass

    def _step(self, event: events.Planned | events.StepStarted | events.StepEnded) -> None:
        self.steps[type(event), event.step] = event
        if isinstance(event, events.StepEnded):
            self.usage = self.usage + event.usage

    # --- across a compaction --------------------------------------------------------------

    def carried(self) -> events.Carried:
        """What a fold that begins here, or at the running turn's start, needs from before."""
        if self.phase == "running":
            return self.before_turn
        return events.Carried(
            self.turn, self.ordinal, self.context, self.summary, self.model_text, self.instructions, self.tools,
            self.grants, self.totals_before_turn[0] + self.model_calls, self.usage_by_model,
            self.totals_before_turn[1] + self.ran_seconds, self.options, self.next_options,
        )  # fmt: skip

    def restore(self, carried: events.Carried) -> None:
        """Begin the fold in the middle of a log."""
        self.begun = True
        self.turn, self.ordinal, self.context = carried.turn, carried.ordinal, carried.context
        self.summary, self.model_text = carried.summary, carried.text
        self.reply_text = self.model_text
        self.instructions, self.tools, self.grants = carried.instructions, carried.tools, carried.grants
        self.options = carried.options
        self.turn_options = self.next_options = carried.session_options
        self.totals_before_turn, self.usage_by_model = (carried.model_calls, carried.seconds), dict(carried.usage)

    folds: ClassVar[dict[type[Any], Any]] = {
        events.SessionStarted: _session_started,
        events.SessionAdopted: _session_adopted,
        events.TurnStarted: _turn_started,
        events.TurnResumed: _turn_resumed,
        events.HooksPassed: _hooks_passed,
        events.OutputRefused: _output_refused,
        events.TurnEnded: _turn_ended,
        events.Steered: _steered,
        events.OptionsSet: _options_set,
        events.CancelRequested: _cancel_requested,
        events.MessageAdded: _message_added,
        events.ContextSet: _context_set,
        events.CompactionAsked: _compaction_asked,
        events.Compacted: _compacted,
        events.ModelStarted: _model_started,
        events.Responded: _responded,
        events.ModelFailed: _model_failed,
        events.ToolStarted: _tool_started,
        events.ToolEnded: _tool_ended,
        events.ToolTriedAgain: _tried_again,
        events.InnerCalled: _inner_called,
        events.ProgramSaved: _program_saved,
        events.OnceStarted: _once,
        events.OnceEnded: _once,
        events.CallbackRaised: _raised,
        events.CallbackAsked: _walked,
        events.CallbackPassed: _walked,
        events.CallbackAnswered: _settled,
        events.CallbackDeclined: _settled,
        events.CallbackExpired: _settled,
        events.CallbackWithdrawn: _settled,
        events.CallbackDelivered: _delivered,
        events.Parked: _parked,
        events.HookRaised: _noted,
        events.Planned: _step,
        events.StepStarted: _step,
        events.StepEnded: _step,
    }


FOLDS = SessionState.folds
