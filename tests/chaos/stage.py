"""What a test does from outside with the agents of `asking`: run them, answer them, read what they left."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager

from chaos.asking import Place
from chaos.processes import Driver, Found, driver
from upcall import Callback, Runtime
from upcall.events import AnyEvent

FULL = os.environ.get("UPCALL_CHAOS") == "full"
HELD = 600


@contextmanager
def running(
    place: Place, cast: str, *sessions: str, hold: int = 0, module: str = "chaos.asking"
) -> Generator[Driver]:
    """The agents at work; they are killed when the test leaves."""
    with driver("run", cast, place.folder, hold, *sessions, module=module) as process:
        yield process
        process.kill()


@contextmanager
def beside(place: Place, mode: str, *arguments: object) -> Generator[Driver]:
    """Another process that answers or cancels when its gate opens."""
    with driver(mode, place.folder, *arguments, module="chaos.asking") as process:
        process.read_until("ready")
        yield process


def finish(place: Place, cast: str, *sessions: str) -> list[str]:
    """Run until there is nothing left to do; returns the replies."""
    with running(place, cast, *sessions) as process:
        process.read_until("idle")
        return sorted(line.removeprefix("reply ") for line in process.said if line.startswith("reply"))


async def inbox(place: Place) -> dict[str, Callback]:
    """What waits for the person, by message."""
    async with Runtime(place.store) as runtime:
        return {c.message: c for c in await runtime.inbox()}


async def answer(place: Place, message: str, value: str) -> Callback:
    """Answer from this process what waits for the person under that message."""
    async with Runtime(place.store) as runtime:
        found = {c.message: c for c in await runtime.inbox()}
        return await runtime.answer(found[message].id, value, by="ops")


async def log(place: Place) -> list[AnyEvent]:
    """The whole log, checked to have no gaps and to fold."""
    async with Runtime(place.store) as runtime:
        events = [e async for e in runtime.events()]
    Found(events, []).check_log()
    return events


async def row_of(place: Place, callback_id: str) -> tuple[str, str, bool]:
    """What the store holds of a callback: its status, who answered, and whether that was delivered."""
    async with Runtime(place.store) as runtime:
        held = await runtime.store.callback(callback_id)
    assert held is not None
    return held.status, "" if held.answer is None else held.answer.by, held.delivered


def wait_until(moment: float) -> None:
    """Let the clock pass a moment that is near."""
    deadline = time.monotonic() + 5
    while time.time() <= moment and time.monotonic() < deadline:
        time.sleep(0.01)
    assert time.time() > moment
