"""The small pieces: rate_limit, stuck, log_calls, and adding to instructions."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from core.doubles import Asked, Place, crash, turn
from upcall import Agent, BadKit, Call, Hooks, Request, Response, Runtime, SessionAccess, Usage, tool
from upcall.kit import add_instructions, log_calls, rate_limit, stuck
from upcall.messages import Instruction, Text
from upcall.models import Script, call


@tool
async def echo(word: str) -> str:
    """Say it back."""
    if word == "bad":
        raise ValueError("no such word")
    return word


@tool
async def other() -> str:
    """Something else."""
    return "other"


def texts(request: Request) -> list[str]:
    return [r.text for m in request.messages for r in m.results]


# --- rate_limit -------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_a_tool_that_is_called_too_soon_is_refused_with_how_long_to_wait(place: Place) -> None:
    clock, asked = Clock(), Asked()

    def decide(request: Request) -> Any:
        done = len(texts(request))
        clock.now += [0.0, 4.0, 3.5, 2.5, 0.0][min(done, 4)]
        return call("echo", word="x") if done < 4 else "ok"

    agent = Agent("a", model=Script(asked.then(decide)), tools=[echo], kit=[rate_limit(10, clock=clock)])
    async with Runtime(place.store(), agents=[agent]) as runtime:
        await (await runtime.start(agent, "s")).prompt("go")

    assert texts(asked.requests[-1]) == [
        "x",
        "Rate limited: wait 6 s before you call echo again.",
        "Rate limited: wait 2.5 s before you call echo again.",
        "x",
    ]


async def test_each_tool_has_its_own_limit_and_only_those_named_have_one() -> None:
    asked, script = Asked(), [[call("echo", word="1"), call("other"), call("other"), call("echo", word="2")], "ok"]
    agent = Agent("a", model=Script([script[0], asked.then(lambda r: "ok")]), tools=[echo, other],
                  kit=[rate_limit(60, "echo", clock=Clock())])  # fmt: skip
    await turn(agent)

    assert texts(asked.requests[0])[:3] == ["1", "other", "other"]
    assert "wait 60 s" in texts(asked.requests[0])[3]


async def test_the_time_of_the_last_call_is_remembered_by_another_process(place: Place) -> None:
    clock, asked = Clock(), Asked()
    script = Script(asked.then(lambda r: call("echo", word="x") if r.messages[-1].role == "user" else "ok"))
    agent = Agent("a", model=script, tools=[echo], kit=[rate_limit(10, clock=clock)])
    for number in range(2):
        async with Runtime(place.store(), agents=[agent]) as runtime:
            session = await (runtime.load("s") if number else runtime.start(agent, "s"))
            await session.prompt("go")

    assert texts(asked.requests[-1])[0] == "x"
    assert "wait 10 s" in texts(asked.requests[-1])[1]


async def test_a_call_that_never_started_is_not_refused_for_its_own_sake(place: Place) -> None:
    clock, asked = Clock(), Asked()
    script = Script(asked.then(lambda r: call("echo", word="x") if r.messages[-1].role == "user" else "ok"))

    async def stores(session: SessionAccess, call: Call) -> None:
        await session.get_history()  # which stores what was written before it

    hooks = Hooks(before_tool=[stores])
    agent = Agent("a", model=script, tools=[echo], kit=[rate_limit(10, clock=clock)], hooks=hooks)
    for appends in range(2, 20):
        place.clear()
        if await crash(place, agent, appends):
            break
        clock.now += 1
        async with Runtime(place.store(), agents=[agent]) as runtime:
            await runtime.resume("s", take_over=True)
        assert "Rate limited" not in str(texts(asked.requests[-1]))
    else:
        raise AssertionError("its turn never ended")


async def test_answering_and_delegating_are_not_slowed_down() -> None:
    low = Agent("low", model=Script(lambda r: "yes"))
    asked = Asked()
    script = Script([[call("task", agent="low", prompt="a"), call("task", agent="low", prompt="b")],
                     asked.then(lambda r: "ok")])  # fmt: skip
    await turn(Agent("a", model=script, agents=[low], kit=[rate_limit(60)]))

    assert texts(asked.requests[0]) == ["yes", "yes"]


@pytest.mark.parametrize("seconds", [0, -1, "1", True])
def test_an_interval_that_is_none_is_refused(seconds: Any) -> None:
    with pytest.raises(BadKit, match="rate_limit: seconds="):
        rate_limit(seconds)


# --- stuck ------------------------------------------------------------------------------


def circling(request: Request) -> Any:
    results = texts(request)
    return results[-1] if results and "says" in results[-1] else call("echo", word="x")


async def test_the_same_call_again_and_again_asks_whoever_gave_the_work(tmp_path: Path) -> None:
    agent = Agent("a", model=Script(circling), tools=[echo], kit=[stuck(3)])
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        assert (await session.prompt("go")).status == "waiting"
        (callback,) = await runtime.inbox()
        assert "call number 3 of echo with the same arguments" in callback.message
        assert callback.intent == "blocker"
        assert (callback.context["tool"], callback.context["arguments"]) == ("echo", {"word": "x"})
        await runtime.answer(callback.id, "read the manual", by="me")
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        reply = await runtime.resume("s")

        assert reply.text.endswith("Whoever gave you this work says: read the manual")
        assert len([e async for e in runtime.events("s") if e.type == "tool_started"]) == 2


async def test_a_caller_that_is_an_agent_is_asked_and_counting_begins_anew() -> None:
    def low(request: Request) -> Any:
        said = [t for t in texts(request) if "says" in t]
        return f"{len(texts(request))} calls, {said[-1][-4:]}" if len(said) == 2 else call("echo", word="x")

    def top(request: Request) -> Any:
        if request.purpose == "side_turn":
            return call("answer_callback", value="stop")
        results = texts(request)
        return results[0] if results else call("task", agent="low", prompt="go")

    below = Agent("low", model=Script(low), tools=[echo], kit=[stuck(3)])
    reply = await turn(Agent("top", model=Script(top), agents=[below]))

    assert reply.text == "6 calls, stop"


async def test_failures_without_end_are_no_progress_though_the_arguments_differ(tmp_path: Path) -> None:
    bad, good = call("echo", word="bad"), call("other")
    calls = [bad, good, call("nowhere"), call("echo", wrong=1), bad, good]

    def decide(request: Request) -> Any:
        return calls[len(texts(request))] if len(texts(request)) < len(calls) else "ok"

    agent = Agent("a", model=Script(decide), tools=[echo, other], kit=[stuck(3)])
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        assert (await (await runtime.start(agent, "s")).prompt("go")).status == "waiting"
        (callback,) = await runtime.inbox()
        assert callback.message == "I seem to be stuck: the last 3 calls have failed; the next would be other."


async def test_with_nobody_to_ask_the_loop_ends_and_the_turn_does_not_fail() -> None:
    asked = Asked()

    def decide(request: Request) -> Any:
        return "I give up" if any("stuck" in t for t in texts(request)) else call("echo", word="x")

    agent = Agent("a", model=Script(asked.then(decide)), tools=[echo], kit=[stuck(2)])
    reply = await turn(agent)

    assert reply.text == "I give up"
    assert len(asked) == 3


async def test_other_arguments_or_another_turn_are_no_circle() -> None:
    def decide(request: Request) -> Any:
        number = len(texts(request))
        return call("echo", word=str(number % 4)) if request.messages[-1].role == "user" or number % 4 else "ok"

    agent = Agent("a", model=Script(decide), tools=[echo], kit=[stuck(2)])
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        for _ in range(4):
            assert (await session.prompt("go")).text == "ok"
        assert not [t for m in session.get_messages() for r in m.results if "stuck" in (t := r.text)]


# --- log_calls --------------------------------------------------------------------------


async def test_calls_are_told_to_a_logger_each_on_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mine")
    script = Script([Response("", [call("echo", word="a\nb" + "x" * 500)], usage=Usage(10, 2)),
                     [call("echo", word="bad")], "bye\x1b[31m"])  # fmt: skip
    agent = Agent("a", model=script, tools=[echo], kit=[log_calls("mine")])
    async with Runtime(agents=[agent]) as runtime:
        await (await runtime.start(agent, "s")).prompt("go")

    lines = [r.getMessage() for r in caplog.records if r.name == "mine"]
    assert lines[0] == "a s: session begins"
    assert lines[1] == "a s: model calls echo (10 + 2 tokens)"
    assert lines[2].startswith(r'a s: r1c0 echo({"word":"a\nbxxx')
    assert lines[3].startswith("a s: r1c0 echo ended: ")
    assert 'a s: r2c0 echo failed: "echo failed: ValueError: no such word"' in lines
    assert lines[-1] == r'a s: model says "bye\u001b[31m" (0 + 0 tokens)'
    assert all("\n" not in line and len(line) < 300 for line in lines)


async def test_without_a_logger_it_is_upcalls_own(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "upcall.calls")
    await turn(Agent("a", model=Script(["ok"]), kit=[log_calls(), log_calls(logging.getLogger("other"))]))

    assert {r.name for r in caplog.records} == {"upcall.calls"}
    with pytest.raises(BadKit, match="logger must be a"):
        log_calls(3)  # pyright: ignore[reportArgumentType]


# --- instructions -----------------------------------------------------------------------


@pytest.mark.parametrize("more", ["More.", Text("More."), [Instruction("More.")], ["More.", Text(" ")]])
def test_text_and_parts_are_added_to_instructions(more: Any) -> None:
    assert add_instructions(Request("a", "turn", "Be.", []), more).instructions == "Be.\n\nMore."
    assert add_instructions(Request("a", "turn", "", []), more).instructions == "More."


def test_nothing_to_add_leaves_the_request_as_it_is() -> None:
    request = Request("a", "turn", "Be.", [])
    assert add_instructions(request, "") is request
    assert add_instructions(request, []) is request
