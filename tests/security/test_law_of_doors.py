"""One law for every public door: no value stalls the event loop or fills the memory, whichever way it comes in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quick import examples, slow_but
from security.measuring import measured
from security.test_json_doors import user_of
from security.values import nested
from upcall import (
    Agent,
    Approve,
    Call,
    Context,
    Hooks,
    Message,
    Reject,
    Response,
    Runtime,
    SessionAccess,
    SetupError,
    load_agents,
    tool,
)
from upcall.errors import UpcallError
from upcall.models import Script, call
from upcall.safety.bounds import excess

Door = Callable[[Any, Path], Awaitable[Any]]
REFUSALS = (UpcallError, ValueError, TypeError)
FEW_BYTES = 200_000

_PIECES = [
    "x",
    "\x00",
    "\x1b[31m",
    "\ud800",
    "\u202e",
    "\u200b",
    "🧪",
    "</question>",
    "{a,b}",
    "(a+)+$",
    "[",
    "\n- ",
    '"',
]
_TEXTS = st.tuples(st.sampled_from(_PIECES), st.integers(0, FEW_BYTES))
_NUMBERS = st.one_of(st.sampled_from([float("nan"), float("inf"), True, None]), st.integers(0, 4000))
_WRAPPINGS = st.sampled_from(["as it is", "nested", "repeated", "keys", "doubled"])


class Recipe(NamedTuple):
    """How to make a value. The value itself may be too large to be shown when a test fails."""

    leaf: Any
    wrapping: str
    times: int

    def make(self) -> Any:
        """Make the value; parts are shared, so that making it costs nothing."""
        match self.leaf:
            case (str() as piece, int() as size):
                inside: Any = piece * (size // len(piece))
            case int() as digits if digits is not True:
                inside = 10**digits
            case other:
                inside = other
        return _wrap(inside, self.wrapping, self.times)


def _wrap(inside: Any, wrapping: str, times: int) -> Any:
    match wrapping:
        case "nested":
            return nested(times, inside)
        case "repeated":
            return [inside] * times
        case "keys":
            return {f"{n}": inside for n in range(times)}
        case "doubled":
            value = inside
            for _ in range(times % 60):
                value = {"a": value, "b": value}
            return value
        case _:
            return inside


RECIPES = st.builds(Recipe, st.one_of(_TEXTS, _NUMBERS), _WRAPPINGS, st.integers(0, 30_000))


def _text(value: Any) -> str:
    """The value as a model could write it: the text of a value that is too large is never made."""
    return (
        value
        if isinstance(value, str)
        else repr(value)[:FEW_BYTES]
        if excess(value, FEW_BYTES) == ""
        else "[" * 1000
    )


async def _run(agent: Agent, prompt: Any = "go") -> None:
    async with Runtime(agents=[agent], hold=0.0) as runtime:
        await (await runtime.start(agent)).prompt(prompt)


def _by_tool(use: Callable[[Context, Any], Awaitable[Any]]) -> Door:
    return lambda value, _: _run(user_of(use, value))


@tool
def take(x: Any) -> str:
    """Take a value."""
    return "taken"


async def _arguments(value: Any, _: Path) -> None:
    await _run(Agent("a", model=Script([[Call("", "take", {"x": value})], "done"]), tools=[take]))


async def _call_name(value: Any, _: Path) -> None:
    await _run(Agent("a", model=Script([[Call("", _text(value), {})], "done"]), tools=[take]))


async def _result(value: Any, _: Path) -> None:
    @tool
    def give() -> Any:
        return value

    await _run(Agent("a", model=Script([call("give"), "done"]), tools=[give]))


async def _reply(value: Any, _: Path) -> None:
    await _run(Agent("a", model=Script([Response(_text(value))])))


async def _typed_reply(value: Any, _: Path) -> None:
    await _run(Agent("a", model=Script([Response(_text(value))] * 3), output=dict[str, list[int]]))


async def _prompt(value: Any, _: Path) -> None:
    await _run(Agent("a", model=Script(["done"])), value)


async def _data(value: Any, _: Path) -> None:
    async with Runtime(agents=[Agent("a", model=Script([]))]) as runtime:
        await runtime.start("a", data={"x": value})


async def _tags(value: Any, _: Path) -> None:
    async with Runtime(agents=[Agent("a", model=Script([]))]) as runtime:
        await runtime.start("a", tags={"x": value})
        await runtime.rows(tags={"x": value})


async def _place(value: Any, _: Path) -> None:
    async with Runtime(agents=[Agent("a", model=Script([]))]) as runtime:
        wrong: list[dict[str, Any]] = [{"title": value}, {"folder": value}, {"roots": value}, {"roots": [value]}]
        for one in wrong:
            with suppress(SetupError):
                await runtime.start("a", **one)
        await runtime.rows(folder=value)


async def _session_id(value: Any, _: Path) -> None:
    async with Runtime(agents=[Agent("a", model=Script([]))]) as runtime:
        await runtime.start("a", id=value)


async def _hook(value: Any, _: Path) -> None:
    def change(session: SessionAccess, one: Call) -> Call:
        return one.replace(args={"x": value})

    await _run(
        Agent("a", model=Script([call("take", x=1), "done"]), tools=[take], hooks=Hooks(before_tool=[change]))
    )


async def _kept_by_hook(value: Any, _: Path) -> None:
    def keep(session: SessionAccess, message: Message) -> None:
        session.set_context("k", value)

    await _run(Agent("a", model=Script(["done"]), hooks=Hooks(pre_request=[keep])))


async def _settled(folder: Path, answer: Any) -> None:
    """Ask a person and answer it with the value, as another process would."""
    question = user_of(lambda ctx, _: ctx.raise_callback("q", "blocker"), None)
    async with Runtime(folder / "log.db", agents=[question], hold=0.0) as runtime:
        await (await runtime.start(question)).prompt("go")
        [asked] = await runtime.inbox()
        await runtime.answer(asked.id, answer, by="ops")
        await runtime.inbox(status="answered")


async def _answer(value: Any, folder: Path) -> None:
    await _settled(folder, value)


async def _edit(value: Any, folder: Path) -> None:
    await _settled(folder, Approve(args={"x": value}))


async def _rejection(value: Any, folder: Path) -> None:
    await _settled(folder, Reject(_text(value)))


async def _agent_file(value: Any, folder: Path) -> None:
    text = _text(value)[:FEW_BYTES].encode("utf-8", "replace").decode()
    (folder / "a.md").write_text(f"---\nmodel: {text}\ntools: {text}\n---\n{text}\n", encoding="utf-8")
    (folder / "a.json").write_text(text, encoding="utf-8")
    await asyncio.to_thread(load_agents, folder)


DOORS: dict[str, Door] = {
    "a call's arguments": _arguments,
    "a call's name": _call_name,
    "a tool's result": _result,
    "a reply": _reply,
    "a typed reply": _typed_reply,
    "a prompt": _prompt,
    "a session's data": _data,
    "a session's tags": _tags,
    "a session's title and folders": _place,
    "a session's id": _session_id,
    "a hook's call": _hook,
    "what a hook keeps": _kept_by_hook,
    "a question's message": _by_tool(lambda ctx, value: ctx.raise_callback(value, "query")),
    "a question's intent": _by_tool(lambda ctx, value: ctx.raise_callback("q", value)),
    "a question's context": _by_tool(lambda ctx, value: ctx.raise_callback("q", context={"x": value})),
    "a question's choices": _by_tool(lambda ctx, value: ctx.raise_callback("q", choices=[value, "b"])),
    "a question's schema": _by_tool(lambda ctx, value: ctx.raise_callback("q", schema={"enum": [value]})),
    "a question's default": _by_tool(lambda ctx, value: ctx.raise_callback("q", default=value)),
    "a question's key": _by_tool(lambda ctx, value: ctx.raise_callback("q", key=value)),
    "a once effect": _by_tool(lambda ctx, value: ctx.once("effect", lambda: value)),
    "an answer": _answer,
    "edited arguments": _edit,
    "a rejection": _rejection,
    "an agent's files": _agent_file,
}
QUICK = ("a call's arguments", "a session's data", "a question's context", "an answer")
"""The doors that `make check` tries: one of each kind."""


@pytest.mark.parametrize("door", slow_but(QUICK, DOORS))
@settings(max_examples=examples(25))
@given(recipe=RECIPES)
def test_no_value_through_any_door_stalls_the_loop_or_fills_the_memory(
    door: str, recipe: Recipe, tmp_path_factory: pytest.TempPathFactory
) -> None:
    value = recipe.make()

    async def enter() -> None:
        async with measured() as cost:
            with suppress(*REFUSALS):
                await DOORS[door](value, tmp_path_factory.mktemp("door"))
        cost.check()

    asyncio.run(enter())
