"""The base of teams and chains: a session without a model, whose turn is a program of steps.

The program runs from its top each time the turn is resumed. A step that has ended returns its logged result, a step
that was started resumes its child, and decisions are read from the log. So the program may stop anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar, cast

from upcall.agent import Agent, Limits
from upcall.contracts import Emit
from upcall.core.log.load import load_state
from upcall.core.routing.question import plain_json
from upcall.core.turns.parking import Parking
from upcall.core.turns.turn import DEFAULT_CHILD, ChildSpec, Turn
from upcall.errors import BadAgent, ChildFailed, UpcallError
from upcall.events import Event, Planned, Responded, StepEnded, StepStarted, digest
from upcall.messages import Message, Request, Text, Value

E = TypeVar("E", bound=Event)
SAID_NOTHING = "The agent before you ended without saying anything."
"""The next agent's prompt if a reply was empty: an empty prompt is an error."""


class Step(Value, frozen=True):
    """A piece of work for one agent. `child` names its session below the coordinator's.

    `spec`: how to start that session. `required`: the coordinator can't continue without the result.
    """

    name: str
    agent: Agent
    prompt: str
    child: str
    spec: ChildSpec = DEFAULT_CHILD
    required: bool = True


class Coordination:
    """The steps of a team or chain in one turn; they take the place of a model."""

    __slots__ = ("id", "log", "state", "turn")

    def __init__(self, turn: Turn) -> None:
        self.turn, self.id, self.log, self.state = turn, turn.id, turn.log, turn.state

    def logged(self, kind: type[E], name: str) -> E | None:
        """Return a step's event of this kind from this turn's log."""
        return cast("E | None", self.state.turn.steps.get((kind, name)))

    async def decide(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the value of `make`, which is called once: later runs read it from the log."""
        found = self.logged(Planned, name)
        if found is None:
            value = make()
            value = await value if hasattr(value, "__await__") else value
            found = Planned(name, plain_json(name, value))
            self.log.add(found)
            await self.log.flush()
        return found.value

    async def step(self, step: Step) -> StepEnded:
        """Run a step, or return how it ended; a required step that failed raises ChildFailed."""
        ended = self.logged(StepEnded, step.name)
        if ended is not None:
            return ended
        await self._start([step])
        started = cast("StepStarted", self.logged(StepStarted, step.name))
        spec = step.spec._replace(turn_number=started.turn, retry_failed=step.required)
        with self.turn.activity.waiting():  # for its child
            ended = await self._run(step, started, spec)
        if step.required and ended.status != "done":
            raise ChildFailed(
                started.child, started.agent, f"it did not complete its step ({ended.error or ended.status})"
            )
        self.log.add(ended)
        await self.log.flush()
        return ended

    async def run_parallel(self, steps: Sequence[Step]) -> list[StepEnded]:
        """Run steps at the same time; return when all have ended, with their ends in the given order."""
        await self._start(steps)
        outcomes = await self.turn.activity.run_all([self._step_unless_parked(step) for step in steps])
        ended = [outcome for outcome in outcomes if outcome is not None]
        if len(ended) < len(steps):
            raise Parking
        return ended

    async def _step_unless_parked(self, step: Step) -> StepEnded | None:
        """Run a step; return None if it was parked."""
        try:
            return await self.step(step)
        except Parking:
            return None

    async def _start(self, steps: Sequence[Step]) -> None:
        """Log the steps that start now, in one append. All of them get the steering messages of the coordinator."""
        new = [step for step in steps if self.logged(StepStarted, step.name) is None]
        if not new:
            return
        before = [await load_state(self.log.store, f"{self.id}~{step.child}") for step in new]
        note = "\n\n".join(steer.text for _, steer in sorted(self.state.conversation.steers.items()))
        self.turn.apply_steers()
        for step, state in zip(new, before, strict=True):
            name, turn = step.spec.agent or step.agent.name, 1 if state is None else state.turn.number + 1
            self.log.add(
                StepStarted(step.name, name, f"{self.id}~{step.child}", turn, step.spec.role, note),
            )
        await self.log.flush()

    async def _run(self, step: Step, started: StepStarted, spec: ChildSpec) -> StepEnded:
        prompt = f"{step.prompt}\n\n{started.note}" if started.note else step.prompt
        try:
            reply = await self.turn.services.start_child(self.turn, step.agent, prompt, step.child, spec)
        except ChildFailed as failure:
            if step.required:
                raise
            return StepEnded(step.name, "failed", error=failure.error)
        row, summary = await self.log.store.row(started.child), ""
        if row is not None and row.base:  # it was compacted: its summary describes the work before that
            state = await load_state(self.log.store, started.child)
            summary = state.conversation.summary if state is not None else ""
        error = f"limit {reply.limit}" if reply.limit else ""
        return StepEnded(step.name, cast("Any", reply.status), reply.text, error, reply.usage, summary)


class Coordinator(Agent[None]):
    """A declaration that is accepted wherever an agent is; `coordinate` is its program."""

    def __init__(self, name: str, agents: Sequence[Agent], description: str, structure: Any) -> None:
        if name in names_of(agents):
            raise BadAgent(name, f"an agent below it is also called {name!r}; choose another name=")
        self.setup = digest(structure)
        limits = Limits(children=None, model_calls=None, tokens=None, turn_seconds=None)
        super().__init__(
            name, agents=agents, model=_NoModel(name), limits=limits, description=description, ask=False
        )

    async def run_program(self, turn: Turn) -> None:
        """Run the remaining steps of a turn, and add the reply to its log."""
        state = turn.state
        if state.turn.response is not None:  # only its end_turn hooks are left to run
            return
        text = await self.coordinate(Coordination(turn), state.conversation.history[state.turn.prompt_at].text)
        turn.log.add(Responded(state.conversation.ordinal + 1, Message("assistant", (Text(text),)), stop="steps"))

    async def coordinate(self, work: Coordination, prompt: str) -> str:
        """Run the steps and return the turn's reply."""
        raise NotImplementedError

    def with_members(self, change: Callable[[Agent], Agent]) -> Agent:
        """Return the same team or chain with each member changed, once; a member keeps its name."""
        made: dict[int, Agent] = {}

        def changed(member: Agent) -> Agent:
            if id(member) not in made:
                made[id(member)] = change(member)
            return made[id(member)]

        copy = self.rebuilt(changed)
        vars(copy)["source"] = self.source
        return copy

    def rebuilt(self, change: Callable[[Agent], Agent]) -> Coordinator:
        """Return a declaration with the same arguments and changed members."""
        raise NotImplementedError

    def replace(self, **changes: Any) -> NoReturn:
        """Refuse: teams and chains are built again instead."""
        raise UpcallError(f"{self.name!r} can't be changed; create a new {type(self).__name__} instead")


def names_of(agents: Sequence[Agent]) -> set[str]:
    """Return the names of these agents and of all below them."""
    found: dict[int, Agent] = {}
    queue = list(agents)
    for one in queue:  # the list grows during the loop
        if id(one) not in found:
            found[id(one)] = one
            queue.extend(one.agents)
    return {one.name for one in found.values()}


class _NoModel:
    """Takes the place of a model."""

    def __init__(self, name: str) -> None:
        self.name = f"the steps of {name}"

    async def respond(self, request: Request, emit: Emit | None) -> NoReturn:
        """Refuse: there is no model to ask."""
        raise UpcallError(f"{request.agent} is a team or a chain and has no model, so it can't answer itself")
