"""Other providers, through pydantic-ai's model classes (the extra `providers`)."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec

from upcall.contracts import Emit
from upcall.errors import ContextTooLong, ModelError, ModelRefused, ModelUnavailable, ResponseTooLarge
from upcall.messages import Call, Image, Instruction, Part, Request, Response, Text, Thinking, Usage
from upcall.models.body import EVENTS
from upcall.models.failures import Endpoint, classify, context_error, parse_error_value, provider_name, secrets_in
from upcall.models.history import AssistantTurn, InputTurn, ToolResults, arguments, parse_call, turns
from upcall.models.openai_body import object_schema
from upcall.models.provider_wire import tap_provider
from upcall.models.structured import is_object, schema_in_instructions
from upcall.models.tuning import EVERY_SETTING, merge_settings
from upcall.safety.bounds import TEXT, token_count
from upcall.settings import Settings

if TYPE_CHECKING:
    from pydantic_ai import messages as theirs
    from pydantic_ai.models import Model as TheirModel
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.output import OutputMode
    from pydantic_ai.settings import ModelSettings

_STOPS = {"stop": "end", "tool_call": "calls", "content_filter": "refused"}
_GENERATED = "pyd_ai_"
"""The prefix of ids that pydantic-ai generates if a provider assigns none."""
_THEIR_NAMES = {"stop": "stop_sequences", "reasoning_effort": "thinking"}
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_STORED_DETAILS = ("id", "signature", "provider_name", "provider_details")


class Provided:
    """A pydantic-ai model, or its name, as a model of ours. Its SDK does the retries."""

    def __init__(self, model: TheirModel | str, *, name: str = "", settings: Settings | None = None) -> None:
        self._model, self._settings = model, settings
        self.name = name or (model if isinstance(model, str) else f"{model.system}:{model.model_name}")

    def __repr__(self) -> str:
        return f"Provided({self.name!r})"

    async def respond(self, request: Request, emit: Emit | None) -> Response:
        """Answer one request; stream it if `emit` is set."""
        model = self._inferred()
        tap_provider(model)
        from pydantic_ai.exceptions import AgentRunError, UserError

        request = merge_settings(self.name, self._settings, request, _known(model))
        provider, settings = provider_name(self.name, model.base_url), _model_settings(self.name, request)
        failure: ModelError = ModelRefused(self.name, "was not asked")
        for mode in _output_modes(model, request):
            try:
                return await _ask(model, request, mode, settings, provider, emit)
            except UserError as error:  # the model refuses this mode or the request; nothing was sent
                failure = ModelRefused(self.name, str(error))
            except AgentRunError as error:
                failure = _failure(self.name, error, request)
                break
        raise failure

    def _inferred(self) -> TheirModel:
        if not isinstance(self._model, str):
            return self._model
        try:
            from pydantic_ai.exceptions import UserError
            from pydantic_ai.models import infer_model
        except ImportError:
            raise ModelRefused(self.name, "needs pydantic-ai: pip install 'upcall[providers]'") from None
        try:
            self._model = infer_model(self._model)
        except (UserError, ImportError, ValueError) as error:
            raise ModelRefused(self.name, str(error)) from error
        return self._model


async def _ask(
    model: TheirModel,
    request: Request,
    mode: OutputMode,
    settings: ModelSettings | None,
    provider: str,
    emit: Emit | None,
) -> Response:
    from pydantic_ai.direct import model_request, model_request_stream

    adapted = schema_in_instructions(request) if mode == "text" else request
    history, parameters = provider_messages(adapted, provider), _parameters(request, mode)
    if emit is None:
        answer = await model_request(model, history, model_settings=settings, model_request_parameters=parameters)
        return _response(answer, provider)
    async with model_request_stream(
        model, history, model_settings=settings, model_request_parameters=parameters
    ) as stream:
        size = count = 0
        async for event in stream:
            size, count = size + _emit_event(event, emit), count + 1
            if size > TEXT or count > EVENTS:
                most = f"{TEXT:,} characters of text" if size > TEXT else f"{EVENTS:,} events"
                raise ResponseTooLarge(provider.partition("#")[0], f"more than {most} in one response")
        return _response(stream.get(), provider)


def _failure(name: str, error: Exception, request: Request) -> ModelError:
    from pydantic_ai.exceptions import ModelContextWindowExceededError, ModelHTTPError

    hint = "the provider's key in its environment variable"
    headers = (request.settings and request.settings.extra_headers) or {}
    endpoint = Endpoint(name, name.partition(":")[2], "the provider", hint, secrets=secrets_in(headers))
    if isinstance(error, ModelHTTPError):
        body = error.body if isinstance(error.body, bytes) else msgspec.json.encode(error.body, enc_hook=str)
        failure = classify(endpoint, error.status_code, error.headers or {}, body)
        return failure.error or ModelUnavailable(name, failure.problem, status=failure.status)
    details = parse_error_value(str(error))
    if found := context_error(endpoint, details):
        return found
    if isinstance(error, ModelContextWindowExceededError):
        return ContextTooLong(name, None, None)
    return ModelUnavailable(name, endpoint.clean(str(error)))


# --- requests ---------------------------------------------------------------------------


def _output_modes(model: TheirModel, request: Request) -> tuple[OutputMode, ...]:
    """Return the ways to ask for a reply's schema, best first: the provider's own form, then instructions.

    The answer may depend on the request: some models accept no schema together with tools. pydantic-ai checks that
    before it sends anything.
    """
    if not is_object(request.output):
        return ("text",)
    native = model.profile.get("supports_json_schema_output", False)
    return ("native", "prompted", "text") if native else ("prompted", "text")


def _known(model: TheirModel) -> list[str]:
    """Return the settings that pydantic-ai sends for this model; it drops others without an error."""
    profile: Mapping[str, Any] = model.profile
    unknown = {*getattr(model, "unsupported_settings", ()), *profile.get("openai_unsupported_model_settings", ())}
    if not (profile.get("supports_thinking") or profile.get("thinking_always_enabled")):
        unknown.add("thinking")
    if profile.get("anthropic_disallows_sampling_settings"):
        unknown |= {"temperature", "top_p"}
    return [name for name in EVERY_SETTING if _THEIR_NAMES.get(name, name) not in unknown]


def _model_settings(name: str, request: Request) -> ModelSettings | None:
    if request.settings is None:
        return None
    values = {_THEIR_NAMES.get(ours, ours): value for ours, value in request.settings.given().items()}
    if (effort := values.get("thinking")) is not None:
        if effort not in _EFFORTS:
            words = ", ".join(_EFFORTS)
            raise ModelRefused(name, f"does not support reasoning_effort={effort!r}; it supports {words}")
        values["thinking"] = effort if effort != "none" else False
    if (choice := values.get("tool_choice")) not in (None, "auto", "none", "required"):
        values["tool_choice"] = [choice]
    if "stop_sequences" in values:
        values["stop_sequences"] = list(values["stop_sequences"])
    return cast("ModelSettings", values)


def _parameters(request: Request, mode: OutputMode) -> ModelRequestParameters:
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.output import OutputObjectDefinition
    from pydantic_ai.tools import ToolDefinition

    tools = [
        ToolDefinition(
            name=t.name, parameters_json_schema=object_schema(t.schema), description=t.description or None
        )
        for t in request.tools
    ]
    if mode == "text" or request.output is None:
        return ModelRequestParameters(function_tools=tools)
    output = OutputObjectDefinition(json_schema=request.output, name="output")
    return ModelRequestParameters(function_tools=tools, output_mode=mode, output_object=output)


def provider_messages(request: Request, provider: str = "") -> list[theirs.ModelMessage]:
    """Return the conversation as pydantic-ai's messages; the last is a request, which has the instructions."""
    from pydantic_ai import messages as theirs

    out: list[theirs.ModelMessage] = []
    pending: list[theirs.ModelRequestPart] = []
    for turn in turns(request.messages, provider):
        if isinstance(turn, AssistantTurn):
            if pending:
                out.append(theirs.ModelRequest(parts=pending))
                pending = []
            if parts := _response_parts(turn):
                out.append(theirs.ModelResponse(parts=parts))
        else:
            pending += _result_parts(turn) if isinstance(turn, ToolResults) else _input_parts(turn)
    last = pending or [theirs.UserPromptPart("(Go on.)")]
    return [*out, theirs.ModelRequest(parts=last, instructions=request.instructions or None)]


def _response_parts(turn: AssistantTurn) -> list[theirs.ModelResponsePart]:
    from pydantic_ai import messages as theirs

    parts: list[theirs.ModelResponsePart] = []
    details: dict[str, Any] = {}
    for part in turn.parts:
        match part:
            case Thinking() if "next" in part.opaque:
                details = part.opaque["next"]
                continue
            case Thinking() if "thought" in part.opaque:
                parts.append(theirs.ThinkingPart(part.text, **part.opaque["thought"]))
            case Thinking():
                continue  # made by another adapter
            case Text():
                parts.append(theirs.TextPart(part.text, **details))
            case Call():
                parts.append(theirs.ToolCallPart(part.name, arguments(part), part.id, **details))
        details = {}
    return parts


def _result_parts(turn: ToolResults) -> list[theirs.ModelRequestPart]:
    from pydantic_ai import messages as theirs

    parts: list[theirs.ModelRequestPart] = []
    for result, name in zip(turn.results, turn.names, strict=True):
        outcome = "failed" if result.is_error else "success"
        parts.append(theirs.ToolReturnPart(name, result.text, result.call_id, outcome=outcome))
    for result, name in zip(turn.results, turn.names, strict=True):
        if pictures := [_image(i) for i in result.images]:
            parts.append(theirs.UserPromptPart([f"From the result of {name} ({result.call_id}):", *pictures]))
    return parts


def _input_parts(turn: InputTurn) -> list[theirs.ModelRequestPart]:
    from pydantic_ai import messages as theirs

    parts: list[theirs.ModelRequestPart] = []
    for part in turn.parts:
        match part:
            case Instruction():
                parts.append(theirs.SystemPromptPart(part.text))
            case Text():
                parts.append(theirs.UserPromptPart(part.text))
            case Image():
                parts.append(theirs.UserPromptPart([_image(part)]))
    return parts


def _image(image: Image) -> theirs.ImageUrl | theirs.BinaryContent:
    from pydantic_ai import messages as theirs

    if image.url:
        return theirs.ImageUrl(image.url)
    return theirs.BinaryContent(base64.b64decode(image.data), media_type=image.media_type)


# --- responses --------------------------------------------------------------------------


def _emit_event(event: theirs.ModelResponseStreamEvent, emit: Emit) -> int:
    """Emit the event's text; returns its number of characters."""
    from pydantic_ai import messages as theirs

    match event:
        case theirs.PartStartEvent(part=theirs.TextPart(content=text)) if text:
            emit("text", text)
        case theirs.PartStartEvent(part=theirs.ThinkingPart(content=text)) if text:
            emit("thinking", text)
        case theirs.PartDeltaEvent(delta=theirs.TextPartDelta(content_delta=text)) if text:
            emit("text", text)
        case theirs.PartDeltaEvent(delta=theirs.ThinkingPartDelta(content_delta=text)) if text:
            emit("thinking", text)
        case theirs.PartDeltaEvent(delta=theirs.ToolCallPartDelta(args_delta=str(text))):
            pass
        case _:
            return 0
    return len(text)


def _response(answer: theirs.ModelResponse, provider: str) -> Response:
    """Build the response. Provider details of a part are stored before it, as thinking without text."""
    from pydantic_ai import messages as theirs

    layout: list[Part] = []
    for part in answer.parts:
        details = _details(part)
        match part:
            case theirs.ThinkingPart():
                layout.append(Thinking(part.content, {"thought": details}))
                continue
            case theirs.TextPart() if part.content:
                written: Part = Text(part.content)
            case theirs.ToolCallPart():
                written = _call(part, provider)
            case _:
                continue
        layout += [Thinking("", {"next": details}), written] if details else [written]
    text = "".join(p.text for p in layout if isinstance(p, Text))
    calls = tuple(p for p in layout if isinstance(p, Call))
    thinking = tuple(p for p in layout if isinstance(p, Thinking))
    used = answer.usage
    counts = (used.input_tokens, used.output_tokens, used.cache_read_tokens, used.cache_write_tokens)
    usage = Usage(*(token_count(count) for count in counts))
    stop = _STOPS.get(answer.finish_reason or "", answer.finish_reason or ("calls" if calls else "end"))
    return Response(text, calls, thinking, usage, stop, answer.model_name or "", tuple(layout))


def _details(part: object) -> dict[str, Any]:
    found = ((key, getattr(part, key, None)) for key in _STORED_DETAILS)
    return {key: value for key, value in found if value is not None}


def _call(part: theirs.ToolCallPart, provider: str) -> Call:
    provider_id = "" if part.tool_call_id.startswith(_GENERATED) else part.tool_call_id
    if isinstance(part.args, str):
        return parse_call(part.tool_name, part.args, provider_id, provider)
    return parse_call(part.tool_name, "", provider_id, provider).replace(args=part.args or {})
