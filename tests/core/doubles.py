"""What the core's tests share: a place for logs, a store that dies, a model that stops in mid-sentence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from upcall import Agent, Callback, Message, Reply, Request, Response, Runtime, StoreError, StoreUnavailable
from upcall.app import open_store
from upcall.contracts import Claim, Emit, Store
from upcall.events import AnyEvent


class Place:
    """One log that several runtimes open one after the other, as processes would."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._memory = open_store(":memory:")

    def store(self) -> Store:
        return self._memory if self.path is None else open_store(self.path)

    def clear(self) -> None:
        """Begin again with nothing."""
        self._memory = open_store(":memory:")
        if self.path is not None:
            self.path = self.path.with_name(f"next-{self.path.name}")

    def dying(self, appends: int) -> Store:
        """The same log for a process that dies once it has written so many times."""
        return cast("Store", Dying(self.store(), appends))


class Later:
    """A host that leaves every question in the inbox."""

    async def ask(self, callback: Callback) -> None: ...

    def withdraw(self, callback_id: str, reason: str) -> None: ...


class Dying:
    """Takes a number of appends, then none: what a crash leaves on disk."""

    durable = True  # it outlives its runtime, in memory too

    def __init__(self, inner: Store, left: int) -> None:
        self._inner, self.left = inner, left

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def append(
        self,
        session: str,
        events: Sequence[AnyEvent],
        claim: Claim | None,
        *,
        blobs: Mapping[str, bytes] | None = None,
        release: bool = False,
        lazy: bool = False,
    ) -> asyncio.Future[None] | None:
        if self.left <= 0:
            raise StoreUnavailable("here", "the process has died")
        self.left -= 1
        return self._inner.append(session, events, claim, blobs=blobs, release=release, lazy=lazy)


class Stuck:
    """A model that says a few words and then nothing more; `speaking` is set once they are out."""

    name = "stuck"

    def __init__(self, *words: str, first: Response | None = None) -> None:
        self.words, self._first = words, first
        self.speaking = asyncio.Event()

    async def respond(self, request: Request, emit: Emit | None) -> Response:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        for word in self.words:
            if emit is not None:
                emit("text", word)
        self.speaking.set()
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")


class Asked:
    """Remembers each request that passes: `Script(asked.then(decide))`."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def __len__(self) -> int:
        return len(self.requests)

    def then(self, decide: Callable[[Request], Any]) -> Callable[[Request], Any]:
        def remember(request: Request) -> Any:
            self.requests.append(request)
            return decide(request)

        return remember


async def turn(agent: Agent, text: str = "go") -> Reply:
    """One turn in memory."""
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        return await session.prompt(text)


async def crash(place: Place, agent: Agent, appends: int) -> bool:
    """Prompt a new session until the store has taken so many appends; whether its turn was over before."""
    try:
        async with Runtime(place.dying(appends), agents=[agent]) as runtime:
            session = await runtime.start(agent, "s")
            await session.prompt("go")
    except StoreError:
        return False
    return True


async def log_of(runtime: Runtime, session_id: str = "s") -> list[AnyEvent]:
    return [event async for event in runtime.events(session_id)]


async def types_of(runtime: Runtime, session_id: str = "s") -> list[str]:
    return [event.type for event in await log_of(runtime, session_id)]


def said(messages: Sequence[Message]) -> list[str]:
    """A conversation in short: text, `call name`, `= result`."""
    lines: list[str] = []
    for message in messages:
        if message.text:
            lines.append(f"{message.role}: {message.text}")
        lines += [f"call {c.name}" for c in message.calls]
        lines += [f"= {r.text}" for r in message.results]
    return lines
