"""The state of a session, as a fold over its log. Nothing here reads or writes anything.

Only events of the session's owner change the conversation; what others append (steering, a cancel request) waits
here until the owner takes it up with an event of its own, so that the order of the log never changes a history.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from upcall import events
from upcall.callbacks import Callback, after, callback_raised, reopened
from upcall.core.log.call_state import CallState, origin
from upcall.core.log.conversation import Conversation
from upcall.core.log.turn_state import NOTHING_CARRIED, TurnState
from upcall.messages import NO_USAGE, Call, Usage, user

_NO_HEADER = events.SessionStarted("")


class SessionState(msgspec.Struct, eq=False):
    """One session, folded. `apply` takes events in the order they were written.

    It has three lifetimes: what holds for the whole session is here, the `conversation` goes on until it is
    compacted, and each `turn` begins with a new object.
    """

    id: str
    header: events.SessionStarted = _NO_HEADER
    root_header: events.SessionStarted = _NO_HEADER
    """The header of the run tree's root, with what the application gave it."""
    seq: int = 0
    """The number of the newest event that is known to be stored."""
    last_time: float = 0.0
    in_doubt: bool = False
    """True if the state may contain events that were never stored. It has to be loaded again before use."""
    begun: bool = False
    """True once the begin_session hooks have run."""
    conversation: Conversation = msgspec.field(default_factory=Conversation)
    turn: TurnState = msgspec.field(default_factory=TurnState)
    """The newest turn."""
    context: dict[str, Any] = {}
    """The values of `set_context`. Never changed in place, because snapshots refer to it."""
    grants: tuple[tuple[events.CallbackRaised, events.CallbackAnswered], ...] = ()
    """Approvals that hold for the session."""
    next_options: events.SessionOptions = events.DEFAULT_OPTIONS
    """The options of the next turn."""
    queued: tuple[events.TurnQueued, ...] = ()
    """The prompts that were submitted and whose turns have not started."""
    unqueued: tuple[int, events.CancelRequested] | None = None
    """The newest cancellation of queued turns, with the sequence number of the last of them."""

    # --- totals of all turns
    usage_by_model: dict[str, Usage] = {}
    totals_before_turn: tuple[int, float] = (0, 0.0)
    """Model calls and seconds of the turns before the newest one."""

    # --- what the newest request was made of, by content hash
    instructions: str = ""
    tools: str = ""
    options: str = ""
    model: str = ""
    """The name of the model that was asked."""
    labels: Mapping[str, str] = {}
    """The labels of its tools, by their names."""
    last_sent: str = ""
    """The newest request body that was captured; a fold may begin at a compaction, which forgets it."""

    def apply(self, event: events.AnyEvent) -> None:
        """Take one more event into account."""
        FOLDS[type(event)](self, event)
        if event.seq > self.seq:
            self.seq, self.last_time = event.seq, event.time

    def absorb(self, event: events.AnyEvent) -> None:
        """Take in what somebody else appended, out of turn; twice is harmless."""
        FOLDS[type(event)](self, event)

    def copy_from(self, other: SessionState) -> None:
        """Become what another fold of the same log is; handles that hold this one see it."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(other, name))

    def read_from(self, other: SessionState) -> None:
        """Begin with another session's conversation, as a side turn does; what is written stays here."""
        self.conversation, self.context = other.conversation.branch(), other.context
        self.root_header = other.root_header

    def wants_model(self) -> bool:
        """Tell whether the turn's next step is to call the model."""
        if self.turn.response is None:
            return True
        calls = self.conversation.calls
        for call in calls.values():
            if not call.settled:
                return False
        return bool(calls)

    def settle_calls(self, why: str = "the turn ended before it was completed") -> None:
        """Move the calls' results into the history, and keep what their programs left."""
        for call in self.conversation.calls.values():
            if call.snapshot is not None and call.snapshot.ended:
                self.turn.program = call.snapshot
        self.conversation.settle_calls(why)

    @property
    def options_in_force(self) -> events.SessionOptions:
        """The options of the turn that runs, or else of the next one."""
        return self.turn.options if self.turn.phase == "running" else self.next_options

    # --- folds, one per type --------------------------------------------------------------

    def _session_started(self, event: events.SessionStarted) -> None:
        self.header = event
        if not event.root:
            self.root_header = event
            self.turn.options = self.next_options = event.options
        self.begun = not event.begins

    def _session_adopted(self, _: events.SessionAdopted) -> None:
        for callback in self.approvals_in_doubt():
            self.turn.callbacks[callback.id] = reopened(callback)
        self.grants, self.turn.before = (), self.turn.before.replace(grants=())
        for call in (*self.conversation.calls.values(), *self.conversation.inner.values()):
            call.recheck = call.started and call.result is None

    def approvals_in_doubt(self) -> list[Callback]:
        """The approvals that were answered and whose calls have not ended: adopting the log asks them again."""
        approvals = [one for one in self.turn.callbacks.values() if one.gate and one.answer is not None]
        calls = [(one, self.conversation.call(one.origin)) for one in approvals]
        return [one for one, call in calls if call is not None and call.result is None]

    def _options_set(self, event: events.OptionsSet) -> None:
        self.next_options = event.options

    def _context_set(self, event: events.ContextSet) -> None:
        self._note_write(event)
        self.context = {**self.context, event.key: event.value}

    # --- turns

    def _turn_started(self, event: events.TurnStarted) -> None:
        conversation, last = self.conversation, self.turn
        if conversation.calls or conversation.deferred:
            self.settle_calls("the turn failed before this call was completed")
        is_first = not (last.number or conversation.ordinal or self.context or self.queued)
        before = NOTHING_CARRIED if is_first else self._carry()
        calls, seconds = self.totals_before_turn
        self.totals_before_turn = (calls + last.model_calls, seconds + last.ran_seconds)
        self.turn = TurnState(
            event.turn, "running", event, self.next_options, before,
            prompt_at=conversation.append(event.message), running_since=event.time,
        )  # fmt: skip
        if event.queued:
            self.queued = tuple([one for one in self.queued if one.seq != event.queued])
            if self.unqueued is not None and event.queued <= self.unqueued[0]:  # cancelled just before it started
                self.turn.cancel = self.unqueued[1]

    def _turn_queued(self, event: events.TurnQueued) -> None:
        started = self.turn.prompt.queued if self.turn.prompt is not None else 0
        newest = max([started, self.unqueued[0] if self.unqueued else 0, *[one.seq for one in self.queued]])
        if not event.seq or event.seq > newest:  # it may be heard of twice
            self.queued = (*self.queued, event)

    def _turn_resumed(self, event: events.TurnResumed) -> None:
        turn = self.turn
        if not self.begun:  # a worker died in the begin_session hooks: they run again, and then the turn
            turn.parked = False
            return
        if turn.phase == "running" and turn.running_since:
            turn.ran_seconds += max(0.0, self.last_time - turn.running_since)
        if turn.phase == "limit":  # what its last response called is settled, and the model has not seen it
            turn.response = None
        if turn.phase != "running":  # it had ended
            turn.options = self.next_options
        turn.phase, turn.running_since = "running", event.time
        turn.parked, turn.output_retries, turn.retry = False, 0, 0.0
        turn.limit = turn.error = ""

    def _hooks_passed(self, event: events.HooksPassed) -> None:
        turn, conversation = self.turn, self.conversation
        if turn.hook_writes:
            turn.hook_writes.pop(origin(event.point, event.at), None)
        match event.point:
            case "begin_session":
                self.begun, turn.parked = True, False
                if turn.phase == "failed" and turn.prompt is None:  # it was these hooks that had failed
                    turn.phase, turn.error = "idle", ""
            case "pre_request":
                turn.pre_passed = True
                if event.message is not None and turn.prompt is not None:
                    turn.prompt = turn.prompt.replace(message=event.message)
                    conversation.replace(turn.prompt_at, event.message)
            case "post_response":
                turn.post_passed = True
                if event.message is not None and turn.response is not None:
                    turn.response = turn.response.replace(message=event.message)
                    conversation.replace(turn.response_at, event.message)
                    conversation.calls = {}
                    conversation.open_calls(event.message)
            case "before_tool":
                call = self.conversation.known_call(event.at)
                call.hooks_passed = True
                call.call = event.call or call.call
            case "after_tool":
                call = conversation.settle(event.at)
                call.result = event.result or call.result
            case "end_turn":
                turn.end_passed = int(event.at.rpartition(".")[2]) + 1
                turn.output = turn.output if event.output is None else event.output
                if event.text is not None:
                    conversation.reply_text = event.text
            case _:
                pass

    def _output_refused(self, event: events.OutputRefused) -> None:
        self.turn.output_retries += 1
        self.turn.response = None
        self.conversation.append(user(event.problem))

    def _turn_ended(self, event: events.TurnEnded) -> None:
        turn = self.turn
        if event.status != "failed":  # a failed turn may be resumed, and then its open calls continue
            if self.conversation.calls:
                self.settle_calls()
            if turn.hook_writes:
                turn.hook_writes = {}
        turn.phase, turn.limit, turn.error = event.status, event.limit, event.error
        turn.ran_seconds, turn.running_since = event.seconds, 0.0
        turn.open_model_call = turn.failed = None
        turn.failure = event if event.status == "failed" else turn.failure
        turn.retry = event.retry
        turn.retries = turn.retries + 1 if event.retry else 0

    def _steered(self, event: events.Steered) -> None:
        if event.seq not in self.conversation.applied_steers:
            self.conversation.steers[event.seq] = event

    def _cancel_requested(self, event: events.CancelRequested) -> None:
        turn = self.turn
        turn.cancel = event
        if self.queued:
            self.unqueued, self.queued = (self.queued[-1].seq, event), ()
            if turn.phase != "running":
                turn.phase = "cancelled"
        if turn.retry:
            turn.phase, turn.retry = "cancelled", 0.0

    def _message_added(self, event: events.MessageAdded) -> None:
        conversation = self.conversation
        if event.steer:
            conversation.steers.pop(event.steer, None)
            conversation.applied_steers.add(event.steer)
            if not conversation.calls:
                self.turn.response = None  # it wants an answer of its own
        self._note_write(event)
        conversation.add(event.message)

    def _compaction_asked(self, event: events.CompactionAsked) -> None:
        self._note_write(event)
        self.conversation.compaction = event

    def _compacted(self, event: events.Compacted) -> None:
        self.last_sent = ""
        turn = self.turn
        self._note_write(event)
        self.settle_calls()
        self.conversation.compact(list(event.messages), event.summary)
        turn.prompt_at, turn.response_at = event.marks
        turn.open_model_call = None
        if turn.response is not None and turn.response.message.calls:
            turn.response = None  # its calls are settled: the model reads their results next

    def _note_write(
        self, event: events.MessageAdded | events.ContextSet | events.CompactionAsked | events.Compacted
    ) -> None:
        """Remember what a hook wrote, so that it is not written twice if the hook runs again."""
        if event.origin:
            self.turn.hook_writes.setdefault(event.origin, []).append(event)

    def _step(self, event: events.Planned | events.StepStarted | events.StepEnded) -> None:
        self.turn.steps[type(event), event.step] = event
        if isinstance(event, events.StepEnded):
            self.turn.usage = self.turn.usage + event.usage

    # --- model calls

    def _model_started(self, event: events.ModelStarted) -> None:
        turn, conversation = self.turn, self.conversation
        turn.model_calls += 1
        turn.open_model_call, turn.failed = event, None
        if event.purpose == "summary":
            return
        conversation.ordinal = event.ordinal
        if event.instructions:
            self.instructions = event.instructions
        if event.tools:
            self.tools = event.tools
        if event.options:
            self.options = "" if event.options == events.NO_OPTIONS else event.options
        if event.model:
            self.model = event.model
        if event.labels is not None:
            self.labels = event.labels
        if conversation.calls or conversation.deferred:
            self.settle_calls()
        turn.pre_passed, turn.response = True, None
        if turn.hook_writes:
            turn.hook_writes = {}

    def _responded(self, event: events.Responded) -> None:
        turn, conversation = self.turn, self.conversation
        if event.usage is not NO_USAGE:
            turn.usage = turn.usage + event.usage
            usage = self.usage_by_model
            self.usage_by_model = {**usage, event.model: usage.get(event.model, NO_USAGE) + event.usage}
        if turn.open_model_call is not None and turn.open_model_call.purpose == "summary":
            turn.open_model_call = conversation.compaction = None
            return
        turn.open_model_call = turn.failed = None
        turn.response, turn.post_passed = event, not event.pending
        conversation.open_calls(event.message)
        is_kept = event.message.parts or event.pending
        turn.response_at = conversation.append(event.message) if is_kept else -1

    def _model_failed(self, event: events.ModelFailed) -> None:
        turn, asked = self.turn, self.turn.open_model_call
        if asked is not None and asked.purpose == "summary":
            self.conversation.compaction = None  # a failed summary changes nothing
        elif asked is not None:
            turn.failed = (asked, event)
        turn.open_model_call = None

    # --- tool calls

    def _inner_called(self, event: events.InnerCalled) -> None:
        self.conversation.inner[event.call.id] = CallState(event.call, as_written=event.call)

    def _program_saved(self, event: events.ProgramSaved) -> None:
        self.conversation.calls[event.call_id].snapshot = event

    def _tool_started(self, event: events.ToolStarted) -> None:
        self.conversation.known_call(event.call_id).start(event)

    def _tool_ended(self, event: events.ToolEnded) -> None:
        conversation = self.conversation
        call = conversation.known_call(event.call_id) if event.pending else conversation.settle(event.call_id)
        call.result, call.ended = event.result, event

    def _tried_again(self, event: events.ToolTriedAgain) -> None:
        call = self.conversation.known_call(event.call_id)
        call.attempts = event.attempt
        if call.waited_for_child:  # now it is given what its children came to, and acts on it
            call.waited_for_child = False
            call.last_event = "raised" if self._awaits_answer(event.call_id) else "started"

    def _awaits_answer(self, call_id: str) -> bool:
        return any(not one.delivered for one in self.callbacks_of(call_id))

    def _once(self, event: events.OnceStarted | events.OnceEnded) -> None:
        self.turn.once_effects[event.origin, event.name] = event if isinstance(event, events.OnceEnded) else None
        self._own(event.origin, "once")

    def _own(self, at: str, last: Any) -> None:
        call = self.conversation.call(at)
        if call is not None:
            call.last_event = last

    # --- callbacks ------------------------------------------------------------------------

    def callbacks_of(self, at: str) -> list[Callback]:
        """The callbacks that a tool call or a hook's occurrence raised, in order."""
        return [one for one in self.turn.callbacks.values() if one.origin == at] if self.turn.callbacks else []

    def callback_stored(self, event: events.CallbackRaised) -> None:
        """Take the stamps of an event that was folded before it was stored."""
        callback = self.turn.callbacks.get(event.callback_id)
        if callback is not None:
            self.turn.callbacks[callback.id] = callback.replace(created=event.time, pos=event.pos)

    def _raised(self, event: events.CallbackRaised) -> None:
        root = self.header.root or self.id
        self.turn.callbacks[event.callback_id] = callback_raised(event, self.id, root, self.root_header.tags)
        self._own(event.origin, "raised")
        if event.ran and (asking := self.conversation.call(event.origin)) is not None:
            asking.ran_seconds = event.ran
        if event.gate:  # the call as it was when it left its hooks: they never see it again
            self.turn.approvals[event.callback_id] = event
            call = self.conversation.known_call(event.origin)
            call.hooks_passed, call.call = True, Call(event.origin, event.tool, event.args or {})

    def _walked(self, event: events.CallbackAsked | events.CallbackPassed) -> None:
        self.turn.callbacks[event.callback_id] = after(self.turn.callbacks[event.callback_id], event)

    def _settled(
        self,
        event: events.CallbackAnswered
        | events.CallbackDeclined
        | events.CallbackExpired
        | events.CallbackWithdrawn,
    ) -> None:
        callback = self.turn.callbacks.get(event.callback_id)
        if callback is None or callback.status != "open":
            return
        self.turn.callbacks[callback.id] = after(callback, event)
        if callback.gate and type(event) is events.CallbackAnswered and event.value.get("for_session"):
            self.grants = (*self.grants, (self.turn.approvals[callback.id], event))

    def _delivered(self, event: events.CallbackDelivered) -> None:
        callback = self.turn.callbacks[event.callback_id]
        self.turn.callbacks[callback.id] = after(callback, event)
        if not callback.gate:  # an approval is part of the tool's start, not of its run
            self._own(event.origin, "delivered")

    def _parked(self, event: events.Parked) -> None:
        turn = self.turn
        turn.ran_seconds, turn.running_since, turn.parked = event.seconds, 0.0, True
        for at in {self.turn.callbacks[i].origin for i in event.waits if i in self.turn.callbacks}:
            self._own(at, "parked")
        for call_id in event.calls:
            if (call := self.conversation.call(call_id)) is not None:
                call.last_event, call.waited_for_child = "parked", True
        for call_id, seconds in event.ran.items():
            if (call := self.conversation.call(call_id)) is not None:
                call.ran_seconds = seconds

    def _noted(self, _: events.HookRaised | events.CallbackRevealed) -> None:
        pass

    def _wire_captured(self, event: events.WireCaptured) -> None:
        for exchange in event.exchanges:
            self.last_sent = body_after(self.last_sent, exchange)

    # --- across a compaction --------------------------------------------------------------

    def carried(self) -> events.Carried:
        """The part of the earlier state that a fold from here, or from the running turn's start, needs."""
        return self.turn.before if self.turn.phase == "running" else self._carry()

    def _carry(self) -> events.Carried:
        turn, conversation, (calls, seconds) = self.turn, self.conversation, self.totals_before_turn
        return events.Carried(
            turn.number, conversation.ordinal, self.context, conversation.summary, conversation.model_text,
            self.instructions, self.tools, self.grants, calls + turn.model_calls, self.usage_by_model,
            seconds + turn.ran_seconds, self.options, self.next_options, self.model,
            self.labels, self.queued,
        )  # fmt: skip

    def restore(self, carried: events.Carried) -> None:
        """Begin the fold in the middle of a log."""
        self.begun = True
        self.turn = TurnState(carried.turn, options=carried.session_options)
        self.conversation = Conversation(
            ordinal=carried.ordinal, model_text=carried.text, reply_text=carried.text, summary=carried.summary
        )
        self.context, self.grants, self.next_options = carried.context, carried.grants, carried.session_options
        self.instructions, self.tools, self.options = carried.instructions, carried.tools, carried.options
        self.model, self.labels, self.queued = carried.model, carried.labels, carried.queued
        self.totals_before_turn, self.usage_by_model = (carried.model_calls, carried.seconds), dict(carried.usage)

    folds: ClassVar[dict[type[Any], Any]] = {
        events.SessionStarted: _session_started,
        events.SessionAdopted: _session_adopted,
        events.TurnStarted: _turn_started,
        events.TurnQueued: _turn_queued,
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
        events.CallbackRevealed: _noted,
        events.WireCaptured: _wire_captured,
        events.Planned: _step,
        events.StepStarted: _step,
        events.StepEnded: _step,
    }


FOLDS = SessionState.folds


def body_after(before: str, exchange: events.WireExchange) -> str:
    """Return the body that a captured request had, from that of the request before it."""
    end = before[len(before) - exchange.end :] if exchange.end else ""
    return before[: exchange.start] + exchange.body + end
