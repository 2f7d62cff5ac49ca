"""A prompt that is too long is refused before anything is stored, whoever gives it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import upcall
from upcall import Agent, Hooks, Message, Runtime, SetupError, UpcallError
from upcall.messages import Text
from upcall.models import Script
from upcall.safety.bounds import PROMPT

from .measuring import measured

LONG = "é " * 30_000_000


async def streamed(runtime: Runtime, session: Any) -> None:
    async for _ in session.stream(LONG):
        pass


FROM_OUTSIDE: dict[str, Callable[[Runtime, Any], Awaitable[Any]]] = {
    "prompt": lambda _, session: session.prompt(LONG),
    "message": lambda _, session: session.prompt(Message("user", (Text("a"), Text(LONG)))),
    "stream": streamed,
    "steer": lambda _, session: session.steer(LONG),
    "submit": lambda runtime, _: runtime.submit("a", LONG),
}


@pytest.mark.parametrize("way", FROM_OUTSIDE)
async def test_a_prompt_that_is_too_long_is_refused_before_anything_is_stored(way: str) -> None:
    async with Runtime(agents=[Agent("a", model=Script(["x"]))]) as runtime:
        session = await runtime.start("a")
        await session.prompt("go")
        before = [event async for event in runtime.events()]
        async with measured() as took:
            with pytest.raises(SetupError, match=r"has 60,000,00\d characters; the most are 4,000,000"):
                await FROM_OUTSIDE[way](runtime, session)
        took.check()
        assert [event async for event in runtime.events()] == before


def test_a_run_with_a_prompt_that_is_too_long_is_refused() -> None:
    with pytest.raises(SetupError, match="has 60,000,000 characters"):
        upcall.run(Agent("a", model=Script(["x"])), LONG)


async def added(session: Any) -> None:
    session.add_message("user", LONG)


FROM_HOOKS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "a child": lambda session: session.start_child("a", LONG),
    "a side turn": lambda session: session.prompt(LONG),
    "a session of its own": lambda session: session.submit("a", LONG),
    "a message": added,
}


@pytest.mark.parametrize("way", FROM_HOOKS)
async def test_a_hook_that_prompts_with_too_long_a_text_is_told_so(way: str) -> None:
    async def long(session: Any, message: Any) -> None:
        with pytest.raises(UpcallError, match="has 60,000,000 characters"):
            await FROM_HOOKS[way](session)

    agent = Agent("a", model=Script(["x"]), hooks=Hooks(pre_request=[long]))
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start("a")
        async with measured() as took:
            reply = await session.prompt("go")
        took.check()
        assert reply.text == "x"
        assert {event.session async for event in runtime.events()} == {session.id}


async def test_a_prompt_as_long_as_may_be_is_taken() -> None:
    async with Runtime(agents=[Agent("a", model=Script(["x"]))]) as runtime:
        session = await runtime.start("a")
        assert (await session.prompt("x" * PROMPT)).text == "x"
