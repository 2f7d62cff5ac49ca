"""What the workspace's tests share: files without a runtime, and agents that play a list of calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from upcall import Agent, Call, Kit, Reply, Request, Result, Runtime
from upcall.contracts import Files, Workspace
from upcall.models import Script


class Heap:
    """A run tree's storage without a run tree."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}
        self.bodies: dict[str, bytes] = {}

    async def values(self) -> Mapping[str, Any]:
        return self.kept

    async def body(self, name: str) -> bytes:
        return self.bodies[name]

    async def put(self, key: str, value: Any, bodies: Mapping[str, bytes]) -> None:
        self.kept[key] = value
        self.bodies.update(bodies)


def files_of(workspace: Workspace) -> Files:
    return workspace.open(Heap())


def plays(*calls: Call) -> Script:
    """One call after the other, then "done"; it decides from the request alone."""

    def decide(request: Request) -> Any:
        done = sum(len(message.results) for message in request.messages)
        return calls[done] if done < len(calls) else "done"

    return Script(decide)


def results(messages: Sequence[Any]) -> list[Result]:
    return [result for message in messages for result in message.results]


async def played(workspace: Workspace | None, kit: Kit, *calls: Call, store: Any = ":memory:") -> list[Result]:
    """The results of an agent's calls, made one after the other in one turn."""
    agent = Agent("worker", model=plays(*calls), kit=[kit], workspace=workspace)
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        reply: Reply = await session.prompt("go")
        assert reply.text == "done"
        return results(session.get_messages())
