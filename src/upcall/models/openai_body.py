"""Build request bodies for OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from upcall.messages import Image, Instruction, JsonSchema, Request, Result, Text, Thinking, ToolSpec
from upcall.models.history import AssistantTurn, InputTurn, ToolResults, Turn, arguments, turns
from upcall.models.structured import is_object, schema_in_instructions
from upcall.settings import Settings

Wire = dict[str, Any]


def openai_body(
    request: Request, model: str, *, official: bool = True, refused: Collection[str] = (), provider: str = ""
) -> Wire:
    """Return the body that OpenAI's chat completions get for a request.

    A reply's schema goes into `response_format`. Servers other than OpenAI's own may ignore that field, or follow
    it without showing it to the model: there, and where the field can't be used, the instructions have it too.

    request: the request
    model: the model's name
    official: whether the server is OpenAI's own
    refused: optional fields that the server has refused; they are left out
    provider: whose call ids are used; calls of others get new ones
    """
    formatted = is_object(request.output) and "response_format" not in refused
    if not (formatted and official):
        request = schema_in_instructions(request)
    body: Wire = {
        "model": model,
        "messages": openai_messages(request, provider),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [_tool(spec) for spec in request.tools]
    if formatted:
        schema = {"name": "output", "schema": request.output, "strict": False}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    if request.settings is not None:
        limit = "max_completion_tokens" if official or "max_tokens" in refused else "max_tokens"
        body |= _settings(request.settings, limit, tools=bool(request.tools))
    for field in refused:
        body.pop(field, None)
    return {**body, **request.settings.extra_body} if request.settings and request.settings.extra_body else body


def _settings(settings: Settings, limit: str, *, tools: bool) -> Wire:
    fields: Wire = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        limit: settings.max_tokens,
        "stop": settings.stop,
        "seed": settings.seed,
        "reasoning_effort": settings.reasoning_effort,
    }
    if tools:  # without tools, both fields are refused
        choice = settings.tool_choice
        named = choice is not None and choice not in ("auto", "none", "required")
        fields["tool_choice"] = {"type": "function", "function": {"name": choice}} if named else choice
        fields["parallel_tool_calls"] = settings.parallel_tool_calls
    return {name: value for name, value in fields.items() if value is not None}


def openai_messages(request: Request, provider: str = "") -> list[Wire]:
    """Return the conversation, instructions first."""
    out: list[Wire] = []
    if request.instructions.strip():
        out.append({"role": "system", "content": request.instructions})
    history = turns(request.messages, provider)
    last_told = max((i for i, turn in enumerate(history) if isinstance(turn, InputTurn)), default=-1)
    for index, turn in enumerate(history):
        out += _messages(turn, recent=index > last_told)
    return out


def _messages(turn: Turn, *, recent: bool) -> list[Wire]:
    match turn:
        case AssistantTurn():
            return _assistant_messages(turn, recent=recent)
        case ToolResults():
            return _result_messages(turn)
        case InputTurn():
            return _input_messages(turn)


def _assistant_messages(turn: AssistantTurn, *, recent: bool) -> list[Wire]:
    text = "".join(p.text for p in turn.parts if isinstance(p, Text))
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": msgspec.json.encode(arguments(call)).decode()},
        }
        for call in turn.calls
    ]
    if not text and not calls:
        return []
    message: Wire = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = calls
        # Servers that show their reasoning want it back while tool calls are open, and only then.
        if recent and (thoughts := _own_thoughts(turn)):
            message["reasoning_content"] = thoughts
    return [message]


def _own_thoughts(turn: AssistantTurn) -> str:
    own = (p for p in turn.parts if isinstance(p, Thinking) and p.opaque.get("field") == "reasoning_content")
    return "".join(p.text for p in own)


def _result_messages(turn: ToolResults) -> list[Wire]:
    """Return the results; their pictures follow in a user message, because a tool message may contain only text."""
    out: list[Wire] = [{"role": "tool", "tool_call_id": r.call_id, "content": result_text(r)} for r in turn.results]
    for result, name in zip(turn.results, turn.names, strict=True):
        if pictures := [_image(i) for i in result.images if i.data or i.url]:
            label = {"type": "text", "text": f"From the result of {name} ({result.call_id}):"}
            out.append({"role": "user", "content": [label, *pictures]})
    return out


def _input_messages(turn: InputTurn) -> list[Wire]:
    """Return texts and pictures as user messages, and each instruction as a system message in its place."""
    out: list[Wire] = []
    run: list[Text | Image] = []
    for part in turn.parts:
        if isinstance(part, Instruction):
            out += _user(run)
            run = []
            out.append({"role": "system", "content": part.text})
        else:
            run.append(part)
    return out + _user(run)


def _user(parts: list[Text | Image]) -> list[Wire]:
    if not parts:
        return []
    texts = [p.text for p in parts if isinstance(p, Text)]
    if len(texts) == len(parts):  # many servers accept only a plain string
        return [{"role": "user", "content": "\n\n".join(texts)}]
    content = [{"type": "text", "text": p.text} if isinstance(p, Text) else _image(p) for p in parts]
    return [{"role": "user", "content": content}]


def _image(image: Image) -> Wire:
    url = image.url or f"data:{image.media_type};base64,{image.data}"
    return {"type": "image_url", "image_url": {"url": url}}


def result_text(result: Result) -> str:
    """Return the result's text for APIs without an error flag."""
    if result.is_error and not result.text.lower().startswith(("error", "cancelled")):
        return f"Error: {result.text}"
    return result.text


def _tool(spec: ToolSpec) -> Wire:
    function: Wire = {"name": spec.name, "parameters": object_schema(spec.schema)}
    if spec.description:
        function["description"] = spec.description
    return {"type": "function", "function": function}


def object_schema(schema: JsonSchema) -> JsonSchema:
    """Return the schema with the type "object", which both APIs require."""
    return schema if schema.get("type") == "object" else {"type": "object", "properties": {}, **schema}
