"""Put a conversation into the order that every provider accepts: calls, their results, then other messages."""

from __future__ import annotations

import functools
import hashlib
import re
import string
from collections.abc import Iterable
from typing import Any, cast

import msgspec

from upcall.messages import (
    Call,
    Image,
    Instruction,
    Message,
    Part,
    Result,
    Text,
    Thinking,
    Value,
    cancelled,
)
from upcall.safety.bounds import ARGUMENTS, read_bounded_json

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions of parsing foreign JSON: it is invalid, or nested too deeply."""

_BROKEN = 10_000
"""The most characters to keep of unreadable arguments."""
_MAX_ID = 10_000
"""The longest call id to accept from a provider; a longer one is ignored."""
_MAX_NAME = 64
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_LETTERS = string.ascii_letters + string.digits


class AssistantTurn(Value, frozen=True):
    """The parts that the model wrote, in its own order."""

    parts: tuple[Text | Thinking | Call, ...]

    @property
    def calls(self) -> tuple[Call, ...]:
        """The tool calls of the turn."""
        return tuple(p for p in self.parts if isinstance(p, Call))


class ToolResults(Value, frozen=True):
    """The results of all calls of the preceding `AssistantTurn`, in the order of the calls."""

    results: tuple[Result, ...]
    names: tuple[str, ...]


class InputTurn(Value, frozen=True):
    """Input for the model besides results: text, instructions and images, none of them empty."""

    parts: tuple[Text | Instruction | Image, ...]


Turn = AssistantTurn | ToolResults | InputTurn


def turns(messages: Iterable[Message], provider: str = "") -> list[Turn]:
    """Return the conversation as turns that every provider accepts, whatever hooks removed or inserted.

    A call without a result gets a cancelled one, a result without its call is dropped, and messages between a call
    and its results are moved after them. Calls have the ids that this `provider` assigned. If it assigned none, or
    the same id twice, an id of nine letters and digits is generated, which every server accepts. The same history
    gives the same ids in any process. A model may also call tools by names that servers refuse; see `sent_name`.
    """
    walk = _Walk(provider)
    for message in messages:
        if message.role == "assistant":
            walk.add_assistant(message)
        else:
            walk.add_input(message.parts)
    walk.close()
    return walk.out


class _Walk:
    def __init__(self, provider: str) -> None:
        self.out: list[Turn] = []
        self._provider = provider
        self._seen: set[str] = set()
        self._calls: list[Call] = []
        self._waiting: dict[str, list[str]] = {}  # an id in the history → ids on the wire, still unanswered
        self._results: dict[str, Result] = {}
        self._held: list[InputTurn] = []

    def add_assistant(self, message: Message) -> None:
        self.close()
        parts: list[Text | Thinking | Call] = []
        for part in message.parts:
            if isinstance(part, Call):
                parts.append(self._open(part))
            elif isinstance(part, Thinking) or (isinstance(part, Text) and part.text):
                parts.append(part)
        if parts:
            self.out.append(AssistantTurn(tuple(parts)))
        self.add_input([p for p in message.parts if isinstance(p, Instruction)])

    def add_input(self, parts: Iterable[Part]) -> None:
        rest: list[Text | Instruction | Image] = []
        for part in parts:
            if isinstance(part, Result):
                self._answer(part)
            elif isinstance(part, Text | Instruction | Image) and _has_content(part):
                rest.append(part)
        if rest:
            (self._held if self._calls else self.out).append(InputTurn(tuple(rest)))
        if self._calls and len(self._results) == len(self._calls):
            self.close()

    def close(self) -> None:
        if self._calls:
            results = tuple(self._results.get(c.id) or cancelled(c.id) for c in self._calls)
            self.out.append(ToolResults(results, tuple(c.name for c in self._calls)))
        self.out += self._held
        self._calls, self._waiting, self._results, self._held = [], {}, {}, []

    def _open(self, call: Call) -> Call:
        fresh, count = call.provider_id if call.provider == self._provider else "", 0
        while not fresh or fresh in self._seen:
            fresh, count = generate_id(call.id, count), count + 1
        self._seen.add(fresh)
        self._waiting.setdefault(call.id, []).append(fresh)
        name = sent_name(call.name)
        renamed = call if (fresh, name) == (call.id, call.name) else call.replace(id=fresh, name=name)
        self._calls.append(renamed)
        return renamed

    def _answer(self, result: Result) -> None:
        if ids := self._waiting.get(result.call_id):
            fresh = ids.pop(0)
            self._results[fresh] = result if fresh == result.call_id else result.replace(call_id=fresh)


@functools.lru_cache(maxsize=4096)
def generate_id(call_id: str, count: int = 0) -> str:
    """Generate an id of nine letters and digits from one of ours, different for each count."""
    number = int.from_bytes(hashlib.sha256(f"{call_id}#{count}".encode()).digest()[:8])
    return "".join(_LETTERS[number // len(_LETTERS) ** place % len(_LETTERS)] for place in range(9))


def sent_name(name: str) -> str:
    """Return the name of a called tool as every server accepts it: 1 to 64 letters, digits, `_` and `-`.

    A model may invent any name. If a server refused it in the history, the conversation could not continue.
    """
    return _NOT_IN_NAMES.sub("_", name[:_MAX_NAME]) or "_"


def _has_content(part: Text | Instruction | Image) -> bool:
    return bool(part.data or part.url) if isinstance(part, Image) else bool(part.text.strip())


def parse_call(name: str, raw: str, provider_id: str, provider: str) -> Call:
    """Return a call with its parsed arguments; invalid JSON is kept, so that the model can be told."""
    args = json_object(raw) if raw.strip() else {}
    ids = (provider_id, provider) if provider_id.strip() and len(provider_id) <= _MAX_ID else ("", "")
    if args is not None:
        return Call("", name, args, "", *ids)
    return Call("", name, {}, raw if len(raw) <= _BROKEN else f"{raw[:_BROKEN]}…", *ids)


def json_object(text: str) -> dict[str, Any] | None:
    """Parse a JSON object; None if the text is not one."""
    try:
        value = read_bounded_json(text, ARGUMENTS)
    except ValueError:
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def arguments(call: Call) -> dict[str, object]:
    """Return the call's arguments as an object; unreadable ones are under one key."""
    return {"invalid_json": call.broken} if call.broken else call.args
