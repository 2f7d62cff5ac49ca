"""Code that runs again after a wait sees what its first run saw, and has to take the answer that it was given."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from callbacks.doubles import Desk, results
from upcall import (
    Agent,
    Callback,
    CallbackExpired,
    ChildFailed,
    Context,
    HookFailed,
    Hooks,
    ModelRefused,
    ReplayMismatch,
    Reply,
    Request,
    SessionAccess,
    UpcallError,
    tool,
)
from upcall.models import Script, call

# --- a prompt of a hook or a tool that failed ---------------------------------------------


@tool(read_only=True)
async def look(number: int) -> str:
    """Look."""
    return f"looked {number}"


class Thinks:
    """A hook or tool that prompts its own agent, and asks a person if that fails. Notes how each prompt ended."""

    def __init__(self, side_turn: Callable[[Request], Any]) -> None:
        self.ended: list[str] = []
        self._side_turn = side_turn

    async def think(self, session: SessionAccess) -> str:
        try:
            return f"thought {await session.prompt('think')}"
        except ChildFailed as error:
            self.ended.append(str(error))
            return f"told {await session.raise_callback('thinking failed, what now?', 'blocker')}"

    def agent(self, by: str) -> Agent:
        async def hook(session: SessionAccess, _: Any) -> str:
            return await self.think(session)

        @tool
        async def decide(ctx: Context) -> str:
            """Decide."""
            return await self.think(ctx)

        def play(request: Request) -> Any:
            if request.purpose == "side_turn":
                return self._side_turn(request)
            if by == "hook":
                return f"heard: {request.messages[-1].text}"
            found = results(request.messages)
            return f"heard: {found[-1].text}" if found else call("decide")

        if by == "hook":
            return Agent("a", model=Script(play), tools=[look], hooks=Hooks(pre_request=[hook]))
        return Agent("a", model=Script(play), tools=[look, decide])


@pytest.mark.parametrize("by", ["hook", "tool"])
async def test_a_prompt_that_reached_a_limit_fails_the_same_way_when_its_code_runs_again(
    by: str, place: Desk
) -> None:
    thinks = Thinks(lambda request: call("look", number=len(results(request.messages))))
    agent = thinks.agent(by)
    assert (await place.prompt(agent)).status == "waiting"
    await place.settle(agent, "delete nothing")

    assert (await place.resume(agent)).text == "heard: told delete nothing"
    assert len(thinks.ended) == 2
    assert len({*thinks.ended}) == 1


@pytest.mark.parametrize("by", ["hook", "tool"])
async def test_a_prompt_that_failed_is_not_repeated_when_its_code_runs_again(by: str, place: Desk) -> None:
    asked: list[str] = []

    def refuse_once(request: Request) -> Any:
        asked.append(request.purpose)
        return ModelRefused("script", "not today") if len(asked) == 1 else "a second thought"

    thinks = Thinks(refuse_once)
    agent = thinks.agent(by)
    assert (await place.prompt(agent)).status == "waiting"
    await place.settle(agent, "delete nothing")

    assert (await place.resume(agent)).text == "heard: told delete nothing"
    assert len(asked) == 1
    assert len(thinks.ended) == 2
    assert len({*thinks.ended}) == 1


async def test_a_prompt_that_failed_its_turn_is_retried_when_the_turn_is_resumed(place: Desk) -> None:
    asked: list[str] = []

    def play(request: Request) -> Any:
        if request.purpose != "side_turn":
            return f"heard: {request.messages[-1].text}"
        asked.append(request.purpose)
        return ModelRefused("script", "not today") if len(asked) < 3 else "a third thought"

    async def hook(session: SessionAccess, _: Any) -> str:
        return await session.prompt("think")

    agent = Agent("a", model=Script(play), hooks=Hooks(pre_request=[hook]))
    with pytest.raises(HookFailed, match="not today"):
        await place.prompt(agent)
    with pytest.raises(HookFailed, match="not today"):
        await place.resume(agent)

    assert (await place.resume(agent)).text == "heard: a third thought"


async def test_a_failed_prompt_that_a_hook_acted_on_is_not_repeated_when_another_one_failed_the_turn(
    place: Desk,
) -> None:
    asked: list[str] = []

    def play(request: Request) -> Any:
        if request.purpose != "side_turn":
            return f"heard: {request.messages[-1].text}"
        asked.append(request.messages[-1].text)
        return ModelRefused("script", "no") if asked.count(asked[-1]) == 1 else f"thought of {asked[-1]}"

    async def hook(session: SessionAccess, _: Any) -> str:
        try:
            first = await session.prompt("one")
        except ChildFailed:
            first = await session.raise_callback("one failed, what now?", "blocker")
        return f"{first}, {await session.prompt('two')}"

    agent = Agent("a", model=Script(play), hooks=Hooks(pre_request=[hook]))
    await place.prompt(agent)
    await place.settle(agent, "go on")
    with pytest.raises(HookFailed, match="ChildFailed"):
        await place.resume(agent)

    assert (await place.resume(agent)).text == "heard: go on, thought of two"
    assert asked == ["one", "two", "two"]


async def test_a_prompt_that_its_own_code_cancelled_is_continued_when_the_code_runs_again(place: Desk) -> None:
    asked: list[str] = []

    async def play(request: Request) -> Any:
        if request.purpose != "side_turn":
            return f"heard: {request.messages[-1].text}"
        asked.append(request.messages[-1].text)
        if asked.count(asked[-1]) > 1:
            return f"thought of {asked[-1]}"
        return ModelRefused("script", "no") if asked[-1] == "one" else await asyncio.Event().wait()

    async def hook(session: SessionAccess, _: Any) -> str:
        async with asyncio.TaskGroup() as group:  # the failure of one cancels the other
            second = group.create_task(session.prompt("two"))
            first = group.create_task(session.prompt("one"))
        return f"{first.result()}, {second.result()}"

    agent = Agent("a", model=Script(play), hooks=Hooks(pre_request=[hook]))
    with pytest.raises(HookFailed):
        await place.prompt(agent)

    assert (await place.resume(agent)).text == "heard: thought of one, thought of two"


# --- hooks and the answers that they were given -------------------------------------------


@tool
async def pay() -> str:
    """Pay."""
    return "paid"


def pays_once(request: Request) -> Any:
    found = results(request.messages)
    return found[-1].text if found else call("pay")


@pytest.mark.parametrize(
    "point", ["pre_request", "before_model", "post_response", "before_tool", "after_tool", "end_turn"]
)
async def test_a_hook_that_runs_again_and_does_not_take_its_answer_fails_the_turn(point: str, place: Desk) -> None:
    runs: list[int] = []

    async def forgetful(session: SessionAccess, *_: Any) -> None:
        runs.append(1)
        if len(runs) == 1:
            await session.raise_callback("May I pay?", "blocker")

    agent = Agent("a", model=Script(pays_once), tools=[pay], hooks=Hooks(**{point: [forgetful]}))
    await place.prompt(agent)
    await place.settle(agent, "no")

    with pytest.raises(HookFailed, match=r"hook .*'May I pay\?' was answered 'no'") as failed:
        await place.resume(agent)
    assert isinstance(failed.value.__cause__, ReplayMismatch)
    if point == "before_tool":
        assert not any(event.type == "tool_started" for event in await place.log(agent))


async def test_a_hook_that_noted_its_answer_need_not_ask_again_when_the_turn_is_resumed(place: Desk) -> None:
    tries: list[int] = []

    async def remembers(session: SessionAccess, _: Any) -> None:
        if session.get_context("told") is None:
            session.set_context("told", await session.raise_callback("May I pay?", "blocker"))
            tries.append(1)
            raise ValueError("the hook fails after it noted the answer")

    agent = Agent("a", model=Script(pays_once), tools=[pay], hooks=Hooks(pre_request=[remembers]))
    await place.prompt(agent)
    await place.settle(agent, "yes")
    with pytest.raises(HookFailed):
        await place.resume(agent)

    assert (await place.resume(agent)).text == "paid"
    assert tries == [1]


@pytest.mark.parametrize("point", ["begin_session", "pre_request", "post_response", "after_tool", "end_turn"])
async def test_a_turn_continues_if_the_hooks_that_asked_are_gone(point: str, place: Desk) -> None:
    async def asks(session: SessionAccess, *_: Any) -> None:
        await session.raise_callback("May I pay?", "blocker")

    agent = Agent("a", model=Script(pays_once), tools=[pay], hooks=Hooks(**{point: [asks]}))
    async with place.runtime(agent) as runtime:
        session = await runtime.start(agent, "s")
        if point != "begin_session":
            await session.prompt("go")
    await place.settle(agent, "yes")

    without = agent.replace(hooks=Hooks())
    async with place.runtime(without) as runtime:
        reply = await runtime.resume("s")
        if point == "begin_session":
            reply = await (await runtime.load("s")).prompt("go")
    assert (reply.status, reply.text) == ("done", "paid")


# --- the time of the agent that is asked last ---------------------------------------------


def asks_slow_boss(outcome: list[Any], fallback: str, **options: Any) -> Agent:
    @tool
    async def question(ctx: Context) -> str:
        """Ask."""
        try:
            outcome.append(await ctx.raise_callback("Which one?", "query", **options))
        except CallbackExpired as error:
            outcome.append(error)
        return "asked"

    policy = {"timeout": 0.05, "fallback_target": fallback}
    kid = Agent("kid", model=Script([call("question"), "done"]), tools=[question], callback_policy=policy)

    async def play(request: Request) -> Any:
        if request.purpose == "side_turn":
            await asyncio.Event().wait()
        return "done" if results(request.messages) else call("task", agent="kid", prompt="go")

    return Agent("boss", model=Script(play), agents=[kid])


async def test_a_callback_expires_when_the_agent_that_is_asked_last_has_no_time_left(place: Desk) -> None:
    outcome: list[Any] = []
    reply = await place.prompt(asks_slow_boss(outcome, "fail"))

    (callback,) = reply.callbacks
    assert (callback.status, [step.step for step in callback.path]) == ("expired", ["asked", "passed"])
    assert isinstance(outcome[0], CallbackExpired)


async def test_an_expired_callback_says_how_long_it_waited_and_not_how_long_it_might_have(place: Desk) -> None:
    outcome: list[Any] = []
    await place.prompt(asks_slow_boss(outcome, "fail", timeout=3600))

    assert outcome[0].after < 60


async def test_a_default_is_returned_when_the_agent_that_is_asked_last_has_no_time_left(place: Desk) -> None:
    outcome: list[Any] = []
    reply = await place.prompt(asks_slow_boss(outcome, "fail", default="the first"))

    assert (reply.callbacks[0].status, outcome) == ("expired", ["the first"])


# --- questions that are refused -----------------------------------------------------------


async def refusal_of(desk: Desk, **options: Any) -> str:
    """Return why a question with these options is refused where it is asked."""
    found: list[str] = []

    @tool
    async def question(ctx: Context) -> str:
        """Ask."""
        try:
            await ctx.raise_callback("Which one?", **options)
        except UpcallError as error:
            found.append(str(error))
        return "asked"

    await desk.prompt(Agent("a", model=Script([call("question"), "done"]), tools=[question]))
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("timeout", [math.inf, math.nan, 1e10, 10**30, -1, 0, True, "soon"])
async def test_a_timeout_that_is_no_time_is_refused_where_it_is_given(timeout: Any, desk: Desk) -> None:
    refusal = await refusal_of(desk, timeout=timeout)
    assert "timeout=" in refusal
    assert "1,000,000,000" in refusal


@pytest.mark.parametrize(
    "options",
    [
        {"callback_type": "x" * 1_100_000},
        {"resolvable_by": ["boss" * 300_000]},
        {"passthrough_agents": [f"agent{number}" for number in range(100_000)]},
    ],
    ids=["intent", "a name in a hint", "many names in a hint"],
)
async def test_a_question_whose_intent_or_hints_are_too_large_is_refused(options: Any, desk: Desk) -> None:
    refusal = await refusal_of(desk, **options)
    assert "1000000 bytes" in refusal
    assert len(refusal) < 1000


# --- the callbacks of a reply -------------------------------------------------------------


async def test_the_reply_of_a_child_and_the_one_of_end_turn_hooks_have_the_callbacks_of_their_tree(
    place: Desk,
) -> None:
    seen: dict[str, tuple[Callback, ...]] = {}

    @tool
    async def question(ctx: Context) -> str:
        """Ask."""
        return await ctx.raise_callback("Which one?", "blocker")

    def asks(request: Request) -> Any:
        found = results(request.messages)
        return found[-1].text if found else call("question")

    kid = Agent("kid", model=Script(asks), tools=[question])

    async def starts(session: SessionAccess, _: Any) -> None:
        seen["child"] = (await session.start_child("kid", "go")).callbacks

    async def ends(_: SessionAccess, reply: Reply) -> None:
        seen["end_turn"] = reply.callbacks

    async def asks_too(session: SessionAccess, _: Reply) -> None:
        await session.raise_callback("Anything else?", "blocker")

    hooks = Hooks(pre_request=[starts], end_turn=[asks_too, ends])
    agent = Agent("a", model=Script(lambda request: "done"), agents=[kid], hooks=hooks)
    await place.prompt(agent)
    await place.settle(agent, "this one")
    await place.resume(agent)
    await place.settle(agent, "no")
    reply = await place.resume(agent)

    told = [(one.message, one.status) for one in reply.callbacks]
    assert told == [("Which one?", "answered"), ("Anything else?", "answered")]
    assert {where: [(one.message, one.status) for one in found] for where, found in seen.items()} == {
        "child": told[:1],
        "end_turn": told,
    }
