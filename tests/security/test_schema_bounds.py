"""Schemas of models, programs and tools are interpreted within bounds: they neither take long nor run as code."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import fastjsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callbacks.doubles import Desk
from programs.doubles import programmer, told
from quick import examples, slow_but
from security.attacks import SCHEMAS
from security.measuring import measured
from security.test_json_doors import user_of
from upcall import Agent, Context, Hooks, Request, SessionAccess
from upcall.core.routing.answer import schema_error
from upcall.errors import AnswerRefused, UpcallError
from upcall.models import Script
from upcall.observe import form
from upcall.safety.bounds import excess
from upcall.safety.schema_check import LONGEST_MATCHED, STEPS, SUBSCHEMAS, misfit_of

QUICK = ("a pattern that backtracks", "12,000 properties", "choices for each item", "references that double")
"""What `make check` tries: an attack of each kind."""


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: Any) -> None:
        pytest.fail("a schema made us connect to something")

    monkeypatch.setattr(socket.socket, "connect", connect)


def asking(schema: Any) -> Agent:
    async def ask(ctx: Context, value: Any) -> Any:
        return await ctx.raise_callback("q", "blocker", schema=value)

    return user_of(ask, schema)


@pytest.mark.parametrize("attack", slow_but(QUICK, SCHEMAS))
async def test_no_schema_holds_the_event_loop_when_it_is_asked_with_or_answered(desk: Desk, attack: str) -> None:
    schema, value = SCHEMAS[attack]
    agent = asking(schema)

    async with measured() as cost:
        reply = await desk.prompt(agent)
        if reply.status == "waiting":
            await asyncio.sleep(0.01)
            with suppress(AnswerRefused):
                await desk.settle(agent, value)
        assert len(reply.text) < 10_000

    cost.check()


IN_A_PROGRAM = [name for name, pair in SCHEMAS.items() if not any(excess(one, 40_000) for one in pair)]


@pytest.mark.parametrize("attack", IN_A_PROGRAM)
async def test_no_schema_of_a_program_holds_the_event_loop(attack: str) -> None:
    schema, value = SCHEMAS[attack]
    program = f"raise_callback('q', schema={schema!r}, default={value!r})"
    desk, agent = Desk(), programmer(program)

    async with measured() as cost:
        reply = await desk.prompt(agent)

    assert reply.status in ("done", "waiting")
    cost.check()


@pytest.mark.slow
async def test_no_schema_of_a_hook_holds_the_event_loop(desk: Desk) -> None:
    for number, (schema, value) in enumerate(SCHEMAS.values()):

        async def ask(session: SessionAccess, request: Request, schema: Any = schema, value: Any = value) -> None:
            try:
                await session.raise_callback("q", schema=schema, default=value)
            except UpcallError as error:
                session.set_context("problem", str(error)[:1000])

        agent = Agent("a", model=Script(["done"]), hooks=Hooks(before_model=[ask]))
        async with measured() as cost:
            await desk.prompt(agent, id=f"s{number}")
        cost.check()


@pytest.mark.parametrize("attack", slow_but(QUICK, SCHEMAS))
async def test_no_schema_takes_long_where_an_answer_is_typed(attack: str) -> None:
    schema, value = SCHEMAS[attack]
    if schema == [{"type": "string"}] or schema_error(schema):  # it could not have been asked
        return

    async with measured() as cost:
        form.fields(schema)
        form.describe_schema(form.resolve_reference(schema, schema))
        with suppress(form.InvalidInput):
            form.parse(str(value)[:1000], schema)

    cost.check()


def test_a_schema_at_the_bound_is_used_and_a_larger_one_refused() -> None:
    def of(count: int) -> dict[str, Any]:
        return {"properties": {f"p{n}": {} for n in range(count)}}

    assert misfit_of(of(SUBSCHEMAS - 1), {}) == ""
    assert misfit_of(of(SUBSCHEMAS), {}) == f"it contains more than {SUBSCHEMAS} subschemas"
    assert misfit_of({"items": {"type": "integer"}}, list(range(STEPS // 3))) == ""
    assert f"takes more than {STEPS} steps" in misfit_of({"items": {"type": "integer"}}, list(range(STEPS)))
    assert misfit_of({"pattern": "^x+$"}, "x" * LONGEST_MATCHED) == ""
    assert "at most 10000 characters" in misfit_of({"pattern": "^x+$"}, "x" * (LONGEST_MATCHED + 1))
    assert misfit_of({"allOf": [{"pattern": "x" * 1000}] * 1}) == ""
    patterns = {"allOf": [{"pattern": f"{n}" * 999} for n in range(6)]}
    assert misfit_of(patterns) == "its patterns have more than 5000 characters"


async def test_a_pattern_from_a_program_is_checked_and_one_that_never_ends_refuses_the_answer(desk: Desk) -> None:
    agent = programmer("print(raise_callback('which?', schema={'type': 'string', 'pattern': '^(a|aa)+$'}))")
    assert (await desk.prompt(agent)).status == "waiting"

    for wrong, why in [("a" * 5_000 + "!", "takes too long"), ("b", "must match pattern")]:
        with pytest.raises(AnswerRefused, match=why):
            await desk.settle(agent, wrong)
    await desk.settle(agent, "aaa")

    assert (await desk.resume(agent)).status == "done"
    assert (await told(desk, agent))[0].text == "aaa\n"


@pytest.mark.parametrize(
    ("schema", "fitting", "wrong"),
    [
        ({"prefixItems": [{"type": "integer"}], "items": False}, [1], [1, 2]),
        ({"items": [{"type": "integer"}], "additionalItems": {"type": "string"}}, [1, "a"], [1, 2]),
        ({"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"minimum": 5}}, "ab", 4),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1, "b": 2}, {"a": 1}),
        ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"b": 1}, {"a": 1}),
        ({"contains": {"const": 1}, "minContains": 2, "maxContains": 3}, [1, 0, 1], [1]),
        ({"const": 1}, 1.0, True),
        ({"enum": [[1, {"a": 1.0}]]}, [1.0, {"a": 1}], [True, {"a": 1}]),
        ({"uniqueItems": True}, [1, True, "1"], [1, 1.0]),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "string"}}}, "x", 1),
        ({"propertyNames": {"pattern": "^x"}}, {"x1": 1}, {"y": 1}),
        ({"patternProperties": {"^n": {"type": "integer"}}, "additionalProperties": False}, {"n": 1}, {"m": 1}),
        ({"type": ["integer", "null"]}, None, "x"),
        ({"type": "integer"}, 2.0, 2.5),
        ({"type": "number", "multipleOf": 0.1}, 0.3, 0.35),
        ({"format": "date-time"}, "2026-05-01T09:30:60Z", "2026-13-01T09:30:00Z"),
        ({"format": "ipv6"}, "::1", "::g"),
        ({"format": "email"}, "a@b.de", "a@b@c.de"),
        ({"format": "uuid"}, "00000000-0000-0000-0000-000000000000", "0"),
        ({"format": "no such format"}, "anything", None),
        ({"pattern": "^a$"}, "a", "a\n"),
        ({"oneOf": [{"type": "integer"}, {"minimum": 5}]}, 4, 6),
        (True, 1, None),
        ({"not": {}}, None, 1),
    ],
)
def test_schemas_mean_what_the_standard_says(schema: Any, fitting: Any, wrong: Any) -> None:
    if fitting is not None:
        assert misfit_of(schema, fitting) == ""
    if wrong is not None:
        assert misfit_of(schema, wrong) != ""


@pytest.mark.parametrize("keyword", ["$dynamicRef", "unevaluatedProperties", "unevaluatedItems", "$recursiveRef"])
def test_a_keyword_that_would_narrow_and_is_not_known_is_refused(keyword: str) -> None:
    assert misfit_of({keyword: False}) == f"{keyword} is not supported in a schema"


_NAMES = st.sampled_from(["a", "b", "c"])
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([0.5, 1.0, 2.5]) | st.text("abx1", max_size=4),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(_NAMES, below, max_size=3),
    max_leaves=8,
)
_LEAVES = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["string", "number", "integer", "boolean", "null", "array", "object"]),
        "enum": st.lists(_VALUES, min_size=1, max_size=3),
        "minLength": st.integers(0, 3),
        "maxLength": st.integers(0, 3),
        "pattern": st.sampled_from(["^a", "b$", "[ab]+1", "x|a"]),
        "minimum": st.integers(-3, 3),
        "exclusiveMaximum": st.integers(-3, 3),
        "minItems": st.integers(0, 2),
        "maxItems": st.integers(0, 2),
        "uniqueItems": st.booleans(),
        "minProperties": st.integers(0, 2),
        "required": st.lists(_NAMES, unique=True, max_size=2),
    },
)


def _larger(below: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas around other schemas."""
    return st.one_of(
        st.fixed_dictionaries(
            {},
            optional={
                "properties": st.dictionaries(_NAMES, below, max_size=2),
                "additionalProperties": below | st.booleans(),
                "patternProperties": st.dictionaries(st.sampled_from(["^a", "b|c"]), below, max_size=2),
                "propertyNames": below,
            },
        ),
        st.fixed_dictionaries({}, optional={"items": below, "contains": below}),
        st.sampled_from(["allOf", "anyOf", "oneOf"]).flatmap(
            lambda key: st.fixed_dictionaries({key: st.lists(below, min_size=1, max_size=3)})
        ),
        st.fixed_dictionaries({"not": below}),
        st.fixed_dictionaries({"if": below, "then": below, "else": below}),
    )


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(300))
@given(st.recursive(_LEAVES, _larger, max_leaves=6), _VALUES)
def test_whether_a_value_fits_is_what_another_library_says(schema: Any, value: Any) -> None:
    try:
        fastjsonschema.compile(schema, use_default=False)(value)  # type: ignore[no-untyped-call]
        fits = True
    except fastjsonschema.JsonSchemaValueException:
        fits = False

    assert (misfit_of(schema, value) == "") is fits


_WORDS = st.sampled_from(
    [
        "a",
        "ab",
        "(",
        ")",
        "(?:",
        "+",
        "*",
        "?",
        "{2}",
        "{1,9}",
        "{,3}",
        "|",
        "[ab]",
        "[^a]",
        ".",
        "$",
        "^",
        r"\1",
        r"\b",
    ]
)


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(_WORDS, max_size=30).map("".join), st.text("ab!", max_size=30), st.integers(0, 200))
async def test_no_pattern_of_a_schema_holds_the_event_loop(pattern: str, text: str, times: int) -> None:
    schema = {"pattern": pattern, "patternProperties": {pattern: {"pattern": pattern}}}

    async with measured() as cost:
        misfit_of(schema, (text * times)[:LONGEST_MATCHED])
        misfit_of(schema, {text * times: text * times})

    cost.check()
