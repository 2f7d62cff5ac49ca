"""Each limit: the first five end the turn by name, the last two touch one call; the session always goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from core.doubles import Asked, Place, said, turn
from upcall import (
    Agent,
    BadAgent,
    Hooks,
    LimitReached,
    Limits,
    Message,
    Reply,
    Request,
    Response,
    Runtime,
    SessionAccess,
    Tool,
    Usage,
    tool,
)
from upcall.models import Script, call


@tool
async def again() -> str:
    """Do it again."""
    return "again"


async def test_model_calls_end_the_turn_with_its_name_and_the_next_turn_continues(place: Place) -> None:
    asked = Asked()
    script = Script(asked.then(lambda r: "ok" if r.messages[-1].text == "two" else call("again")))
    agent = Agent("a", model=script, tools=[again], limits=Limits(model_calls=3))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        reply = await session.prompt("one")

        assert (reply.status, reply.limit) == ("limit", "model_calls")
        assert len(asked) == 3
        assert session.status == "limit"
        assert (await session.prompt("two")).text == "ok"
        calls = ["call again", "= again"] * 3
        assert said(asked.requests[-1].messages) == ["user: one", *calls, "user: two"]


async def test_tokens_end_the_turn_before_the_next_model_call() -> None:
    usage = Usage(input_tokens=60, output_tokens=50)
    asked = Asked()
    script = Script(asked.then(lambda r: Response(calls=(call("again"),), usage=usage)))

    reply = await turn(Agent("a", model=script, tools=[again], limits=Limits(tokens=200)))

    assert (reply.status, reply.limit) == ("limit", "tokens")
    assert len(asked) == 2
    assert reply.usage.total == 220


async def test_turn_seconds_end_a_model_that_never_answers(place: Place) -> None:
    async def never(request: Request) -> str:
        await asyncio.Event().wait()
        return ""

    agent = Agent("a", model=Script([never, "ok"]), limits=Limits(turn_seconds=0.01))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        reply = await session.prompt("one")

        assert (reply.status, reply.limit) == ("limit", "turn_seconds")
        assert session.status == "limit"


async def test_turn_seconds_settle_the_calls_that_run(place: Place) -> None:
    @tool
    async def never() -> None:
        """Never end."""
        await asyncio.Event().wait()

    script = Script([[call("never"), call("never")]])
    agent = Agent("a", model=script, tools=[never], limits=Limits(turn_seconds=0.02))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        reply = await session.prompt("one")

        results = session.get_messages()[-1].results
        assert (reply.status, reply.limit) == ("limit", "turn_seconds")
        assert [r.is_error for r in results] == [True, True]
        assert all("turn_seconds" in r.text for r in results)
        assert (await runtime.load("s")).get_messages() == session.get_messages()


async def test_tool_seconds_give_an_error_result_and_the_turn_continues() -> None:
    @tool
    async def never() -> None:
        """Never end."""
        await asyncio.Event().wait()

    asked = Asked()
    script = Script(asked.then(lambda r: "ok" if r.messages[-1].results else [call("never"), call("again")]))

    reply = await turn(Agent("a", model=script, tools=[never, again], limits=Limits(tool_seconds=0.01)))

    stopped, other = asked.requests[1].messages[-1].results
    assert (reply.status, reply.text) == ("done", "ok")
    assert stopped.is_error
    assert "never" in stopped.text
    assert "0.01" in stopped.text
    assert other.text == "again"


async def test_a_tools_own_timeout_comes_before_the_agents() -> None:
    @tool(timeout=0.01)
    async def never() -> None:
        """Never end."""
        await asyncio.Event().wait()

    asked = Asked()
    script = Script(asked.then(lambda r: "ok" if r.messages[-1].results else call("never")))

    reply = await turn(Agent("a", model=script, tools=[never], limits=Limits(tool_seconds=60)))

    assert reply.text == "ok"
    assert asked.requests[1].messages[-1].results[0].is_error


async def test_many_calls_that_expire_one_after_the_other_are_all_stopped() -> None:
    @tool
    async def never() -> None:
        """Never end."""
        await asyncio.Event().wait()

    tools = [Tool.from_function(never.function, name=f"never{i}", timeout=0.01 + i / 1000) for i in range(20)]
    asked = Asked()
    script = Script(asked.then(lambda r: "ok" if r.messages[-1].results else [call(one.name) for one in tools]))

    reply = await turn(Agent("a", model=script, tools=tools))

    assert reply.text == "ok"
    assert all("was stopped after" in result.text for result in asked.requests[1].messages[-1].results)


def test_a_runtime_that_is_used_in_one_loop_after_another_keeps_its_time_limits() -> None:
    @tool(timeout=0.01)
    async def never() -> None:
        """Never end."""
        await asyncio.Event().wait()

    script = Script(lambda r: r.messages[-1].results[0].text if r.messages[-1].results else call("never"))
    agent = Agent("a", model=script, tools=[never])
    runtime = Runtime(":memory:", agents=[agent])

    async def run() -> str:
        return (await (await runtime.start(agent)).prompt("go")).text

    first, second = asyncio.run(run()), asyncio.run(run())

    assert first == second == "never was stopped after 0.01 s; it may have had some of its effects"


async def test_result_chars_give_a_preview_that_says_what_is_missing() -> None:
    @tool
    async def long() -> str:
        """Say a lot."""
        return "a" * 500 + "b" * 500

    asked = Asked()
    script = Script(asked.then(lambda r: "ok" if r.messages[-1].results else call("long")))

    reply = await turn(Agent("a", model=script, tools=[long], limits=Limits(result_chars=100)))

    result = asked.requests[1].messages[-1].results[0]
    assert reply.status == "done"
    assert not result.is_error
    assert result.text.startswith("a" * 40)
    assert result.text.endswith("b" * 40)
    assert "1000" in result.text
    assert len(result.text) < 200


async def test_depth_counts_from_the_root_which_is_zero() -> None:
    depth: list[str] = []

    async def deeper(session: SessionAccess, message: Message) -> None:
        depth.append(session.id)
        await session.start_child("a", "deeper")

    limits = Limits(depth=2)
    agent = Agent("a", model=Script(lambda r: "ok"), hooks=Hooks(pre_request=[deeper]), limits=limits)
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("go")
        ends = {row.id: row.status for row in await runtime.rows()}

    assert len(depth) == 3
    assert ends[depth[2]] == "limit"


async def test_children_end_the_turn_at_the_first_one_too_many() -> None:
    child = Agent("child", model=Script(lambda r: "ok"))

    async def three(session: SessionAccess, message: Message) -> None:
        for number in range(3):
            await session.start_child(child, f"number {number}")

    agent = Agent("a", model=Script(["never"]), hooks=Hooks(pre_request=[three]), limits=Limits(children=2))
    async with Runtime(agents=[agent, child]) as runtime:
        session = await runtime.start(agent, "s")
        reply = await session.prompt("go")

        assert (reply.status, reply.limit) == ("limit", "children")
        assert len(await runtime.rows(parent="s")) == 2


async def test_a_hook_may_raise_a_limit_of_its_own() -> None:
    def budget(session: SessionAccess, request: Request) -> None:
        raise LimitReached("budget", "3 euros")

    agent = Agent("a", model=Script(["never"]), hooks=Hooks(before_model=[budget]))
    reply = await turn(agent)
    assert (reply.status, reply.limit) == ("limit", "budget")


async def test_end_turn_does_not_run_after_a_limit() -> None:
    ran: list[Reply] = []
    hooks = Hooks(end_turn=[lambda session, reply: ran.append(reply)])
    script = Script(lambda r: call("again"))

    reply = await turn(Agent("a", model=script, tools=[again], hooks=hooks, limits=Limits(model_calls=1)))

    assert reply.status == "limit"
    assert ran == []


async def test_none_is_no_limit() -> None:
    names = ("model_calls", "turn_seconds", "tokens", "children", "depth", "tool_seconds", "result_chars")
    limits = Limits(**dict.fromkeys(names))
    asked = Asked()
    script = Script(asked.then(lambda r: "ok" if len(asked) > 150 else call("again")))

    reply = await turn(Agent("a", model=script, tools=[again], limits=limits))

    assert reply.text == "ok"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"model_calls": 0}, "model_calls=0 must be a number, above 0"),
        ({"tokens": -1}, "tokens=-1 must be a number, above 0"),
        ({"turn_seconds": True}, "turn_seconds=True must be a number, above 0"),
        ({"depth": "deep"}, "depth='deep' must be a number, 0 or more"),
        ({"children": -1}, "children=-1 must be a number, 0 or more"),
    ],
)
def test_a_limit_that_is_out_of_range_is_refused_with_what_is_allowed(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(BadAgent, match=says):
        Limits(**wrong)
