"""Run a GGUF file with llama.cpp in this process. A grammar makes every tool call valid."""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
import re
import threading
from pathlib import Path
from typing import Any, cast

import msgspec

from upcall.contracts import Emit
from upcall.errors import ModelRefused
from upcall.messages import Call, Image, Instruction, JsonSchema, Request, Response, Text, ToolSpec
from upcall.models.history import UNREADABLE, AssistantTurn, InputTurn, ToolResults, Turn, arguments, turns
from upcall.models.openai import OpenAIChat
from upcall.models.openai_body import object_schema, result_text
from upcall.models.structured import schema_in_instructions
from upcall.models.tuning import LOCAL_KNOWS, check_settings, merge_settings
from upcall.settings import Settings

Wire = dict[str, Any]

_FORMAT = """Answer with one JSON object and nothing else.
To reply: %s
To use a tool: {"name": "the tool", "arguments": {...}}
The tools:"""
_STARTING = threading.Lock()
_WAITING = "OMP_WAIT_POLICY"


class Local:
    """A model from a GGUF file, run by llama.cpp in this process (the extra `local`).

    The file is loaded at the first request, once per process.

    path: the file
    n_ctx: the most tokens of one request with its response
    parallel: how many requests are answered at once
    max_tokens: the most tokens of a response
    settings: how it is asked, unless an agent or a hook says otherwise
    """

    def __init__(
        self,
        path: str | Path,
        *,
        n_ctx: int = 8192,
        parallel: int = 2,
        max_tokens: int = 2048,
        settings: Settings | None = None,
    ) -> None:
        self.path, self.name = Path(path), f"local:{Path(path).name}"
        self._settings = check_settings(self.name, settings, LOCAL_KNOWS)
        self._n_ctx, self._parallel, self._max_tokens = n_ctx, parallel, max_tokens
        self._chat: OpenAIChat | None = None

    def __repr__(self) -> str:
        return f"Local({str(self.path)!r})"

    async def respond(self, request: Request, emit: Emit | None) -> Response:
        """Answer one request.

        With tools, the response is one call or a reply, which is emitted while it is written.
        """
        request = merge_settings(self.name, self._settings, request, LOCAL_KNOWS)
        if self._chat is None:
            self._chat = OpenAIChat(self.path.name, base_url=await self.base_url(), _name=self.name)
        body = local_body(request, max_tokens=self._max_tokens)
        if not request.tools:
            return await self._chat.ask(body, emit)
        reply = ReplyText(emit)
        response = await self._chat.ask(body, reply.feed)
        return reply.finish(response)

    async def base_url(self) -> str:
        """Return the address of the loaded file's server, which speaks OpenAI's chat completions."""
        return f"{await asyncio.to_thread(self._address)}/v1"

    async def close(self) -> None:
        """Close this event loop's connections; the loaded file stays in the process."""
        if self._chat is not None:
            await self._chat.close()

    def _address(self) -> str:
        if not self.path.is_file():
            raise ModelRefused(self.name, f"file not found: {self.path}")
        try:
            with _STARTING:  # two sessions with their first request at the same time must not load the file twice
                return str(_server(str(self.path.resolve()), self._n_ctx, self._parallel).listening_address)
        except ImportError:
            raise ModelRefused(self.name, "needs llama.cpp: pip install 'upcall[local]'") from None
        except RuntimeError as error:
            raise ModelRefused(self.name, f"llama.cpp can't load {self.path}: {error}") from error


@functools.cache
def _server(path: str, n_ctx: int, parallel: int) -> Any:
    """Start a server for the file. It stays as long as the process: weights are large and slow to load."""
    xllamacpp = _llama()
    params = xllamacpp.CommonParams()
    params.model.path, params.n_parallel = path, parallel
    params.n_ctx = n_ctx * parallel  # llama.cpp divides it among the slots
    params.verbosity = 1  # errors only; 0 can hang when the server ends
    return xllamacpp.Server(params)


def _llama() -> Any:
    """Import llama.cpp. Its threads must sleep while they wait: spinning threads stall on busy cores.

    OpenMP reads this setting from the environment, and only when it is loaded.
    """
    setting = os.environ.get(_WAITING)
    os.environ[_WAITING] = setting or "passive"
    try:
        return importlib.import_module("xllamacpp")
    finally:
        if setting is None:
            del os.environ[_WAITING]


# --- requests ---------------------------------------------------------------------------


def local_body(request: Request, *, max_tokens: int = 2048) -> Wire:
    """Build a chat completion that needs no tool support in the model's template: tools are text and a grammar."""
    settings = request.settings or Settings()
    body: Wire = {"messages": _messages(request), "stream": True, "max_tokens": settings.max_tokens or max_tokens}
    body["stream_options"] = {"include_usage": True}
    for name in ("temperature", "top_p", "stop", "seed"):
        if (value := getattr(settings, name)) is not None:
            body[name] = value
    schema = request.output
    if request.tools:
        schema = choice_schema(request.tools, request.output, settings.tool_choice or "auto")
    if schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return {**body, **settings.extra_body} if settings.extra_body else body


def choice_schema(tools: tuple[ToolSpec, ...], output: JsonSchema | None, choice: str = "auto") -> JsonSchema:
    """Return the schema of one of the tools with its arguments, or a reply, restricted by `choice`."""
    shared: JsonSchema = {}
    reply = _lift_definitions(output, "output", shared) if output else {"type": "string"}
    options = [_object({"reply": reply})] if choice in ("auto", "none") else []
    for spec in tools if choice in ("auto", "required") else [spec for spec in tools if spec.name == choice]:
        parameters = _lift_definitions(object_schema(spec.schema), spec.name, shared)
        options.append(_object({"name": {"const": spec.name}, "arguments": parameters}))
    return {"oneOf": options, "$defs": shared} if shared else {"oneOf": options}


def _object(properties: JsonSchema) -> JsonSchema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _lift_definitions(schema: JsonSchema, prefix: str, shared: JsonSchema) -> JsonSchema:
    """Move the schema's definitions to the root, where references are resolved."""

    def moved(value: Any) -> Any:
        if isinstance(value, list):
            return [moved(v) for v in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return value
        fields = cast("dict[str, Any]", value)
        out = {k: moved(v) for k, v in fields.items() if k != "$defs"}
        if isinstance(ref := fields.get("$ref"), str):
            out["$ref"] = ref.replace("#/$defs/", f"#/$defs/{prefix}-")
        return out

    for name, definition in cast("dict[str, Any]", schema.get("$defs", {})).items():
        shared[f"{prefix}-{name}"] = moved(definition)
    return cast("JsonSchema", moved(schema))


def _messages(request: Request) -> list[Wire]:
    """Return alternating user and assistant messages as text: templates of small models accept nothing else."""
    if not request.tools:
        # the grammar enforces the schema, but does not show it to the model
        request = schema_in_instructions(request)
    head = [request.instructions] if request.instructions.strip() else []
    if request.tools:
        head.append(
            "\n".join([_FORMAT % _reply(request.output), *(_describe_tool(spec) for spec in request.tools)])
        )
    out: list[Wire] = [{"role": "system", "content": "\n\n".join(head)}] if head else []
    for turn in turns(request.messages):
        role, text = _turn(turn, bool(request.tools))
        if out and out[-1]["role"] == role:
            out[-1]["content"] += "\n\n" + text
        elif text:
            out.append({"role": role, "content": text})
    return out


def _reply(output: JsonSchema | None) -> str:
    if output is None:
        return '{"reply": "your text"}'
    return f'{{"reply": ...}} with a value that fits this JSON schema: {_json(output)}'


def _describe_tool(spec: ToolSpec) -> str:
    schema = msgspec.json.encode(object_schema(spec.schema)).decode()
    return f"- {spec.name}: {spec.description} Arguments: {schema}"


def _turn(turn: Turn, wrapped: bool) -> tuple[str, str]:
    match turn:
        case AssistantTurn():
            text = "".join(p.text for p in turn.parts if isinstance(p, Text))
            lines = [_json({"reply": text}) if wrapped else text] if text else []
            lines += [_json({"name": c.name, "arguments": arguments(c)}) for c in turn.calls]
            return "assistant", "\n".join(lines)
        case ToolResults():
            pairs = zip(turn.names, turn.results, strict=True)
            return "user", "\n\n".join(f"Result of {name}: {result_text(result)}" for name, result in pairs)
        case InputTurn():
            return "user", "\n\n".join(_input_text(part) for part in turn.parts)


def _input_text(part: Text | Instruction | Image) -> str:
    if isinstance(part, Image):
        return "(a picture, which you can't see)"
    return f"System instruction: {part.text}" if isinstance(part, Instruction) else part.text


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


# --- responses --------------------------------------------------------------------------

_OPENING = re.compile(r'\s*\{\s*"reply"\s*:\s*"')
_CHARACTERS = re.compile(
    r'(?:[^"\\]|\\["\\/bfnrt]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*"
)
_NAME = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"]+)"')


_BROKEN = 10_000
_PREFACE = 1000  # characters before a reply, all of them blank
_NO_REPLY = "-"


def _call(name: str, args: Any) -> Call:
    """Return a call with the model's arguments; if they are not an object, the model gets an error."""
    if not isinstance(args, dict | None):
        return Call("", name, {}, _json(args)[:_BROKEN])
    return Call("", name, cast("dict[str, Any]", args or {}))


class ReplyText:
    """Extracts the reply from a JSON object that is still being written, and builds the response."""

    def __init__(self, emit: Emit | None) -> None:
        self._emit = emit
        self._unread, self._inside, self._length = "", False, 0
        self._emitted: list[str] = []

    def feed(self, kind: str, text: str) -> None:
        """Process the model's text; emit complete characters of the reply."""
        if kind == "drop":
            emitted, (self._unread, self._inside, self._emitted, self._length) = self._emitted, ("", False, [], 0)
            if self._emit is not None and emitted:
                self._emit("drop", "")
        elif kind == "text":
            if self._unread != _NO_REPLY:
                self._unread += text
                self._emit_complete()
        elif self._emit is not None:
            self._emit(kind, text)

    def finish(self, response: Response) -> Response:
        """Return the call or the reply; of a truncated response, as much as can be read."""
        try:
            value = msgspec.json.decode(response.text)
        except UNREADABLE:
            return self._truncated(response)
        answer = cast("dict[str, Any]", value) if isinstance(value, dict) else {"reply": value}
        if "name" in answer:
            call = _call(str(answer["name"]), answer.get("arguments"))
            return response.replace(text="", calls=(call,), stop="calls")
        reply = answer.get("reply", answer)
        text = reply if isinstance(reply, str) else _json(reply)
        if self._emit is not None and len(text) > self._length:
            self._emit("text", text[self._length :])
        return response.replace(text=text)

    def _truncated(self, response: Response) -> Response:
        if found := _NAME.match(response.text):
            return response.replace(text="", calls=(Call("", found[1], {}, response.text),))
        return response.replace(text="".join(self._emitted) or response.text)

    def _emit_complete(self) -> None:
        if not self._inside:
            if (opening := _OPENING.match(self._unread)) is None:
                if len(self._unread) > _PREFACE:  # not a reply; nothing more to extract
                    self._unread = _NO_REPLY
                return
            self._inside, self._unread = True, self._unread[opening.end() :]
        complete = _CHARACTERS.match(self._unread)
        if complete is not None and complete[0]:
            self._unread = self._unread[complete.end() :]
            piece = msgspec.json.decode(f'"{complete[0]}"', type=str)
            self._emitted.append(piece)
            self._length += len(piece)
            if self._emit is not None:
                self._emit("text", piece)
