"""What the callbacks' tests share: a clock, a log that outlives its runtime, a person, and agents by script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from upcall import Agent, Call, Callback, Context, Message, Reply, Request, Result, Runtime, tool
from upcall.contracts import Host, Store
from upcall.events import AnyEvent
from upcall.models import Script, call
from upcall.store.memory import MemoryStore
from upcall.store.sqlite.store import SqliteStore
from upcall.tools import Tool

Decide = Callable[[Request], Any]


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now

    def tick(self, seconds: float) -> None:
        self.now += seconds


class Kept(MemoryStore):
    """A log in memory that outlives its runtime, so that somebody will find what waits in it."""

    durable = True


class Desk:
    """One log that several runtimes open one after the other, as processes would."""

    def __init__(self, path: Path | None = None) -> None:
        self.clock = Clock()
        self._path, self._kept = path, Kept(self.clock)

    def store(self) -> Store:
        return self._kept if self._path is None else SqliteStore(self._path, clock=self.clock)

    def runtime(self, *agents: Agent, host: Host | None = None, hold: float = 30.0) -> Runtime:
        return Runtime(self.store(), agents=agents, host=host, hold=hold)

    async def prompt(self, agent: Agent, text: str = "go", id: str = "s", host: Host | None = None) -> Reply:
        """One turn of a new session, in a runtime of its own."""
        async with self.runtime(agent, host=host) as runtime:
            session = await runtime.start(agent, id)
            return await session.prompt(text)

    async def resume(self, agent: Agent, id: str = "s", host: Host | None = None) -> Reply:
        async with self.runtime(agent, host=host) as runtime:
            return await runtime.resume(id)

    async def inbox(self, agent: Agent) -> list[Callback]:
        async with self.runtime(agent) as runtime:
            return await runtime.inbox()

    async def settle(self, agent: Agent, value: Any, message: str = "", by: str = "ops") -> Callback:
        """Answer the only callback in the inbox, or the one with that message, as another process would."""
        async with self.runtime(agent) as runtime:
            found = [c for c in await runtime.inbox() if message in (c.message, "")]
            assert len(found) == 1, found
            return await runtime.answer(found[0].id, value, by=by)

    async def log(self, agent: Agent, id: str | None = "s") -> list[AnyEvent]:
        async with self.runtime(agent) as runtime:
            return [event async for event in runtime.events(id)]

    async def messages(self, agent: Agent, id: str = "s") -> list[Message]:
        async with self.runtime(agent) as runtime:
            return (await runtime.load(id)).get_messages()


class Person:
    """Somebody at the screen who answers by a function, and remembers what was taken off the screen."""

    def __init__(self, answers: Callable[[Callback], Any]) -> None:
        self._answers = answers
        self.seen: list[Callback] = []
        self.withdrawn: list[tuple[str, str]] = []

    async def ask(self, callback: Callback) -> Any:
        self.seen.append(callback)
        value = self._answers(callback)
        return await value if hasattr(value, "__await__") else value

    def withdraw(self, callback_id: str, reason: str) -> None:
        self.withdrawn.append((callback_id, reason))


async def never(_: Callback) -> Any:
    """A person who looks at the screen and says nothing."""
    await asyncio.Event().wait()


def results(messages: Sequence[Message]) -> list[Result]:
    return [result for message in messages for result in message.results]


def worker(*calls: Call, aside: Decide | None = None) -> Script:
    """Makes these calls at first, then repeats what its tools said; `aside` decides in side turns."""

    def decide(request: Request) -> Any:
        if request.purpose == "side_turn":
            assert aside is not None, "nobody was to ask this agent"
            return aside(request)
        said = results(request.messages)
        return "; ".join(r.text for r in said) if said else list(calls)

    return Script(decide)


def at_work(work: Tool) -> Agent:
    """A developer who calls the tool `work` once."""
    return Agent("developer", model=worker(call("work")), tools=[work])


def answers(value: Any) -> Decide:
    return lambda _: call("answer_callback", value=value)


def passes(reason: str = "not mine") -> Decide:
    return lambda _: call("pass_up_callback", reason=reason)


def delegates(name: str, below: Agent, aside: Decide | None = None, **options: Any) -> Agent:
    """An agent that hands its work to the one below it."""
    model = worker(call("task", agent=below.name, prompt="do it"), aside=aside)
    return Agent(name, model=model, agents=[below], **options)


def asker(
    message: str = "which colour?",
    intent: str = "query",
    *,
    policy: dict[str, Any] | None = None,
    name: str = "developer",
    model: Script | None = None,
    query_caller: bool = True,
    use_host: bool = True,
    **options: Any,
) -> Agent:
    """An agent whose only tool asks one question and returns what it got."""

    @tool
    async def work(ctx: Context) -> str:
        """Ask."""
        return repr(await ctx.raise_callback(message, intent, **options))

    return Agent(
        name,
        model=model or worker(call("work")),
        tools=[work],
        callback_policy=policy,
        can_query_caller=query_caller,
        can_use_host_interaction=use_host,
    )
