"""Values of a wrong type are refused where they are given: nothing is stored that could not be read again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from core.doubles import Place
from upcall import Agent, Call, Context, Hooks, Response, Runtime, SetupError, UpcallError, tool
from upcall.errors import HookFailed
from upcall.models import Script, call

WRITES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a key that is a number": (lambda ctx: ctx.set_context(5, "x"), "the key of set_context"),
    "no key": (lambda ctx: ctx.set_context(None, "x"), "the key of set_context"),
    "a key that is no text": (lambda ctx: ctx.set_context("\ud800", "x"), "the key of set_context"),
    "an effect with a number as its name": (lambda ctx: ctx.once(42, lambda: 1), "the name of once"),
    "an effect without a name": (lambda ctx: ctx.once(None, lambda: 1), "the name of once"),
    "an effect whose name is no text": (lambda ctx: ctx.once("\ud800", lambda: 1), "the name of once"),
    "one and a half messages": (lambda ctx: ctx.compact_messages(keep_last=1.5), "keep_last"),
    "messages in words": (lambda ctx: ctx.compact_messages(keep_last="2"), "keep_last"),
    "no number of messages": (lambda ctx: ctx.trigger_compaction(keep_last=None), "keep_last"),
    "a message that is a number": (lambda ctx: ctx.add_message("user", 5), "the content of add_message"),
    "a message of bytes": (lambda ctx: ctx.add_message("user", b"x"), "the content of add_message"),
    "a question that is a number": (
        lambda ctx: ctx.raise_callback(5, "blocker"),
        "the message of raise_callback must be a string",
    ),
    "a schema that is a list": (
        lambda ctx: ctx.raise_callback("which?", schema=[1]),
        "schema must be a JSON schema",
    ),
    "a child that is a number": (lambda ctx: ctx.start_child(5, "go"), "give an agent or its name"),
}


async def end(write: Callable[[Any], Any], ctx: Context) -> None:
    if hasattr(done := write(ctx), "__await__"):
        await done


@pytest.mark.parametrize("what", WRITES)
async def test_a_tool_is_told_and_the_session_stays_readable_after(what: str, place: Place) -> None:
    write, told = WRITES[what]

    @tool
    async def use(ctx: Context) -> str:
        """Use the context."""
        with pytest.raises(UpcallError, match=told):
            await end(write, ctx)
        return "refused"

    agent = Agent(
        "a", model=Script(lambda r: "done" if r.messages[-1].role == "tool" else call("use")), tools=[use]
    )
    async with Runtime(place.store(), agents=[agent]) as runtime:
        await (await runtime.start(agent, "s")).prompt("go")
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.load("s")
        assert [one.text for one in session.get_messages()[-2].results] == ["refused"]
        assert (await session.prompt("again")).text == "done"


@pytest.mark.parametrize("text", [5, None, "\ud800"])
async def test_a_reply_without_a_text_fails_its_hook(text: Any, place: Place) -> None:
    hooks = Hooks(end_turn=[lambda _, reply: reply.replace(text=text)])
    agent = Agent("a", model=Script(lambda _: "done"), hooks=hooks)
    async with Runtime(place.store(), agents=[agent]) as runtime:
        with pytest.raises(HookFailed, match="end_turn"):
            await (await runtime.start(agent, "s")).prompt("go")
    async with Runtime(place.store(), agents=[agent]) as runtime:
        assert (await runtime.load("s")).status == "failed"


@pytest.mark.parametrize("args", [None, [1], "x"])
async def test_a_model_is_told_that_its_arguments_are_not_an_object(args: Any, place: Place) -> None:
    @tool
    async def use() -> str:
        """Never run."""
        raise AssertionError

    def model(request: Any) -> Any:
        results = request.messages[-1].results
        return results[0].text if results else Response(calls=(Call("", "use", args),))

    agent = Agent("a", model=Script(model), tools=[use])
    async with Runtime(place.store(), agents=[agent]) as runtime:
        reply = await (await runtime.start(agent, "s")).prompt("go")
    assert "the arguments are not a JSON object" in reply.text
    async with Runtime(place.store(), agents=[agent]) as runtime:
        assert (await runtime.load("s")).status == "done"


async def test_a_session_id_that_is_a_number_is_refused() -> None:
    agent = Agent("a", model=Script(lambda _: "done"))
    wrong: Any = 5
    async with Runtime(agents=[agent]) as runtime:
        with pytest.raises(SetupError, match="invalid session id 5"):
            await runtime.start(agent, wrong)
