"""An empty prompt is an error at every door, before anything is written or asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import upcall
from core.doubles import Asked, Place
from upcall import (
    Agent,
    Context,
    HookFailed,
    Hooks,
    Message,
    Reply,
    Runtime,
    SessionAccess,
    SetupError,
    chain,
    tool,
)
from upcall.messages import Image, Instruction, Text
from upcall.models import Script, call, openai_body
from upcall.teams import bridge

EMPTY: list[Any] = [
    "", " \n\t", Message("user", ()), Message("user", (Text(""),)), Message("user", (Text(" "), Instruction("\n"))),
]  # fmt: skip
SAYS = "the prompt is empty; say what the agent should do"


@pytest.mark.parametrize("prompt", EMPTY)
async def test_an_empty_prompt_is_an_error_and_leaves_the_log_as_it_was(prompt: Any, place: Place) -> None:
    asked = Asked()
    agent = Agent("a", model=Script(asked.then(lambda r: "ok")))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start("a", "s")
        with pytest.raises(SetupError, match=SAYS):
            await session.prompt(prompt)
        with pytest.raises(SetupError, match=SAYS):
            async for _ in session.stream(prompt):
                pass
        types = [event.type async for event in runtime.events("s")]
        assert (await session.prompt("hello")).text == "ok"

    assert (types, len(asked)) == (["session_started"], 1)


@pytest.mark.parametrize("prompt", EMPTY)
def test_the_sync_door_refuses_an_empty_prompt_before_it_begins_a_session(prompt: Any, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=SAYS):
        upcall.run(Agent("a", model=Script(["ok"])), prompt, store=tmp_path / "log.db")
    assert not (tmp_path / "log.db").exists()


async def test_steering_with_nothing_is_an_error_too() -> None:
    agent = Agent("a", model=Script(lambda r: "ok"))
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start("a")
        with pytest.raises(SetupError, match=SAYS):
            await session.steer(" ")


async def test_a_picture_alone_is_a_prompt() -> None:
    agent = Agent("a", model=Script(lambda r: openai_body(r, "m")["messages"][-1]["content"][0]["type"]))
    async with Runtime(agents=[agent]) as runtime:
        reply = await (await runtime.start("a")).prompt(Message("user", (Image("aGk="),)))
    assert reply.text == "image_url"


@pytest.mark.parametrize("prompt", ["", "  "])
async def test_a_model_that_delegates_nothing_is_told_so_and_no_child_is_begun(prompt: str, place: Place) -> None:
    child = Agent("child", model=Script(["never"]))
    first = call("task", agent="child", prompt=prompt)
    parent = Agent("a", model=Script([first, lambda r: r.messages[-1].results[0].text]), agents=[child])
    async with Runtime(place.store(), agents=[parent]) as runtime:
        reply = await (await runtime.start("a", "s")).prompt("go")
        rows = await runtime.rows()

    assert reply.text == f"task failed: {SAYS}"
    assert [row.id for row in rows] == ["s"]


@pytest.mark.parametrize("door", ["start_child", "prompt"])
async def test_a_tool_can_neither_start_a_child_nor_prompt_itself_with_nothing(door: str, place: Place) -> None:
    child = Agent("child", model=Script(["never"]))

    @tool
    async def work(ctx: Context) -> str:
        """Say nothing to somebody."""
        return (await ctx.start_child(child, "")).text if door == "start_child" else await ctx.prompt("")

    agent = Agent("a", model=Script([call("work"), lambda r: r.messages[-1].results[0].text]), tools=[work])
    async with Runtime(place.store(), agents=[agent, child]) as runtime:
        reply = await (await runtime.start("a", "s")).prompt("go")
        rows = await runtime.rows()

    assert reply.text == f"work failed: {SAYS}"
    assert [row.id for row in rows] == ["s"]


@pytest.mark.parametrize("door", ["start_child", "prompt"])
async def test_a_hook_that_says_nothing_to_somebody_fails_by_name(door: str) -> None:
    async def clumsy(session: SessionAccess, reply: Reply) -> None:
        await (session.start_child("a", "") if door == "start_child" else session.prompt(""))

    agent = Agent("a", model=Script(lambda r: "ok"), hooks=Hooks(end_turn=[clumsy]))
    async with Runtime(agents=[agent]) as runtime:
        with pytest.raises(HookFailed, match=f"clumsy at end_turn raised SetupError: {SAYS}"):
            await (await runtime.start("a")).prompt("go")


@pytest.mark.parametrize("prompt", EMPTY)
async def test_a_pre_request_hook_that_leaves_nothing_of_the_prompt_fails_by_name(prompt: Any) -> None:
    def clumsy(session: SessionAccess, message: Message) -> Any:
        return prompt

    asked = Asked()
    agent = Agent("a", model=Script(asked.then(lambda r: "ok")), hooks=Hooks(pre_request=[clumsy]))
    async with Runtime(agents=[agent]) as runtime:
        with pytest.raises(HookFailed, match="clumsy at pre_request raised ValueError: returned an empty message"):
            await (await runtime.start("a")).prompt("go")
    assert not asked.requests


@pytest.mark.parametrize("wired", ["chain", "bridge"])
async def test_the_next_agent_is_told_where_the_one_before_it_said_nothing(wired: str) -> None:
    heard: list[str] = []

    def listens(request: Any) -> str:
        heard.append(request.messages[-1].text)
        return "heard"

    second = Agent("second", model=Script(listens))
    hooks = Hooks(end_turn=[bridge(second)] if wired == "bridge" else [])
    first = Agent("first", model=Script(lambda r: ""), hooks=hooks)
    line = chain(first, second) if wired == "chain" else first
    async with Runtime(agents=[line, second]) as runtime:
        reply = await (await runtime.start(line)).prompt("go")

    assert (reply.text, heard) == ("heard", ["The agent before you ended without saying anything."])
