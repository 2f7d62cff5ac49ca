"""What teams and chains share: a session without a model whose turn is a program of steps.

The program runs from its top each time it is entered. A step that has ended is answered from the log, one that was
begun goes on with its child, and what was decided stays decided; so it may stop anywhere.

May import: agent, contracts, errors, events, loop, messages, replay, session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn, TypeVar, cast

from upcall.agent import Agent, Limits
from upcall.contracts import Emit
from upcall.errors import ChildFailed, UpcallError
from upcall.events import Event, Planned, Responded, StepEnded, StepStarted, digest
from upcall.loop import Turn
from upcall.messages import Message, Request, Text, Value
from upcall.replay import load_state
from upcall.session import NOWHERE, Parking, Place, plain_json

E = TypeVar("E", bound=Event)


class Step(Value, frozen=True):
    """A piece of work for one agent. `child` names its session below the coordinator's.

    `must`: the coordinator can't go on without its result.
    """

    name: str
    agent: Agent
    prompt: str
    child: str
    place: Place = NOWHERE
    must: bool = True


class Coordination(Turn):
    """A turn of a team or chain: its steps take the place of a model."""

    __slots__ = ()

    async def _work(self) -> None:
        if self.state.response is not None:  # only the hooks at its end are left
            return
        prompt = self.state.history[self.state.prompt_at].text
        text = await cast("Coordinator", self.actor.agent).coordinate(self, prompt)
        said = Message("assistant", (Text(text),))
        self.log.add(Responded(self.state.ordinal + 1, said, stop="steps"))

    def logged(self, kind: type[E], name: str) -> E | None:
        """What this turn's log holds of a step."""
        return cast("E | None", self.state.steps.get((kind, name)))

    async def decide(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make` gives, once: it is written down, and found there by every later run."""
        found = self.logged(Planned, name)
        if found is None:
            value = make()
            value = await value if hasattr(value, "__await__") else value
            found = Planned(name, plain_json(name, value))
            self.log.add(found)
            await self.log.commit()
        return found.value

    async def step(self, step: Step) -> StepEnded:
        """Have a step done, or find out how it ended; a failed one that must be done raises ChildFailed."""
        ended = self.logged(StepEnded, step.name)
        if ended is not None:
            return ended
        started = self.logged(StepStarted, step.name) or await self._start(step)
        place = step.place._replace(turn=started.turn, again=step.must)
        self.leave()  # it only waits for its child
        try:
            ended = await self._run(step, started, place)
        finally:
            self.enter()
        if step.must and ended.status != "done":
            raise ChildFailed(started.child, started.agent, f"it ended with {ended.error or ended.status}")
        self.log.add(ended)
        await self.log.commit()
        return ended

    async def together(self, steps: Sequence[Step]) -> list[StepEnded]:
        """Have steps done side by side; returns when all have ended, in the order given."""
        beside = [_Beside(self, step) for step in steps]
        if await self._side_by_side(beside):
            raise Parking
        return [cast("StepEnded", one.came_to) for one in beside]

    async def _start(self, step: Step) -> StepStarted:
        child = f"{self.id}~{step.child}"
        before = await load_state(self.log.store, child)
        note = "\n\n".join(steer.text for steer in self.state.steers.values())
        self._take_steers()
        turn = 1 if before is None else before.turn + 1
        started = StepStarted(step.name, step.place.agent or step.agent.name, child, turn, step.place.role, note)
        self.log.add(started)
        await self.log.commit()
        return started

    async def _run(self, step: Step, started: StepStarted, place: Place) -> StepEnded:
        prompt = f"{step.prompt}\n\n{started.note}" if started.note else step.prompt
        try:
            reply = await self.tree.start_child(self, step.agent, prompt, step.child, place)
        except ChildFailed as failure:
            if step.must:
                raise
            return StepEnded(step.name, "failed", error=failure.error)
        text = reply.text
        row = await self.log.store.row(started.child)
        if step.must and row is not None and row.base:  # it was compacted: what it did before is in its summary
            state = await load_state(self.log.store, started.child)
            text = f"{state.summary}\n\n{text}" if state is not None and state.summary else text
        status = cast("Any", reply.status)
        return StepEnded(step.name, status, text, f"limit {reply.limit}" if reply.limit else "", reply.usage)


class _Beside:
    """A step in a task of its own."""

    alone: bool
    task: asyncio.Task[Any]

    def __init__(self, turn: Coordination, step: Step) -> None:
        self.turn, self.step = turn, step
        self.came_to: StepEnded | None = None

    async def run_beside(self, ended: Callable[[], None]) -> bool:
        """Run it; whether it is parked."""
        try:
            self.came_to = await self.turn.step(self.step)
        except Parking:
            return True
        finally:
            self.turn.leave()
            ended()
        return False


class Coordinator(Agent):
    """A declaration that is accepted wherever an agent is; `coordinate` is its program."""

    runs: ClassVar[Any] = Coordination

    def __init__(self, name: str, agents: Sequence[Agent], description: str, structure: Any) -> None:
        limits = Limits(children=None, model_calls=None, tokens=None, turn_seconds=None)
        super().__init__(
            name, agents=agents, model=_NoModel(name), limits=limits, description=description, ask=False
        )
        self.setup = digest(structure)

    async def coordinate(self, work: Coordination, prompt: str) -> str:
        """Run the steps; returns what the turn replies."""
        raise NotImplementedError

    def replace(self, **changes: Any) -> NoReturn:
        """Teams and chains are built anew instead."""
        raise UpcallError(f"{self.name!r} can't be changed; build it again: {type(self).__name__} values are short")


class _NoModel:
    """Stands where an agent has its model."""

    def __init__(self, name: str) -> None:
        self.name = f"the steps of {name}"

    async def respond(self, request: Request, emit: Emit | None) -> NoReturn:
        """Nobody thinks here."""
        raise UpcallError(f"{request.agent} has steps and no model, so it can't be asked anything itself")
