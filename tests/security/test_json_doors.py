"""Every door by which JSON comes in refuses what is too large, too deep or too shared, and says so."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callbacks.doubles import Desk
from quick import slow_but
from security.measuring import measured
from security.values import ENOUGH, TOO_MUCH, nested
from upcall import (
    Agent,
    Approve,
    Call,
    Context,
    Hooks,
    Limits,
    Request,
    Response,
    Result,
    SessionAccess,
    Usage,
    tool,
)
from upcall.errors import AnswerRefused, UpcallError
from upcall.messages import Value
from upcall.models import Script, call
from upcall.safety.bounds import ARGUMENTS, DEPTH, RESULT_PARTS, excess, excess_in_text, plain, read_bounded_json

Use = Callable[[Context, Any], Awaitable[Any]]


def user_of(use: Use, value: Any) -> Agent:
    """An agent whose tool does something with the value; what it raised is the agent's last word."""

    @tool
    async def work(ctx: Context) -> Any:
        return await use(ctx, value)

    def play(request: Request) -> Any:
        results = request.messages[-1].results
        return results[0].text if results else call("work")

    return Agent("a", model=Script(play), tools=[work])


async def _context(ctx: Context, value: Any) -> Any:
    return await ctx.raise_callback("q", context={"x": value})


async def _default(ctx: Context, value: Any) -> Any:
    return await ctx.raise_callback("q", default={"x": value})


async def _enum(ctx: Context, value: Any) -> Any:
    return await ctx.raise_callback("q", schema={"default": {"x": value}})


async def _kept(ctx: Context, value: Any) -> Any:
    ctx.set_context("k", {"x": value})


async def _once(ctx: Context, value: Any) -> Any:
    return await ctx.once("effect", lambda: {"x": value})


DOORS: dict[str, Use] = {
    "a callback's context": _context,
    "a callback's default": _default,
    "a callback's schema": _enum,
    "set_context": _kept,
    "what a once effect returns": _once,
}


FEW = ["one list more than may be nested", "a list doubled 60 times", "one text of 30 MB"]
"""The attacks of which `make check` tries each at every door."""


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("attack", slow_but(FEW, TOO_MUCH))
async def test_a_value_that_is_too_much_is_refused_with_the_bound_that_it_exceeds(
    desk: Desk, door: str, attack: str
) -> None:
    agent = user_of(DOORS[door], TOO_MUCH[attack]())

    async with measured() as cost:
        reply = await desk.prompt(agent)

    assert reply.status == "done"
    assert reply.text.startswith("work failed: ")
    assert "nested too deeply" in reply.text or "bytes" in reply.text or "values" in reply.text
    assert len(reply.text) < 1000
    assert await desk.inbox(agent) == []
    cost.check()


@pytest.mark.slow
@pytest.mark.parametrize("enough", ENOUGH)
async def test_a_question_at_the_bound_is_asked_listed_and_answered_with_as_much(place: Desk, enough: str) -> None:
    value = ENOUGH[enough]()
    agent = user_of(_context, value)
    assert (await place.prompt(agent)).status == "waiting"

    async with measured() as cost:
        [found] = await place.inbox(agent)
        await place.settle(agent, {"y": value})

    assert found.context["x"] == value
    cost.check()
    assert (await place.resume(agent)).status == "done"


@pytest.mark.parametrize("attack", TOO_MUCH)
async def test_an_answer_that_is_too_much_is_refused_and_the_question_stays_open(desk: Desk, attack: str) -> None:
    agent = user_of(lambda ctx, _: ctx.raise_callback("q", "blocker"), None)
    await desk.prompt(agent)
    value = {"x": TOO_MUCH[attack]()}

    async with measured() as cost:
        with pytest.raises(
            AnswerRefused, match=r"may have at most 1000000 bytes of JSON, nested at most 100 levels deep: it"
        ):
            await desk.settle(agent, value)

    cost.check()
    assert len(await desk.inbox(agent)) == 1


@pytest.mark.parametrize("attack", TOO_MUCH)
async def test_edited_arguments_that_are_too_much_are_refused_before_they_are_checked(
    desk: Desk, attack: str
) -> None:
    @tool(needs_approval=True)
    def pay(to: dict[str, Any]) -> str:
        return "paid"

    agent = Agent("a", model=Script([call("pay", to={})]), tools=[pay])
    await desk.prompt(agent)
    value = {"to": {"x": TOO_MUCH[attack]()}}

    async with measured() as cost:
        for answer in (Approve(args=value), {"args": value}):
            with pytest.raises(AnswerRefused, match="may have at most 1000000 bytes of JSON"):
                await desk.settle(agent, answer)

    cost.check()


@pytest.mark.parametrize("attack", slow_but(FEW, TOO_MUCH))
async def test_a_call_with_too_much_in_its_arguments_gets_an_error_and_the_log_stays_readable(
    place: Desk, attack: str
) -> None:
    @tool
    def take(x: Any) -> str:
        return "taken"

    def play(request: Request) -> Any:
        results = request.messages[-1].results
        return results[0].text if results else call("take", x=value)

    value = TOO_MUCH[attack]()
    agent = Agent("a", model=Script(play), tools=[take])

    async with measured() as cost:
        reply = await place.prompt(agent)

    assert "take did not run, because its arguments are wrong" in reply.text
    assert f"of at most {ARGUMENTS} bytes, nested at most {DEPTH} levels deep" in reply.text
    assert (await place.messages(agent))[-1].text == reply.text
    cost.check()


async def test_a_hook_that_nests_too_deeply_fails_by_its_name_and_the_log_stays_readable(place: Desk) -> None:
    @tool
    def take(x: Any) -> str:
        return "taken"

    def deepen(session: SessionAccess, one: Call) -> Call:
        return one.replace(args={"x": nested(400)})

    agent = Agent("a", model=Script([call("take", x=1)]), tools=[take], hooks=Hooks(before_tool=[deepen]))

    with pytest.raises(UpcallError, match="deepen"):
        await place.prompt(agent)

    assert [event.type for event in await place.log(agent)][-1] == "turn_ended"


async def test_a_deep_result_is_told_as_text_and_read_again_from_the_log(place: Desk) -> None:
    @tool
    def look() -> Any:
        return nested(500, "found")

    agent = Agent("a", model=Script([call("look"), "done"]), tools=[look], limits=Limits(result_chars=None))

    assert (await place.prompt(agent)).text == "done"

    [result] = [m.results[0] for m in await place.messages(agent) if m.results]
    assert result.json is None
    assert "found" in result.text
    assert not result.is_error


async def test_a_response_of_a_thousand_calls_runs_and_one_of_more_fails_the_turn(desk: Desk) -> None:
    @tool(inline=True)
    def step() -> str:
        return "."

    most = Agent("a", model=Script([[call("step")] * 1000, "done"]), tools=[step])
    more = Agent("a", model=Script([[call("step")] * 1001]), tools=[step])

    assert (await desk.prompt(most)).text == "done"
    with pytest.raises(UpcallError, match="sent 1001 tool calls in one response; at most 1000 are accepted"):
        await desk.prompt(more, id="t")


async def test_a_call_by_a_name_of_a_megabyte_is_told_shortly_that_there_is_no_such_tool(desk: Desk) -> None:
    def play(request: Request) -> Any:
        results = request.messages[-1].results
        return results[0].text if results else call("x" * 1_000_000)

    async with measured() as cost:
        reply = await desk.prompt(Agent("a", model=Script(play)))

    assert reply.text.startswith("there is no tool called")
    assert len(reply.text) < 1000
    cost.check()


async def test_usage_below_zero_counts_as_nothing_whoever_reports_it(desk: Desk) -> None:
    model = Script([Response("hi", usage=Usage(-5_000_000, 7, -1))])

    reply = await desk.prompt(Agent("a", model=model))

    assert reply.usage == Usage(0, 7, 0)


def test_a_shared_value_is_counted_as_often_as_it_is_written() -> None:
    text = "x" * 1000

    assert excess([text] * 10, 10_100) == ""
    assert excess([text] * 11, 10_100) == "it has more than 10100 bytes"
    assert excess([text] * 10, 10_100, parts=9) == "it has more than 9 values"


class _Holder(Value, frozen=True):
    inside: Any


class _Names(dict[str, Any]):
    """A dict of another class, which JSON writes as one."""


def test_what_hides_in_objects_and_subclasses_is_counted_too() -> None:
    for hidden in (_Holder(nested(200)), _Names(x=nested(200)), _Names(x=["x" * 1000] * 1000)):
        with pytest.raises(ValueError, match=r"nested too deeply|bytes"):
            plain({"x": hidden}, 100_000)
    assert plain(_Holder(nested(50, 1)), 1000) == {"inside": nested(50, 1)}


def test_json_text_is_read_at_the_bound_and_refused_above_it() -> None:
    assert read_bounded_json("[" * DEPTH + "]" * DEPTH, 1000) == nested(DEPTH - 1, [])
    for wrong in ("[" * 101 + "]" * 101, "[" * 960 + "]" * 960, "[" * 5000 + "]" * 5000, '"' + "x" * 10_000 + '"'):
        with pytest.raises(ValueError, match=r"nested too deeply|it has \d+ bytes"):
            read_bounded_json(wrong, 10_001)
    with pytest.raises(ValueError, match="more than 100000 values"):
        read_bounded_json("[" + "{}," * 100_001 + "{}]", 1_000_000)


def test_results_keep_their_structure_up_to_a_megabyte_and_then_only_their_text() -> None:
    from upcall.tools import to_result

    kept, cut = to_result("c", ["x" * 999_990]), to_result("c", ["x" * 1_000_000])

    assert kept.json == ["x" * 999_990]
    assert isinstance(cut, Result)
    assert cut.json is None
    assert len(cut.text) == 1_000_004


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack", ["one text of a megabyte 400 times", "a list doubled 60 times", "a million empty texts"]
)
async def test_a_tools_value_that_is_too_large_is_an_error_result_and_is_never_written_out(
    desk: Desk, attack: str
) -> None:
    @tool
    def give() -> Any:
        return TOO_MUCH[attack]()

    def play(request: Request) -> Any:
        results = request.messages[-1].results
        return results[0].text if results else call("give")

    async with measured() as cost:
        reply = await desk.prompt(Agent("a", model=Script(play), tools=[give]))

    assert reply.text.startswith("the tool ran, but what it returned is too large: it has more than")
    cost.check()


def test_a_tools_value_at_the_bound_is_its_result() -> None:
    from upcall.tools import to_result

    assert not to_result("c", [0] * (RESULT_PARTS - 1)).is_error
    assert to_result("c", [0] * (RESULT_PARTS + 1)).is_error
    assert not to_result("c", ["x" * 1000] * 3900).is_error
    assert to_result("c", ["x" * 1000] * 4001).is_error


async def test_a_call_with_thousands_of_unknown_arguments_is_told_the_first_ones(desk: Desk) -> None:
    @tool
    def take(x: int) -> str:
        return "taken"

    def play(request: Request) -> Any:
        results = request.messages[-1].results
        return results[0].text if results else call("take", **{f"k{n}": n for n in range(40_000)})

    async with measured() as cost:
        reply = await desk.prompt(Agent("a", model=Script(play), tools=[take]))

    assert reply.text.count("unknown argument") == 20
    assert reply.text.endswith("…")
    cost.check()


class _Leaf(msgspec.Struct, tag="leaf"):
    below: _Leaf | _Branch | None = None


class _Branch(msgspec.Struct, tag="branch"):
    below: _Leaf | _Branch | None = None


@pytest.mark.parametrize("last", [None, {"type": "leaf", "stranger": 1}])
async def test_arguments_that_are_trees_of_unions_are_checked_once_a_level(desk: Desk, last: Any) -> None:
    @tool
    def take(tree: _Leaf | _Branch) -> str:
        return "taken"

    value = last
    for _ in range(60):
        value = {"type": "branch", "below": value}

    def play(request: Request) -> Any:
        results = request.messages[-1].results
        return results[0].text if results else call("take", tree=value)

    async with measured() as cost:
        reply = await desk.prompt(Agent("a", model=Script(play), tools=[take]))

    assert reply.text == "taken" if last is None else "unknown field `stranger`" in reply.text
    cost.check()


JSON_VALUES = st.recursive(
    st.text('a",:[{\\]}\n', max_size=6),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text('a",[{\\', max_size=4), inner, max_size=5),
    max_leaves=30,
)


def _commas_and_brackets(value: Any) -> int:
    """How many commas and opening brackets the JSON of a value has outside its texts."""
    if isinstance(value, dict):
        parts = [*cast("dict[str, Any]", value).values()]
    elif isinstance(value, list):
        parts = cast("list[Any]", value)
    else:
        return 0
    return 1 + max(0, len(parts) - 1) + sum(map(_commas_and_brackets, parts))


@given(JSON_VALUES, st.integers(65_000, 65_800))
def test_the_values_of_a_json_text_are_counted_without_those_in_its_texts(value: Any, long: int) -> None:
    text = json.dumps([',[{"\\' * (long // 8), value])
    count = _commas_and_brackets(["", value])

    assert excess_in_text(text, len(text), parts=count) == ""
    assert excess_in_text(text, len(text), parts=count - 1) == f"it has more than {count - 1} values"


async def test_a_json_text_of_very_many_values_is_refused_before_it_is_read() -> None:
    text = b'{"a":0' + b',"b":1' * 2_000_000 + b"}"
    async with measured() as cost:
        with pytest.raises(ValueError, match="more than 100000 values"):
            read_bounded_json(text, len(text))
    cost.check()
