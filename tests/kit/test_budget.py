"""A run tree ends its turns with `limit` once it has used what it may."""

from __future__ import annotations

from typing import Any

import pytest

from core.doubles import Place
from upcall import Agent, BadKit, HookFailed, Hooks, Request, Response, Runtime, SessionAccess, Usage, tool
from upcall.events import TurnEnded
from upcall.kit import budget
from upcall.models import Script, call

USED = Usage(80, 20, 50)


@tool
async def echo(word: str) -> str:
    """Say it back."""
    return word


def endless(request: Request) -> Response:
    return Response("", [call("echo", word="x")], usage=USED, model="big-2")


@pytest.mark.parametrize(
    ("most", "calls", "limit"),
    [
        ({"calls": 3}, 3, "budget.calls"),
        ({"tokens": 250}, 3, "budget.tokens"),
        ({"tokens": 300}, 3, "budget.tokens"),
        ({"money": 0.0011, "prices": {"big-*": (5, 25)}}, 2, "budget.money"),
        ({"money": 0.0011, "prices": {"big-*": (5, 25, 0.5)}}, 2, "budget.money"),
        ({"money": 0.002, "prices": {"small": (1, 1), "*": (5, 25, 0.5)}}, 3, "budget.money"),
        ({"seconds": 1e-9, "calls": 100}, 1, "budget.seconds"),
    ],
)
async def test_a_turn_ends_with_the_limit_that_is_used_up(most: Any, calls: int, limit: str) -> None:
    agent = Agent("a", model=Script(endless), tools=[echo], kit=[budget(**most)])
    async with Runtime(agents=[agent]) as runtime:
        reply = await (await runtime.start(agent, "s")).prompt("go")
        types = [e.type async for e in runtime.events("s")]

    assert (reply.status, reply.limit) == ("limit", limit)
    assert types.count("responded") == calls if limit != "budget.seconds" else types.count("responded") <= 1


async def test_turns_and_processes_share_it(place: Place) -> None:
    agent = Agent("a", model=Script(lambda r: Response("ok", usage=USED)), kit=[budget(tokens=250)])
    limits: list[str] = []
    for number in range(5):
        async with Runtime(place.store(), agents=[agent]) as runtime:
            session = await (runtime.load("s") if number else runtime.start(agent, "s"))
            limits.append((await session.prompt("go")).limit)

    assert limits == ["", "", "", "budget.tokens", "budget.tokens"]


async def test_children_use_up_what_is_left_and_can_not_go_beyond_it(place: Place) -> None:
    low = Agent("low", model=Script(endless), tools=[echo])

    def spread(request: Request) -> Any:
        return "done" if request.messages[-1].role == "tool" else [call("task", agent="low", prompt="go")] * 3

    top = Agent("top", model=Script(spread), agents=[low], kit=[budget(calls=10)])
    async with Runtime(place.store(), agents=[top]) as runtime:
        reply = await (await runtime.start(top, "s")).prompt("go")
        asked = [e async for e in runtime.events() if e.type == "model_started"]
        ends = [e.limit async for e in runtime.events() if isinstance(e, TurnEnded)]

    assert reply.limit == "budget.calls"
    assert len(asked) == 10
    assert ends == ["budget.calls"] * 4


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_what_was_started_before_the_first_turn_here_counts_too(place: Place, *, elsewhere: bool) -> None:
    low = Agent("low", model=Script(lambda r: Response("ok", usage=USED)))

    async def delegate(session: SessionAccess, *_: Any) -> None:
        if session.agent == "top" and not session.get_context("delegated"):
            session.set_context("delegated", True)
            await session.start_child("low", "go")

    hooks = Hooks(pre_request=[delegate]) if elsewhere else Hooks(begin_session=[delegate])
    script = Script(lambda r: Response("ok", usage=USED))
    top = Agent("top", model=script, agents=[low], hooks=hooks, kit=[budget(tokens=200)])
    async with Runtime(place.store(), agents=[top]) as here, Runtime(place.store(), agents=[top]) as there:
        session = await here.start(top, "s")
        if elsewhere:
            assert (await (await there.load("s")).prompt("go")).limit == ""
        limits = [(await session.prompt("go")).limit for _ in range(2)]

    assert limits == (["budget.tokens"] * 2 if elsewhere else ["", "budget.tokens"])


async def test_a_model_without_a_price_is_not_run_on_credit() -> None:
    agent = Agent("a", model=Script(endless), tools=[echo], kit=[budget(money=1, prices={"small": (1, 2)})])
    async with Runtime(agents=[agent]) as runtime:
        with pytest.raises(
            HookFailed, match=r"prices has no entry for the model 'big-2'; it has entries for: small"
        ):
            await (await runtime.start(agent)).prompt("go")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "give at least one of tokens, money, calls and seconds"),
        ({"tokens": 0}, "tokens=0 is not a whole number above 0"),
        ({"tokens": True}, "tokens=True is not"),
        ({"calls": 1.5}, "calls=1.5 is not a whole number"),
        ({"seconds": "1"}, "seconds='1' is not a number above 0"),
        ({"money": 1}, "give money and prices together"),
        ({"calls": 1, "prices": {"*": (1, 2)}}, "give money and prices together"),
        ({"money": 1, "prices": {"*": (1,)}}, r"prices\['\*'\]=\(1,\) is not \(input, output\)"),
    ],
)
def test_what_can_be_no_budget_is_refused(given: Any, says: str) -> None:
    with pytest.raises(BadKit, match=f"budget: .*{says}"):
        budget(**given)
