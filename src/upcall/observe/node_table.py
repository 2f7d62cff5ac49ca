"""The nodes of one run tree, and the changes that made them.

A node changes only through changes. The first one creates it and sets every field; later ones set what is
different. So the nodes at a position, with the changes after it, are the nodes at a later position.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, cast

import msgspec

from upcall.messages import Usage, Value

Kind = Literal[
    "session", "side_turn", "turn", "model", "tool", "request", "response", "complete", "failed", "callback", "hop",
    "answer", "step", "plan", "compaction", "steer", "note",
]  # fmt: skip
Role = Literal["System", "JsonRequest", "Assistant", "JsonResponse"]

ROLES: Final[dict[str, Role]] = {
    "request": "JsonRequest",
    "response": "JsonResponse",
    "complete": "Assistant",
    "failed": "Assistant",
    "answer": "Assistant",
}
"""The roles of nodes by kind; all others have the role System."""

MUTABLE: Final = ("label", "about", "status", "end", "seq", "end_seq", "usage", "cost")
"""The fields of a node that may change."""


class Change(Value, frozen=True, omit_defaults=False):
    """A node was created, or fields of it are different now.

    id: the node's
    pos: the position of the event that caused it
    time: the time of that event
    set: the new values; of a new node, all its fields
    """

    id: str
    pos: int
    time: float
    set: dict[str, Any]


class Node(Value, frozen=True, omit_defaults=False):
    """One thing that happened in a run tree.

    id: it follows from the log alone, so it is the same in every process
    parent: the id of the node it is below; None for the root
    session: the id of its session
    kind: what it is: a `session`, `turn`, `model` call, `tool` call, …
    role: who speaks in it: `System`, `JsonRequest`, `Assistant` or `JsonResponse`
    label: what it is called
    about: one line about it, redacted
    status: how it stands
    start: when it began, in seconds since 1970
    end: when it ended
    pos: the position of the event that created it
    changed: the position of its newest change
    seq: the sequence number of the event that holds its body; 0 if none does
    end_seq: the sequence number of the event with its outcome; 0 if there is none
    call: of a model call, its number in the session
    callback: of a callback and what is below it, the callback's id
    usage: of a model call or turn, its tokens
    cost: of a model call or turn, what it cost, if prices are known
    history: position, time and new values of each of its changes
    """

    id: str
    parent: str | None
    session: str
    kind: Kind
    role: Role
    label: str
    about: str
    status: str
    start: float
    end: float | None
    pos: int
    changed: int
    seq: int
    end_seq: int
    call: int
    callback: str
    usage: dict[str, int] | None
    cost: float | None
    history: tuple[tuple[int, float, dict[str, Any]], ...]


class BriefNode(Value, frozen=True, kw_only=True):
    """A node as it is sent to a page, with a smaller JSON.

    The fields are those of `Node`, and those with their default are left out of the JSON. The first entry of the
    history has only the values that changed later, and a node that never changed has no history.
    """

    id: str
    parent: str | None = None
    session: str
    kind: Kind
    role: Role = "System"
    label: str
    about: str = ""
    status: str
    start: float
    end: float | None = None
    pos: int
    changed: int
    seq: int = 0
    end_seq: int = 0
    call: int = 0
    callback: str = ""
    usage: dict[str, int] | None = None
    cost: float | None = None
    history: tuple[tuple[int, float, dict[str, Any]], ...] = ()


_FIXED = ("parent", "session", "kind", "role", "start", "pos", "call", "callback")


class _Record:
    """A node that may still change: its fields, and its history so far."""

    __slots__ = ("fields", "history")

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self.history: list[tuple[int, float, dict[str, Any]]] = []

    def node(self, node_id: str) -> Node:
        """Return the node as it is now."""
        return Node(id=node_id, changed=self.history[-1][0], history=tuple(self.history), **self.fields)

    def brief(self, node_id: str) -> BriefNode:
        """Return the node as it is now; what was never changed is not repeated in its history."""
        fields, history = self.fields, self.history
        if len(history) == 1:
            return BriefNode(id=node_id, changed=history[0][0], **fields)
        (pos, time, values), *later = history
        changed = {name for _, _, new in later for name in new}
        first = (pos, time, {name: value for name, value in values.items() if name in changed})
        return BriefNode(id=node_id, changed=later[-1][0], history=(first, *later), **fields)


class NodeTable:
    """All nodes of a tree, in the order in which they were created."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}
        self._set: dict[str, dict[str, Any]] = {}  # what the event that is applied now has set
        self._pos, self._time, self._session = 0, 0.0, ""

    def begin(self, session: str, pos: int, time: float) -> None:
        """Begin with the next event."""
        self._session, self._pos, self._time = session, pos, time

    def finish(self) -> list[Change]:
        """Return what the event changed, and add it to the nodes' histories."""
        changes: list[Change] = []
        for node_id, values in self._set.items():
            changed = {name: values[name] for name in MUTABLE if name in values}
            self._records[node_id].history.append((self._pos, self._time, changed))
            changes.append(Change(node_id, self._pos, self._time, values))
        self._set = {}
        return changes

    def __contains__(self, node_id: str) -> bool:
        return node_id in self._records

    def __len__(self) -> int:
        return len(self._records)

    def get(self, node_id: str, field: str) -> Any:
        """Return the value of a node's field as it is now."""
        return self._records[node_id].fields[field]

    def add(self, node_id: str, parent: str | None, kind: Kind, label: str, about: str = "", **more: Any) -> str:
        """Create a node; where it exists already, set its label, line and what else may change."""
        if node_id in self._records:
            self.set(node_id, label=label, about=about, **{k: v for k, v in more.items() if k in MUTABLE})
            return node_id
        role = ROLES.get(kind, "System")
        fields: dict[str, Any] = {
            "parent": parent, "session": self._session, "kind": kind, "role": role, "label": label, "about": about,
            "status": "running", "start": self._time, "end": None, "pos": self._pos, "seq": 0, "end_seq": 0,
            "call": 0, "callback": "", "usage": None, "cost": None, **more,
        }  # fmt: skip
        self._records[node_id] = _Record(fields)
        self._set[node_id] = fields.copy()
        return node_id

    def set(self, node_id: str, **values: Any) -> None:
        """Set fields of a node that are different now; unknown nodes are left out."""
        record = self._records.get(node_id)
        if record is None:
            return
        new = {name: value for name, value in values.items() if record.fields[name] != value}
        if new:
            record.fields.update(new)
            self._set.setdefault(node_id, {}).update(new)

    def end(self, node_id: str, status: str, **values: Any) -> None:
        """Set how a node ended, now."""
        self.set(node_id, status=status, end=self._time, **values)

    def nodes(self) -> list[Node]:
        """Return all nodes as they are now."""
        return [record.node(node_id) for node_id, record in self._records.items()]

    def brief_nodes(self) -> list[BriefNode]:
        """Return all nodes as they are now, without what is empty and what their histories repeat."""
        return [record.brief(node_id) for node_id, record in self._records.items()]

    def at(self, position: int) -> list[Node]:
        """Return all nodes as they were after the event at this position."""
        found = self._records.items()
        return [_as_of(record.node(i), position) for i, record in found if record.fields["pos"] <= position]

    def since(self, position: int) -> list[Change]:
        """Return the changes after a position, in order."""
        found: list[tuple[int, int, Change]] = []
        for order, (node_id, record) in enumerate(self._records.items()):
            first = len(record.history)
            while first and record.history[first - 1][0] > position:
                first -= 1
            for number, (pos, time, values) in enumerate(record.history[first:], first):
                fixed = {} if number else {name: record.fields[name] for name in _FIXED}
                found.append((pos, order, Change(node_id, pos, time, {**fixed, **values})))
        return [change for _, _, change in sorted(found, key=lambda one: one[:2])]


def _as_of(node: Node, position: int) -> Node:
    if node.changed <= position:
        return node
    history = tuple(entry for entry in node.history if entry[0] <= position)
    values: dict[str, Any] = {}
    for _, _, changed in history:
        values.update(changed)
    return node.replace(**values, changed=history[-1][0], history=history)


def apply_changes(nodes: Iterable[Node], changes: Iterable[Change]) -> list[Node]:
    """Return the nodes with the changes made to them, in the order in which they were created."""
    found = {node.id: node for node in nodes}
    for change in changes:
        entry = (change.pos, change.time, {name: change.set[name] for name in MUTABLE if name in change.set})
        node = found.get(change.id)
        if node is None:
            fields = cast(
                "dict[str, Any]", {**change.set, "id": change.id, "changed": change.pos, "history": [entry]}
            )
            found[change.id] = msgspec.convert(fields, Node)
        else:
            found[change.id] = node.replace(**entry[2], changed=change.pos, history=(*node.history, entry))
    return list(found.values())


def usage_json(usage: Usage) -> dict[str, int] | None:
    """Return tokens as a node has them; None where none are known."""
    if not usage.total and not usage.cached_tokens:
        return None
    return {
        "input": usage.input_tokens,
        "output": usage.output_tokens,
        "cached": usage.cached_tokens,
        "cache_written": usage.cache_written_tokens,
    }
