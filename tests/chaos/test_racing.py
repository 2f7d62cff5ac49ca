"""Two processes that drive one session: one owns it, and who lost it writes nothing more."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from chaos.driver import Effects, holder
from chaos.processes import driver, look
from upcall import Runtime
from upcall.errors import SessionBusy


class Place:
    """The files that the processes of one test share."""

    def __init__(self, folder: Path) -> None:
        self.store, self.effects, self.gate = folder / "log.db", folder / "effects", folder / "gate"

    @property
    def arguments(self) -> tuple[object, ...]:
        """What a driver that holds the session `s` is given."""
        return ("hold", self.store, self.effects, self.gate, "s")

    @asynccontextmanager
    async def runtime(self) -> AsyncGenerator[Runtime]:
        """A runtime in this process."""
        async with Runtime(self.store, agents=[holder(Effects(self.effects), self.gate)]) as runtime:
            yield runtime


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_a_session_that_another_process_runs_is_busy_after_a_while_and_continues_there(place: Place) -> None:
    with driver(*place.arguments) as owner:
        owner.read_until("holding")
        async with place.runtime() as runtime:
            session = await runtime.load("s")
            started = time.monotonic()
            with pytest.raises(SessionBusy, match=f"process {owner.process.pid}"):
                await session.prompt("me too")
            assert time.monotonic() - started > 4
            assert await runtime.status("s") == "running"
            place.gate.touch()
            assert owner.end()[-1] == "reply done it said: held"
            found = await look(runtime.store, place.effects)
    assert found.states["s"].turn.phase == "done"
    assert found.responses == found.model_calls == 2


async def test_a_killed_owners_session_can_be_taken_at_once(place: Place) -> None:
    with driver(*place.arguments) as owner:
        owner.read_until("holding")
        owner.kill()
        async with place.runtime() as runtime:
            assert await runtime.status("s") == "interrupted"
            started = time.monotonic()
            reply = await runtime.resume("s")
            assert time.monotonic() - started < 3
            assert reply.text.startswith("it said: interrupted, outcome unknown")
            await look(runtime.store, place.effects)


async def test_who_is_taken_over_is_told_and_its_calls_end_there(place: Place) -> None:
    with driver(*place.arguments) as owner:
        owner.read_until("holding")
        async with place.runtime() as runtime:
            reply = await runtime.resume("s", take_over=True)
            assert reply.status == "done"
            assert owner.end()[-1] == "taken over"
            before = await look(runtime.store, place.effects)
    assert before.states["s"].turn.phase == "done"
    assert not [w for w in before.effects if w[0] == "end"]


async def test_a_frozen_owner_that_wakes_after_it_was_replaced_can_not_append(place: Place) -> None:
    with driver(*place.arguments) as owner:
        owner.read_until("holding")
        owner.send(signal.SIGSTOP)
        async with place.runtime() as runtime:
            reply = await runtime.resume("s")  # after five seconds without a heartbeat it counts as dead
            assert reply.text.startswith("it said: interrupted")
            before = (await look(runtime.store, place.effects)).events
            place.gate.touch()
            owner.send(signal.SIGCONT)
            assert owner.end()[-1] == "taken over"
            after = await look(runtime.store, place.effects)
    assert after.events == before


async def test_of_a_frozen_owner_and_one_that_takes_over_at_once_only_the_new_one_writes(place: Place) -> None:
    with driver(*place.arguments) as owner:
        owner.read_until("holding")
        owner.send(signal.SIGSTOP)
        async with place.runtime() as runtime:
            started = time.monotonic()
            await runtime.resume("s", take_over=True)
            assert time.monotonic() - started < 3
            session = await runtime.load("s")
            place.gate.touch()
            owner.send(signal.SIGCONT)
            assert (await session.prompt("again")).text == "it said: held"
            assert owner.end()[-1] == "taken over"
            found = await look(runtime.store, place.effects)
    assert [e.type for e in found.events].count("turn_ended") == 2
