"""Other providers, with the real pydantic-ai package and its models for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import pytest

from upcall.errors import ContextTooLong, ModelRefused, ModelUnavailable, ResponseTooLarge
from upcall.messages import Call, Message, Result, Thinking
from upcall.models import anthropic_body, openai_body
from upcall.models.history import generate_id
from upcall.models.providers import Provided, provider_messages

from .history import BROKEN, HELLO, RICH, TOOLS
from .rules import check_anthropic, check_openai
from .server import Heard

# pydantic-ai takes seconds to import, and every worker imports every test module: tests import it as they run.
if TYPE_CHECKING:
    from pydantic_ai import messages as theirs
    from pydantic_ai.models.function import AgentInfo, DeltaToolCalls


def plain_model(**arguments: Any) -> Provided:
    """The package's own model for tests."""
    from pydantic_ai.models.test import TestModel

    return Provided(TestModel(**arguments))


def played_by(function: Callable[[Any, Any], Any] | None = None, *, streaming: Any = None) -> Provided:
    """A model of the package that a function answers for."""
    from pydantic_ai.models.function import FunctionModel

    played: Any = function  # the package takes None here if there is a function that streams
    return Provided(FunctionModel(played, stream_function=streaming))


async def test_a_model_of_the_package_answers_streamed_and_not():
    model, heard = plain_model(custom_output_text="two words"), Heard()
    plain, streamed = await model.respond(HELLO, None), await model.respond(HELLO, heard)
    assert plain.text == streamed.text == heard.text == "two words"
    assert plain.usage.input_tokens > 0
    assert plain.stop == "end"
    assert model.name == "test:test"


async def test_tools_are_declared_and_calls_come_back():
    model = plain_model()
    response = await model.respond(TOOLS, None)
    assert {c.name for c in response.calls} == {"read_config", "ping"}
    assert all(c.id == "" for c in response.calls)
    assert response.stop == "calls"


async def test_instructions_history_and_pictures_arrive():
    from pydantic_ai import messages as theirs

    seen: list[Any] = []

    def answer(messages: list[theirs.ModelMessage], info: AgentInfo) -> theirs.ModelResponse:
        seen[:] = [messages, info]
        return theirs.ModelResponse(parts=[theirs.TextPart("ok")])

    await played_by(answer).respond(RICH, None)
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
    assert (failed.tool_name, failed.outcome, failed.tool_call_id) == ("read_config", "failed", generate_id("r0c0"))
    assert pictured.outcome == "success"
    assert messages[0].parts[1].content[0].data == b"hi"


async def test_text_thinking_and_calls_are_streamed_and_broken_arguments_kept():
    from pydantic_ai.models.function import DeltaToolCall

    async def parts(messages: list[theirs.ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        yield "a "
        yield "b"
        yield {1: DeltaToolCall(name="ping", json_args='{"a":')}
        yield {1: DeltaToolCall(json_args="1}")}
        yield {2: DeltaToolCall(name="ping", json_args="[1]")}

    heard = Heard()
    response = await played_by(streaming=parts).respond(TOOLS, heard)
    assert response.text == heard.text == "a b"
    assert response.calls == (Call("", "ping", {"a": 1}), Call("", "ping", {}, "[1]"))


async def test_what_a_provider_hung_on_a_part_comes_back_on_it():
    from pydantic_ai import messages as theirs

    details = {"thought_signature": "abc"}
    answered = [
        theirs.ThinkingPart("hm", signature="sig", provider_name="google"),
        theirs.TextPart("ok"),
        theirs.ToolCallPart("ping", {}, "their-id", provider_name="google", provider_details=details),
    ]
    model = played_by(lambda m, i: theirs.ModelResponse(parts=answered))
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
    assert (await plain_model(call_tools=[]).respond(request_, None)).text


async def test_thoughts_of_our_own_adapters_are_left_out():
    thought = Message("assistant", (Thinking("hm", {"signature": "s"}),))
    assert len(provider_messages(HELLO.replace(messages=(*HELLO.messages, thought)))) == 2


@pytest.mark.parametrize(
    ("their_error", "given", "kind", "text"),
    [
        ("ModelHTTPError", (503, "m", {"error": {"message": "busy"}}), ModelUnavailable, "HTTP 503: busy"),
        ("ModelHTTPError", (401, "m", None), ModelRefused, "key was not accepted"),
        ("ModelHTTPError", (404, "m", b"nope"), ModelRefused, "no model"),
        (
            "ModelHTTPError",
            (400, "m", {"message": "maximum context length is 10 tokens, requested 20 tokens"}),
            ContextTooLong,
            "20 tokens requested, 10 allowed",
        ),
        ("UnexpectedModelBehavior", ("odd",), ModelUnavailable, "odd"),
        ("UserError", ("wrong setting",), ModelRefused, "wrong setting"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_failures_become_our_errors(
    their_error: str, given: tuple[Any, ...], kind: type[Exception], text: str, streamed: bool
):
    from pydantic_ai import exceptions

    error = getattr(exceptions, their_error)(*given)

    def fail(messages: Any, info: Any) -> theirs.ModelResponse:
        raise error

    async def fail_late(messages: Any, info: Any) -> AsyncIterator[str]:
        yield "ha"
        raise error

    model = played_by(fail, streaming=fail_late)
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
        await played_by(streaming=flood).respond(HELLO, heard)
    assert len(heard.text) <= 4_100_000
