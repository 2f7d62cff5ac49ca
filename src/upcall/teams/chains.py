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
    """What a step came to, and what the next one is told of it: with the summary, if it was compacted meanwhile."""

    reply: Reply
    told: str


class Branch:
    """A step that takes one of several ways; `pick` gets the reply so far and returns a key."""

    def __init__(self, pick: Callable[[Reply], Any], ways: Mapping[str, Agent]) -> None:
        keys = list(ways) if isinstance(cast("Any", ways), Mapping) else []
        if not callable(pick) or not keys or not all(isinstance(cast("Any", key), str) for key in keys):
            raise BadAgent(
                "branch", "branch(pick, {'key': agent}) takes a function and at least one way, by a string"
            )
        self.pick, self.ways = pick, dict(ways)
        self.agents = [_agent("branch", a) for a in self.ways.values()]

    async def run(self, work: Coordination, number: int, said: StepText) -> StepText:
        """Pick, once, and go that way."""
        key = await work.decide(f"{number}", lambda: _called(f"{number}", "pick", self.pick, said.reply))
        if not isinstance(key, str) or key not in self.ways:
            known = ", ".join(map(repr, self.ways))
            raise StepFailed(f"{number}", f"pick returned {key!r}; the branches are {known}")
        return await _hop(work, number, self.ways[key], said)


class FanOut:
    """A step of several agents side by side; `join` makes one text of their replies, in the list's order."""

    def __init__(self, agents: Sequence[Agent], join: Callable[[list[Reply]], Any] | None = None) -> None:
        if isinstance(agents, Agent) or not agents or (join is not None and not callable(join)):
            raise BadAgent("fan_out", "fan_out([a, b], join=function) takes a list of at least one agent")
        self.agents, self.join = [_agent("fan_out", a) for a in agents], join

    async def run(self, work: Coordination, number: int, said: StepText) -> StepText:
        """Run all, then join."""
        steps = [
            Step(f"{number}.{i}", agent, _prompt(number, said), f"{number}.{i}.{agent.name}")
            for i, agent in enumerate(self.agents, 1)
        ]
        ends = await work.together(steps)
        all_said = [_said(work, s, e) for s, e in zip(steps, ends, strict=True)]
        join = self.join
        if join is None:
            text = "\n\n".join(f"{a.name}:\n{s.told}" for a, s in zip(self.agents, all_said, strict=True))
        else:
            replies = [s.reply for s in all_said]
            text = await work.decide(f"{number}", lambda: _called(f"{number}", "join", join, replies))
        if not isinstance(text, str):
            raise StepFailed(
                f"{number}", f"join returned {type(text).__name__}; it must return the text for the next agent"
            )
        return StepText(Reply(text, session_id=work.id), text)


class Chain(Coordinator):
    """Agents in a row: each one is told what the one before it said. `chain(…)` makes one.

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

    async def coordinate(self, work: Coordination, prompt: str) -> str:
        """Each step once a round, with what the one before it said."""
        said, number = StepText(Reply(prompt, session_id=work.id), prompt), 0
        for _ in range(self.loop):
            for step in self.steps:
                number += 1
                if isinstance(step, Agent):
                    said = await _hop(work, number, step, said)
                else:
                    said = await step.run(work, number, said)
        return said.reply.text


def chain(*steps: Agent | Branch | FanOut, name: str = "", loop: int = 1, description: str = "") -> Chain:
    """Agents that work one after the other: `chain(a, b, c)` runs a, then b with what a said, then c.

    *steps: agents, teams, other chains, `branch(…)` or `fan_out(…)`. An agent that comes twice is a cycle, and
        refused.
    name: the name of the chain; by default it is made of the agents' names, as in `a-b-c`
    loop: how many rounds are run
    description: what agents above read when they choose whom to give work to
    """
    if not steps:
        raise BadAgent(name or "chain", "a chain has at least one step: chain(a, b)")
    for step in steps:
        if not isinstance(step, Branch | FanOut):
            _agent(name or "chain", step)
    if type(loop) is not int or loop < 1:
        raise BadAgent(name or "chain", f"loop={loop!r} is not a valid number of rounds (1 or more)")
    _refuse_cycles(name or "chain", steps)
    return Chain(steps, name or _named(steps), loop, description)


def branch(pick: Callable[[Reply], Any], ways: Mapping[str, Agent]) -> Branch:
    """A step of a chain that takes one of several ways.

    pick: a function of the reply so far that returns a key of `ways`; it may be async
    ways: the agents, by key
    """
    return Branch(pick, ways)


def fan_out(agents: Sequence[Agent], *, join: Callable[[list[Reply]], Any] | None = None) -> FanOut:
    """A step of a chain that runs several agents at the same time.

    agents: the agents
    join: a function of their replies, in the order of `agents`, that returns one text; it may be async. Without it
        the texts follow each other, each under its agent's name.
    """
    return FanOut(agents, join)


# --- running ----------------------------------------------------------------------------


async def _hop(work: Coordination, number: int, agent: Agent, said: StepText) -> StepText:
    step = Step(f"{number}.{agent.name}", agent, _prompt(number, said), f"{number}.{agent.name}")
    return _said(work, step, await work.step(step))


def _prompt(number: int, said: StepText) -> str:
    """What a step is told; no agent is prompted with nothing because the one before it had nothing to say."""
    return said.told if said.told.strip() or number == 1 else SAID_NOTHING


def _said(work: Coordination, step: Step, ended: StepEnded) -> StepText:
    output = None
    if step.agent.output is not None:
        with contextlib.suppress(ValueError):  # an end_turn hook may have put other words in its place
            output = step.agent.output.parse(ended.text)
    reply = Reply(ended.text, "done", f"{work.id}~{step.child}", ended.usage, output=output)
    return StepText(reply, f"{ended.summary}\n\n{ended.text}" if ended.summary else ended.text)


async def _called(step: str, what: str, function: Callable[[Any], Any], argument: Any) -> Any:
    try:
        value = function(argument)
        return await value if hasattr(value, "__await__") else value
    except Exception as error:
        raise StepFailed(step, f"{what} raised {type(error).__name__}: {error}") from error


# --- building ---------------------------------------------------------------------------


def _agent(where: str, given: Any) -> Agent:
    if not isinstance(given, Agent):
        raise BadAgent(where, f"its steps are agents, teams, chains, branch(…) or fan_out(…), not {given!r}")
    return cast("Agent", given)


def _agents(step: Agent | Branch | FanOut) -> list[Agent]:
    return [step] if isinstance(step, Agent) else step.agents


def _named(steps: Sequence[Agent | Branch | FanOut]) -> str:
    """A chain's name after its steps, and no name of an agent below it: a chain of one would have that one's."""
    name = "-".join(".".join(a.name for a in _agents(s)) for s in steps)[:100]
    taken = names_of([agent for step in steps for agent in _agents(step)])
    while name in taken:
        name = f"{name[:90]}-chain"
    return name


def _refuse_cycles(name: str, steps: Sequence[Agent | Branch | FanOut]) -> None:
    """Each way through the steps may pass an agent once, through inner chains too."""
    places = [place for step in steps for place in _places(step)]
    for end, here in enumerate(places):
        for start in range(end):
            twice = sorted(here & places[start])
            if twice:
                between = [" or ".join(sorted(place)) for place in places[start + 1 : end]]
                path = " → ".join([twice[0], *between, twice[0]])
                raise BadAgent(name, f"{path} is a cycle; for several rounds write chain(…, loop=3)")


def _places(step: Agent | Branch | FanOut) -> list[set[str]]:
    """Who works at each place of a step, one place after the other."""
    if isinstance(step, Chain):
        return [place for inner in step.steps for place in _places(inner)]
    if isinstance(step, Agent):
        return [{step.name}]
    return [{name for agent in step.agents for place in _places(agent) for name in place}]
