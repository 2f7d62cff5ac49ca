"""A run tree as one HTML file that opens offline: the page's own view, with everything that it shows inside.

The built `export.html` holds the view and a policy that names the hashes of its script and style. The data is put
into it as JSON. Nodes carry the positions of their changes, so the file replays the run without a fold.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
from collections.abc import Iterator
from typing import Any

import msgspec

from upcall.contracts import ModelCall
from upcall.hosts.web.callback_reads import read_card
from upcall.hosts.web.exchange import Refusal
from upcall.hosts.web.log import Log
from upcall.hosts.web.session_reads import read_conversation, read_session
from upcall.observe.capture import model_call_json
from upcall.observe.node_table import Node
from upcall.observe.redact import Redactor
from upcall.observe.shown_events import shown_events
from upcall.prices import Cost

MOST_BYTES = 50_000_000
"""Bytes of a whole file. The largest bodies are left out first."""

PLACE = b'"__UPCALL_EXPORT__"'
"""The mark in the built page that the data replaces."""

_MOST_FOLDED = 300_000
"""Events that are folded to rebuild requests, each from those before it. The longest are left out first."""

_CALLS = ("tool", "step", "plan", "compaction", "steer", "note")
"""Kinds of nodes whose view shows their events."""

_PAGE = 200


class Bodies:
    """Bodies of an export by kind and name, within a size: the largest are dropped first."""

    def __init__(self, most: int) -> None:
        self._most, self._size = most, 0
        self._kept: dict[tuple[str, str], bytes] = {}
        self._largest: list[tuple[int, tuple[str, str]]] = []
        self.left_out = 0

    def put(self, kind: str, name: str, value: Any) -> None:
        """Add a body; make room for it."""
        body = for_markup(msgspec.json.encode(value))
        self._kept[kind, name] = body
        self._size += len(body)
        heapq.heappush(self._largest, (-len(body), (kind, name)))
        while self._size > self._most:
            size, key = heapq.heappop(self._largest)
            del self._kept[key]
            self._size += size
            self.left_out += 1

    def pieces(self, kind: str) -> Iterator[bytes]:
        """The bodies of one kind as the pieces of a JSON object."""
        comma = b"{"
        for (of, name), body in self._kept.items():
            if of == kind:
                yield comma + for_markup(msgspec.json.encode(name)) + b":"
                yield body
                comma = b","
        yield b"{}" if comma == b"{" else b"}"


class ModelCalls:
    """Model calls as an export holds them. What requests share, they name by its number.

    A conversation's next request repeats the one before it, so each message is redacted and kept once.
    """

    def __init__(self, redactor: Redactor, cost: Cost | None, bodies: Bodies) -> None:
        self._redactor, self._cost, self._bodies = redactor, cost, bodies
        self._numbers: dict[bytes, int] = {}

    def put(self, name: str, call: ModelCall) -> None:
        """Add a call."""
        request = call.request
        without_parts = call.replace(request=request.replace(messages=[], tools=()))
        made = model_call_json(without_parts, self._redactor, self._cost)
        made["request"]["messages"] = [self._number(one) for one in request.messages]
        made["request"]["tools"] = [self._number(one) for one in request.tools]
        self._bodies.put("calls", name, made)

    def _number(self, part: Any) -> int:
        key = hashlib.sha256(msgspec.json.encode(part)).digest()
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers)
            self._bodies.put("parts", str(self._numbers[key]), self._redactor.show(part))
        return self._numbers[key]


class TreeExport:
    """Collects what the view of one run tree shows. It lives where the log is read."""

    def __init__(self, log: Log, root: str) -> None:
        self._log, self._store, self._root = log, log.store, root

    async def pieces(self, template: bytes) -> list[bytes]:
        """The file, in pieces; Refusal 422 where the tree alone is too large."""
        before, _, after = template.partition(PLACE)
        tree = await self._log.kept.trees.get(self._store, self._root)
        nodes, position = tree.nodes(), tree.position
        head = await self._head(nodes, position)
        room = MOST_BYTES - len(template) - len(head) - 1000
        if room < 0:
            raise Refusal(422, f"a tree of {len(nodes)} steps is too large for one page; export its events instead")
        bodies = Bodies(room)
        await self._add_events(nodes, position, bodies)
        await self._add_conversations(nodes, bodies)
        await self._add_cards(nodes, bodies)
        await self._add_model_calls(nodes, bodies)
        found = [before, head]
        for kind in ("events", "conversations", "cards", "calls", "parts"):
            found += [f',"{kind}":'.encode(), *bodies.pieces(kind)]
        return [*found, f',"left_out":{bodies.left_out}}}'.encode(), after]

    async def _head(self, nodes: list[Node], position: int) -> bytes:
        """The beginning of the data: what is never left out."""
        session: dict[str, Any] = (await read_session(self._log, self._root))["session"]
        closed = {"can_prompt": False, "can_resume": False, "needs": ""}
        head = {
            "title": session["title"] or self._root,
            "exported": self._store.now(),
            "session": session | closed,
            "pos": position,
            "nodes": nodes,
        }
        return for_markup(msgspec.json.encode(head))[:-1]

    async def _add_events(self, nodes: list[Node], position: int, bodies: Bodies) -> None:
        """Add the events that nodes show."""
        wanted = {(node.session, seq) for node in nodes if node.kind in _CALLS for seq in (node.seq, node.end_seq)}
        after = 0
        while page := await self._store.read_tree(self._root, after, _PAGE):
            after = page[-1].pos
            found = [one for one in page if one.pos <= position and (one.session, one.seq) in wanted]
            for body in await shown_events(self._store, found, self._log.kept.redactor):
                bodies.put("events", f"{body['session']}/{body['seq']}", body)
            await asyncio.sleep(0)  # the follower of the log runs in the same thread

    async def _add_conversations(self, nodes: list[Node], bodies: Bodies) -> None:
        for session in dict.fromkeys(node.session for node in nodes):
            talk = await read_conversation(self._log, session)
            bodies.put("conversations", session, talk.entries)

    async def _add_cards(self, nodes: list[Node], bodies: Bodies) -> None:
        for callback_id in dict.fromkeys(node.callback for node in nodes if node.callback):
            callback = await self._log.runtime.callback(callback_id)
            bodies.put("cards", callback_id, await read_card(self._log, callback, can_answer=False))

    async def _add_model_calls(self, nodes: list[Node], bodies: Bodies) -> None:
        """Add the requests and responses of model calls."""
        folded, calls = 0, ModelCalls(self._log.kept.redactor, self._log.kept.cost, bodies)
        for node in sorted((one for one in nodes if one.kind == "model"), key=lambda one: one.seq):
            folded += node.seq
            call = (
                await self._log.runtime.model_call(node.session, seq=node.seq) if folded <= _MOST_FOLDED else None
            )
            if call is None:
                bodies.left_out += 1
            else:
                calls.put(f"{node.session}/{node.seq}", call)
            await asyncio.sleep(0)


def for_markup(body: bytes) -> bytes:
    """JSON that no HTML parser takes for markup: inside strings, `<` is written as an escape."""
    return body.replace(b"<", b"\\u003c")
