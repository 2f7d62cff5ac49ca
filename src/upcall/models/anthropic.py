"""Anthropic's messages API, streamed."""

from __future__ import annotations

import asyncio
import random
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from upcall.contracts import Emit
from upcall.errors import ModelRefused
from upcall.messages import Call, Part, Request, Response, Text, Thinking, Usage
from upcall.models.anthropic_body import ThinkingBudget, anthropic_body
from upcall.models.body import RESPONSE_BYTES
from upcall.models.failures import (
    Endpoint,
    Failure,
    classify,
    excess_failure,
    parse_error_value,
    provider_name,
    stream_error,
)
from upcall.models.history import UNREADABLE, parse_call
from upcall.models.http import Reader, Sleep, Timeouts, Wire, without_credentials
from upcall.models.tuning import ANTHROPIC_KNOWS, check_settings, merge_settings
from upcall.safety.bounds import CALLS, token_count
from upcall.settings import Settings

BASE_URL = "https://api.anthropic.com"
_STOPS = {
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
}
_BLOCK = 100  # characters that each block counts in addition to its own, once there are many
_FEWER = re.compile(r"max_tokens: \d+ > (\d+)")
_ABOUT_SCHEMA = ("output_config", "output_format", "output format", "structured output", "schema", "grammar")


class Anthropic:
    """A Claude model, or any server that speaks Anthropic's messages API.

    model: the model's name, as the server knows it
    base_url: the address of the API, as in Anthropic's own SDK
    api_key: the key; not needed with a base URL
    retries: how often a failed request is repeated
    connect: seconds to connect
    first_byte: seconds until the response begins
    silence: seconds between two pieces of the response
    total: seconds for a whole response
    response_bytes: the most bytes of a response, unpacked
    max_tokens: the most tokens of a response
    thinking: a budget in tokens, or "adaptive", if the model should think first
    settings: how it is asked, unless an agent or a hook says otherwise
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str = BASE_URL,
        api_key: str | None = None,
        retries: int = 4,
        connect: float = 10.0,
        first_byte: float = 300.0,
        silence: float = 180.0,
        total: float = 3600.0,
        response_bytes: int = RESPONSE_BYTES,
        max_tokens: int = 16_384,
        thinking: ThinkingBudget = None,
        settings: Settings | None = None,
        _sleep: Sleep = asyncio.sleep,
        _chance: Callable[[], float] = random.random,
    ) -> None:
        self.model, self.name = model, f"anthropic:{model}"
        self._max_tokens, self._most, self._structured = max_tokens, sys.maxsize, True
        self._settings = check_settings(self.name, settings, ANTHROPIC_KNOWS)
        self._thinking: ThinkingBudget = thinking
        base, self._key = base_url.rstrip("/").removesuffix("/v1"), (api_key or "").strip()
        self._needs_key = base == BASE_URL
        hint = "api_key=, or ANTHROPIC_API_KEY for models given by name"
        shown = without_credentials(base)
        provider = provider_name(self.name, None if self._needs_key else shown)
        self._endpoint = Endpoint(self.name, model, shown, hint, self._key, provider)
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "upcall"}
        headers["anthropic-version"] = "2023-06-01"
        if self._key:
            headers["x-api-key"] = self._key
        timeouts = Timeouts(retries, connect, first_byte, silence, total, response_bytes)
        self._wire = Wire(self._endpoint, f"{base}/v1/messages", headers, timeouts, _sleep, _chance)

    def __repr__(self) -> str:
        return f"Anthropic({self.model!r}, base_url={self._endpoint.base_url!r})"

    async def respond(self, request: Request, emit: Emit | None) -> Response:
        """Answer one request, and adapt to what the server accepts.

        If the model can't write `max_tokens`, it is asked for fewer. If the server does not support structured
        outputs, or can't compile the schema, the schema is only in the instructions.
        """
        if not self._key and self._needs_key:
            raise ModelRefused(self.name, f"needs a key: give {self._endpoint.key_hint}")

        request = merge_settings(self.name, self._settings, request, ANTHROPIC_KNOWS)
        wire = self._wire.with_headers(request.settings.extra_headers if request.settings is not None else None)

        def new_reader() -> Reader:
            return AnthropicReader(wire.endpoint, emit)

        structured = self._structured
        while True:
            body = self._body(request, structured)
            try:
                response = await wire.ask(msgspec.json.encode(body), new_reader, emit)
            except ModelRefused as error:
                fewer = _FEWER.search(error.problem)
                if fewer is not None and self._writes_at_most(int(fewer[1])):
                    continue
                if not (structured and "output_config" in body and _refuses_schema(error)):
                    raise
                structured = False
            else:
                self._structured = structured
                return response

    def _body(self, request: Request, structured: bool) -> dict[str, Any]:
        settings = request.settings
        if settings is not None and settings.max_tokens is not None and settings.max_tokens > self._most:
            request = request.replace(settings=settings.replace(max_tokens=self._most))
        return anthropic_body(
            request,
            self.model,
            max_tokens=min(self._max_tokens, self._most),
            thinking=self._thinking,
            structured=structured,
            provider=self._endpoint.provider,
        )

    def _writes_at_most(self, tokens: int) -> bool:
        """Record the model's output limit, including thinking tokens; returns True if it is new."""
        most = tokens - (self._thinking if isinstance(self._thinking, int) else 0)
        known, self._most = self._most, most if 0 < most < self._most else self._most
        return self._most < known

    async def close(self) -> None:
        """Close this event loop's connections; the model can still be used."""
        await self._wire.close()


def _refuses_schema(error: ModelRefused) -> bool:
    return error.status in (400, 422) and any(word in error.problem.lower() for word in _ABOUT_SCHEMA)


# --- responses --------------------------------------------------------------------------


class _Usage(msgspec.Struct, gc=False):
    input_tokens: Any = None
    output_tokens: Any = None
    cache_read_input_tokens: Any = None
    cache_creation_input_tokens: Any = None


class _Block(msgspec.Struct, gc=False):
    type: str = ""
    id: str | None = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    name: str | None = None
    input: Any = None


class _Delta(msgspec.Struct, gc=False):
    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    signature: str | None = None
    stop_reason: str | None = None


class _Message(msgspec.Struct, gc=False):
    content: list[_Block] | None = None
    usage: _Usage | None = None
    model: str | None = None
    stop_reason: str | None = None


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    index: int = 0
    delta: _Delta | None = None
    content_block: _Block | None = None
    message: _Message | None = None
    usage: _Usage | None = None
    error: Any = None


class _Whole(_Message, gc=False):
    type: str = ""
    error: Any = None


class _Open:
    """A block while its pieces arrive."""

    __slots__ = ("block", "json", "signature", "text")

    def __init__(self, block: _Block) -> None:
        self.block = block
        self.text: list[str] = [block.text or block.thinking or ""]
        self.json: list[str] = []
        self.signature: list[str] = [block.signature or ""]


_decode = msgspec.json.Decoder(_Event).decode
_decode_whole = msgspec.json.Decoder(_Whole).decode


class AnthropicReader:
    """Builds a message from stream events, or from one body."""

    def __init__(self, endpoint: Endpoint, emit: Emit | None) -> None:
        self.spoke = self.complete = self.over = False
        self._endpoint, self._emit = endpoint, emit
        self._blocks: dict[int, _Open] = {}
        self._size = self._calls = 0  # characters of text, thinking, arguments and signatures
        self._input = self._cached = self._written = self._output = 0
        self._stop, self._model = "", ""

    def read(self, events: Sequence[bytes]) -> Failure | None:
        """Take events. Text comes first in the loop because it runs for every token."""
        emit, size = self._emit, 0
        for data in events:
            try:
                event = _decode(data)
            except UNREADABLE as error:
                return Failure(f"sent an event that can't be read ({error}): {self._endpoint.excerpt(data)}")
            if event.type == "content_block_delta":
                delta, block = event.delta, self._blocks.get(event.index)
                if delta is None or block is None:
                    continue
                if delta.text:
                    block.text.append(delta.text)
                    size += len(delta.text)
                    if emit is not None:
                        self.spoke = True
                        emit("text", delta.text)
                else:
                    self._grow(block, delta)
            elif (trouble := self._step(event)) is not None:
                return trouble
        self._size += size
        return excess_failure(self._endpoint, self._size, self._calls)

    def read_whole(self, body: bytes) -> Failure | None:
        """Take a message that arrived in one piece."""
        try:
            message = _decode_whole(body)
        except UNREADABLE as error:
            return Failure(f"sent a body that can't be read ({error}): {self._endpoint.excerpt(body)}")
        if message.type != "message" or message.error is not None:
            return classify(self._endpoint, 200, {}, body)
        self._begin(message)
        for index, block in enumerate(message.content or ()):
            self._start(index, block)
            if (trouble := excess_failure(self._endpoint, self._size, self._calls)) is not None:
                return trouble
        self._finish(message.stop_reason or "end_turn")
        return None

    def response(self) -> Response:
        """Return the response; the order of its parts is recorded if it is unusual."""
        provider = self._endpoint.provider
        layout = tuple(p for i in sorted(self._blocks) for p in _parts(self._blocks[i], provider))
        text = "".join(p.text for p in layout if isinstance(p, Text))
        calls = tuple(p for p in layout if isinstance(p, Call))
        thinking = tuple(p for p in layout if isinstance(p, Thinking))
        usual: tuple[Part, ...] = (*thinking, *((Text(text),) if text else ()), *calls)
        usage = Usage(self._input + self._cached + self._written, self._output, self._cached, self._written)
        unusual_layout = () if layout == usual else layout
        return Response(text, calls, thinking, usage, self._stop or "end", self._model, unusual_layout)

    def _step(self, event: _Event) -> Failure | None:
        match event.type:
            case "message_start" if event.message is not None:
                self._begin(event.message)
            case "content_block_start" if event.content_block is not None:
                self._start(event.index, event.content_block)
            case "message_delta":
                self._count(event.usage)
                if event.delta is not None and event.delta.stop_reason:
                    self._finish(event.delta.stop_reason)
            case "message_stop":
                self.complete = self.over = True
            case "error":
                return stream_error(self._endpoint, parse_error_value({"error": event.error}))
            case _:
                pass  # pings, ends of blocks, and unknown types
        return None

    def _begin(self, message: _Message) -> None:
        self._model = message.model or self._model
        self._count(message.usage)

    def _start(self, index: int, block: _Block) -> None:
        self._blocks[index] = _Open(block)
        self._calls += block.type == "tool_use"
        self._size += _BLOCK if len(self._blocks) > CALLS else 0
        for text in (block.text, block.thinking, block.signature, block.data):
            self._size += len(text or "")
        for kind, text in (("text", block.text), ("thinking", block.thinking)):
            if text and self._emit is not None:
                self.spoke = True
                self._emit(kind, text)

    def _grow(self, block: _Open, delta: _Delta) -> None:
        self._size += len(delta.partial_json or delta.thinking or delta.signature or "")
        if delta.partial_json:
            block.json.append(delta.partial_json)
        elif delta.thinking:
            block.text.append(delta.thinking)
            if self._emit is not None:
                self.spoke = True
                self._emit("thinking", delta.thinking)
        elif delta.signature:
            block.signature.append(delta.signature)

    def _finish(self, reason: str) -> None:
        self.complete = True
        self._stop = _STOPS.get(reason, reason)

    def _count(self, usage: _Usage | None) -> None:
        """Update the token counts. They are running totals; a later event may omit some of them."""
        if usage is not None:
            self._input = token_count(usage.input_tokens) or self._input
            self._output = token_count(usage.output_tokens) or self._output
            self._cached = token_count(usage.cache_read_input_tokens) or self._cached
            self._written = token_count(usage.cache_creation_input_tokens) or self._written


def _parts(opened: _Open, provider: str) -> tuple[Part, ...]:
    text = "".join(opened.text)
    match opened.block.type:
        case "text" if text:
            return (Text(text),)
        case "thinking":
            return (Thinking(text, {"signature": "".join(opened.signature)}),)
        case "redacted_thinking":
            return (Thinking("", {"redacted": opened.block.data or ""}),)
        case "tool_use":
            return (_call(opened, provider),)
        case _:
            return ()


def _call(opened: _Open, provider: str) -> Call:
    raw, input_value = "".join(opened.json), opened.block.input
    call = parse_call(opened.block.name or "", raw, opened.block.id or "", provider)
    return (
        call
        if raw.strip() or not isinstance(input_value, dict)
        else call.replace(args=cast("dict[str, Any]", input_value))
    )
