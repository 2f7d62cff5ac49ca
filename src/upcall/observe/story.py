"""Turn the events of a run into lines for a reader, independent of colours and layout.

The nodes of the run tree say who works, what tools are called, and what a turn has used; events have the texts. A
result or a response becomes a line once no hook can replace it any more.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

from upcall.events import (
    AnyEvent,
    CallbackAnswered,
    CallbackAsked,
    CallbackDeclined,
    CallbackExpired,
    CallbackPassed,
    CallbackRaised,
    CallbackWithdrawn,
    CancelRequested,
    Change,
    Compacted,
    ContextSet,
    HookRaised,
    HooksPassed,
    InnerCalled,
    MessageAdded,
    ModelFailed,
    ModelStarted,
    OutputRefused,
    Parked,
    Planned,
    Responded,
    SessionStarted,
    Steered,
    StepEnded,
    ToolEnded,
    ToolStarted,
    ToolTriedAgain,
    TurnEnded,
    TurnResumed,
    TurnStarted,
)
from upcall.messages import Call, Message, Result, Usage, Value
from upcall.observe.labels import Labels
from upcall.observe.node_table import Change as NodeChange
from upcall.observe.nodes import RunTreeNodes
from upcall.observe.phrases import (
    LONGEST_TEXT,
    approval_text,
    args_line,
    call_change,
    changed_part,
    count_noun,
    edited_args,
    money,
    plan_list,
    read_todos,
    token_usage,
    value_line,
)
from upcall.observe.plain import one_line, plain, visible
from upcall.observe.redact import Redactor
from upcall.prices import Cost

_MOST_ENDED = 100
NO_CHANGE = Change()
_PLAN_STEP = re.compile(r"plan\d+\.\d+")


class Line(Value, frozen=True):
    """One line of a run. `label` is the agent or tool; `state` is how a call or turn ended.

    `text` is cleaned for a screen. `depth` is 0 for the session that was run, 1 for its children.
    """

    kind: Literal["session", "prompt", "text", "tool", "result", "hook", "callback", "todo", "note", "end"]
    text: str
    session: str = ""
    depth: int = 0
    label: str = ""
    state: str = ""
    seconds: float | None = None


class ShownCall:
    """A tool call; `result` is set when the call and its hooks have ended."""

    def __init__(self, call: Call, session: str, depth: int) -> None:
        self.call = self.original = call  # the current version, and the model's own
        self.session, self.depth = session, depth
        self.started: float | None = None
        self.ended: ToolEnded | None = None
        self.result: Result | None = None
        self.changes: list[tuple[str, str]] = []  # who changed the call ("" for a hook) and how, in order
        self.has_inner_calls = False  # it has made inner calls, so that its name is shown above them

    def change(self, name: str, args: dict[str, Any], by: str = "") -> None:
        """Record a change of the call and who made it: an approver, or "" for a hook."""
        before, self.call = self.call, Call(self.call.id, name, args)
        if difference := call_change(before, self.call):
            self.changes.append((by, difference))


class _SessionNotes:
    """The state that the lines of one session depend on."""

    def __init__(self, depth: int = 0) -> None:
        self.depth = depth
        self.model_calls = self.tools = 0
        self.pending_response: Responded | None = None
        self.failed_call = 0  # the last model call that failed
        self.change = NO_CHANGE  # hook changes of the last request, so that equal changes are shown once
        self.is_manager = False  # a team's manager, whose reply is a plan
        self.plan_shown = False  # the manager's plan has been shown
        self.todos: list[Line] = []  # shown after the call that wrote them


class _ToolNames(Labels):
    """Tools are called by their names."""

    def of(self, name: str, own: str = "") -> str:
        """Return the name."""
        return visible(name)


class Story:
    """Turns events into lines, in order; secrets are hidden in them.

    results: make lines of the results of calls, too
    redactor: what hides secrets
    labels: what tools are called; without it, by their names
    cost: what tokens of a model cost, for the line at the end of a turn
    """

    def __init__(
        self,
        *,
        results: bool = False,
        redactor: Redactor | None = None,
        labels: Labels | None = None,
        cost: Cost | None = None,
    ) -> None:
        self.redactor = redactor or Redactor()
        self._tree = RunTreeNodes(labels=labels or _ToolNames(), redactor=self.redactor, cost=cost)
        self.open: dict[tuple[str, str], ShownCall] = {}
        self.ended: deque[ShownCall] = deque(maxlen=_MOST_ENDED)
        self._results = results
        self._sessions: dict[str, _SessionNotes] = {}
        self._questions: dict[str, CallbackRaised] = {}  # open callbacks, to name one if there are several

    def feed(self, event: AnyEvent) -> list[Line]:
        """Return the lines for an event."""
        self._count(event.session, self._tree.apply(event))
        event = self.redactor.copy(event, numbered=False)
        handler = self._handlers.get(type(event))
        lines: list[Line] = handler(self, event) if handler is not None else []
        return [] if self.is_side_turn(event.session) else lines

    def recall(self, event: AnyEvent) -> None:
        """Take in an earlier event without lines; calls that ran then do not count as running."""
        self.feed(event)
        for running in self.open.values():
            running.started = None

    def agent_of(self, session: str) -> str:
        """Return the name of a session's agent, if known."""
        return str(self._tree.field(session, "label")) if session in self._tree else ""

    def depth_of(self, session: str) -> int:
        """Return how far the session is below the root."""
        return self._notes(session).depth

    def is_side_turn(self, session: str) -> bool:
        """Return whether the session is a side turn, which is shown through its outcome only."""
        if session not in self._tree:
            return False
        return self._tree.field(session, "kind") == "side_turn" and self._tree.field(session, "parent") is not None

    def has_open_calls(self, session: str) -> bool:
        """Return whether calls of the session have not been shown yet."""
        return any(key[0] == session for key in self.open)

    def _notes(self, session: str) -> _SessionNotes:
        return self._sessions.setdefault(session, _SessionNotes(depth=session.count("~") if self._sessions else 0))

    def tool_label(self, session: str, name: str) -> str:
        """Return what a tool is called."""
        return self._tree.tool_label(session, name)

    def _count(self, session: str, changes: Sequence[NodeChange]) -> None:
        """Count the model calls and the calls of a turn; those of a program belong to its call."""
        notes = self._notes(session)
        for change in changes:
            kind = change.set.get("kind")
            notes.model_calls += kind == "model"
            notes.tools += kind == "tool" and self._tree.field(change.set["parent"], "kind") != "tool"

    def _line(self, event: AnyEvent, kind: Any, text: str, **more: Any) -> Line:
        notes = self._notes(event.session)
        more.setdefault("label", self.agent_of(event.session))
        more.setdefault("depth", notes.depth)
        return Line(kind, text, event.session, **more)

    # --- sessions and turns ---------------------------------------------------------------

    def _session_started(self, event: SessionStarted) -> list[Line]:
        above = self._sessions.get(event.parent)
        notes = self._sessions[event.session] = _SessionNotes(above.depth + 1 if above else 0)
        notes.is_manager = bool(event.team) and event.role == "manager" and event.kind != "side_turn"
        what = "side turn" if event.kind == "side_turn" else "session"
        return [self._line(event, "session", f"{what} {visible(event.session)}")]

    def _turn_started(self, event: TurnStarted) -> list[Line]:
        notes = self._notes(event.session)
        notes.model_calls = notes.tools = 0
        return [self._line(event, "prompt", plain(event.message.text).strip())]

    def _turn_resumed(self, event: TurnResumed) -> list[Line]:
        changed = " with changed instructions, tools or policy" if event.setup else ""
        return [self._line(event, "note", f"the {'turn' if event.turn else 'session'} continues{changed}")]

    def _turn_ended(self, event: TurnEnded) -> list[Line]:
        for key in [key for key in self.open if key[0] == event.session]:
            del self.open[key]
        notes = self._notes(event.session)
        lines = [self._line(event, "note", plain(event.error), state="failed")] if event.error else []
        parts = [f"limit {event.limit} reached"] if event.limit else []
        parts += (
            count_noun(notes.model_calls, "model call") + count_noun(notes.tools, "tool call") + self._used(event)
        )
        return [*lines, self._line(event, "end", " · ".join(parts), state=event.status, seconds=event.seconds)]

    # --- the model ------------------------------------------------------------------------

    def _model_started(self, event: ModelStarted) -> list[Line]:
        notes = self._notes(event.session)
        if event.purpose == "summary":  # it always differs from the conversation
            return []
        before, notes.change = notes.change, (change := event.change or NO_CHANGE)
        moved = change.spliced and (change.removed, change.inserted) != (before.removed, before.inserted)
        parts = [("instructions", change.instructions not in ("", before.instructions)),
                 ("tools", change.tools not in ("", before.tools)), ("messages", moved)]  # fmt: skip
        what = ", ".join(name for name, new in parts if new)
        tells = what and (self._results or not notes.depth)
        return [self._line(event, "hook", f"changed the {what}", label="")] if tells else []

    def _responded(self, event: Responded) -> list[Line]:
        if event.pending:
            self._notes(event.session).pending_response = event
            return []
        return self._response(event, event.message)

    def _used(self, event: TurnEnded) -> list[str]:
        """Say how many tokens a turn took and what they cost; that a price is not known, where one is not."""
        turn = f"{event.session}/t{event.turn}"
        if turn not in self._tree:
            return []
        used: dict[str, int] | None = self._tree.field(turn, "usage")
        cost: float | None = self._tree.field(turn, "cost")
        found = token_usage(Usage(used["input"], used["output"], used["cached"])) if used else []
        if unpriced := self._tree.unpriced(event.session):
            return [*found, f"no price for {visible(unpriced)}"]
        return [*found, f"cost {money(cost)}"] if cost is not None else found

    def _response(self, event: Responded, message: Message) -> list[Line]:
        notes = self._notes(event.session)
        lines: list[Line] = []
        if event.by_hook:
            point = "model_failed" if notes.failed_call == event.ordinal else "before_model"
            lines.append(self._line(event, "hook", "answered in the model's place", label=point))
        if text := plain(message.text).strip():
            plan = plan_list(text) if notes.is_manager else ""
            self._notes(event.session.rpartition("~")[0]).plan_shown |= bool(plan)
            lines.append(self._line(event, "text", plan or text))
        for call in message.calls:
            self.open[event.session, call.id] = ShownCall(call, event.session, notes.depth)
        return lines

    def _model_failed(self, event: ModelFailed) -> list[Line]:
        self._notes(event.session).failed_call = event.ordinal
        return [self._line(event, "note", f"the model call failed: {one_line(event.error, LONGEST_TEXT)}")]

    def _output_refused(self, event: OutputRefused) -> list[Line]:
        return [
            self._line(
                event,
                "note",
                f"the reply was invalid and is requested again: {one_line(event.problem, LONGEST_TEXT)}",
            )
        ]

    # --- tools and hooks ------------------------------------------------------------------

    def _inner_called(self, event: InnerCalled) -> list[Line]:
        outer = self.open.get((event.session, event.parent))
        below = self._notes(event.session).depth + 1 if outer is None else outer.depth + 1
        self.open[event.session, event.call.id] = ShownCall(event.call, event.session, below)
        if outer is None or outer.has_inner_calls:
            return []
        outer.has_inner_calls = True
        name = self.tool_label(event.session, outer.call.name)
        return [self._line(event, "tool", args_line(outer.call.args), label=name, depth=outer.depth)]

    def _tool_started(self, event: ToolStarted) -> list[Line]:
        running = self.open.get((event.session, event.call_id))
        if running is None:
            return []
        running.started = event.time
        if event.name or event.args is not None:
            args = running.original.args if event.args is None else event.args
            running.change(event.name or running.call.name, args)
        return []

    def _tool_ended(self, event: ToolEnded) -> list[Line]:
        running = self.open.get((event.session, event.call_id))
        if running is None:
            return []
        running.ended = event
        return [] if event.pending else self._call_lines(event, running, None)

    def _call_lines(self, event: AnyEvent, running: ShownCall, replaced: Result | None) -> list[Line]:
        ended = running.ended
        self.open.pop((running.session, running.call.id), None)
        if ended is None:
            return []
        seconds = ended.time - running.started if running.started is not None else None
        running.result = result = replaced or ended.result
        if not self.is_side_turn(running.session):
            self.ended.append(running)
        state = "by a hook" if ended.how == "hook" else ended.how
        if ended.how == "ran":
            state = "failed" if result.is_error else "ok"
        notes = self._notes(running.session)
        name = self.tool_label(running.session, running.call.name)
        args = "" if notes.todos or running.has_inner_calls else args_line(running.call.args)
        lines = [self._line(event, "tool", args, label=name, state=state, seconds=seconds, depth=running.depth)]
        for by, change in running.changes:
            kind, who, label = ("callback", f"{by} ", "  ↳") if by else ("hook", "", "before_tool")
            lines.append(self._line(event, kind, f"{who}changed the call: {change}", label=label))
        if replaced is not None:
            shown = one_line(changed_part(ended.result.text, replaced.text), LONGEST_TEXT)
            lines.append(self._line(event, "hook", f"changed the result: {shown}", label="after_tool"))
        shown = one_line(result.text, LONGEST_TEXT)
        if shown and (self._results or state != "ok"):
            lines.append(self._line(event, "result", shown, state=state, depth=running.depth))
        lines, notes.todos = [*lines, *notes.todos], []
        return lines

    def _hooks_passed(self, event: HooksPassed) -> list[Line]:
        point = event.point
        if point == "after_tool" and (running := self.open.get((event.session, event.at))):
            return self._call_lines(event, running, event.result)
        if point == "pre_request" and event.message is not None:
            shown = one_line(event.message.text, LONGEST_TEXT)
            return [self._line(event, "hook", f"changed the prompt: {shown}", label=point)]
        if point == "end_turn" and event.text is not None:
            return [
                self._line(event, "hook", "changed the reply:", label=point),
                self._line(event, "text", plain(event.text).strip()),
            ]
        pending = self._notes(event.session).pending_response
        if point == "post_response" and pending is not None:
            self._notes(event.session).pending_response = None
            changed = [self._line(event, "hook", "changed the response:", label=point)] if event.message else []
            return [*changed, *self._response(pending, event.message or pending.message)]
        return []

    def _tool_tried_again(self, event: ToolTriedAgain) -> list[Line]:
        if running := self.open.get((event.session, event.call_id)):
            running.started = event.time
        return []

    # --- callbacks ------------------------------------------------------------------------

    def _callback_raised(self, event: CallbackRaised) -> list[Line]:
        self._questions[event.callback_id] = event
        what = f"{visible(event.agent)} asks ({visible(event.intent)}): {one_line(event.message, LONGEST_TEXT)}"
        if event.gate:
            name = self.tool_label(event.session, event.tool)
            what = f"{visible(event.agent)} needs an approval: {name} {args_line(event.args or {})}"
            if running := self.open.get((event.session, event.origin)):
                # a difference from the model's call was made by a hook
                running.change(event.tool, event.args or {})
        return [self._line(event, "callback", what, label="?")]

    def _callback_asked(self, event: CallbackAsked) -> list[Line]:
        who = "the person" if event.target == "user" else visible(event.target)
        return [self._line(event, "callback", f"{who} is asked{self._question_hint(event)}", label="  ↳")]

    def _question_hint(self, event: Any) -> str:
        """Name the question if the session has several open ones."""
        mine = self._questions.get(event.callback_id)
        if mine is None or sum(one.session == event.session for one in self._questions.values()) < 2:
            return ""
        return f" ({one_line(f'run {mine.tool}?' if mine.gate else mine.message, 24)})"

    def _callback_passed(self, event: CallbackPassed) -> list[Line]:
        how = "reworded it and passed it up" if event.message else "passed it up"
        how = "was skipped" if event.skipped else how
        why = f": {one_line(event.message or event.reason, LONGEST_TEXT)}" if event.message or event.reason else ""
        return [
            self._line(
                event, "callback", f"{visible(event.agent)} {how}{self._question_hint(event)}{why}", label="  ↳"
            )
        ]

    def _callback_declined(self, event: CallbackDeclined) -> list[Line]:
        about = self._question_hint(event)
        self._questions.pop(event.callback_id, None)
        why = f": {one_line(event.reason, LONGEST_TEXT)}" if event.reason else ""
        return [self._line(event, "callback", f"declined by {_who(event)}{about}{why}", label="  ↳")]

    def _callback_answered(self, event: CallbackAnswered) -> list[Line]:
        by = _who(event)
        about = self._question_hint(event)
        raised = self._questions.pop(event.callback_id, None)
        answer = approval_text(event.value) if raised is not None and raised.gate else value_line(event.value)
        running = self.open.get((event.session, raised.origin)) if raised is not None and raised.gate else None
        if running is not None and (edited := edited_args(event.value)) is not None:
            running.change(running.call.name, edited, visible(event.by) or "the approver")
        return [self._line(event, "callback", f"answered by {by}{about}: {answer}", label="  ↳")]

    def _callback_settled(self, event: CallbackExpired | CallbackWithdrawn) -> list[Line]:
        about = self._question_hint(event)
        self._questions.pop(event.callback_id, None)
        if isinstance(event, CallbackExpired):
            return [self._line(event, "callback", f"expired without an answer{about}", label="  ↳")]
        how = "unresolved" if event.unresolved else "withdrawn"
        return [self._line(event, "callback", f"{how}{about}: {one_line(event.reason, LONGEST_TEXT)}", label="  ↳")]

    def _parked(self, event: Parked) -> list[Line]:
        for key, running in self.open.items():
            if key[0] == event.session:
                running.started = None
        what = count_noun(len(event.waits), "answer") or ["a child"]
        return [self._line(event, "end", f"for {what[0]}", state="waiting")]

    def _hook_raised(self, event: HookRaised) -> list[Line]:
        error = one_line(event.error, LONGEST_TEXT)
        problem = f"{visible(event.hook)} raised an exception and counts as passing up: {error}"
        return [self._line(event, "hook", problem, label=event.point)]

    # --- a team's or chain's steps --------------------------------------------------------

    def _planned(self, event: Planned) -> list[Line]:
        match event.value:
            case [{"worker": _}, *_] as plan:
                rows = sorted(plan, key=lambda a: a["sequence"])
                steps = [f"{a['sequence']}. {a['worker']}: {one_line(a['task'], LONGEST_TEXT)}" for a in rows]
                if self._notes(event.session).plan_shown:  # shown a moment ago, with the manager's reply
                    names = ", ".join(a["worker"] for a in rows)
                    return [self._line(event, "note", f"plan accepted: {one_line(names, LONGEST_TEXT)}")]
                return [self._line(event, "note", text) for text in ("the plan:", *steps)]
            case []:
                return [self._line(event, "note", "the plan is empty: nothing more to do")]
            case str() as picked:
                return [self._line(event, "note", f"step {event.step}: {one_line(picked, LONGEST_TEXT)}")]
            case _:
                return []

    def _step_ended(self, event: StepEnded) -> list[Line]:
        planned = event.status == "done" and _PLAN_STEP.fullmatch(event.step)
        if planned or not self._results:  # the plan has its own lines, and readers have seen the session end
            return []
        outcome = event.text if event.status == "done" else event.error or event.text
        shown = f": {one_line(outcome, LONGEST_TEXT)}" if outcome else ""
        return [self._line(event, "note", f"{visible(event.step)} {event.status}{shown}")]

    # --- the rest -------------------------------------------------------------------------

    def _message_added(self, event: MessageAdded) -> list[Line]:
        if event.steer or (event.origin.startswith("callback.") and not self._results):
            return []
        shown = one_line(event.message.text.strip().partition("\n")[0].rstrip(":"), LONGEST_TEXT)
        return [self._line(event, "note", f"a message was added: {shown}")]

    def _context_set(self, event: ContextSet) -> list[Line]:
        todos = read_todos(event)
        if todos is None:
            return []
        lines = [self._line(event, "todo", one_line(text, LONGEST_TEXT), state=state) for text, state in todos]
        if not self.has_open_calls(event.session):
            return lines
        self._notes(event.session).todos = lines
        return []

    def _compacted(self, event: Compacted) -> list[Line]:
        return [self._line(event, "note", f"compacted: {event.dropped} messages were summarised")]

    def _steered(self, event: Steered) -> list[Line]:
        by = f" by {visible(event.by)}" if event.by else ""
        return [self._line(event, "note", f"steered{by}: {one_line(event.text, LONGEST_TEXT)}")]

    def _cancel_requested(self, event: CancelRequested) -> list[Line]:
        why = f": {one_line(event.reason, LONGEST_TEXT)}" if event.reason else ""
        return [self._line(event, "note", f"cancellation requested{why}")]

    _handlers: dict[type[Any], Any] = {  # noqa: RUF012
        SessionStarted: _session_started,
        TurnStarted: _turn_started,
        TurnResumed: _turn_resumed,
        TurnEnded: _turn_ended,
        ModelStarted: _model_started,
        Responded: _responded,
        ModelFailed: _model_failed,
        OutputRefused: _output_refused,
        InnerCalled: _inner_called,
        ToolStarted: _tool_started,
        ToolEnded: _tool_ended,
        HooksPassed: _hooks_passed,
        MessageAdded: _message_added,
        ContextSet: _context_set,
        Compacted: _compacted,
        Steered: _steered,
        CancelRequested: _cancel_requested,
        ToolTriedAgain: _tool_tried_again,
        CallbackRaised: _callback_raised,
        CallbackAsked: _callback_asked,
        CallbackPassed: _callback_passed,
        CallbackAnswered: _callback_answered,
        CallbackDeclined: _callback_declined,
        CallbackExpired: _callback_settled,
        CallbackWithdrawn: _callback_settled,
        Parked: _parked,
        Planned: _planned,
        StepEnded: _step_ended,
        HookRaised: _hook_raised,
    }


def _who(event: CallbackAnswered | CallbackDeclined) -> str:
    """The name of the person or agent that settled a callback, with the right by which it did."""
    return f"{visible(event.by) or 'somebody'} ({visible(event.right)})" if event.right else visible(event.by)
