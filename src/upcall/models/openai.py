"""OpenAI's chat completions, streamed, for any server that speaks them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from upcall.contracts import Emit
from upcall.errors import ModelRefused
from upcall.messages import Request, Response, Thinking, Usage
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
from upcall.models.history import UNREADABLE, json_object, parse_call
from upcall.models.http import Reader, Sleep, Timeouts, Wire, without_credentials
from upcall.models.openai_body import openai_body
from upcall.models.tuning import EVERY_SETTING, check_settings, merge_settings
from upcall.safety.bounds import CALLS, token_count
from upcall.settings import Settings

BASE_URL = "https://api.openai.com/v1"
_OPTIONAL = {
    "response_format": ("response_format", "response format", "json_schema"),
    "stream_options": ("stream_options",),
}
_STRICT_IDS = ("tool call id ", " length of 9")
"""In this order, Mistral's rule for ids, as reported by servers that break it in their own ids."""

_MAX_NAME = 200
_CHECKS = 20  # how often to check whether a call's arguments are complete
_STOPS = {"stop": "end", "tool_calls": "calls", "function_call": "calls", "content_filter": "refused"}


class OpenAIChat:
    """A model behind OpenAI's chat completions, or behind a server that speaks them.

    model: the model's name, as the server knows it
    base_url: the address of the API, as in OpenAI's own SDK
    api_key: the key; not needed with a base URL
    retries: how often a failed request is repeated
    connect: seconds to connect
    first_byte: seconds until the response begins
    silence: seconds between two pieces of the response
    total: seconds for a whole response
    response_bytes: the most bytes of a response, unpacked
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
        settings: Settings | None = None,
        _sleep: Sleep = asyncio.sleep,
        _chance: Callable[[], float] = random.random,
        _name: str = "",
    ) -> None:
        self.model, self.name = model, _name or f"openai:{model}"
        self._base_url, self._key = base_url.rstrip("/"), (api_key or "").strip()
        hint = "api_key=, or OPENAI_API_KEY for models given by name"
        self._official = self._base_url == BASE_URL
        shown = without_credentials(self._base_url)
        provider = provider_name(self.name, None if self._official else shown)
        self._endpoint = Endpoint(self.name, model, shown, hint, self._key, provider)
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "upcall"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        # A key goes into the same header as a URL's user and password, and is what counts.
        base = self._endpoint.base_url if self._key else self._base_url
        timeouts = Timeouts(retries, connect, first_byte, silence, total, response_bytes)
        self._wire = Wire(self._endpoint, f"{base}/chat/completions", headers, timeouts, _sleep, _chance)
        self._settings = check_settings(self.name, settings, EVERY_SETTING)
        self._refused: set[str] = set()
        self._takes_own_ids = True

    def __repr__(self) -> str:
        return f"OpenAIChat({self.model!r}, base_url={self._endpoint.base_url!r})"

    async def respond(self, request: Request, emit: Emit | None) -> Response:
        """Answer one request. Options and call ids that the server refuses are left out from then on."""
        if not self._key and self._official:
            raise ModelRefused(self.name, f"needs a key: give {self._endpoint.key_hint}")
        request = merge_settings(self.name, self._settings, request, EVERY_SETTING)
        headers = request.settings.extra_headers if request.settings is not None else None
        while True:
            provider = self._endpoint.provider if self._takes_own_ids else ""
            body = openai_body(
                request, self.model, official=self._official, refused=self._refused, provider=provider
            )
            try:
                return await self.ask(body, emit, headers)
            except ModelRefused as error:
                message = error.problem.lower()
                if "max_tokens" in body and "max_completion_tokens" in message:
                    self._refused.add("max_tokens")
                    continue
                refused = [f for f, words in _OPTIONAL.items() if f in body and any(w in message for w in words)]
                strict = self._takes_own_ids and _says_strict_ids(message)
                if error.status not in (400, 422) or not (refused or strict):
                    raise
                self._refused.update(refused)
                self._takes_own_ids = self._takes_own_ids and not strict

    async def ask(
        self, body: dict[str, Any], emit: Emit | None, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Send a finished body."""
        wire = self._wire.with_headers(headers)

        def new_reader() -> Reader:
            return OpenAIReader(wire.endpoint, emit)

        return await wire.ask(msgspec.json.encode(body), new_reader, emit)

    async def close(self) -> None:
        """Close this event loop's connections; the model can still be used."""
        await self._wire.close()


# --- responses --------------------------------------------------------------------------


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _Piece(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | list[Any] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_Piece] | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: Any = None
    cache_write_tokens: Any = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: Any = None
    completion_tokens: Any = None
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    model: str | None = None
    error: Any = None


class _Slot:
    """A call while its pieces arrive."""

    __slots__ = ("args", "checks", "id", "name")

    def __init__(self, piece: _Piece) -> None:
        self.id, self.name, self.checks = piece.id or "", "", 0
        self.args: list[str] = []


_decode = msgspec.json.Decoder(_Chunk).decode


class OpenAIReader:
    """Builds a chat completion from chunks, or from one body."""

    def __init__(self, endpoint: Endpoint, emit: Emit | None) -> None:
        self.spoke = self.complete = self.over = False
        self._endpoint, self._emit = endpoint, emit
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._field = ""
        self._slots: dict[int | None, _Slot] = {}
        self._calls: list[_Slot] = []
        self._usage, self._stop, self._model = Usage(), "", ""
        self._size = 0  # characters of text, thinking and arguments

    def read(self, events: Sequence[bytes]) -> Failure | None:
        """Take chunks. The loop is simple because it runs for every token."""
        emit, text, size = self._emit, self._text, 0
        for event in events:
            if event == b"[DONE]":
                self.complete = self.over = True
                return None
            try:
                chunk = _decode(event)
            except UNREADABLE as error:
                return Failure(f"sent a chunk that can't be read ({error}): {self._endpoint.excerpt(event)}")
            if chunk.choices and (delta := chunk.choices[0].delta) is not None:
                content = delta.content
                if isinstance(content, str) and content:
                    text.append(content)
                    size += len(content)
                    if emit is not None:
                        self.spoke = True
                        emit("text", content)
                if isinstance(content, list) or delta.tool_calls or delta.reasoning_content or delta.reasoning:
                    self._read_rare_parts(delta)
            if (trouble := self._read_metadata(chunk)) is not None:
                return trouble
        self._size += size
        return excess_failure(self._endpoint, self._size, len(self._calls))

    def read_whole(self, body: bytes) -> Failure | None:
        """Take a completion that arrived in one piece."""
        try:
            chunk = _decode(body)
        except UNREADABLE as error:
            return Failure(f"sent a body that can't be read ({error}): {self._endpoint.excerpt(body)}")
        if chunk.error is not None or not chunk.choices:
            return classify(self._endpoint, 200, {}, body)
        delta = chunk.choices[0].message or chunk.choices[0].delta or _Delta()
        if isinstance(delta.content, str):
            self._add("text", delta.content, self._text)
        self._read_rare_parts(delta)
        self.complete = True
        return self._read_metadata(chunk) or excess_failure(self._endpoint, self._size, len(self._calls))

    def response(self) -> Response:
        """Return the response."""
        provider = self._endpoint.provider
        calls = tuple(parse_call(slot.name, "".join(slot.args), slot.id, provider) for slot in self._calls)
        opaque = {"field": self._field} if self._field == "reasoning_content" else {}
        thoughts = "".join(self._thoughts)
        thinking = (Thinking(thoughts, opaque),) if thoughts else ()
        stop = self._stop or ("calls" if calls else "end")
        return Response("".join(self._text), calls, thinking, self._usage, stop, self._model)

    def _read_rare_parts(self, delta: _Delta) -> None:
        """Take the parts of a chunk that are rare."""
        for field in ("reasoning_content", "reasoning"):
            if thought := getattr(delta, field):
                self._field = field
                self._add("thinking", thought, self._thoughts)
                break
        if isinstance(delta.content, list):
            self._parts(delta.content)
        for piece in delta.tool_calls or ():
            if len(self._calls) > CALLS:
                return
            self._piece(piece)

    def _parts(self, parts: list[Any]) -> None:
        """Take a content that is a list of typed parts, as some servers send it."""
        for part in parts:
            fields = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
            if isinstance(text := fields.get("text"), str):
                self._add("text", text, self._text)
            if isinstance(inner := fields.get("thinking"), list):
                for thought in cast("list[Any]", inner):
                    text = cast("dict[str, Any]", thought).get("text") if isinstance(thought, dict) else None
                    self._add("thinking", text if isinstance(text, str) else "", self._thoughts)

    def _add(self, kind: str, text: str, into: list[str]) -> None:
        if text:
            into.append(text)
            self._size += len(text)
            if self._emit is not None:
                self.spoke = True
                self._emit(kind, text)

    def _piece(self, piece: _Piece) -> None:
        function = piece.function or _Function()
        args = function.arguments
        if isinstance(args, dict):
            args = msgspec.json.encode(args).decode()
        slot = self._slots.get(piece.index)
        if slot is None or (function.name and _starts_new_call(piece, slot, args or "")):
            slot = self._slots[piece.index] = _Slot(piece)
            self._calls.append(slot)
        slot.id = slot.id or piece.id or ""
        if function.name and function.name != slot.name and not slot.args and len(slot.name) <= _MAX_NAME:
            slot.name += function.name
        if args:
            slot.args.append(args)
            self._size += len(args)

    def _read_metadata(self, chunk: _Chunk) -> Failure | None:
        """Take the stop reason, model and usage of a chunk."""
        if chunk.choices:
            choice = chunk.choices[0]
            delta = choice.delta or choice.message
            if delta is not None and delta.refusal:
                self._stop = "refused"
                self._add("text", delta.refusal, self._text)
            if choice.finish_reason:
                self.complete = True
                self._stop = self._stop or _STOPS.get(choice.finish_reason, choice.finish_reason)
        if chunk.error is not None:
            return stream_error(self._endpoint, parse_error_value({"error": chunk.error}))
        if chunk.model and not self._model:
            self._model = chunk.model
        if (usage := chunk.usage) is not None:
            details = usage.prompt_tokens_details
            cached = token_count(details.cached_tokens) if details else 0
            written = token_count(details.cache_write_tokens) if details else 0
            sent, received = token_count(usage.prompt_tokens), token_count(usage.completion_tokens)
            self._usage = Usage(sent, received, cached, written)
        return None


def _starts_new_call(piece: _Piece, slot: _Slot, args: str) -> bool:
    """Return whether a piece with a name starts another call although its index is known.

    Some servers give every complete call the index 0 or none, with ids that are missing or all the same. Others
    repeat the name and id with every piece of one call.
    """
    if piece.id and slot.id and piece.id != slot.id:
        return True
    if not args.lstrip().startswith("{") or not slot.args or not slot.args[-1].rstrip().endswith("}"):
        return False
    slot.checks += 1  # each check parses everything so far, so the number of checks is limited
    return slot.checks <= _CHECKS and json_object("".join(slot.args)) is not None


def _says_strict_ids(message: str) -> bool:
    """Return whether an error is about the length of the ids of calls."""
    first, second = _STRICT_IDS
    return message.find(second, message.find(first)) >= 0 if first in message else False
