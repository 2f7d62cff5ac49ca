"""Writes the log of a large team at a steady rate, as a program: `python -m page.large_team LOG`.

Eight workers at a time call a model and two tools in each step; hooks look at every response and result, as they do
in a real run. The events go through the store's own append. Each line of standard input says how many events to
write, and how many a second (0: as fast as possible). The answer is a line with the number of events and the
seconds that they took.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Generator, Iterator
from pathlib import Path

from upcall import events
from upcall.app import Runtime
from upcall.contracts import Claim
from upcall.messages import Call, Message, Part, Result, Text, Usage

SESSION = "crew"
WORKERS = 8
STEPS = 50
"""Steps of one worker. Then the next eight begin."""

BATCH = 0.02
"""Seconds between two batches of a steady stream."""

MOST_WAITING = 200
"""Appends that may be on their way to the disk."""

Item = tuple[str, events.AnyEvent]
"""An event with the session that it belongs to."""

_PLACES = ("orders/2031", "orders/2032", "customers/7", "stock/shelf-12", "invoices/open", "mail/inbox")
_SAID = "I compare the entries of {place} with the list from step {step}, then I write down what is missing."
_FOUND = "{place}: {step} entries, the newest from Tuesday; two of them have no address"


def _said(*parts: Part) -> Message:
    return Message("assistant", parts)


def _step(session: str, step: int) -> Iterator[Item]:
    """One model call and its two tool calls: 15 events, 11 new nodes."""
    place = _PLACES[step % len(_PLACES)]
    calls = tuple(
        Call(f"r{step}c{at}", ("search_logs", "read_entry")[at], {"path": f"{place}/{at}", "limit": 50})
        for at in range(2)
    )
    message = _said(Text(_SAID.format(place=place, step=step)), *calls)
    usage = Usage(1200 + step, 80, 1000)
    yield session, events.ModelStarted(ordinal=step, model="script" if step == 1 else "")
    yield session, events.Responded(ordinal=step, message=message, usage=usage, pending=True)
    yield session, events.HooksPassed(point="post_response", at=str(step))
    for one in calls:
        yield session, events.ToolStarted(call_id=one.id, name=one.name)
        yield session, events.OnceStarted(name="fetch", origin=one.id)
        yield session, events.OnceEnded(name="fetch", value={"entries": step}, origin=one.id)
        yield session, events.ContextSet(key="seen", value=step, origin=one.id)
    for one in reversed(calls):
        result = Result(one.id, _FOUND.format(place=place, step=step), is_error=step % 40 == 0)
        yield session, events.ToolEnded(call_id=one.id, result=result, pending=True)
        yield session, events.HooksPassed(point="after_tool", at=one.id)


def _worker(lead: str, origin: str, number: int) -> Iterator[Item]:
    session, task = f"{lead}~{origin}", Message("user", (Text(f"Check part {number} of the shop"),))
    yield session, events.SessionStarted(agent="worker", parent=lead, root=lead, origin=origin, depth=1)
    yield session, events.TurnStarted(turn=1, message=task, by="lead")
    for step in range(1, STEPS + 1):
        yield from _step(session, step)
    yield session, events.TurnEnded(turn=1, status="done", seconds=1.0)


def _side_by_side(parts: list[Iterator[Item]]) -> Iterator[Item]:
    """The events of several workers, in turn."""
    left = deque(parts)
    while left:
        part = left.popleft()
        item = next(part, None)
        if item is not None:
            yield item
            left.append(part)


def team() -> Generator[Item]:
    """The events of a team that never ends."""
    task = Message("user", (Text("Check the whole shop"),))
    yield SESSION, events.SessionStarted(agent="lead")
    yield SESSION, events.TurnStarted(turn=1, message=task, by="ada")
    number = 0
    while True:
        number += 1
        ids = [f"r{number}c{at}" for at in range(WORKERS)]
        calls = [Call(one, "task", {"agent": "worker", "prompt": f"Check part {one}"}) for one in ids]
        yield SESSION, events.ModelStarted(ordinal=number, model="script" if number == 1 else "")
        yield SESSION, events.Responded(ordinal=number, message=_said(*calls), usage=Usage(900, 60, 0))
        yield from ((SESSION, events.ToolStarted(call_id=one, name="task")) for one in ids)
        yield from _side_by_side([_worker(SESSION, one, number * WORKERS + at) for at, one in enumerate(ids)])
        for one in ids:
            yield SESSION, events.ToolEnded(call_id=one, result=Result(one, "All parts are checked."))


class Writer:
    """Appends the team's events to a store."""

    def __init__(self, runtime: Runtime) -> None:
        self._store, self._items = runtime.store, team()
        self._claim: Claim | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def write(self, count: int, rate: float) -> float:
        """Write so many events; returns the seconds from the first to the moment when all are in the log."""
        began, written = time.monotonic(), 0
        while written < count:
            due = min(count, int((time.monotonic() - began + BATCH) * rate)) if rate else min(count, written + 500)
            await self._append(due - written)
            written = due
            await asyncio.sleep(max(0.0, began + written / rate - time.monotonic()) if rate else 0)
        await self._drain(0)
        return time.monotonic() - began

    async def _append(self, count: int) -> None:
        """Append the next events, those of one session together."""
        found: dict[str, list[events.AnyEvent]] = {}
        for _ in range(count):
            session, event = next(self._items)
            found.setdefault(session, []).append(event)
        for session, some in found.items():
            if self._claim is None:  # the first event of a root is written before anybody can own it
                await _stored(self._store.append(session, some[:1], None))
                self._claim, some = await self._store.claim(SESSION), some[1:]
            if some and (stored := self._store.append(session, some, self._claim, lazy=True)) is not None:
                self._waiting.append(stored)
        await self._drain(MOST_WAITING)

    async def _drain(self, most: int) -> None:
        while len(self._waiting) > most:
            await self._waiting.popleft()


async def _stored(append: asyncio.Future[None] | None) -> None:
    if append is not None:
        await append


async def main(log: Path) -> None:
    """Write what standard input asks for."""
    async with Runtime(log) as runtime:
        await runtime.rows(limit=0)  # opens the store
        writer = Writer(runtime)
        while line := await asyncio.to_thread(sys.stdin.readline):
            count, rate = line.split()
            print(count, await writer.write(int(count), float(rate)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
