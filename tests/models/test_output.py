"""Agent(output=...): what each provider is sent, and what becomes of the replies."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pytest

from upcall import Agent, Hooks, OutputInvalid, Reply, Request, Response, Runtime, tool
from upcall.contracts import Model
from upcall.errors import ModelRefused
from upcall.models import Anthropic, OpenAIChat, Script, anthropic_body, openai_body, schema_in_instructions
from upcall.models.local import local_body
from upcall.models.providers import Provided

from . import anthropic_wire, openai_wire
from .history import HELLO, PING
from .server import Server, plain, serving, stream

# pydantic-ai takes seconds to import, and every worker imports every test module: tests import it as they run.
if TYPE_CHECKING:
    from pydantic_ai import messages as theirs
    from pydantic_ai.models.function import AgentInfo


@dataclass
class Owner:
    name: str


@dataclass
class Ticket:
    title: str
    urgency: Literal["low", "high"]
    owner: Owner | None = None


@dataclass
class Node:
    name: str
    below: list[Node] = field(default_factory=list["Node"])


SAID = '{"title": "x", "urgency": "high"}'
OWNER = {
    "title": "Owner",
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}
SCHEMA = {
    "title": "Ticket",
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "urgency": {"enum": ["high", "low"]},
        "owner": {"anyOf": [{"$ref": "#/$defs/Owner"}, {"type": "null"}], "default": None},
    },
    "required": ["title", "urgency"],
    "additionalProperties": False,
    "$defs": {"Owner": OWNER},
}
OPENAI_SAYS = stream(openai_wire.said(content=SAID), openai_wire.STOP, openai_wire.DONE)
ANTHROPIC_SAYS = stream(
    anthropic_wire.start(), anthropic_wire.text(0, SAID), anthropic_wire.stop(), anthropic_wire.LAST
)


@tool
def look(where: str) -> str:
    """Look somewhere."""
    return where


@tool
def peek(where: str) -> str:
    """Look shortly."""
    return where


async def reply_of(model: Model, *, output: Any = Ticket, prompt: str = "Nobody can log in!", **more: Any) -> Reply:
    agent = Agent("triage", instructions="Triage.", model=model, output=output, **more)
    async with Runtime(agents=[agent]) as runtime:
        return await (await runtime.start(agent)).prompt(prompt)


def openai(server: Server) -> OpenAIChat:
    return OpenAIChat("m", base_url=f"{server.url}/v1", retries=0)


def anthropic(server: Server) -> Anthropic:
    return Anthropic("m", base_url=server.url, retries=0)


# --- the wires --------------------------------------------------------------------------


@pytest.mark.parametrize("tools", [[], [look]])
async def test_openai_compatible_servers_get_the_schema_as_format_and_in_the_instructions(tools: list[Any]):
    async with serving(OPENAI_SAYS) as server:
        model = openai(server)
        reply = await reply_of(model, tools=tools)
        await model.close()
    body = server.asked[0].json
    wanted = {"name": "output", "schema": SCHEMA, "strict": False}
    assert body["response_format"] == {"type": "json_schema", "json_schema": wanted}
    system = body["messages"][0]["content"]
    assert system.startswith("Triage.\n\n")
    assert json.loads(system[system.index("{") :]) == SCHEMA
    assert reply.output == Ticket("x", "high")


def test_openai_itself_gets_the_schema_as_format_alone():
    request = HELLO.replace(output=SCHEMA)
    body = openai_body(request, "gpt-6")
    assert body["response_format"]["json_schema"]["schema"] == SCHEMA
    assert body["messages"][0]["content"] == HELLO.instructions


@pytest.mark.parametrize("tools", [[], [look]])
async def test_anthropic_gets_the_schema_as_output_config_and_in_the_instructions(tools: list[Any]):
    async with serving(ANTHROPIC_SAYS) as server:
        model = anthropic(server)
        reply = await reply_of(model, tools=tools)
        await model.close()
    body = server.asked[0].json
    owner = {k: v for k, v in OWNER.items() if k != "title"}
    assert body["output_config"] == {
        "format": {
            "type": "json_schema",
            "schema": {
                "type": "object",
                "properties": {
                    "title": {"type": "string"},
                    "urgency": {"type": "string", "enum": ["high", "low"]},
                    "owner": {"anyOf": [{"$ref": "#/$defs/Owner"}, {"type": "null"}]},
                },
                "required": ["title", "urgency"],
                "additionalProperties": False,
                "$defs": {"Owner": owner},
            },
        }
    }
    system = body["system"][0]["text"]
    assert system.startswith("Triage.\n\n")
    assert json.loads(system[system.index("{") :]) == SCHEMA
    assert "tool_choice" not in body  # its own tools stay free to be called
    assert reply.output == Ticket("x", "high")


@pytest.mark.parametrize(
    "problem",
    [
        "output_config: Extra inputs are not permitted",
        "This model does not support structured outputs",
        "The compiled grammar is too large",
    ],
)
async def test_an_anthropic_server_that_refuses_the_format_is_told_by_instructions_from_then_on(problem: str):
    refusal = plain(400, json.dumps({"error": {"type": "invalid_request_error", "message": problem}}))
    async with serving(refusal, ANTHROPIC_SAYS) as server:
        model = anthropic(server)
        for _ in range(2):
            assert (await reply_of(model)).output == Ticket("x", "high")
        await model.close()
    assert ["output_config" in asked.json for asked in server.asked] == [True, False, False]
    assert all("urgency" in asked.json["system"][0]["text"] for asked in server.asked)


async def test_a_refusal_that_is_about_something_else_is_told_and_forgets_nothing():
    problem = "tools.0.input_schema: JSON schema is invalid"
    refusal = plain(400, json.dumps({"error": {"type": "invalid_request_error", "message": problem}}))
    async with serving(refusal, refusal, ANTHROPIC_SAYS) as server:
        model = anthropic(server)
        with pytest.raises(ModelRefused, match="input_schema"):
            await reply_of(model)
        await reply_of(model)
        await model.close()
    assert ["output_config" in asked.json for asked in server.asked] == [True, False, True]


async def test_an_openai_server_that_refuses_the_format_is_told_by_instructions_from_then_on():
    refusal = plain(400, json.dumps({"error": {"message": "response_format is not supported"}}))
    async with serving(refusal, OPENAI_SAYS) as server:
        model = openai(server)
        for _ in range(2):
            assert (await reply_of(model)).output == Ticket("x", "high")
        await model.close()
    assert ["response_format" in asked.json for asked in server.asked] == [True, False, False]
    assert all("urgency" in asked.json["messages"][0]["content"] for asked in server.asked)


@pytest.mark.parametrize("kind", [list[int], int, Ticket | Owner, dict[str, int]])
async def test_a_type_that_is_no_object_is_told_by_instructions(kind: Any):
    schema = await schema_of(kind)
    request = HELLO.replace(output=schema)
    official, body = openai_body(request, "m"), anthropic_body(request, "m")
    assert "output_config" not in body
    assert json.dumps(schema, separators=(",", ":")) in body["system"][0]["text"]
    if schema.get("type") != "object":
        assert "response_format" not in official
        assert json.dumps(schema, separators=(",", ":")) in official["messages"][0]["content"]


async def schema_of(kind: Any) -> dict[str, Any]:
    seen: list[Request] = []

    def stop(request: Request) -> Response:
        seen.append(request)
        raise ModelRefused("m", "stop")

    with pytest.raises(ModelRefused):
        await reply_of(Script(stop), output=kind)
    assert seen[0].output is not None
    return seen[0].output


@pytest.mark.parametrize(
    "kind", [Node, dict[str, Ticket], tuple[int, str], dataclass(type("Any_", (), {"__annotations__": {"x": Any}}))]
)
async def test_a_type_that_anthropic_can_not_be_held_to_is_told_by_instructions(kind: Any):
    schema = await schema_of(kind)
    body = anthropic_body(HELLO.replace(output=schema), "m")
    assert "output_config" not in body
    assert json.dumps(schema, separators=(",", ":")) in body["system"][0]["text"]


async def test_the_root_of_a_schema_is_the_type_itself_even_where_it_holds_itself():
    schema = await schema_of(Node)
    assert (schema["type"], schema["title"]) == ("object", "Node")
    assert schema["properties"]["below"]["items"] == {"$ref": "#/$defs/Node"}
    assert schema["$defs"]["Node"]["type"] == "object"


def test_a_local_model_reads_the_schema_that_its_grammar_holds_it_to():
    for tools in ((), (PING,)):
        body = local_body(HELLO.replace(output=SCHEMA, tools=tools))
        assert json.dumps(SCHEMA, separators=(",", ":")) in body["messages"][0]["content"]
        assert "urgency" in json.dumps(body["response_format"])


def test_a_model_of_your_own_can_have_the_schema_put_into_the_instructions():
    request = schema_in_instructions(HELLO.replace(output=SCHEMA))
    assert request.instructions.startswith("Be brief.\n\nYour final reply must be nothing but JSON")
    assert schema_in_instructions(HELLO) is HELLO


# --- other providers --------------------------------------------------------------------


def provider(seen: list[AgentInfo], said: str = SAID, *, native: bool) -> Provided:
    """A model of pydantic-ai's that says one thing, and refuses its own form beside tools as some do."""
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models.function import FunctionModel

    async def answer(messages: list[theirs.ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        seen.append(info)
        if info.model_request_parameters.output_mode == "native" and len(info.function_tools) > 1:
            raise UserError("native output and function tools can't be used at the same time")
        yield said

    return Provided(FunctionModel(stream_function=answer, profile={"supports_json_schema_output": native}))


@pytest.mark.parametrize("tools", [[], [look]])
async def test_a_provider_with_a_form_of_its_own_gets_the_schema_in_it(tools: list[Any]):
    seen: list[AgentInfo] = []
    assert (await reply_of(provider(seen, native=True), tools=tools)).output == Ticket("x", "high")
    parameters = seen[0].model_request_parameters
    assert parameters.output_mode == "native"
    assert parameters.output_object is not None
    assert (parameters.output_object.json_schema, parameters.output_object.name) == (SCHEMA, "output")
    assert len(parameters.function_tools) == len(tools)


@pytest.mark.parametrize("kind", [Ticket, list[Ticket]])
async def test_a_provider_without_a_form_gets_the_schema_in_the_instructions(kind: Any):
    seen: list[AgentInfo] = []
    said = SAID if kind is Ticket else f"[{SAID}]"
    await reply_of(provider(seen, said, native=False), output=kind)
    assert seen[0].model_request_parameters.output_mode == ("prompted" if kind is Ticket else "text")
    assert "urgency" in (seen[0].instructions or "")
    assert "Triage." in (seen[0].instructions or "")


async def test_a_provider_that_takes_no_schema_beside_tools_is_asked_by_instructions():
    seen: list[AgentInfo] = []
    reply = await reply_of(provider(seen, native=True), tools=[look, peek])
    assert reply.output == Ticket("x", "high")
    assert [info.model_request_parameters.output_mode for info in seen] == ["native", "prompted"]
    assert "urgency" in (seen[1].instructions or "")


# --- replies ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        SAID,
        f"```json\n{SAID}\n```",
        f"Here it is:\n\n```json\n{SAID}\n```\nAnything else?",
        f"Here it is:\n~~~\n{SAID}\n~~~",
        f"I compared it with {{}} and [1].\n```\n{SAID}\n```",
        f"The ticket: {SAID}",
        '```\n{"title": "```", "urgency": "high"}\n```'.replace("```", "````", 1).replace("\n```", "\n````"),
    ],
)
async def test_prose_around_one_json_object_is_left_out(said: str):
    assert (await reply_of(Script([said]))).output.urgency == "high"


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ('{"title": "x", "urgency": "very"}', "is JSON, but not a valid Ticket: Invalid enum value 'very'"),
        ("[1, 2]", r"is JSON, but not a valid Ticket: Expected `object`, got `array`"),
        ('{"title": 5, "urgency": "low"}', r"not a valid Ticket: Expected `str`, got `int` - at `\$\.title`"),
        (f"```json\n[{SAID}]\n```", "not a valid Ticket: Expected `object`, got `array`"),
        (f"```\n{SAID}\n```\nor\n```\n{SAID}\n```", "has 2 JSON values; it must have exactly one"),
        (f"Either {SAID} or {SAID}", "has 2 JSON values; it must have exactly one"),
        ("I can't say.", "the reply is not JSON: "),
        ("", "the reply is not JSON: "),
    ],
)
async def test_a_reply_that_does_not_fit_says_what_is_wrong_to_the_model_and_to_the_program(
    said: str, problem: str
):
    seen: list[Request] = []

    def brain(request: Request) -> str:
        seen.append(request)
        return said

    with pytest.raises(OutputInvalid, match=problem):
        await reply_of(Script(brain))
    told = seen[1].messages[-1].text
    assert told.startswith("the reply ")
    assert ("not JSON" in told) == ("not JSON" in problem)
    assert json.loads(told[told.index("this schema: ") + 13 :]) == SCHEMA


async def test_a_text_full_of_brackets_is_read_in_bounded_time():
    with pytest.raises(OutputInvalid, match="can't be read as JSON"):
        await reply_of(Script(lambda _: "[{" * 100_000))


async def test_plain_text_as_output_asks_nothing_of_the_model_and_is_the_text():
    seen: list[Request] = []

    def brain(request: Request) -> str:
        seen.append(request)
        return "Just words."

    reply = await reply_of(Script(brain), output=str)
    assert (reply.output, reply.text, seen[0].output) == ("Just words.", "Just words.", None)
    reply = await reply_of(Script([""]), output=str)
    assert reply.output == ""


async def test_plain_text_as_output_follows_what_an_end_turn_hook_says():
    hooks = Hooks(end_turn=[lambda session, reply: f"{reply.text} Bye."])
    reply = await reply_of(Script(["Words."]), output=str, hooks=hooks)
    assert (reply.output, reply.text) == ("Words. Bye.", "Words. Bye.")
