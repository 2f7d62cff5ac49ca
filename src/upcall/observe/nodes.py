"""A run tree as nodes: a pure fold over its events.

Feed a `RunTreeNodes` the events of a run tree in the order of their positions. Ends are matched to starts by call
id, so parallel calls of one tool never swap. A result or response whose hooks have not run yet is not looked at:
the log drops its body if a hook replaces it, and the tree must be the same before and after that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

from upcall import events
from upcall.messages import NO_USAGE, Call, Message, Result, Usage
from upcall.observe.callback_nodes import CallbackNodes
from upcall.observe.labels import Labels
from upcall.observe.lines import Lines
from upcall.observe.node_activity import Activity
from upcall.observe.node_table import BriefNode, Change, Node, NodeTable, usage_json
from upcall.observe.redact import Redactor
from upcall.prices import Cost


class RunTreeNodes:
    """The nodes of one run tree.

    labels: what tools are called
    redactor: hides secrets in the lines of nodes
    cost: what tokens of a model cost, for `node.cost`
    """

    def __init__(
        self, *, labels: Labels | None = None, redactor: Redactor | None = None, cost: Cost | None = None
    ) -> None:
        self._table = NodeTable()
        self._lines = Lines(redactor or Redactor(), labels or Labels())
        self._activity = Activity(self._table)
        self._sessions: dict[str, _Session] = {}
        self._callbacks = CallbackNodes(self._table, self._lines, self._activity)
        self._cost = cost
        self._position = 0

    def apply(self, event: events.AnyEvent) -> list[Change]:
        """Take the next event and return what it changes."""
        session = self._sessions.get(event.session)
        self._table.begin(event.session, event.pos, event.time)
        if session is None:
            session = self._sessions[event.session] = _Session(event.session)
            self._add_session(session, event)
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(self, session, event)
        self._position = max(self._position, event.pos)
        return self._table.finish()

    @property
    def position(self) -> int:
        """The position of the newest event."""
        return self._position

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, node_id: str) -> bool:
        return node_id in self._table

    def tool_label(self, session_id: str, tool: str) -> str:
        """Return what a tool is called in a session."""
        session = self._sessions.get(session_id)
        return self._lines.labels.of(tool, session.labels.get(tool, "") if session is not None else "")

    def unpriced(self, session_id: str) -> str:
        """Return the model without a price that the newest turn of a session has used; "" if there is none."""
        session = self._sessions.get(session_id)
        return session.unpriced if session is not None else ""

    def field(self, node_id: str, name: str) -> Any:
        """Return the value of a node's field as it is now."""
        return self._table.get(node_id, name)

    def nodes(self) -> list[Node]:
        """Return all nodes as they are now, in the order in which they were created."""
        return self._table.nodes()

    def brief_nodes(self) -> list[BriefNode]:
        """Return all nodes as they are now, without what is empty and what their histories repeat."""
        return self._table.brief_nodes()

    def at(self, position: int) -> list[Node]:
        """Return all nodes as they were after the event at this position."""
        return self._table.at(position)

    def since(self, position: int) -> list[Change]:
        """Return the changes after a position, in order."""
        return self._table.since(position)

    # --- sessions and turns ---------------------------------------------------------------

    def _add_session(self, session: _Session, event: events.AnyEvent) -> None:
        """Add the node of a session at its first event."""
        if not isinstance(event, events.SessionStarted):  # the log begins in the middle
            self._table.add(session.id, None, "session", event.session, status="idle")
            return
        kind = "side_turn" if event.kind == "side_turn" else "session"
        session.above = self._starter(event)
        session.question = self._callbacks.question_of(event.origin) if kind == "side_turn" else ""
        title, agent = self._lines.text(event.title), self._lines.whole(event.agent)
        self._table.add(session.id, session.above, kind, agent, title, status="idle", seq=event.seq)

    def _starter(self, event: events.SessionStarted) -> str | None:
        """Return the id of the node that a new session is below: what started it."""
        parent = self._sessions.get(event.parent)
        if parent is None:
            return None
        if event.kind == "side_turn" and (hop := self._callbacks.hop_of(event.origin)):
            return hop
        if event.session in parent.steps:
            return parent.steps[event.session]
        call = event.origin
        while call:
            if parent.node(call) in self._table:
                return parent.node(call)
            call = call.rpartition(".")[0]
        occurrence = event.origin.rpartition(".")[0] or event.origin
        point = self._lines.whole(event.origin.partition(".")[0])
        return self._table.add(parent.node(f"n:{occurrence}"), parent.top, "note", "Hook", point, status="done")

    def _turn_started(self, session: _Session, event: events.TurnStarted) -> None:
        session.begin_turn(event)
        turn = self._table.add(session.turn, session.id, "turn", f"Turn {event.turn}", seq=event.seq)
        self._table.set(session.id, status="running", end=None)
        self._activity.begin(turn, session.above, session.id)

    def _show_prompt(self, session: _Session, message: Message | None = None) -> None:
        """Show the prompt of a turn once it can't be replaced any more."""
        prompt, session.prompt = session.prompt, None
        if prompt is None and message is None:
            return
        line = session.question or self._lines.text((message or prompt or Message("user", ())).text)
        self._table.set(session.turn, about=line)
        if not self._table.get(session.id, "about"):
            self._table.set(session.id, about=line)

    def _turn_resumed(self, session: _Session, event: events.TurnResumed) -> None:
        if not session.turn:  # its begin_session hooks run again
            return
        self._interrupt_model(session)
        self._table.set(session.turn, status="running", end=None)
        self._table.set(session.id, status="running", end=None)
        self._activity.begin(session.turn, session.above, session.id)

    def _turn_ended(self, session: _Session, event: events.TurnEnded) -> None:
        self._interrupt_model(session)
        status = "interrupted" if event.status == "failed" else "cancelled"
        for call in session.open_calls:
            self._table.end(session.node(call), status)
            self._activity.end(session.node(call))
        if event.status != "failed":
            session.open_calls.clear()
        self._table.end(session.id, event.status, end_seq=event.seq)
        if not session.turn:
            return
        usage, cost = usage_json(session.usage), session.cost if not session.unpriced else None
        self._activity.end(session.turn)
        self._table.end(session.turn, event.status, end_seq=event.seq, usage=usage, cost=cost)
        failed = event.status in ("failed", "limit")
        label = {"done": "Completed", "failed": "Failed", "limit": "Limit", "cancelled": "Cancelled"}[event.status]
        why = f"limit {event.limit} reached" if event.limit else event.error
        about = self._lines.text(why) if failed else session.reply
        end = f"{session.turn}:{'failed' if failed else 'complete'}"
        self._table.add(end, session.turn, "failed" if failed else "complete", label, about, seq=event.seq)
        self._table.end(end, event.status)

    # --- the model ------------------------------------------------------------------------

    def _model_started(self, session: _Session, event: events.ModelStarted) -> None:
        self._show_prompt(session)
        self._interrupt_model(session)
        node = session.node(f"m{event.ordinal}")
        if node in self._table:  # a summary, or the same call once more
            node = session.node(f"m{event.ordinal}.{event.seq}")
        if event.model:
            session.asked = self._lines.whole(event.model)
        if event.labels is not None:
            session.labels = event.labels
        label = "Summary" if event.purpose == "summary" else session.asked or "Model"
        session.model = self._table.add(node, session.top, "model", label, call=event.ordinal, seq=event.seq)
        more: dict[str, Any] = {"call": event.ordinal, "seq": event.seq, "status": "done"}
        self._table.add(f"{node}:request", node, "request", "Request", **more)

    def _responded(self, session: _Session, event: events.Responded) -> None:
        self._show_prompt(session)
        session.usage = session.usage + event.usage
        model = event.model or session.asked.rpartition(":")[2]
        cost = self._cost(model, event.usage) if self._cost is not None and not event.by_hook else None
        if cost is not None:
            session.cost = (session.cost or 0.0) + cost
        elif self._cost is not None and not event.by_hook:
            session.unpriced = model or "the model"
        if session.model:
            self._table.set(session.model, usage=usage_json(event.usage), cost=cost, end_seq=event.seq)
        session.responded = event
        if not event.pending:
            self._show_response(session, event, event.message, event.seq)

    def _show_response(self, session: _Session, responded: events.Responded, message: Message, seq: int) -> None:
        """Show a response that no hook can replace any more, and the calls in it."""
        node, session.model, session.responded = session.model, "", None
        names = ", ".join(self._label(session, call.name) for call in message.calls[:10])
        about = self._lines.text(message.text) or names
        if node:
            self._table.end(node, "done", about=about, end_seq=seq)
            more: dict[str, Any] = {"call": responded.ordinal, "seq": seq, "status": "done"}
            self._table.add(f"{node}:response", node, "response", "Response", about, **more)
        if message.text.strip():
            session.reply = self._lines.text(message.text)
        for call in message.calls:
            self._add_call(session, call, session.top, seq)

    def _model_failed(self, session: _Session, event: events.ModelFailed) -> None:
        node, session.model = session.model, ""
        if not node:
            return
        about = self._lines.text(event.error)
        self._table.end(node, "failed", about=about, end_seq=event.seq)
        more: dict[str, Any] = {"call": event.ordinal, "seq": event.seq, "status": "failed"}
        self._table.add(f"{node}:failed", node, "failed", "Failed", about, **more)

    def _interrupt_model(self, session: _Session) -> None:
        """A model call that has no response will not get one."""
        if session.model and session.responded is None:
            self._table.end(session.model, "interrupted")
            session.model = ""

    def _label(self, session: _Session, tool: str) -> str:
        return self._lines.labels.of(tool, session.labels.get(tool, ""))

    # --- tools ----------------------------------------------------------------------------

    def _add_call(self, session: _Session, call: Call, parent: str, seq: int) -> None:
        node = session.node(call.id)
        label, about = self._label(session, call.name), self._lines.call(call.name, call.args)
        self._table.add(node, parent, "tool", label, about, seq=seq)
        self._table.add(f"{node}:request", node, "request", "Request", about, seq=seq, status="done")
        session.open_calls[call.id] = None
        self._activity.begin(node, parent)

    def _inner_called(self, session: _Session, event: events.InnerCalled) -> None:
        outer = session.node(event.parent)
        self._add_call(session, event.call, outer if outer in self._table else session.top, event.seq)

    def _tool_started(self, session: _Session, event: events.ToolStarted) -> None:
        node = session.node(event.call_id)
        if event.args is not None and node in self._table:
            label, about = self._label(session, event.name), self._lines.call(event.name, event.args)
            self._table.set(node, label=label, about=about)
            self._table.set(f"{node}:request", about=about, seq=event.seq)

    def _tool_tried_again(self, session: _Session, event: events.ToolTriedAgain) -> None:
        node = session.node(event.call_id)
        if node in self._table and event.call_id in session.open_calls:
            self._table.set(node, status="running", end=None)
            above = self._table.get(node, "parent")
            self._activity.begin(node, above)

    def _tool_ended(self, session: _Session, event: events.ToolEnded) -> None:
        if event.pending:
            session.ended[event.call_id] = event
        else:
            self._show_result(session, event, event.result, event.seq)

    def _show_result(self, session: _Session, ended: events.ToolEnded, result: Result, seq: int) -> None:
        """Show a result that no hook can replace any more."""
        node = session.node(ended.call_id)
        if node not in self._table:
            return
        session.open_calls.pop(ended.call_id, None)
        self._activity.end(node)
        failed = result.is_error
        status = ended.how if ended.how in ("cancelled", "interrupted") else "failed" if failed else "done"
        about = self._lines.text(result.text)
        self._table.end(node, status, end_seq=seq)
        label = {"done": "Completed", "failed": "Failed"}.get(status, status.capitalize())
        kind = "failed" if failed else "complete"
        self._table.add(f"{node}:{kind}", node, kind, label, about, seq=seq, status=status)
        self._table.add(f"{node}:response", node, "response", "Response", about, seq=seq, status=status)

    def _hooks_passed(self, session: _Session, event: events.HooksPassed) -> None:
        match event.point:
            case "pre_request":
                self._show_prompt(session, event.message)
            case "post_response" if session.responded is not None:
                responded = session.responded
                seq = responded.seq if event.message is None else event.seq
                self._show_response(session, responded, event.message or responded.message, seq)
            case "after_tool" if event.at in session.ended:
                ended = session.ended.pop(event.at)
                seq = ended.seq if event.result is None else event.seq
                self._show_result(session, ended, event.result or ended.result, seq)
            case "end_turn" if event.text is not None:
                session.reply = self._lines.text(event.text)
            case _:
                pass

    # --- teams and chains -----------------------------------------------------------------

    def _planned(self, session: _Session, event: events.Planned) -> None:
        self._show_prompt(session)
        value = event.value
        about = f"{len(cast('list[Any]', value))} tasks" if isinstance(value, list) else self._lines.value(value)
        self._table.add(
            session.node(f"p{event.seq}"), session.top, "plan", "Plan", about, seq=event.seq, status="done"
        )

    def _step_started(self, session: _Session, event: events.StepStarted) -> None:
        self._show_prompt(session)
        node = session.step_node(event.step)
        label = self._lines.whole(event.agent)
        self._table.add(node, session.top, "step", label, self._lines.whole(event.step), seq=event.seq)
        self._activity.begin(node, session.turn)
        session.steps[event.child] = node
        if event.child in self._sessions:  # it has worked before: its next turn belongs to this step
            self._sessions[event.child].above = node

    def _step_ended(self, session: _Session, event: events.StepEnded) -> None:
        node = session.step_node(event.step)
        if node not in self._table:
            return
        about = self._lines.text(event.error or event.text)
        self._activity.end(node)
        self._table.end(node, event.status, about=about, end_seq=event.seq)

    # --- the rest -------------------------------------------------------------------------

    def _steered(self, session: _Session, event: events.Steered) -> None:
        about = self._lines.text(event.text)
        label = self._lines.whole(event.by) or "Steering"
        self._table.add(session.node(f"s{event.seq}"), session.top, "steer", label, about, seq=event.seq)

    def _message_added(self, session: _Session, event: events.MessageAdded) -> None:
        if event.steer:
            self._table.end(session.node(f"s{event.steer}"), "done", end_seq=event.seq)

    def _compacted(self, session: _Session, event: events.Compacted) -> None:
        about = (
            f"{event.dropped} messages were summarised"
            if event.summary
            else f"{event.dropped} messages were dropped"
        )
        self._note(session, event, "c", "compaction", "Compaction", about)

    def _cancel_requested(self, session: _Session, event: events.CancelRequested) -> None:
        why = f": {event.reason}" if event.reason else ""
        self._note(session, event, "n", "note", "Cancel", f"{event.by or 'somebody'} cancelled the turn{why}")

    def _hook_raised(self, session: _Session, event: events.HookRaised) -> None:
        text = f"{event.hook} at {event.point} raised: {event.error}"
        self._note(session, event, "n", "note", "Hook failed", text, "failed")

    def _output_refused(self, session: _Session, event: events.OutputRefused) -> None:
        self._note(session, event, "n", "note", "Asked again", event.problem)

    def _adopted(self, session: _Session, event: events.SessionAdopted) -> None:
        self._note(session, event, "n", "note", "Adopted", f"{event.by or 'somebody'} adopted this log")
        for callback_id in event.reopened:
            self._callbacks.reopen(callback_id)

    def _note(
        self,
        session: _Session,
        event: events.AnyEvent,
        letter: str,
        kind: Any,
        label: str,
        text: str,
        status: str = "done",
    ) -> None:
        node, about = session.node(f"{letter}{event.seq}"), self._lines.text(text)
        self._table.add(node, session.top, kind, label, about, seq=event.seq, status=status)

    def _callback(self, session: _Session, event: Any) -> None:
        if isinstance(event, events.CallbackRaised):
            call = session.node(event.origin)
            own = session.labels.get(event.tool, "")
            self._callbacks.raised(event, session.id, call if call in self._table else session.top, own)
        else:
            self._callbacks.apply(event)

    _handlers: ClassVar[Mapping[type[Any], Callable[..., None]]] = {
        events.TurnStarted: _turn_started,
        events.TurnResumed: _turn_resumed,
        events.TurnEnded: _turn_ended,
        events.HooksPassed: _hooks_passed,
        events.ModelStarted: _model_started,
        events.Responded: _responded,
        events.ModelFailed: _model_failed,
        events.InnerCalled: _inner_called,
        events.ToolStarted: _tool_started,
        events.ToolTriedAgain: _tool_tried_again,
        events.ToolEnded: _tool_ended,
        events.Planned: _planned,
        events.StepStarted: _step_started,
        events.StepEnded: _step_ended,
        events.Steered: _steered,
        events.MessageAdded: _message_added,
        events.Compacted: _compacted,
        events.CancelRequested: _cancel_requested,
        events.HookRaised: _hook_raised,
        events.OutputRefused: _output_refused,
        events.SessionAdopted: _adopted,
        events.CallbackRaised: _callback,
        events.CallbackAsked: _callback,
        events.CallbackPassed: _callback,
        events.CallbackAnswered: _callback,
        events.CallbackDeclined: _callback,
        events.CallbackExpired: _callback,
        events.CallbackWithdrawn: _callback,
    }


class _Session:
    """The state from which one session's nodes are made. A new turn resets what belongs to a turn."""

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.above: str | None = None  # the node that started it
        self.turn = ""  # the node of its newest turn
        self.number = 0
        self.asked = ""  # the name of the model that is asked
        self.labels: Mapping[str, str] = {}  # those that its tools were declared with
        self.question = ""  # of a side turn that answers a callback: a line about it
        self.steps: dict[str, str] = {}  # nodes of steps by the ids of their children
        self._forget()

    def _forget(self) -> None:
        self.prompt: Message | None = None  # of a turn, as long as hooks may replace it
        self.model = ""  # the node of a model call that is not over
        self.responded: events.Responded | None = None  # one whose hooks have not run
        self.ended: dict[str, events.ToolEnded] = {}  # by call id, those whose hooks have not run
        self.open_calls: dict[str, None] = {}
        self.reply = ""
        self.usage: Usage = NO_USAGE
        self.cost: float | None = None
        self.unpriced = ""  # a model without a price that the turn has used

    def begin_turn(self, event: events.TurnStarted) -> None:
        """Begin a turn."""
        self._forget()
        self.prompt, self.number, self.turn = event.message, event.turn, self.node(f"t{event.turn}")

    @property
    def top(self) -> str:
        """The node that things of this session are below: its turn, or itself."""
        return self.turn or self.id

    def node(self, local: str) -> str:
        """Return the id of a node of this session."""
        return f"{self.id}/{local}"

    def step_node(self, step: str) -> str:
        """Return the id of a step's node: the same step may run in each turn."""
        return self.node(f"t{self.number}:step:{step}")
