"""A run told in lines: what each event means to somebody who reads along, with no word about colours."""

from __future__ import annotations

import re
from collections import deque
from typing import Any, Literal, cast

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
from upcall.hosts.terminal.phrases import (
    MOST,
    args_line,
    call_change,
    changed_part,
    counted,
    edited_args,
    plan_list,
    tokens,
    value_line,
    verdict,
)
from upcall.messages import Call, Message, Result, Usage, Value
from upcall.observe.plain import one_line, plain, visible

_KEPT = 100
TODOS = "todos"
"""Under this key an agent's context has its todos: each with `content` and `status`."""
NO_CHANGE = Change()
_PLANNING = re.compile(r"plan\d+\.\d+")


class Line(Value, frozen=True):
    """One thing to read. `label` is the agent or tool it is about; `state` how a call or turn ended.

    `text` has been cleaned for a screen. `depth` is 0 for the session that was run, 1 for its children.
    """

    kind: Literal["session", "prompt", "text", "tool", "result", "hook", "callback", "todo", "note", "end"]
    text: str
    session: str = ""
    depth: int = 0
    label: str = ""
    state: str = ""
    seconds: float | None = None


class Running:
    """A tool call; `result` is there once it and its hooks have ended."""

    def __init__(self, call: Call, session: str, depth: int) -> None:
        self.call = self.asked = call  # as it stands now, and as the model wrote it
        self.session, self.depth = session, depth
        self.started: float | None = None
        self.ended: ToolEnded | None = None
        self.result: Result | None = None
        self.changes: list[tuple[str, str]] = []  # who changed the call ("" is a hook) and how, in order
        self.inside = False  # it has called others, so its name stands above them

    def change(self, name: str, args: dict[str, Any], by: str = "") -> None:
        """Note the call as it stands now, and who made the difference: an approver, or "" for a hook."""
        before, self.call = self.call, Call(self.call.id, name, args)
        if difference := call_change(before, self.call):
            self.changes.append((by, difference))


class _Told:
    """What one session's lines need to remember."""

    def __init__(self, agent: str = "", depth: int = 0) -> None:
        self.agent, self.depth = agent, depth
        self.usage, self.model_calls, self.tools = Usage(), 0, 0
        self.held: Responded | None = None
        self.failed = 0  # the last model call that failed
        self.change = NO_CHANGE  # what hooks made of its last request: the same is not told again
        self.aside = False  # a side turn: whoever asked tells what came of it
        self.plans = False  # a team's manager: what it says is a plan
        self.planned = False  # its manager's plan has been told
        self.todos: list[Line] = []  # told once the call that wrote them has been


class Story:
    """Turns events into lines, in order. `results` also tells what each call returned."""

    def __init__(self, *, results: bool = False) -> None:
        self.open: dict[tuple[str, str], Running] = {}
        self.ended: deque[Running] = deque(maxlen=_KEPT)
        self._results = results
        self._sessions: dict[str, _Told] = {}
        self._questions: dict[str, CallbackRaised] = {}  # what is open, to tell which of several is meant

    def feed(self, event: AnyEvent) -> list[Line]:
        """The lines that this event adds."""
        tell = self._tellers.get(type(event))
        lines: list[Line] = tell(self, event) if tell is not None else []
        return [] if self.is_aside(event.session) else lines

    def recall(self, event: AnyEvent) -> None:
        """Take an event in that is not to be told; what was running then is not running now."""
        self.feed(event)
        for running in self.open.values():
            running.started = None

    def agent_of(self, session: str) -> str:
        """The agent's name, where the story has heard of it."""
        return self._told(session).agent

    def depth_of(self, session: str) -> int:
        """How far below the first session it is."""
        return self._told(session).depth

    def is_aside(self, session: str) -> bool:
        """Whether it is a side turn, which is told by what comes of it."""
        return self._told(session).aside

    def calls_open(self, session: str) -> bool:
        """Whether a call of the session is still to be told."""
        return any(key[0] == session for key in self.open)

    def _told(self, session: str) -> _Told:
        return self._sessions.setdefault(session, _Told(depth=session.count("~") if self._sessions else 0))

    def _line(self, event: AnyEvent, kind: Any, text: str, **more: Any) -> Line:
        told = self._told(event.session)
        more.setdefault("label", told.agent)
        more.setdefault("depth", told.depth)
        return Line(kind, text, event.session, **more)

    # --- sessions and turns ---------------------------------------------------------------

    def _session_started(self, event: SessionStarted) -> list[Line]:
        above = self._sessions.get(event.parent)
        told = self._sessions[event.session] = _Told(visible(event.agent), above.depth + 1 if above else 0)
        told.aside = above is not None and event.kind == "side_turn"
        told.plans = bool(event.team) and event.role == "manager" and event.kind != "side_turn"
        what = "side turn" if event.kind == "side_turn" else "session"
        return [self._line(event, "session", f"{what} {visible(event.session)}")]

    def _turn_started(self, event: TurnStarted) -> list[Line]:
        told = self._told(event.session)
        told.usage, told.model_calls, told.tools = Usage(), 0, 0
        return [self._line(event, "prompt", plain(event.message.text).strip())]

    def _turn_resumed(self, event: TurnResumed) -> list[Line]:
        changed = "; its instructions, tools or policy have changed since" if event.setup else ""
        return [self._line(event, "note", f"the turn goes on{changed}")]

    def _turn_ended(self, event: TurnEnded) -> list[Line]:
        for key in [key for key in self.open if key[0] == event.session]:
            del self.open[key]
        told = self._told(event.session)
        lines = [self._line(event, "note", plain(event.error), state="failed")] if event.error else []
        parts = [f"limit {event.limit} reached"] if event.limit else []
        parts += counted(told.model_calls, "model call") + counted(told.tools, "tool call") + tokens(told.usage)
        return [*lines, self._line(event, "end", " · ".join(parts), state=event.status, seconds=event.seconds)]

    # --- the model ------------------------------------------------------------------------

    def _model_started(self, event: ModelStarted) -> list[Line]:
        told = self._told(event.session)
        told.model_calls += 1
        before, told.change = told.change, (change := event.change or NO_CHANGE)
        moved = change.spliced and (change.removed, change.inserted) != (before.removed, before.inserted)
        parts = [("instructions", change.instructions not in ("", before.instructions)),
                 ("tools", change.tools not in ("", before.tools)), ("messages", moved)]  # fmt: skip
        what = ", ".join(name for name, new in parts if new)
        tells = what and (self._results or not told.depth)
        return [self._line(event, "hook", f"changed the {what}", label="")] if tells else []

    def _responded(self, event: Responded) -> list[Line]:
        told = self._told(event.session)
        told.usage = told.usage + event.usage
        if event.pending:
            told.held = event
            return []
        return self._response(event, event.message)

    def _response(self, event: Responded, message: Message) -> list[Line]:
        told = self._told(event.session)
        lines: list[Line] = []
        if event.by_hook:
            point = "model_failed" if told.failed == event.ordinal else "before_model"
            lines.append(self._line(event, "hook", "answered in the model's place", label=point))
        if text := plain(message.text).strip():
            plan = plan_list(text) if told.plans else ""
            self._told(event.session.rpartition("~")[0]).planned |= bool(plan)
            lines.append(self._line(event, "text", plan or text))
        for call in message.calls:
            self.open[event.session, call.id] = Running(call, event.session, told.depth)
        told.tools += len(message.calls)
        return lines

    def _model_failed(self, event: ModelFailed) -> list[Line]:
        self._told(event.session).failed = event.ordinal
        return [self._line(event, "note", f"the model call failed: {one_line(event.error, MOST)}")]

    def _output_refused(self, event: OutputRefused) -> list[Line]:
        return [self._line(event, "note", f"the reply is asked for again: {one_line(event.problem, MOST)}")]

    # --- tools and hooks ------------------------------------------------------------------

    def _inner_called(self, event: InnerCalled) -> list[Line]:
        outer = self.open.get((event.session, event.parent))
        below = self._told(event.session).depth + 1 if outer is None else outer.depth + 1
        self.open[event.session, event.call.id] = Running(event.call, event.session, below)
        if outer is None or outer.inside:
            return []
        outer.inside = True
        name = visible(outer.call.name)
        return [self._line(event, "tool", args_line(outer.call.args), label=name, depth=outer.depth)]

    def _tool_started(self, event: ToolStarted) -> list[Line]:
        running = self.open.get((event.session, event.call_id))
        if running is None:
            return []
        running.started = event.time
        if event.name or event.args is not None:
            args = running.asked.args if event.args is None else event.args
            running.change(event.name or running.call.name, args)
        return []

    def _tool_ended(self, event: ToolEnded) -> list[Line]:
        running = self.open.get((event.session, event.call_id))
        if running is None:
            return []
        running.ended = event
        return [] if event.pending else self._call_lines(event, running, None)

    def _call_lines(self, event: AnyEvent, running: Running, replaced: Result | None) -> list[Line]:
        ended = running.ended
        self.open.pop((running.session, running.call.id), None)
        if ended is None:
            return []
        seconds = ended.time - running.started if running.started is not None else None
        running.result = result = replaced or ended.result
        if not self.is_aside(running.session):
            self.ended.append(running)
        state = "by a hook" if ended.how == "hook" else ended.how
        if ended.how == "ran":
            state = "failed" if result.is_error else "ok"
        told = self._told(running.session)
        name = visible(running.call.name)
        args = "" if told.todos or running.inside else args_line(running.call.args)
        lines = [self._line(event, "tool", args, label=name, state=state, seconds=seconds, depth=running.depth)]
        for by, change in running.changes:
            kind, who, label = ("callback", f"{by} ", "  ↳") if by else ("hook", "", "before_tool")
            lines.append(self._line(event, kind, f"{who}changed the call: {change}", label=label))
        if replaced is not None:
            shown = one_line(changed_part(ended.result.text, replaced.text), MOST)
            lines.append(self._line(event, "hook", f"changed the result: {shown}", label="after_tool"))
        shown = one_line(result.text, MOST)
        if shown and (self._results or state != "ok"):
            lines.append(self._line(event, "result", shown, state=state, depth=running.depth))
        lines, told.todos = [*lines, *told.todos], []
        return lines

    def _hooks_passed(self, event: HooksPassed) -> list[Line]:
        point = event.point
        if point == "after_tool" and (running := self.open.get((event.session, event.at))):
            return self._call_lines(event, running, event.result)
        if point == "pre_request" and event.message is not None:
            shown = one_line(event.message.text, MOST)
            return [self._line(event, "hook", f"changed the prompt: {shown}", label=point)]
        if point == "end_turn" and event.text is not None:
            return [
                self._line(event, "hook", "changed the reply:", label=point),
                self._line(event, "text", plain(event.text).strip()),
            ]
        held = self._told(event.session).held
        if point == "post_response" and held is not None:
            self._told(event.session).held = None
            changed = [self._line(event, "hook", "changed the response:", label=point)] if event.message else []
            return [*changed, *self._response(held, event.message or held.message)]
        return []

    def _tried_again(self, event: ToolTriedAgain) -> list[Line]:
        if running := self.open.get((event.session, event.call_id)):
            running.started = event.time
        return []

    # --- callbacks ------------------------------------------------------------------------

    def _raised(self, event: CallbackRaised) -> list[Line]:
        self._questions[event.callback_id] = event
        what = f"{visible(event.agent)} asks ({visible(event.intent)}): {one_line(event.message, MOST)}"
        if event.gate:
            what = f"{visible(event.agent)} needs an approval: {visible(event.tool)} {args_line(event.args or {})}"
            if running := self.open.get((event.session, event.origin)):
                running.change(event.tool, event.args or {})  # what differs from the model's call is a hook's
        return [self._line(event, "callback", what, label="?")]

    def _asked(self, event: CallbackAsked) -> list[Line]:
        who = "the person" if event.target == "user" else visible(event.target)
        return [self._line(event, "callback", f"{who} is asked{self._about(event)}", label="  ↳")]

    def _about(self, event: Any) -> str:
        """Which question is meant, where the session has several open ones."""
        mine = self._questions.get(event.callback_id)
        if mine is None or sum(one.session == event.session for one in self._questions.values()) < 2:
            return ""
        return f" ({one_line(f'run {mine.tool}?' if mine.gate else mine.message, 24)})"

    def _passed(self, event: CallbackPassed) -> list[Line]:
        how = "reworded it and passed it up" if event.message else "passed it up"
        how = "was skipped" if event.skipped else how
        why = f": {one_line(event.message or event.reason, MOST)}" if event.message or event.reason else ""
        return [
            self._line(event, "callback", f"{visible(event.agent)} {how}{self._about(event)}{why}", label="  ↳")
        ]

    def _declined(self, event: CallbackDeclined) -> list[Line]:
        about = self._about(event)
        self._questions.pop(event.callback_id, None)
        why = f": {one_line(event.reason, MOST)}" if event.reason else ""
        return [self._line(event, "callback", f"declined by {_who(event)}{about}{why}", label="  ↳")]

    def _answered(self, event: CallbackAnswered) -> list[Line]:
        by = _who(event)
        about = self._about(event)
        asked = self._questions.pop(event.callback_id, None)
        said = verdict(event.value) if asked is not None and asked.gate else value_line(event.value)
        running = self.open.get((event.session, asked.origin)) if asked is not None and asked.gate else None
        if running is not None and (edited := edited_args(event.value)) is not None:
            running.change(running.call.name, edited, visible(event.by) or "whoever approved it")
        return [self._line(event, "callback", f"answered by {by}{about}: {said}", label="  ↳")]

    def _settled(self, event: CallbackExpired | CallbackWithdrawn) -> list[Line]:
        about = self._about(event)
        self._questions.pop(event.callback_id, None)
        if isinstance(event, CallbackExpired):
            return [self._line(event, "callback", f"expired without an answer{about}", label="  ↳")]
        how = "unresolved" if event.unresolved else "withdrawn"
        return [self._line(event, "callback", f"{how}{about}: {one_line(event.reason, MOST)}", label="  ↳")]

    def _parked(self, event: Parked) -> list[Line]:
        for key, running in self.open.items():
            if key[0] == event.session:
                running.started = None
        what = counted(len(event.waits), "answer") or ["a child"]
        return [self._line(event, "end", f"for {what[0]}", state="waiting")]

    def _hook_raised(self, event: HookRaised) -> list[Line]:
        problem = f"{visible(event.hook)} raised, which counts as passing up: {one_line(event.error, MOST)}"
        return [self._line(event, "hook", problem, label=event.point)]

    # --- a team's or chain's steps --------------------------------------------------------

    def _planned(self, event: Planned) -> list[Line]:
        match event.value:
            case [{"worker": _}, *_] as plan:
                rows = sorted(plan, key=lambda a: a["sequence"])
                told = [f"{a['sequence']}. {a['worker']}: {one_line(a['task'], MOST)}" for a in rows]
                if self._told(event.session).planned:  # by its manager, a moment ago
                    names = ", ".join(a["worker"] for a in rows)
                    return [self._line(event, "note", f"the plan is taken: {one_line(names, MOST)}")]
                return [self._line(event, "note", text) for text in ("the plan:", *told)]
            case []:
                return [self._line(event, "note", "the plan: nothing more")]
            case str() as picked:
                return [self._line(event, "note", f"step {event.step}: {one_line(picked, MOST)}")]
            case _:
                return []

    def _step_ended(self, event: StepEnded) -> list[Line]:
        planned = event.status == "done" and _PLANNING.fullmatch(event.step)
        if planned or not self._results:  # the plan is told itself; who reads along has seen the session end
            return []
        said = event.text if event.status == "done" else event.error or event.text
        shown = f": {one_line(said, MOST)}" if said else ""
        return [self._line(event, "note", f"{visible(event.step)} {event.status}{shown}")]

    # --- the rest -------------------------------------------------------------------------

    def _message_added(self, event: MessageAdded) -> list[Line]:
        if event.steer or (event.origin.startswith("callback.") and not self._results):
            return []
        shown = one_line(event.message.text.strip().partition("\n")[0].rstrip(":"), MOST)
        return [self._line(event, "note", f"a message was added: {shown}")]

    def _context_set(self, event: ContextSet) -> list[Line]:
        if event.key != TODOS:
            return []
        value: Any = event.value
        kept = cast("list[Any]", value) if isinstance(value, list) else []
        todos = [cast("dict[str, Any]", one) for one in kept if isinstance(one, dict)]
        shown = [(one_line(str(todo.get("content", "")), MOST), str(todo.get("status", ""))) for todo in todos]
        lines = [self._line(event, "todo", text, state=state) for text, state in shown]
        if not self.calls_open(event.session):
            return lines
        self._told(event.session).todos = lines
        return []

    def _compacted(self, event: Compacted) -> list[Line]:
        return [self._line(event, "note", f"compacted: {event.dropped} messages left the conversation")]

    def _steered(self, event: Steered) -> list[Line]:
        by = f" by {visible(event.by)}" if event.by else ""
        return [self._line(event, "note", f"steered{by}: {one_line(event.text, MOST)}")]

    def _cancel_requested(self, event: CancelRequested) -> list[Line]:
        why = f": {one_line(event.reason, MOST)}" if event.reason else ""
        return [self._line(event, "note", f"asked to cancel{why}")]

    _tellers: dict[type[Any], Any] = {  # noqa: RUF012
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
        ToolTriedAgain: _tried_again,
        CallbackRaised: _raised,
        CallbackAsked: _asked,
        CallbackPassed: _passed,
        CallbackAnswered: _answered,
        CallbackDeclined: _declined,
        CallbackExpired: _settled,
        CallbackWithdrawn: _settled,
        Parked: _parked,
        Planned: _planned,
        StepEnded: _step_ended,
        HookRaised: _hook_raised,
    }


def _who(event: CallbackAnswered | CallbackDeclined) -> str:
    """The name of the person or agent that settled a callback, with the right by which it did."""
    return f"{visible(event.by) or 'somebody'} ({visible(event.right)})" if event.right else visible(event.by)
