"""The updates of an editor's session: a fold over the events of a run tree, and over deltas while they are live.

A session that is loaded is shown by the same fold as one that runs, so both look the same. Text that is live is
only sent earlier.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from upcall import events
from upcall.contracts import Delta
from upcall.hosts.acp.content import blocks_of
from upcall.hosts.acp.plan_updates import PlanEvent, PlanUpdates
from upcall.hosts.acp.protocol import Client
from upcall.hosts.acp.question_updates import QuestionUpdates
from upcall.hosts.acp.tool_calls import ToolCalls, text_content
from upcall.hosts.acp.writing import Output, Writing
from upcall.messages import Call, Image, Message, Result, Text, Thinking
from upcall.observe.phrases import edited_args
from upcall.observe.plain import one_line, plain
from upcall.observe.redact import Redactor
from upcall.observe.weight import is_large
from upcall.prices import Cost

_LARGE_DELTA = 20_000
Update = tuple[str, dict[str, Any]]
"""The id of a session of the editor, and an update for it."""

_LONGEST_TITLE = 120
_MOST_EARLY = 1000
_SHOWN_AS_QUESTION = "ask"

_KEPT: tuple[type[Any], ...] = (
    *(events.CallbackAsked, events.CallbackPassed, *events.SETTLING, events.Parked),
    *(events.HooksPassed, events.ModelStarted, events.ToolStarted, events.TurnEnded),
)
"""Small events that lead to updates of what earlier ones said, which may be large."""

_NEVER_HIDDEN = (events.Responded,)
"""Events of sessions that are not shown, but whose tokens count."""


def takes_long(item: events.AnyEvent | Delta) -> bool:
    """Return whether taking in an event or a delta may take long, so that a thread should do it."""
    if isinstance(item, Delta):
        return len(item.text) > _LARGE_DELTA
    return isinstance(item, _KEPT) or is_large(item)


class Shown:
    """What an editor is shown of one session of the run tree.

    target: the id of the editor's session in which it is shown
    agent: its agent, where it is shown among another one's calls
    """

    def __init__(self, id: str, target: str, agent: str) -> None:
        self.id, self.target, self.agent = id, target, agent
        self.is_hidden = self.is_asking = self.has_gap = False
        self.parent_target = ""
        self.labels: Mapping[str, str] = {}
        self.purpose = "turn"
        self.ordinal = self.turn = 0
        self.text: Writing | None = None
        self.thought: Writing | None = None
        self.calls: dict[str, Call] = {}
        self.responses: dict[int, events.Responded] = {}
        self.results: dict[str, events.ToolEnded] = {}
        self.said = ""
        self.final: str | None = None
        self.compaction = ""

    @property
    def speaks(self) -> bool:
        """True if what its model writes is shown as the agent's message."""
        return self.target == self.id and not self.is_hidden


class Updates:
    """Folds the events of one run tree into updates.

    root: the id of the session at its top
    cost: what tokens cost
    window: how many tokens the model's context holds; 0 if that is not known
    """

    def __init__(
        self, root: str, client: Client, calls: ToolCalls, *, cost: Cost | None = None, window: int = 0
    ) -> None:
        self._root, self._client, self._tools = root, client, calls
        self.cost, self._window, self._spent = cost, window, 0.0
        self._sessions: dict[str, Shown] = {}
        self._questions, self._plans = QuestionUpdates(calls, root), PlanUpdates(calls.lines)
        self._outputs: dict[tuple[str, str], Output] = {}
        self._out: list[Update] = []
        self._early: dict[str, list[Delta]] = {}
        self._early_lost: set[str] = set()
        self._notes = 0
        self.echo = False
        """Whether the person's own messages are sent, as they are when a session is loaded."""
        self.own_steers: list[str] = []
        """Texts by which the person in this editor steers; the editor shows them itself."""
        self.title = ""

    @property
    def redactor(self) -> Redactor:
        """Hides secrets in everything that is sent."""
        return self._tools.redactor

    def note(self, text: str) -> list[Update]:
        """Return a message of the agent that is not in the log."""
        self._notes += 1
        return [
            (self._root, update)
            for update in Writing("agent_message_chunk", f"n{self._notes}", self.redactor).finish(text)
        ]

    # --- what comes in --------------------------------------------------------------------

    def feed(self, event: events.AnyEvent) -> list[Update]:
        """Take the next event and return the updates that it leads to."""
        session = self._sessions.get(event.session)
        if session is None:
            session = self._add_session(event)
        handler = self._handlers.get(type(event))
        if handler is not None and (not session.is_hidden or type(event) in _NEVER_HIDDEN):
            handler(self, session, event)
        return self._take()

    def delta(self, delta: Delta) -> tuple[list[Update], bool]:
        """Take text that is being written; returns updates, and whether `flush` has more of it.

        Events arrive when they are stored, and deltas at once. So text may come before the event that says which
        model call writes it; it waits for that.
        """
        session = self._sessions.get(delta.session)
        if delta.kind == "output":
            if session is not None and delta.call_id in session.calls and not session.is_hidden:
                key = (session.id, delta.call_id)
                self._outputs.setdefault(key, Output(self._tools.redactor)).add(delta.text)
            return [], True
        if session is not None and session.is_hidden:
            return [], False
        if session is None or not session.is_asking:
            early = self._early.setdefault(delta.session, [])
            if len(early) < _MOST_EARLY:
                early.append(delta)
            else:
                self._early_lost.add(delta.session)
            return [], False
        has_more = self._take_text(session, delta)
        return self._take(), has_more

    def _take_text(self, session: Shown, delta: Delta) -> bool:
        if session.purpose != "turn" or not session.speaks or session.has_gap:
            return False
        if delta.kind == "drop":
            for one in (session.thought, session.text):
                if one is not None:
                    self._say(session, one.flush())
                    one.drop()
            return False
        writing = self._thought(session) if delta.kind == "thinking" else self._text(session)
        has_enough = writing.add(delta.text)
        if has_enough:
            self._say(session, writing.flush())
        return not has_enough

    def flush(self, *, output: bool = True) -> list[Update]:
        """Return the updates for text, and for output of tools, that waits to be sent."""
        for session in self._sessions.values():
            for one in (session.thought, session.text):
                if one is not None:
                    self._say(session, one.flush())
        for (session_id, call_id), shown in self._outputs.items() if output else ():
            if (tail := shown.take()) is not None:
                session = self._sessions[session_id]
                self._change_call(session, call_id, content=[text_content(tail)])
        return self._take()

    def skip(self) -> None:
        """Note that deltas were missed: the rest of what is being written is sent when the log has it."""
        self._early_lost.update(self._early)
        self._early.clear()
        for session in self._sessions.values():
            session.has_gap = True

    def lose(self, session_id: str) -> None:
        """Note that a delta of a session was left out: its next model call is shown when the log has it."""
        self._early_lost.add(session_id)

    def _take(self) -> list[Update]:
        out, self._out = self._out, []
        return out

    def _say(self, session: Shown, updates: list[dict[str, Any]]) -> None:
        self._out += [(session.target, update) for update in updates]

    # --- sessions and turns ---------------------------------------------------------------

    def _add_session(self, event: events.AnyEvent) -> Shown:
        session_id, above = event.session, None
        if session_id == self._root or not isinstance(event, events.SessionStarted):
            session = Shown(session_id, session_id if session_id == self._root else self._root, "")
        else:
            above = self._sessions.get(event.parent)
            target = session_id if self._client.subagents else self._root
            session = Shown(session_id, target, event.agent)
            session.is_hidden = event.kind == "side_turn" or (above is not None and above.is_hidden)
            session.parent_target = above.target if above is not None else self._root
            if self._client.subagents and not session.is_hidden:
                self._tell_parent(session, title=one_line(event.agent, 100))
        self._sessions[session_id] = session
        return session

    def _tell_parent(self, session: Shown, **what: Any) -> None:
        """Say something about a child on its parent's session, where the editor knows child sessions."""
        if session.parent_target and session.target == session.id:
            update = {"sessionUpdate": "subagent_update", "sessionId": session.id, **what}
            self._out.append((session.parent_target, update))

    def _session_started(self, session: Shown, event: events.SessionStarted) -> None:
        if session.id == self._root:
            self.title = event.title

    def _turn_started(self, session: Shown, event: events.TurnStarted) -> None:
        session.turn, session.final = event.turn, None
        if session.id != self._root:
            about = self._tools.lines.text(event.message.text)
            self._tell_parent(session, description=about, state={"state": "running"})
        if session.speaks and (self.echo or session.id != self._root):
            self._say(session, self._user_chunks(event.message, f"u{event.turn}"))
        if session.id == self._root and not self.title:
            self.title = one_line(self._tools.lines.text(event.message.text), _LONGEST_TITLE)
            if self.title:
                self._say(session, [{"sessionUpdate": "session_info_update", "title": self.title}])

    def _user_chunks(self, message: Message, message_id: str) -> list[dict[str, Any]]:
        hides, shown = self._tools.redactor, list[Text | Image]()
        for part in message.parts:
            if isinstance(part, Text):
                shown.append(Text(plain(hides.text(part.text))))
            elif isinstance(part, Image):
                shown.append(part)
        blocks = blocks_of(Message("user", tuple(shown)))
        kind = "user_message_chunk"
        return [{"sessionUpdate": kind, "content": block, "messageId": message_id} for block in blocks]

    def _turn_ended(self, session: Shown, event: events.TurnEnded) -> None:
        for one in (session.thought, session.text):
            if one is not None:
                self._say(session, one.close())
        session.text = session.thought = None
        session.is_asking = False
        self._early.pop(session.id, None)
        for call_id in list(session.calls) if event.status != "failed" else ():
            self._change_call(session, call_id, status="failed")
            self._forget_call(session, call_id)
        if session.speaks and session.final is not None and session.final != session.said:
            self._write(session, f"r{event.turn}", session.final)
        if session.speaks and event.status == "limit":
            self._write(session, f"l{event.turn}", f"The limit {event.limit} ended the turn.")
        if session.id != self._root:
            stop = {"done": "end_turn", "cancelled": "cancelled", "limit": "max_turn_requests"}
            state = {"state": "idle", "stopReason": stop.get(event.status, "end_turn")}
            self._tell_parent(session, state=state)

    def _write(self, session: Shown, message_id: str, text: str) -> None:
        """Send a whole message of the agent."""
        self._say(session, Writing("agent_message_chunk", message_id, self._tools.redactor).finish(text))

    def _steer_added(self, session: Shown, event: events.MessageAdded) -> None:
        if not event.steer or not session.speaks:
            return
        text = event.message.text
        own = next((one for one in self.own_steers if one in text), None)
        if own is not None:
            self.own_steers.remove(own)
        if self.echo or own is None:
            self._say(session, self._user_chunks(event.message, f"s{event.steer}"))

    # --- the model ------------------------------------------------------------------------

    def _text(self, session: Shown) -> Writing:
        if session.text is None:
            session.text = Writing("agent_message_chunk", f"m{session.ordinal}", self._tools.redactor)
        return session.text

    def _thought(self, session: Shown) -> Writing:
        if session.thought is None:
            session.thought = Writing("agent_thought_chunk", f"t{session.ordinal}", self._tools.redactor)
        return session.thought

    def _model_started(self, session: Shown, event: events.ModelStarted) -> None:
        for one in (session.thought, session.text):  # of a call that had no response
            if one is not None:
                self._say(session, one.close())
        session.text = session.thought = None
        session.ordinal, session.purpose = event.ordinal, event.purpose
        if event.labels is not None:
            session.labels = event.labels
        if event.purpose == "summary":
            self._compaction(session, f"c{event.seq}", "in_progress")
        session.is_asking, session.has_gap = True, session.id in self._early_lost
        self._early_lost.discard(session.id)
        for early in self._early.pop(session.id, ()):
            self._take_text(session, early)

    def _responded(self, session: Shown, event: events.Responded) -> None:
        session.is_asking = False
        self._count(session, event)
        if session.is_hidden or session.purpose == "summary":
            session.purpose = "turn"
            return
        session.ordinal = event.ordinal
        if event.pending:
            session.responses[event.ordinal] = event
        else:
            self._show_response(session, event.message)

    def _count(self, session: Shown, event: events.Responded) -> None:
        if self.cost is not None:
            self._spent += self.cost(event.model, event.usage) or 0.0
        if session.id == self._root and self._window and event.usage.total:
            update: dict[str, Any] = {"sessionUpdate": "usage_update", "used": event.usage.total}
            update["size"] = max(self._window, event.usage.total)
            if self.cost is not None:
                update["cost"] = {"amount": self._spent, "currency": "USD"}
            self._say(session, [update])

    def _show_response(self, session: Shown, message: Message) -> None:
        """Show a response that no hook can replace any more, and the calls in it."""
        if session.speaks:
            thoughts = "".join(part.text for part in message.parts if isinstance(part, Thinking))
            if thoughts or session.thought is not None:
                self._say(session, self._thought(session).finish(thoughts))
            text = "".join(part.text for part in message.parts if isinstance(part, Text))
            if text or session.text is not None:
                self._say(session, self._text(session).finish(text))
            if text.strip():
                session.said = text
        session.text = session.thought = None
        for call in message.calls:
            self._add_call(session, call)

    # --- tools ----------------------------------------------------------------------------

    def _call_id(self, session: Shown, call_id: str) -> str:
        return call_id if session.target == session.id else f"{session.id[len(self._root) + 1 :]}/{call_id}"

    def _add_call(self, session: Shown, call: Call) -> None:
        session.calls[call.id] = call
        if call.name == _SHOWN_AS_QUESTION:
            return
        entry = {"toolCallId": self._call_id(session, call.id), **self.described(session, call.name, call.args)}
        self._say(session, [{"sessionUpdate": "tool_call", "status": "pending", **entry}])

    def described(self, session: Shown, name: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return how a call looks."""
        agent = session.agent if session.target != session.id else ""
        shown: dict[str, Any] = {
            "title": self._tools.title(name, args, session.labels.get(name, ""), agent),
            "name": name,
            "kind": self._tools.kind(name),
            "rawInput": self._tools.arguments(args),
        }
        if locations := self._tools.locations(args):
            shown["locations"] = locations
        if (diff := self._tools.diff(name, args)) is not None:
            shown["content"] = [diff]
        return shown

    def call_to_approve(self, session_id: str, origin: str, name: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return a call that waits for approval, with its id in the editor."""
        session = self._sessions.get(session_id) or Shown(session_id, self._root, "")
        return {"toolCallId": self._call_id(session, origin), **self.described(session, name, args)}

    def _change_call(self, session: Shown, call_id: str, **what: Any) -> None:
        call = session.calls.get(call_id)
        if call is not None and call.name != _SHOWN_AS_QUESTION:
            update = {"sessionUpdate": "tool_call_update", "toolCallId": self._call_id(session, call_id), **what}
            self._say(session, [update])

    def _forget_call(self, session: Shown, call_id: str) -> None:
        session.calls.pop(call_id, None)
        self._outputs.pop((session.id, call_id), None)

    def _inner_called(self, session: Shown, event: events.InnerCalled) -> None:
        self._add_call(session, event.call)

    def _tool_started(self, session: Shown, event: events.ToolStarted) -> None:
        call = session.calls.get(event.call_id)
        if (
            call is not None
            and event.args is not None
            and (event.args, event.name or call.name) != (call.args, call.name)
        ):
            call = session.calls[event.call_id] = call.replace(args=event.args, name=event.name or call.name)
            self._change_call(
                session, call.id, status="in_progress", **self.described(session, call.name, call.args)
            )
        else:
            self._change_call(session, event.call_id, status="in_progress")

    def _tool_ended(self, session: Shown, event: events.ToolEnded) -> None:
        if event.pending:
            session.results[event.call_id] = event
        else:
            self._show_result(session, event.call_id, event.result)

    def _show_result(self, session: Shown, call_id: str, result: Result) -> None:
        call = session.calls.get(call_id)
        if call is None:
            return
        what: dict[str, Any] = {"status": "failed" if result.is_error else "completed"}
        if result.is_error or not self._tools.has_diff(call.name, call.args):  # else the change stays on the screen
            what["content"] = self._tools.result(result)
        self._change_call(session, call_id, **what)
        self._forget_call(session, call_id)

    def _hooks_passed(self, session: Shown, event: events.HooksPassed) -> None:
        match event.point:
            case "post_response" if event.at.isdecimal() and int(event.at) in session.responses:
                responded = session.responses.pop(int(event.at))
                self._show_response(session, event.message or responded.message)
            case "after_tool" if event.at in session.results:
                ended = session.results.pop(event.at)
                self._show_result(session, event.at, event.result or ended.result)
            case "before_tool" if event.call is not None and event.at in session.calls:
                call = session.calls[event.at] = event.call.replace(id=event.at)
                self._change_call(session, call.id, **self.described(session, call.name, call.args))
            case "end_turn" if event.text is not None:
                session.final = event.text
            case _:
                pass

    # --- questions ------------------------------------------------------------------------

    def _callback_raised(self, session: Shown, event: events.CallbackRaised) -> None:
        self._say(self._sessions[self._root], self._questions.raised(event))

    def _callback_changed(self, session: Shown, event: Any) -> None:
        approval = self._questions.approval(event.callback_id)
        if approval is not None and isinstance(event, events.CallbackAnswered):
            self._approved(session, approval.origin, event)
        self._say(self._sessions[self._root], self._questions.changed(event))
        asks = isinstance(event, events.CallbackAsked) and event.target == "user"
        if asks or isinstance(event, events.SETTLING):
            self._tell_parent(session, state={"state": "requires_action" if asks else "running"})

    def _approved(self, session: Shown, call_id: str, event: events.CallbackAnswered) -> None:
        call, edited = session.calls.get(call_id), edited_args(event.value)
        if call is not None and edited is not None:
            call = session.calls[call_id] = call.replace(args=edited)
            self._change_call(session, call_id, **self.described(session, call.name, edited))

    def _parked(self, session: Shown, event: events.Parked) -> None:
        if session.id == self._root:
            self._write(session, f"w{event.seq}", self._questions.waiting_text(self._client))

    # --- plans and summaries --------------------------------------------------------------

    def _plan_changed(self, session: Shown, event: PlanEvent) -> None:
        plan = self._plans.changed(event)
        if session.speaks:
            self._say(session, plan)

    def _compacted(self, session: Shown, event: events.Compacted) -> None:
        self._compaction(session, f"d{event.seq}", "completed", event.summary)

    def _compaction(self, session: Shown, compaction_id: str, status: str, summary: str = "") -> None:
        if not self._client.compaction or not session.speaks:
            return
        if status == "in_progress":
            session.compaction = compaction_id
        update: dict[str, Any] = {"sessionUpdate": "compaction_update", "status": status}
        update["compactionId"] = session.compaction or compaction_id
        if status != "in_progress":
            session.compaction = ""
        if summary:
            update["summary"] = [{"type": "text", "text": plain(self._tools.redactor.text(summary))}]
        self._say(session, [update])

    def _model_failed(self, session: Shown, event: events.ModelFailed) -> None:
        session.is_asking = False
        if session.purpose == "summary":
            session.purpose = "turn"
            self._compaction(session, "", "failed")

    _handlers: dict[type[Any], Any] = {  # noqa: RUF012
        events.SessionStarted: _session_started,
        events.TurnStarted: _turn_started,
        events.TurnEnded: _turn_ended,
        events.MessageAdded: _steer_added,
        events.ModelStarted: _model_started,
        events.ModelFailed: _model_failed,
        events.Responded: _responded,
        events.InnerCalled: _inner_called,
        events.ToolStarted: _tool_started,
        events.ToolEnded: _tool_ended,
        events.HooksPassed: _hooks_passed,
        events.CallbackRaised: _callback_raised,
        events.CallbackAsked: _callback_changed,
        events.CallbackPassed: _callback_changed,
        events.CallbackAnswered: _callback_changed,
        events.CallbackDeclined: _callback_changed,
        events.CallbackExpired: _callback_changed,
        events.CallbackWithdrawn: _callback_changed,
        events.Parked: _parked,
        events.ContextSet: _plan_changed,
        events.Planned: _plan_changed,
        events.StepStarted: _plan_changed,
        events.StepEnded: _plan_changed,
        events.Compacted: _compacted,
    }
