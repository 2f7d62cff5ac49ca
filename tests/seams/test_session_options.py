"""Options of one session: one of its agent's models, and approvals for more than its agent declares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from upcall import (
    Agent,
    Approve,
    BadAgent,
    Context,
    Hooks,
    Limits,
    Reject,
    Runtime,
    SessionAccess,
    SessionOptions,
    SetupError,
    chain,
    tool,
)
from upcall.models import Script, call

ASK = SessionOptions(approvals="ask")


@tool
def write(text: str) -> str:
    """Change something."""
    return f"wrote {text}"


@tool(read_only=True)
def read() -> str:
    """Change nothing."""
    return "read it"


def say(text: str) -> Script:
    return Script(lambda request: text)


def several(**more: Any) -> Agent:
    return Agent("several", model=say("own"), models={"fast": say("fast"), "deep": say("deep")}, **more)


def repeat(request: Any) -> str:
    return request.messages[-1].results[0].text


def caller(name: str, **more: Any) -> Agent:
    """An agent that calls one tool in each turn and says what came of it."""

    def decide(request: Any) -> Any:
        if request.messages[-1].role == "tool":
            return repeat(request)
        return [call(name, **({"text": "a"} if name == "write" else {}))]

    return Agent("caller", model=Script(decide), tools=[write, read], **more)


# --- models -----------------------------------------------------------------------------


async def test_a_session_uses_the_model_that_was_chosen_for_it_and_others_the_agent_s() -> None:
    agent = several()
    async with Runtime(agents=[agent]) as runtime:
        deep = await runtime.start(agent, options=SessionOptions(model="deep"))
        fast = await runtime.start(agent, options=SessionOptions("fast"))
        own = await runtime.start(agent)
        said = [(await session.prompt("Go.")).text for session in (deep, fast, own, deep)]
    assert said == ["deep", "fast", "own", "deep"]
    assert (deep.options.model, own.options) == ("deep", SessionOptions())


async def test_without_a_model_of_its_own_the_first_of_its_models_is_the_agent_s() -> None:
    agent = Agent("a", models={"fast": say("fast"), "deep": say("deep")})
    async with Runtime(agents=[agent]) as runtime:
        assert (await (await runtime.start(agent)).prompt("Go.")).text == "fast"


async def test_options_are_switched_between_turns_and_stored(tmp_path: Path) -> None:
    agent = several()
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        session = await runtime.start(agent, id="s", options=SessionOptions("deep"))
        assert (await session.prompt("Go.")).text == "deep"
        await session.set_options(SessionOptions("fast"))
        assert session.options.model == "fast"
        assert (await session.prompt("Go.")).text == "fast"
        await session.set_options(SessionOptions("deep", "ask"))
    async with Runtime(tmp_path / "log.db", agents=[several()]) as runtime:
        session = await runtime.load("s")
        assert session.options == SessionOptions("deep", "ask")
        assert (await session.prompt("Go.")).text == "deep"
        await session.set_options(SessionOptions())
        assert (await session.prompt("Go.")).text == "own"


async def test_options_survive_a_compaction(tmp_path: Path) -> None:
    agent = several()
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        session = await runtime.start(agent, id="s")
        for _ in range(3):
            await session.prompt("Go.")
        await session.set_options(SessionOptions("deep", "ask"))
        await session.trigger_compaction(keep_last=1)
    async with Runtime(tmp_path / "log.db", agents=[several()]) as runtime:
        session = await runtime.load("s")
        assert session.options == SessionOptions("deep", "ask")
        assert (await session.prompt("Go.")).text == "deep"


async def test_a_turn_that_waits_continues_with_the_options_it_began_with(tmp_path: Path) -> None:
    @tool
    async def wait(ctx: Context) -> str:
        """Ask a person."""
        return await ctx.raise_callback("Go on?")

    def model(name: str) -> Script:
        def decide(request: Any) -> Any:
            last = request.messages[-1]
            return f"{name} {last.results[0].text}" if last.role == "tool" else [call("wait")]

        return Script(decide)

    def agent() -> Agent:
        return Agent("a", models={"fast": model("fast"), "deep": model("deep")}, tools=[wait])

    async with Runtime(tmp_path / "log.db", agents=[agent()], hold=0.0) as runtime:
        session = await runtime.start("a", id="s", options=SessionOptions("deep"))
        assert (await session.prompt("Go.")).status == "waiting"
        await session.set_options(SessionOptions("fast"))
        (asked,) = await runtime.inbox()
        await runtime.answer(asked.id, "yes")
    async with Runtime(tmp_path / "log.db", agents=[agent()], hold=0.0) as runtime:
        session = await runtime.load("s")
        assert (await session.resume()).text == "deep yes"
        await session.prompt("Again.")
        (asked,) = await runtime.inbox()
        await runtime.answer(asked.id, "no")
        assert (await session.resume()).text == "fast no"


async def test_a_model_that_the_agent_no_longer_has_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    async with Runtime(tmp_path / "log.db", agents=[several()]) as runtime:
        await runtime.start("several", id="s", options=SessionOptions("deep"))
    async with Runtime(tmp_path / "log.db", agents=[Agent("several", models={"fast": say("fast")})]) as runtime:
        session = await runtime.load("s")
        with pytest.raises(SetupError, match="'several' has no model called 'deep', only fast"):
            await session.prompt("Go.")
        await session.set_options(SessionOptions("fast"))
        assert (await session.prompt("Go.")).text == "fast"


# --- approvals --------------------------------------------------------------------------


async def test_every_call_that_is_not_read_only_waits_for_an_approval(tmp_path: Path) -> None:
    writing, reading = caller("write"), caller("read").replace(name="reader")
    async with Runtime(tmp_path / "log.db", agents=[writing, reading], hold=0.0) as runtime:
        assert (await (await runtime.start(reading, options=ASK)).prompt("Go.")).text == "read it"
        assert (await (await runtime.start(writing)).prompt("Go.")).text == "wrote a"
        session = await runtime.start(writing, options=ASK)
        assert (await session.prompt("Go.")).status == "waiting"
        (asked,) = await runtime.inbox()
        assert (asked.tool, asked.intent) == ("write", "approval")
        await runtime.answer(asked.id, Approve())
        assert (await session.resume()).text == "wrote a"


async def test_agents_below_ask_too_and_one_above_can_not_approve_for_the_person(tmp_path: Path) -> None:
    below = caller("write").replace(name="below")

    def decide(request: Any) -> Any:
        if request.purpose == "side_turn":
            return [call("answer_callback", value="approve")]
        if any(message.role == "tool" for message in request.messages):
            return "done"
        return [call("task", agent="below", prompt="Go.")]

    top = Agent(
        "top", model=Script(decide), agents=[below], tools=[write], callback_policy={"may_approve": ["write"]}
    )
    async with Runtime(tmp_path / "log.db", agents=[top], hold=0.0) as runtime:
        assert (await (await runtime.start(top)).prompt("Go.")).status == "done"
        session = await runtime.start(top, options=ASK)
        assert (await session.prompt("Go.")).status == "waiting"
        (asked,) = await runtime.inbox()
        assert (asked.agent, asked.tool) == ("below", "write")
        await runtime.answer(asked.id, Reject("not today"))
        assert (await session.resume()).status == "done"


async def test_the_steps_of_a_chain_ask_too_and_a_chain_has_no_models(tmp_path: Path) -> None:
    line = chain(caller("write").replace(name="first"), caller("write").replace(name="second"))
    async with Runtime(tmp_path / "log.db", agents=[line], hold=0.0) as runtime:
        with pytest.raises(SetupError, match="has no models to choose from"):
            await runtime.start(line, options=SessionOptions("deep"))
        session = await runtime.start(line, options=ASK)
        assert (await session.prompt("Go.")).status == "waiting"
        assert [one.tool for one in await runtime.inbox()] == ["write"]


async def test_a_child_that_is_prompted_by_its_own_id_asks_as_its_root_does(tmp_path: Path) -> None:
    below = caller("write").replace(name="below")
    top = Agent("top", model=Script([call("task", agent="below", prompt="Go."), repeat]), agents=[below])
    async with Runtime(tmp_path / "log.db", agents=[top], hold=0.0) as runtime:
        session = await runtime.start(top)
        assert (await session.prompt("Go.")).text == "wrote a"
        (child,) = await runtime.rows(parent=session.id)
        assert (await (await runtime.load(child.id)).prompt("Again.")).text == "wrote a"
        await session.set_options(ASK)
        assert (await (await runtime.load(child.id)).prompt("Again.")).status == "waiting"


async def test_begin_session_hooks_start_children_that_ask_too(tmp_path: Path) -> None:
    below = caller("write").replace(name="below")

    async def begin(session: SessionAccess) -> None:
        await session.start_child("below", "Go.")

    top = Agent("top", model=say("done"), agents=[below], hooks=Hooks(begin_session=[begin]))
    async with Runtime(tmp_path / "log.db", agents=[top], hold=0.0) as runtime:
        session = await runtime.start(top, options=ASK)
        (asked,) = await runtime.inbox()
        await runtime.answer(asked.id, Approve())
        assert (await session.prompt("Go.")).text == "done"


async def test_approvals_that_the_agent_declares_stay_without_the_option(tmp_path: Path) -> None:
    @tool(needs_approval=True, read_only=True)
    def peek() -> str:
        """Look at something that matters."""
        return "peeked"

    agent = Agent("a", model=Script(lambda request: [call("peek")]), tools=[peek], limits=Limits(model_calls=9))
    async with Runtime(tmp_path / "log.db", agents=[agent], hold=0.0) as runtime:
        for options in (SessionOptions(), ASK):
            session = await runtime.start(agent, options=options)
            await session.set_options(SessionOptions())
            assert (await session.prompt("Go.")).status == "waiting"
        assert {one.tool for one in await runtime.inbox()} == {"peek"}


async def test_the_option_counts_from_the_next_turn_on_and_can_be_taken_back(tmp_path: Path) -> None:
    agent = caller("write")
    async with Runtime(tmp_path / "log.db", agents=[agent], hold=0.0) as runtime:
        session = await runtime.start(agent)
        assert (await session.prompt("Go.")).status == "done"
        await session.set_options(ASK)
        assert (await session.prompt("Go.")).status == "waiting"
        await session.set_options(SessionOptions())
        (asked,) = await runtime.inbox()
        await runtime.answer(asked.id, Approve())
        assert (await session.resume()).text == "wrote a"
        assert (await session.prompt("Go.")).text == "wrote a"


async def test_a_waiting_turn_that_continues_still_asks_after_the_option_was_taken_back(tmp_path: Path) -> None:
    def decide(request: Any) -> Any:
        done = sum(message.role == "tool" for message in request.messages)
        return [call("write", text=str(done))] if done < 2 else "done"

    def agent() -> Agent:
        return Agent("a", model=Script(decide), tools=[write])

    async with Runtime(tmp_path / "log.db", agents=[agent()], hold=0.0) as runtime:
        session = await runtime.start("a", id="s", options=ASK)
        await session.prompt("Go.")
        await session.set_options(SessionOptions())
    for expected in ("waiting", "done"):
        async with Runtime(tmp_path / "log.db", agents=[agent()], hold=0.0) as runtime:
            (asked,) = await runtime.inbox()
            await runtime.answer(asked.id, Approve())
            assert (await runtime.resume("s")).status == expected


# --- what is refused --------------------------------------------------------------------

WRONG: dict[str, Any] = {
    "options must be a SessionOptions value": {"model": "deep"},
    "has no model called 'deap', only fast, deep. Did you mean": SessionOptions("deap"),
    "has no model called 7, only fast, deep": SessionOptions(7),  # type: ignore[arg-type]
    "approvals=...) must be 'ask' or left out, not 'never'": SessionOptions(approvals="never"),  # type: ignore[arg-type]
    "approvals=...) must be 'ask' or left out, not False": SessionOptions(approvals=False),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("problem", WRONG)
async def test_wrong_options_are_refused_before_anything_is_stored(problem: str) -> None:
    agent = several()
    async with Runtime(agents=[agent]) as runtime:
        with pytest.raises(SetupError) as caught:
            await runtime.start(agent, options=WRONG[problem])
        assert problem in str(caught.value)
        assert await runtime.rows() == []
        session = await runtime.start(agent)
        with pytest.raises(SetupError):
            await session.set_options(WRONG[problem])
        assert len([event async for event in runtime.events()]) == 1


async def test_a_child_has_no_options_of_its_own() -> None:
    top = Agent("top", model=Script([call("task", agent="several", prompt="Go."), repeat]), agents=[several()])
    async with Runtime(agents=[top]) as runtime:
        session = await runtime.start(top)
        assert (await session.prompt("Go.")).text == "own"
        (child,) = await runtime.rows(parent=session.id)
        with pytest.raises(SetupError, match="set the options of"):
            await (await runtime.load(child.id)).set_options(SessionOptions("deep"))


@pytest.mark.parametrize("models", [["deep"], {"": "openai:gpt-6"}, {7: "openai:gpt-6"}, {"deep": 7}])
def test_models_that_are_none_are_refused_when_the_agent_is_declared(models: Any) -> None:
    with pytest.raises(BadAgent, match="models must map names to models"):
        Agent("a", models=models)
