"""Build request bodies for Anthropic's messages API."""

from __future__ import annotations

from typing import Any, Literal

from upcall.messages import Call, Image, Instruction, Request, Result, Text, Thinking, ToolSpec
from upcall.models.history import AssistantTurn, InputTurn, ToolResults, Turn, arguments, turns
from upcall.models.openai_body import object_schema
from upcall.models.structured import closed_schema, schema_in_instructions
from upcall.settings import Settings

Wire = dict[str, Any]
ThinkingBudget = int | Literal["adaptive"] | None

_CACHE = {"type": "ephemeral"}
_CHOICES = {None: "auto", "auto": "auto", "none": "none", "required": "any"}
_ONE_CALL = "disable_parallel_tool_use"
_BEGIN = "(The conversation begins here.)"
_GO_ON = "(Go on.)"


def anthropic_body(
    request: Request,
    model: str,
    *,
    max_tokens: int = 16_384,
    thinking: ThinkingBudget = None,
    structured: bool = True,
    provider: str = "",
) -> Wire:
    """Return the body that Anthropic's messages API gets for a request.

    It has cache breakpoints after tools, instructions and the last message. A reply's schema is always in the
    instructions.

    request: the request
    model: the model's name
    max_tokens: the most tokens of the answer, unless the request's settings say otherwise; a thinking budget is
        added
    thinking: a budget in tokens, or "adaptive"
    structured: whether the server may get the reply's schema in its own form, too
    provider: whose call ids are used; calls of others get new ones
    """
    request = schema_in_instructions(request)
    messages = anthropic_messages(request, provider)
    budget, settings = thinking if isinstance(thinking, int) else 0, request.settings or Settings()
    answer = settings.max_tokens or max_tokens
    body: Wire = {"model": model, "max_tokens": answer + budget, "stream": True, "messages": messages}
    if request.instructions.strip():
        body["system"] = [{"type": "text", "text": request.instructions, "cache_control": _CACHE}]
    if tools := [_tool(spec) for spec in request.tools]:
        tools[-1]["cache_control"] = _CACHE
        body["tools"] = tools
    elif names := _called_tools(messages):
        # A history with tool calls needs declared tools: declare those it names, but allow no calls.
        body["tools"] = [{"name": name, "input_schema": {"type": "object"}} for name in names]
        body["tool_choice"] = {"type": "none"}
    config: Wire = {"effort": settings.reasoning_effort} if settings.reasoning_effort else {}
    if structured and request.output is not None and (schema := closed_schema(request.output)) is not None:
        config["format"] = {"type": "json_schema", "schema": schema}
    if config:
        body["output_config"] = config
    if thinking is not None and _may_think(messages):
        body["thinking"] = {"type": "enabled", "budget_tokens": budget} if budget else {"type": "adaptive"}
    body |= _settings(settings, tools=bool(request.tools))
    return {**body, **settings.extra_body} if settings.extra_body else body


def _settings(settings: Settings, *, tools: bool) -> Wire:
    fields: Wire = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "stop_sequences": settings.stop,
    }
    choice, several = settings.tool_choice, settings.parallel_tool_calls
    if tools and (choice is not None or several is not None):
        kind = {"type": _CHOICES[choice]} if choice in _CHOICES else {"type": "tool", "name": choice}
        # without calls, parallel calls need not be forbidden
        fields["tool_choice"] = kind if several is None or choice == "none" else {**kind, _ONE_CALL: not several}
    return {name: value for name, value in fields.items() if value is not None}


def anthropic_messages(request: Request, provider: str = "") -> list[Wire]:
    """Return the conversation: user and assistant alternate, and the user is first and last."""
    out: list[Wire] = []
    for turn in turns(request.messages, provider):
        role, blocks = _blocks(turn)
        if not blocks:
            continue
        if out and out[-1]["role"] == role:
            out[-1]["content"] += blocks
        else:
            out.append({"role": role, "content": blocks})
    if not out or out[0]["role"] != "user":
        out.insert(0, {"role": "user", "content": [{"type": "text", "text": _BEGIN}]})
    if out[-1]["role"] != "user":
        out.append({"role": "user", "content": [{"type": "text", "text": _GO_ON}]})
    out[-1]["content"][-1]["cache_control"] = _CACHE
    return out


def _blocks(turn: Turn) -> tuple[str, list[Wire]]:
    match turn:
        case AssistantTurn():
            blocks = [block for part in turn.parts if (block := _assistant_block(part)) is not None]
            while blocks and blocks[-1]["type"] in ("thinking", "redacted_thinking"):
                blocks.pop()  # a message may not end with thinking
            return "assistant", blocks
        case ToolResults():
            return "user", [_result(result) for result in turn.results]
        case InputTurn():
            return "user", [_input_block(part) for part in turn.parts]


def _assistant_block(part: Text | Thinking | Call) -> Wire | None:
    match part:
        case Text():
            return {"type": "text", "text": part.text} if part.text.strip() else None
        case Call():
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": arguments(part)}
        case Thinking():
            # Thinking from other providers has no signature and is left out.
            if signature := part.opaque.get("signature"):
                return {"type": "thinking", "thinking": part.text, "signature": signature}
            if redacted := part.opaque.get("redacted"):
                return {"type": "redacted_thinking", "data": redacted}
            return None


def _result(result: Result) -> Wire:
    block: Wire = {"type": "tool_result", "tool_use_id": result.call_id}
    content = [{"type": "text", "text": result.text}] if result.text.strip() else []
    content += [_image(i) for i in result.images if i.data or i.url]
    if content:
        block["content"] = content
    if result.is_error:
        block["is_error"] = True
    return block


def _input_block(part: Text | Instruction | Image) -> Wire:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Instruction():
            return {"type": "text", "text": f"<system_instruction>\n{part.text}\n</system_instruction>"}
        case Image():
            return _image(part)


def _image(image: Image) -> Wire:
    if image.url:
        return {"type": "image", "source": {"type": "url", "url": image.url}}
    return {"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": image.data}}


def _tool(spec: ToolSpec) -> Wire:
    tool: Wire = {"name": spec.name, "input_schema": object_schema(spec.schema)}
    if spec.description:
        tool["description"] = spec.description
    return tool


def _called_tools(messages: list[Wire]) -> list[str]:
    used = (b["name"] for m in messages for b in m["content"] if b["type"] == "tool_use")
    return list(dict.fromkeys(used))


def _may_think(messages: list[Wire]) -> bool:
    """Return whether the model may think: while tool calls are open, only if their message began with thinking."""
    if messages[-1]["content"][0]["type"] != "tool_result":
        return True
    return messages[-2]["content"][0]["type"] in ("thinking", "redacted_thinking")
