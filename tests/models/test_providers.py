"""Other providers, with the real pydantic-ai package and its models for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic_ai import messages as theirs
from pydantic_ai.exceptions import ModelHTTPError, UnexpectedModelBehavior, UserError
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from pydantic_ai.models.test import TestModel as PlainModel

from upcall.errors import ContextTooLong, ModelRefused, ModelUnavailable, ResponseTooLarge
from upcall.messages import Call, Message, Result, Thinking
from upcall.models import anthropic_body, openai_body
from upcall.models.history import made_id
from upcall.models.providers import Provided, provider_messages

from .history import BROKEN, HELLO, RICH, TOOLS
from .rules import check_anthropic, check_openai
from .server import Heard


async def test_a_model_of_the_package_answers_streamed_and_not():
    model, heard = Provided(PlainModel(custom_output_text="two words")), Heard()
    plain, streamed = await model.respond(HELLO, None), await model.respond(HELLO, heard)
    assert plain.text == streamed.text == heard.text == "two words"
    assert plain.usage.input_tokens > 0
    assert plain.stop == "end"
    assert model.name == "test:test"


async def test_tools_are_declared_and_calls_come_back():
    model = Provided(PlainModel())
    response = await model.respond(TOOLS, None)
    assert {c.name for c in response.calls} == {"read_config", "ping"}
    assert all(c.id == "" for c in response.calls)
    assert response.stop == "calls"


async def test_instructions_history_and_pictures_arrive():
    seen: list[Any] = []

    def answer(messages: list[theirs.ModelMessage], info: AgentInfo) -> theirs.ModelResponse:
        seen[:] = [messages, info]
        return theirs.ModelResponse(parts=[theirs.TextPart("ok")])

    await Provided(FunctionModel(answer)).respond(RICH, None)
    messages, info = seen
    assert info.instructions == "Be brief."
    assert [t.name for t in info.function_tools] == ["read_config", "ping"]
    kinds = [[p.part_kind for p in m.parts] for m in messages]
    assert kinds == [
        ["user-prompt", "user-prompt", "system-prompt", "user-prompt"],
        ["text", "tool-call", "tool-call"],
        ["tool-return", "tool-return", "user-prompt", "user-prompt"],
        ["text"],
        ["text"],
        ["user-prompt"],
    ]
    failed, pictured = messages[2].parts[:2]
    assert (failed.tool_name, failed.outcome, failed.tool_call_id) == ("read_config", "failed", made_id("r0c0"))
    assert pictured.outcome == "success"
    assert messages[0].parts[1].content[0].data == b"hi"


async def test_text_thinking_and_calls_are_streamed_and_broken_arguments_kept():
    async def parts(messages: list[theirs.ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        yield "a "
        yield "b"
        yield {1: DeltaToolCall(name="ping", json_args='{"a":')}
        yield {1: DeltaToolCall(json_args="1}")}
        yield {2: DeltaToolCall(name="ping", json_args="[1]")}

    heard = Heard()
    response = await Provided(FunctionModel(stream_function=parts)).respond(TOOLS, heard)
    assert response.text == heard.text == "a b"
    assert response.calls == (Call("", "ping", {"a": 1}), Call("", "ping", {}, "[1]"))


async def test_what_a_provider_hung_on_a_part_comes_back_on_it():
    details = {"thought_signature": "abc"}
    answered = [
        theirs.ThinkingPart("hm", signature="sig", provider_name="google"),
        theirs.TextPart("ok"),
        theirs.ToolCallPart("ping", {}, "their-id", provider_name="google", provider_details=details),
    ]
    model = Provided(FunctionModel(lambda m, i: theirs.ModelResponse(parts=answered)))
    response = await model.respond(TOOLS, None)
    assert response.text == "ok"
    messages = (*TOOLS.messages, response.message(0), Message("tool", (Result("r0c0", "pong"),)))
    request = TOOLS.replace(messages=messages)
    back = provider_messages(request, response.calls[0].provider)[1].parts
    assert isinstance(back[0], theirs.ThinkingPart)
    assert (back[0].content, back[0].signature, back[0].provider_name) == ("hm", "sig", "google")
    assert isinstance(back[2], theirs.ToolCallPart)
    assert (back[2].tool_call_id, back[2].provider_details) == ("their-id", details)
    check_openai(openai_body(request, "m")["messages"])
    check_anthropic(anthropic_body(request, "m"))


@pytest.mark.parametrize("request_", [BROKEN, HELLO.replace(messages=())])
async def test_any_history_ends_with_a_request(request_: Any):
    assert provider_messages(request_)[-1].kind == "request"
    assert (await Provided(PlainModel(call_tools=[])).respond(request_, None)).text


async def test_thoughts_of_our_own_adapters_are_left_out():
    thought = Message("assistant", (Thinking("hm", {"signature": "s"}),))
    assert len(provider_messages(HELLO.replace(messages=(*HELLO.messages, thought)))) == 2


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ModelHTTPError(503, "m", {"error": {"message": "busy"}}), ModelUnavailable, "HTTP 503: busy"),
        (ModelHTTPError(401, "m", None), ModelRefused, "key was not accepted"),
        (ModelHTTPError(404, "m", b"nope"), ModelRefused, "no model"),
        (
            ModelHTTPError(400, "m", {"message": "maximum context length is 10 tokens, requested 20 tokens"}),
            ContextTooLong,
            "20 tokens asked, 10 allowed",
        ),
        (UnexpectedModelBehavior("odd"), ModelUnavailable, "odd"),
        (UserError("wrong setting"), ModelRefused, "wrong setting"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_failures_become_our_errors(error: Exception, kind: type[Exception], text: str, streamed: bool):
    def fail(messages: Any, info: Any) -> theirs.ModelResponse:
        raise error

    async def fail_late(messages: Any, info: Any) -> AsyncIterator[str]:
        yield "ha"
        raise error

    model = Provided(FunctionModel(fail, stream_function=fail_late))
    with pytest.raises(kind, match=text):
        await model.respond(HELLO, Heard() if streamed else None)


async def test_a_provider_without_its_package_or_key_says_what_is_missing():
    with pytest.raises(ModelRefused, match=r"pip install|environment variable|API_KEY"):
        await Provided("mistral:large").respond(HELLO, None)


async def test_a_stream_of_too_much_text_is_stopped_at_the_bound():
    async def flood(messages: list[theirs.ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        while True:
            yield "x" * 100_000

    heard = Heard()
    with pytest.raises(ResponseTooLarge, match=r"more than 4,000,000 characters of text in one response"):
        await Provided(FunctionModel(stream_function=flood)).respond(HELLO, heard)
    assert len(heard.text) <= 4_100_000
