"""The values that a model reads and writes: messages made of parts, requests, responses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Self, cast

import msgspec

from upcall.safety.bounds import ARGUMENTS, DEPTH, excess, is_too_deep
from upcall.settings import Settings

Role = Literal["user", "assistant", "tool"]
Purpose = Literal["turn", "side_turn", "summary"]
Priority = Literal["low", "normal", "high", "critical"]
Status = Literal["done", "waiting", "cancelled", "limit"]
JsonSchema = dict[str, Any]

_AROUND = 8
"""Levels of a message around the JSON values in it."""


class Value(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A frozen value; `replace` returns a changed copy."""

    def replace(self, **changes: Any) -> Self:
        """Return a copy with these fields changed."""
        return msgspec.structs.replace(self, **changes)


# --- parts ------------------------------------------------------------------------------


class Text(Value, frozen=True, tag_field="part", tag="text"):
    """Plain text."""

    text: str


class Instruction(Value, frozen=True, tag_field="part", tag="instruction"):
    """A system instruction in the middle of a conversation; each provider's adapter renders it."""

    text: str


class Image(Value, frozen=True, tag_field="part", tag="image"):
    """An image: base64 `data` with its media type, or a `url`."""

    data: str = ""
    media_type: str = "image/png"
    url: str = ""


class Thinking(Value, frozen=True, tag_field="part", tag="thinking"):
    """A model's thinking, with opaque data that its provider needs back unchanged."""

    text: str
    opaque: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


class Call(Value, frozen=True, tag_field="part", tag="call"):
    """A tool call by a model.

    id: its id, made by the runtime
    name: the tool's name
    args: the arguments
    broken: what the model sent, if that was not a JSON object
    provider_id: the id that the model's provider gave the call; that provider gets it back
    provider: which provider that was
    """

    id: str
    name: str
    args: dict[str, Any]
    broken: str = ""
    provider_id: str = ""
    provider: str = ""


class Result(Value, frozen=True, tag_field="part", tag="result"):
    """The outcome of a tool call, as the model reads it.

    call_id: the id of the call
    text: what the model reads
    is_error: whether the call failed
    json: the value, if the tool returned JSON
    images: pictures that the model sees
    is_none: whether a program called the tool and it returned None, which the program then gets
    """

    call_id: str
    text: str
    is_error: bool = False
    json: Any = None
    images: tuple[Image, ...] = ()
    is_none: bool = False

    def replace(self, **changes: Any) -> Self:
        """Return a copy with these fields changed; a new `text` drops `json`, unless that is given too."""
        if "text" in changes:
            changes = {"json": None, "is_none": False} | changes
        return msgspec.structs.replace(self, **changes)


Part = Text | Instruction | Image | Thinking | Call | Result


class Message(Value, frozen=True):
    """One entry of a conversation. `text`, `calls` and `results` read its parts.

    role: `user`, `assistant` or `tool`
    parts: Text, Instruction, Image, Thinking, Call and Result values
    """

    role: Role
    parts: tuple[Part, ...]

    def replace(self, *, text: str | None = None, **changes: Any) -> Self:
        """Return a copy with these fields changed; a new `text` comes before all other parts."""
        if text is not None:
            changes["parts"] = (Text(text), *[p for p in self.parts if not isinstance(p, Text | Instruction)])
        return msgspec.structs.replace(self, **changes)

    @property
    def text(self) -> str:
        """All text and instruction parts, joined."""
        parts = self.parts
        if len(parts) == 1:  # the common case
            only = parts[0]
            return only.text if type(only) is Text or type(only) is Instruction else ""
        return "".join([p.text for p in parts if isinstance(p, Text | Instruction)])

    @property
    def calls(self) -> tuple[Call, ...]:
        """The tool calls of the message."""
        return tuple([p for p in self.parts if type(p) is Call])

    @property
    def results(self) -> tuple[Result, ...]:
        """The tool results of the message."""
        return tuple([p for p in self.parts if type(p) is Result])


def is_blank(message: Message) -> bool:
    """Return whether a message is empty: no image, call or result, and no text but blanks."""
    return all(isinstance(p, Text | Instruction) and not p.text.strip() for p in message.parts)


def user(text: str) -> Message:
    """Return a user's message."""
    return Message("user", (Text(replace_surrogates(text)),))


def replace_surrogates(text: str) -> str:
    """Return the text without lone surrogates, which JSON can't encode; pairs become their character."""
    if text.isascii():  # known without reading the text
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return _without_surrogates(text)
    return text


def _without_surrogates(text: str) -> str:
    """Return the text without surrogates, in steps that each take all of it: codecs are slow for one at a time."""
    if _PAIR.search(text):
        text = json.loads(json.dumps(text))  # joins pairs
    text = text.replace("\0", "\0a").replace("?", "\0b")  # so that each "?" in what follows is a surrogate
    text = text.encode(errors="replace").decode().replace("?", "\ufffd")
    return text.replace("\0b", "?").replace("\0a", "\0")


_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


# --- a model call -----------------------------------------------------------------------


class Usage(Value, frozen=True):
    """Tokens of one model call, or of many.

    input_tokens: tokens of the requests, the cached ones included
    output_tokens: tokens of the responses
    cached_tokens: input tokens that the provider had cached
    cache_written_tokens: input tokens that the provider wrote to its cache, which some bill higher
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_written_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cache_written_tokens + other.cache_written_tokens,
        )

    @property
    def total(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens


NO_USAGE = Usage()


class ToolSpec(Value, frozen=True):
    """A tool as the model sees it."""

    name: str
    description: str
    schema: JsonSchema


class Request(Value, frozen=True):
    """A request to a model.

    agent: the name of the agent
    purpose: `turn`, `side_turn` (it answers a callback) or `summary`
    instructions: the system prompt
    messages: the conversation
    tools: the tools that it may call, each with `name`, `description` and `schema`
    output: the JSON schema of the reply, if the agent has an `output` type
    settings: how the model is to be asked, or None
    """

    agent: str
    purpose: Purpose
    instructions: str
    messages: Sequence[Message]
    tools: tuple[ToolSpec, ...] = ()
    output: JsonSchema | None = None
    settings: Settings | None = None


class Response(Value, frozen=True):
    """A model's response.

    text: its text
    calls: its tool calls
    thinking: its reasoning, where the provider gives it
    usage: the tokens of this call
    stop: why it stopped
    model: the model's name, as the provider gives it
    layout: the parts in the provider's own order, where that matters
    """

    text: str = ""
    calls: Sequence[Call] = ()
    thinking: tuple[Thinking, ...] = ()
    usage: Usage = NO_USAGE
    stop: str = ""
    model: str = ""
    layout: tuple[Part, ...] = ()

    def message(self, ordinal: int) -> Message:
        """Return the assistant's message for the history, with call ids made from the response's ordinal.

        The parts stand in the provider's own order if nothing was changed since.
        """
        if self.layout and _same(self.layout, self):
            parts: tuple[Part, ...] = self.layout
        elif not self.calls and not self.thinking:
            return Message("assistant", (Text(self.text),) if self.text else ())
        else:
            text = (Text(self.text),) if self.text else ()
            parts = (*self.thinking, *text, *self.calls)
        if not self.calls:
            return Message("assistant", parts)
        numbered: list[Part] = []
        index = 0
        for part in parts:
            if type(part) is Call:
                fresh = f"r{ordinal}c{index}"
                part = Call(fresh, part.name, part.args, part.broken, part.provider_id, part.provider)
                index += 1
            numbered.append(part)
        return Message("assistant", tuple(numbered))


def _same(layout: tuple[Part, ...], response: Response) -> bool:
    text = "".join(p.text for p in layout if isinstance(p, Text))
    calls = [p for p in layout if isinstance(p, Call)]
    return text == response.text and calls == list(response.calls)


def json_round_trip(value: Any) -> Any:
    """Return a value as the log will return it. A value that could not be read again is refused."""
    kind = cast("type[Any]", type(value))
    if kind is Message and isinstance(value.parts, str):
        value = Message(value.role, (Text(value.parts),))
    for one in _json_in(value):
        if problem := excess(one, ARGUMENTS):
            raise ValueError(f"the value contains JSON that is too large: {problem}")
    body = msgspec.json.encode(value)
    if is_too_deep(body, DEPTH + _AROUND):
        raise ValueError(f"the value contains JSON that is nested more than {DEPTH} levels deep")
    return msgspec.json.decode(body, type=kind)


def _json_in(value: Any) -> Iterator[Any]:
    """Return the JSON values in a call, a result, a message or a response."""
    match value:
        case Call():
            yield value.args
        case Result():
            yield value.json
        case Message():
            for part in value.parts:
                yield from _json_in(part)
        case Response():
            for call in value.calls:
                yield from _json_in(call)
        case _:
            pass


# --- repairing conversations that a provider would refuse -------------------------------

CANCELLED = "cancelled: this call was not completed"


def cancelled(call_id: str, why: str = "") -> Result:
    """Return the result for a call that never got one."""
    return Result(call_id, f"cancelled: {why}" if why else CANCELLED, is_error=True)


def close_dangling_calls(messages: Iterable[Message]) -> list[Message]:
    """Return the messages with every call followed by its result, and no result without its call.

    For message lists that a hook has put together: whatever was cut, providers accept what is left.
    """
    out: list[Message] = []
    open_calls: dict[str, None] = {}
    for message in messages:
        if message.role == "tool":
            kept = tuple(r for r in message.results if r.call_id in open_calls)
            for result in kept:
                open_calls.pop(result.call_id, None)
            if kept:
                out.append(message if len(kept) == len(message.parts) else Message("tool", kept))
            continue
        _close(out, open_calls)
        if message.parts:
            out.append(message)
            open_calls = dict.fromkeys(c.id for c in message.calls)
    _close(out, open_calls)
    return out


def _close(out: list[Message], open_calls: dict[str, None]) -> None:
    if open_calls:
        out.append(Message("tool", tuple(cancelled(call_id) for call_id in open_calls)))
        open_calls.clear()


# --- compacting --------------------------------------------------------------------------


def kept_window(messages: list[Message], keep_last: int) -> list[Message]:
    """Return the last messages, extended at the front until no call is separated from its result."""
    start = max(0, len(messages) - keep_last)
    while 0 < start < len(messages) and messages[start].role == "tool":
        start -= 1
    return messages[start:]


def compacted_messages(
    messages: list[Message], keep_last: int, summary: str, pinned: Iterable[str] = ()
) -> list[Message]:
    """Return the first user message, all instructions, the summary, pinned texts and last messages, each once."""
    tail = kept_window(messages, keep_last)
    dropped = messages[: len(messages) - len(tail)]
    first = next((m for m in dropped if m.role == "user" and not _instructs(m)), None)
    head: list[Message] = []
    for message in dropped:
        if message is first or (_instructs(message) and message not in head and message not in tail):
            head.append(message)
    shown = [m.text for m in (*head, *tail)]
    notes = [f"Summary of the conversation so far:\n{summary}"] if summary else []
    notes += [note for note in pinned if dropped and not any(note in text for text in shown)]
    if notes:
        head.append(Message("user", (Text("\n\n".join(notes)),)))
    return [*head, *tail]


def _instructs(message: Message) -> bool:
    return bool(message.parts) and all(type(p) is Instruction for p in message.parts)
