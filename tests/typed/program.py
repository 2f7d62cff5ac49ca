"""A program as users write it, which mypy and pyright must both understand in strict mode; it also runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal, assert_type

import upcall
from upcall import (
    Agent,
    Context,
    Delta,
    Hooks,
    Reply,
    Runtime,
    Session,
    SessionAccess,
    SyncContext,
    Team,
    chain,
    tool,
)
from upcall.events import AnyEvent, CallbackRaised, ToolEnded, ToolStarted, TurnEnded
from upcall.messages import Result
from upcall.models import Script, call


@dataclass
class Invoice:
    """What the clerk promises to return."""

    total: float


@tool
async def look_up(number: int, ctx: Context) -> str:
    """Look an invoice up."""
    ctx.show("looking")
    return f"{ctx.agent} found {number}"


@dataclass
class Shop:
    """What the tools and hooks of this program get as `deps`."""

    name: str


@tool
async def greet(ctx: Context[Shop]) -> str:
    """Say whose shop it is, to whom."""
    assert_type(ctx.deps, Shop)
    assert_type(ctx.data, dict[str, Any])
    return f"{ctx.deps.name} greets {ctx.data['customer']}"


@tool
def count(ctx: SyncContext[Shop]) -> int:
    """Count the letters of its name."""
    assert_type(ctx.deps, Shop)
    return len(ctx.deps.name)


def sign(session: SessionAccess[Shop], reply: Reply) -> str:
    """A hook whose dependencies are typed."""
    assert_type(session.deps, Shop)
    return f"{reply.text}, signed {session.deps.name}"


def untyped_deps(ctx: Context, session: SessionAccess) -> None:
    """Without a type in brackets anything may be there."""
    assert_type(ctx.deps, Any)
    assert_type(session.deps, Any)


async def greeting() -> str:
    """Give a runtime its dependencies, and a session its data and tags."""
    script = Script([[call("greet"), call("count")], lambda r: " ".join(x.text for x in r.messages[-1].results)])
    host = Agent("host", model=script, tools=[greet, count], hooks=Hooks(end_turn=[sign]))
    async with Runtime(":memory:", agents=[host], deps=Shop("Lamps")) as runtime:
        session = await runtime.start(host, data={"customer": "Ada"}, tags={"tier": "gold"})
        assert_type(session.data, dict[str, Any])
        reply = await session.prompt("Say hello.")
        rows = await runtime.rows(tags={"tier": "gold"}, agent="host", status="done", session=session.id)
        assert len(rows) == 1
        assert await runtime.inbox(tags={"tier": "gold"}) == []
    return reply.text


def clerk() -> Agent[Invoice]:
    """An agent with a typed reply."""
    script = Script([["Let me see.", call("look_up", number=7)], '{"total": 12.5}'])
    agent = Agent("clerk", model=script, tools=[look_up], output=Invoice)
    assert_type(agent, Agent[Invoice])
    return agent


def describe(item: AnyEvent | Delta) -> str:
    """One line for each event that this program cares about; `type` tells which class it is."""
    if item.type == "delta":
        assert_type(item, Delta)
        return item.text
    if item.type == "tool_started":
        assert_type(item, ToolStarted)
        return f"{item.name} begins"
    if item.type == "tool_ended":
        assert_type(item, ToolEnded)
        assert_type(item.result, Result)
        return f"{item.call_id}: {item.how}"
    if item.type == "callback_raised":
        assert_type(item, CallbackRaised)
        return f"{item.agent} asks: {item.message}"
    if item.type == "turn_ended":
        assert_type(item, TurnEnded)
        assert_type(item.status, Literal["done", "cancelled", "limit", "failed"])
        return item.status
    return item.type


def matched(event: AnyEvent) -> str:
    """The classes can be matched too."""
    match event:
        case ToolStarted(call_id=call_id):
            return call_id
        case _:
            return event.session


def shout(session: SessionAccess, reply: Reply) -> str:
    """A hook, typed without saying more than is needed."""
    return f"{session.agent}: {reply.text}"


async def stream() -> list[str]:
    """Watch a turn and read its typed reply."""
    lines: list[str] = []
    async with Runtime(":memory:") as runtime:
        session = await runtime.start(clerk())
        assert_type(session, Session[Invoice])
        async for item in session.stream("Which one is it?"):
            line = describe(item)
            lines.append(line)
        assert session.reply is not None
        assert_type(session.reply.output, Invoice)
        lines.append(f"total: {session.reply.output.total}")
        loaded = await runtime.load(session.id)
        assert_type(loaded, Session[Any])
        by_name = await runtime.start("clerk")
        assert_type(by_name, Session[Any])
        assert_type(await runtime.resume(session.id), Reply[Any])
    return lines


def outputs() -> None:
    """How the reply's type follows from the agent's."""
    untyped = Agent("untyped", model=Script(["hello"]), hooks=Hooks(end_turn=[shout]))
    assert_type(untyped, Agent[None])
    assert_type(upcall.run(untyped, "hello").output, None)
    assert_type(Agent("numbers", output=list[int]), Agent[list[int]])
    assert_type(Agent("either", output=int | None), Agent[Any])
    assert_type(clerk().replace(description="the old one"), Agent[Invoice])
    assert_type(clerk().replace(output=str), Agent[str])
    agents: list[Agent] = [untyped, clerk(), Team(untyped, {"clerk": clerk()}), chain(untyped, clerk())]
    assert len(agents) == 4


if __name__ == "__main__":
    outputs()
    print("\n".join(asyncio.run(stream())))
    print(asyncio.run(greeting()))
