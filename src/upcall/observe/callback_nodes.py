"""The nodes of callbacks: the question, each one who is asked, and the answer."""

from __future__ import annotations

from typing import Any

from upcall import events
from upcall.messages import Value
from upcall.observe.lines import LONGEST, Lines
from upcall.observe.node_activity import Activity
from upcall.observe.node_table import NodeTable
from upcall.observe.plain import one_line


class _Asked(Value, frozen=True):
    """A callback: its node, the node that waits for it, and how many were asked so far."""

    node: str
    waits: str
    about: str
    is_approval: bool
    hops: int = 0
    open: bool = True


class CallbackNodes:
    """Adds and changes the nodes of callbacks."""

    def __init__(self, table: NodeTable, lines: Lines, activity: Activity) -> None:
        self._table, self._lines, self._activity = table, lines, activity
        self._asked: dict[str, _Asked] = {}  # by callback id

    def raised(self, event: events.CallbackRaised, session: str, parent: str, own_label: str) -> None:
        """Add a callback below the call or turn that raised it. `own_label`: that of the tool it is about."""
        node = f"{session}/q:{event.callback_id}"
        label, about = self._lines.whole(event.intent).capitalize(), self._lines.text(event.message)
        if event.gate:
            name = self._lines.labels.of(event.tool, own_label)
            about = one_line(f"{name} {self._lines.call(event.tool, event.args or {})}", LONGEST)
        more: dict[str, Any] = {"callback": event.callback_id, "seq": event.seq, "status": "open"}
        self._table.add(node, parent, "callback", label, about, **more)
        self._asked[event.callback_id] = _Asked(node, parent, about, event.gate)
        self._activity.ask(parent, 1)

    def hop_of(self, origin: str) -> str:
        """Return the node of the hop for which a side turn runs; "" where the origin names no callback."""
        asked = self._find(origin)
        return self._hop(asked) if asked is not None and asked.hops else ""

    def question_of(self, origin: str) -> str:
        """Return the line of the callback that a side turn is to answer; "" where the origin names none."""
        asked = self._find(origin)
        return asked.about if asked is not None else ""

    def _find(self, origin: str) -> _Asked | None:
        return self._asked.get(origin) or self._asked.get(origin.rpartition(".")[2])

    def apply(self, event: Any) -> None:
        """Take what happened to a callback."""
        asked = self._asked.get(event.callback_id)
        if asked is None:
            return
        match event:
            case events.CallbackAsked():
                self._add_hop(event, asked)
            case events.CallbackPassed():
                self._pass(event, asked)
            case events.CallbackAnswered() | events.CallbackDeclined():
                if asked.open:
                    self._answer(event, asked)
            case events.CallbackExpired():
                self._settle(event, asked, "expired", "nobody answered in time")
            case events.CallbackWithdrawn():
                self._settle(event, asked, "withdrawn", event.reason)
            case _:
                pass

    def reopen(self, callback_id: str) -> None:
        """An approval counts no more and is asked again."""
        asked = self._asked.get(callback_id)
        if asked is not None and not asked.open:
            self._asked[callback_id] = asked.replace(open=True)
            self._table.set(asked.node, status="open", end=None, about=asked.about)
            self._activity.ask(asked.waits, 1)

    def _hop(self, asked: _Asked) -> str:
        return f"{asked.node}:h{asked.hops}"

    def _add_hop(self, event: events.CallbackAsked, asked: _Asked) -> None:
        if asked.hops:  # one that is asked again is not asked twice
            self._leave(event, asked, "passed")
        asked = self._asked[event.callback_id] = asked.replace(hops=asked.hops + 1)
        label = "A person" if event.target == "user" else self._lines.whole(event.target)
        more: dict[str, Any] = {"callback": event.callback_id, "seq": event.seq, "status": "open"}
        self._table.add(self._hop(asked), asked.node, "hop", label, **more)

    def _pass(self, event: events.CallbackPassed, asked: _Asked) -> None:
        how = "skipped" if event.skipped else "reworded it" if event.message else "passed it up"
        text = f"{how}: {event.message or event.reason}" if event.message or event.reason else how
        status = "skipped" if event.skipped else "passed"
        if not asked.hops or self._table.get(self._hop(asked), "status") != "open":
            asked = self._asked[event.callback_id] = asked.replace(hops=asked.hops + 1)
            more: dict[str, Any] = {"callback": event.callback_id, "seq": event.seq, "status": status}
            self._table.add(self._hop(asked), asked.node, "hop", self._lines.whole(event.agent), **more)
        self._leave(event, asked, status, about=self._lines.whole(text))

    def _leave(self, event: events.AnyEvent, asked: _Asked, status: str, **more: Any) -> None:
        """End the newest hop, unless it has ended."""
        hop = self._hop(asked)
        if hop in self._table and self._table.get(hop, "end") is None:
            self._table.end(hop, status, end_seq=event.seq, **more)

    def _answer(self, event: events.CallbackAnswered | events.CallbackDeclined, asked: _Asked) -> None:
        by = self._lines.whole(event.by) or "somebody"
        if isinstance(event, events.CallbackDeclined):
            status, said = "declined", self._lines.text(f"declined: {event.reason}" if event.reason else "declined")
        else:
            said = self._lines.approval(event.value) if asked.is_approval else self._lines.value(event.value)
            status = "answered"
        more: dict[str, Any] = {"callback": event.callback_id, "seq": event.seq, "status": status}
        self._table.add(f"{asked.node}:a", asked.node, "answer", by, said, **more)
        self._settle(event, asked, status, "", about=one_line(f"{asked.about} → {by}: {said}", LONGEST))

    def _settle(self, event: Any, asked: _Asked, status: str, why: str, about: str = "") -> None:
        if not asked.open:
            return
        self._asked[event.callback_id] = asked.replace(open=False)
        about = about or self._lines.whole(f"{asked.about} → {why or status}")
        self._table.end(asked.node, status, about=about, end_seq=event.seq)
        if asked.hops:
            self._leave(event, asked, "done" if status == "answered" else status)
        self._activity.ask(asked.waits, -1)
