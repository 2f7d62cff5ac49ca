"""Chains: one agent after the other, each a child of the chain and not of each other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from upcall.agent import Agent
from upcall.contracts import Reply
from upcall.errors import BadAgent, StepFailed
from upcall.events import StepEnded
from upcall.teams.coordinator import SAID_NOTHING, Coordination, Coordinator, Step, names_of


class StepText(NamedTuple):
    """A step's reply, and the prompt for the next step: with the summary, if the session was compacted."""

    reply: Reply
    text: str


class Branch:
    """A step that runs one of several agents; `pick` gets the reply so far and returns a key."""

    def __init__(self, pick: Callable[[Reply], Any], ways: Mapping[str, Agent]) -> None:
        keys = list(ways) if isinstance(cast("Any", ways), Mapping) else []
        if not callable(pick) or not keys or not all(isinstance(cast("Any", key), str) for key in keys):
            raise BadAgent(
                "branch", "branch(pick, {'key': agent}) takes a function and at least one agent under a string key"
            )
        self.pick, self.ways = pick, dict(ways)
        self.agents = [_agent("branch", a) for a in self.ways.values()]

    def rebuilt(self, change: Callable[[Agent], Agent]) -> Branch:
        """Return the same step with changed agents."""
        return Branch(self.pick, {key: change(agent) for key, agent in self.ways.items()})

    async def run(self, work: Coordination, number: int, previous: StepText) -> StepText:
        """Pick a branch, once, and run its agent."""
        key = await work.decide(f"{number}", lambda: _call_function(f"{number}", "pick", self.pick, previous.reply))
        if not isinstance(key, str) or key not in self.ways:
            known = ", ".join(map(repr, self.ways))
            raise StepFailed(f"{number}", f"pick returned {key!r}; the branches are {known}")
        return await _hop(work, number, self.ways[key], previous)


class FanOut:
    """A step that runs several agents at the same time; `join` makes one text of their replies, in list order."""

    def __init__(self, agents: Sequence[Agent], join: Callable[[list[Reply]], Any] | None = None) -> None:
        if isinstance(agents, Agent) or not agents or (join is not None and not callable(join)):
            raise BadAgent("fan_out", "fan_out([a, b], join=function) takes a list of at least one agent")
        self.agents, self.join = [_agent("fan_out", a) for a in agents], join

    def rebuilt(self, change: Callable[[Agent], Agent]) -> FanOut:
        """Return the same step with changed agents."""
        return FanOut([change(agent) for agent in self.agents], self.join)

    async def run(self, work: Coordination, number: int, previous: StepText) -> StepText:
        """Run all agents, then join their replies."""
        steps = [
            Step(f"{number}.{i}", agent, _prompt(number, previous), f"{number}.{i}.{agent.name}")
            for i, agent in enumerate(self.agents, 1)
        ]
        ends = await work.run_parallel(steps)
        texts = [await _step_text(work, step, end) for step, end in zip(steps, ends, strict=True)]
        join = self.join
        if join is None:
            text = "\n\n".join(f"{a.name}:\n{t.text}" for a, t in zip(self.agents, texts, strict=True))
        else:
            replies = [each.reply for each in texts]
            text = await work.decide(f"{number}", lambda: _call_function(f"{number}", "join", join, replies))
        if not isinstance(text, str):
            raise StepFailed(
                f"{number}", f"join returned {type(text).__name__}; it must return the text for the next agent"
            )
        return StepText(Reply(text, session_id=work.id), text)


class Chain(Coordinator):
    """Agents that run one after the other, each with the reply of the one before. `chain(…)` makes one.

    steps: agents, branches and fan-outs, in order
    name: the name of the chain
    loop: how many rounds are run
    description: what agents above read when they choose whom to give work to
    """

    def __init__(self, steps: Sequence[Agent | Branch | FanOut], name: str, loop: int, description: str) -> None:
        self.steps, self.loop = tuple(steps), loop
        below = [agent for step in steps for agent in _agents(step)]
        unique = {id(agent): agent for agent in below}
        structure = [[a.name for a in _agents(step)] for step in steps]
        super().__init__(name, list(unique.values()), description, ["chain", structure, loop])

    def rebuilt(self, change: Callable[[Agent], Agent]) -> Chain:
        """Return a chain with the same arguments and changed agents."""
        steps = [change(step) if isinstance(step, Agent) else step.rebuilt(change) for step in self.steps]
        return Chain(steps, self.name, self.loop, self.description)

    async def coordinate(self, work: Coordination, prompt: str) -> str:
        """Run each step once a round, with the reply of the step before."""
        previous, number = StepText(Reply(prompt, session_id=work.id), prompt), 0
        for _ in range(self.loop):
            for step in self.steps:
                number += 1
                if isinstance(step, Agent):
                    previous = await _hop(work, number, step, previous)
                else:
                    previous = await step.run(work, number, previous)
        return previous.reply.text


def chain(*steps: Agent | Branch | FanOut, name: str = "", loop: int = 1, description: str = "") -> Chain:
    """Return a chain of agents: `chain(a, b, c)` runs a, then b with a's reply, then c with b's.

    *steps: agents, teams, other chains, `branch(…)` or `fan_out(…)`. An agent that comes twice is a cycle, and
        refused.
    name: the name of the chain; by default it is made of the agents' names, as in `a-b-c`
    loop: how many rounds are run
    description: what agents above read when they choose whom to give work to
    """
    if not steps:
        raise BadAgent(name or "chain", "a chain must have at least one step: chain(a, b)")
    for step in steps:
        if not isinstance(step, Branch | FanOut):
            _agent(name or "chain", step)
    if type(loop) is not int or loop < 1:
        raise BadAgent(name or "chain", f"loop={loop!r} is not a valid number of rounds (1 or more)")
    _refuse_cycles(name or "chain", steps)
    return Chain(steps, name or _default_name(steps), loop, description)


def branch(pick: Callable[[Reply], Any], ways: Mapping[str, Agent]) -> Branch:
    """Return a step of a chain that runs one of several agents.

    pick: a function of the reply so far that returns a key of `ways`; it may be async
    ways: the agents, by key
    """
    return Branch(pick, ways)


def fan_out(agents: Sequence[Agent], *, join: Callable[[list[Reply]], Any] | None = None) -> FanOut:
    """Return a step of a chain that runs several agents at the same time.

    agents: the agents
    join: a function of their replies, in the order of `agents`, that returns one text; it may be async. Without it
        the texts follow each other, each under its agent's name.
    """
    return FanOut(agents, join)


# --- running ----------------------------------------------------------------------------


async def _hop(work: Coordination, number: int, agent: Agent, previous: StepText) -> StepText:
    step = Step(f"{number}.{agent.name}", agent, _prompt(number, previous), f"{number}.{agent.name}")
    return await _step_text(work, step, await work.step(step))


def _prompt(number: int, previous: StepText) -> str:
    """Return a step's prompt. If the reply before it was empty, the prompt says so."""
    return previous.text if previous.text.strip() or number == 1 else SAID_NOTHING


async def _step_text(work: Coordination, step: Step, ended: StepEnded) -> StepText:
    output = None
    if step.agent.output is not None:
        with contextlib.suppress(ValueError):  # an end_turn hook may have replaced the text
            output = await step.agent.output.read(ended.text)
    reply = Reply(ended.text, "done", f"{work.id}~{step.child}", ended.usage, output=output)
    return StepText(reply, f"{ended.summary}\n\n{ended.text}" if ended.summary else ended.text)


async def _call_function(step: str, role: str, function: Callable[[Any], Any], argument: Any) -> Any:
    try:
        value = function(argument)
        return await value if hasattr(value, "__await__") else value
    except Exception as error:
        raise StepFailed(step, f"{role} raised {type(error).__name__}: {error}") from error


# --- building ---------------------------------------------------------------------------


def _agent(where: str, value: Any) -> Agent:
    if not isinstance(value, Agent):
        raise BadAgent(where, f"its steps must be agents, teams, chains, branch(…) or fan_out(…), not {value!r}")
    return cast("Agent", value)


def _agents(step: Agent | Branch | FanOut) -> list[Agent]:
    return [step] if isinstance(step, Agent) else step.agents


def _default_name(steps: Sequence[Agent | Branch | FanOut]) -> str:
    """Return a name made of the steps' names that no agent below the chain has."""
    name = "-".join(".".join(a.name for a in _agents(s)) for s in steps)[:100]
    taken = names_of([agent for step in steps for agent in _agents(step)])
    while name in taken:
        name = f"{name[:90]}-chain"
    return name


def _refuse_cycles(name: str, steps: Sequence[Agent | Branch | FanOut]) -> None:
    """Raise BadAgent if a path through the steps, including inner chains, has an agent twice."""
    positions = [names for step in steps for names in _positions(step)]
    for end, current in enumerate(positions):
        for start in range(end):
            repeated = sorted(current & positions[start])
            if repeated:
                between = [" or ".join(sorted(names)) for names in positions[start + 1 : end]]
                path = " → ".join([repeated[0], *between, repeated[0]])
                raise BadAgent(name, f"{path} is a cycle; for several rounds write chain(…, loop=3)")


def _positions(step: Agent | Branch | FanOut) -> list[set[str]]:
    """Return the names of the agents that may run at each position of a step."""
    if isinstance(step, Chain):
        return [position for inner in step.steps for position in _positions(inner)]
    if isinstance(step, Agent):
        return [{step.name}]
    return [{name for agent in step.agents for position in _positions(agent) for name in position}]
