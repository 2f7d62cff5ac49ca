"""Tools whose arguments somebody else's JSON schema describes: what runs, what is refused, and by whom."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from upcall import Agent, Approve, BadTool, Context, Runtime, SyncContext, Tool
from upcall.kit import approve
from upcall.models import Script, call
from upcall.tools import BadArguments

SEARCH: dict[str, Any] = {
    "type": "object",
    "properties": {"query": {"type": "string", "minLength": 2}, "limit": {"type": "integer", "maximum": 10}},
    "required": ["query"],
    "additionalProperties": False,
}


def is_secret(query: str) -> bool:
    return query == "secret"


def wants_other(other: int) -> bool:
    return other == 1


def echo(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments


async def reply_to(tool: Tool, **arguments: Any) -> str:
    """The result that a model is given for one call of the tool."""
    agent = Agent("a", model=Script([call(tool.name, **arguments), "done"]), tools=[tool])
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        await session.prompt("go")
        return session.get_messages()[-2].results[0].text


async def test_a_plain_and_an_async_function_get_the_arguments_as_one_dict() -> None:
    async def search(arguments: dict[str, Any]) -> list[str]:
        return sorted(arguments)

    assert await reply_to(Tool.from_schema("search", SEARCH, search), query="ab", limit=3) == '["limit","query"]'
    assert await reply_to(Tool.from_schema("search", SEARCH, echo), query="ab") == '{"query":"ab"}'
    assert await reply_to(Tool.from_schema("search", SEARCH, echo, inline=True), query="ab") == '{"query":"ab"}'


async def test_a_parameter_annotated_with_a_context_gets_the_call_s_context() -> None:
    async def search(arguments: dict[str, Any], ctx: Context) -> str:
        return f"{arguments['query']} in {ctx.call_id} of {ctx.agent}"

    def plain(arguments: dict[str, Any], where: SyncContext) -> str:
        return f"{arguments['query']} of {where.agent}"

    assert (await reply_to(Tool.from_schema("search", SEARCH, search), query="ab")).endswith(" of a")
    assert await reply_to(Tool.from_schema("search", SEARCH, plain), query="ab") == "ab of a"


def test_argument_names_that_python_could_not_take_reach_the_function() -> None:
    schema = {"properties": {name: {"type": "integer"} for name in ("self", "ctx", "call", "two words", "class")}}
    odd = Tool.from_schema("odd", schema, echo)
    given = {"self": 1, "ctx": 2, "call": 3, "two words": 4, "class": 5}
    assert odd.check(given) == given
    assert odd(**odd.check(given)) == given


def test_methods_partials_and_callable_objects_are_called() -> None:
    class Server:
        def __call__(self, arguments: dict[str, Any]) -> str:
            return f"object {arguments}"

        async def send(self, arguments: dict[str, Any], ctx: Context) -> str:
            return f"method {arguments} {ctx}"

    def named(server: str, arguments: dict[str, Any]) -> str:
        return f"{server} {arguments}"

    assert Tool.from_schema("t", {}, Server())(q=1) == "object {'q': 1}"
    assert Tool.from_schema("t", {}, Server().send).is_async
    assert Tool.from_schema("t", {}, partial(named, "fs"))(q=1) == "fs {'q': 1}"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "query"),
        ({"query": "a"}, "query"),
        ({"query": "ab", "limit": 11}, "limit"),
        ({"query": "ab", "x": 1}, "x"),
    ],
)
def test_arguments_that_do_not_fit_the_schema_are_refused_by_name(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadArguments, match=problem):
        Tool.from_schema("search", SEARCH, echo).check(arguments)


def test_the_model_sees_the_schema_as_it_was_written_and_later_changes_do_not_reach_it() -> None:
    written: dict[str, Any] = {"properties": {"q": {"type": "string"}}}
    made = Tool.from_schema("t", written, echo, description="Look it up.")
    written["properties"]["q"]["type"] = "integer"
    assert made.spec.schema == {"type": "object", "properties": {"q": {"type": "string"}}}
    assert made.spec.description == "Look it up."


def nested(levels: int) -> dict[str, Any]:
    return {"properties": {"a": nested(levels - 1)}} if levels else {}


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ([], "a JSON object"),
        ({"type": "array"}, "type 'object'"),
        ({"properties": {"a": {"$ref": "https://example.org/schema"}}}, "other schemas are not fetched"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "schema"),
        ({"properties": {"a": {"type": "text"}}}, "one of string"),
        ({"properties": []}, "properties"),
        ({"properties": {"a": {"pattern": "("}}}, "schema"),
        ({"unevaluatedProperties": False}, "not supported"),
        ({"description": "x" * 200_000}, "bytes"),
        ({"default": object()}, "schema"),
        (nested(200), "nested"),
        ({"properties": {f"p{n}": {"type": "string"} for n in range(2000)}}, "schemas"),
    ],
)
def test_a_hostile_schema_is_refused_with_the_tool_s_name(schema: Any, problem: str) -> None:
    with pytest.raises(BadTool, match=problem) as refused:
        Tool.from_schema("search", schema, echo)
    assert "search" in str(refused.value)


def test_a_pattern_that_would_take_for_ever_is_refused_or_stops_in_time() -> None:
    slow = Tool.from_schema("t", {"properties": {"q": {"pattern": "^(a+)+$"}}}, echo)
    with pytest.raises(BadArguments):
        slow.check({"q": "a" * 5000 + "!"})


def test_names_descriptions_functions_and_options_that_can_not_work_are_refused() -> None:
    make: Any = Tool.from_schema

    def two(arguments: dict[str, Any], other: str) -> str:
        return f"{arguments} {other}"

    refused: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        (("a tool", SEARCH, echo), {}),
        (("t", SEARCH, echo), {"description": "x" * 30_000}),
        (("t", SEARCH, two), {}),
        (("t", SEARCH, "echo"), {}),
        (("t", SEARCH, echo), {"timeout": 0}),
        (("t", SEARCH, echo), {"needs_approval": wants_other}),
        (("t", SEARCH, echo), {"colour": "red"}),
    ]
    for given, options in refused:
        with pytest.raises(BadTool):
            make(*given, **options)


async def test_an_approval_rule_gets_the_arguments_by_name_and_the_approved_call_runs() -> None:
    class Person:
        async def ask(self, callback: Any) -> Approve:
            assert callback.tool == "search"
            assert callback.args == {"query": "secret"}
            return Approve(args={"query": "public"})

        def withdraw(self, callback_id: str, reason: str) -> None: ...

    guarded = Tool.from_schema("search", SEARCH, echo, needs_approval=is_secret)
    agent = Agent("a", model=Script([call("search", query="secret"), "done"]), tools=[guarded])
    async with Runtime(agents=[agent], host=Person()) as runtime:
        session = await runtime.start(agent)
        await session.prompt("go")
        assert '{"query":"public"}' in session.get_messages()[-2].results[0].text


async def test_a_foreign_tool_with_the_name_of_a_built_in_one_is_not_taken_for_it() -> None:
    foreign = Tool.from_schema("write_todos", {}, echo)
    agent = Agent("a", model=Script([call("write_todos"), "done"]), tools=[foreign], kit=[approve("all_ask")])
    async with Runtime(agents=[agent]) as runtime:
        reply = await (await runtime.start(agent)).prompt("go")
        assert "nobody could approve" in (await runtime.load(reply.session_id)).get_messages()[-2].results[0].text
