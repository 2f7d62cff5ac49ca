"""Chains: one agent after the other, each a child of the chain and not of each other.

May import: agent, contracts, errors, events, teams.coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from upcall.agent import Agent
from upcall.contracts import Reply
from upcall.errors import BadAgent, StepFailed
from upcall.events import StepEnded
from upcall.teams.coordinator import Coordination, Coordinator, Step


class Branch:
    """A step that takes one of several ways; `pick` gets the reply so far and returns a key."""

    def __init__(self, pick: Callable[[Reply], Any], ways: Mapping[str, Agent]) -> None:
        if not callable(pick) or not isinstance(cast("Any", ways), Mapping) or not ways:
            raise BadAgent("branch", "branch(pick, {'key': agent}) takes a function and at least one way")
        self.pick, self.ways = pick, dict(ways)
        self.agents = [_agent("branch", a) for a in self.ways.values()]

    async def run(self, work: Coordination, number: int, reply: Reply) -> Reply:
        """Pick, once, and go that way."""
        key = await work.decide(f"{number}", lambda: _called(f"{number}", "pick", self.pick, reply))
        if not isinstance(key, str) or key not in self.ways:
            known = ", ".join(map(repr, self.ways))
            raise StepFailed(f"{number}", f"pick returned {key!r}; the branches are {known}")
        return await _hop(work, number, self.ways[key], reply)


class FanOut:
    """A step of several agents side by side; `join` makes one text of their replies, in the list's order."""

    def __init__(self, agents: Sequence[Agent], join: Callable[[list[Reply]], Any] | None = None) -> None:
        if isinstance(agents, Agent) or not agents or (join is not None and not callable(join)):
            raise BadAgent("fan_out", "fan_out([a, b], join=function) takes a list of at least one agent")
        self.agents, self.join = [_agent("fan_out", a) for a in agents], join or _joined

    async def run(self, work: Coordination, number: int, reply: Reply) -> Reply:
        """Run all, then join."""
        steps = [
            Step(f"{number}.{i}", agent, reply.text, f"{number}.{i}.{agent.name}")
            for i, agent in enumerate(self.agents, 1)
        ]
        ends = await work.together(steps)
        replies = [_reply(work, s, e) for s, e in zip(steps, ends, strict=True)]
        text = await work.decide(f"{number}", lambda: _called(f"{number}", "join", self.join, replies))
        if not isinstance(text, str):
            raise StepFailed(
                f"{number}", f"join returned {type(text).__name__}; it must return the text to go on with"
            )
        return Reply(text, session_id=work.id)


class Chain(Coordinator):
    """Agents in a row: what one says is what the next one is told."""

    def __init__(self, steps: Sequence[Agent | Branch | FanOut], name: str, loop: int, description: str) -> None:
        self.steps, self.loop = tuple(steps), loop
        below = [agent for step in steps for agent in _agents(step)]
        unique = {id(agent): agent for agent in below}
        structure = [[a.name for a in _agents(step)] for step in steps]
        super().__init__(name, list(unique.values()), description, ["chain", structure, loop])

    async def coordinate(self, work: Coordination, prompt: str) -> str:
        """Each step once a round, with what the one before it said."""
        reply, number = Reply(prompt, session_id=work.id), 0
        for _ in range(self.loop):
            for step in self.steps:
                number += 1
                if isinstance(step, Agent):
                    reply = await _hop(work, number, step, reply)
                else:
                    reply = await step.run(work, number, reply)
        return reply.text


def chain(*steps: Agent | Branch | FanOut, name: str = "", loop: int = 1, description: str = "") -> Chain:
    """Agents that work one after the other: `chain(a, b, c)` runs a, then b with what a said, then c.

    A step is an agent, a team, another chain, `branch(…)` or `fan_out(…)`. An agent that comes again on the way is
    a cycle and is refused; `loop=3` runs three rounds.
    """
    if not steps:
        raise BadAgent(name or "chain", "a chain has at least one step: chain(a, b)")
    for step in steps:
        if not isinstance(step, Branch | FanOut):
            _agent(name or "chain", step)
    if type(loop) is not int or loop < 1:
        raise BadAgent(name or "chain", f"loop={loop!r} is no number of rounds from 1 on")
    _refuse_cycles(name or "chain", steps)
    return Chain(steps, name or _named(steps), loop, description)


def branch(pick: Callable[[Reply], Any], ways: Mapping[str, Agent]) -> Branch:
    """A step that takes one of several ways: `pick` gets the reply so far and returns a key of `ways`."""
    return Branch(pick, ways)


def fan_out(agents: Sequence[Agent], *, join: Callable[[list[Reply]], Any] | None = None) -> FanOut:
    """A step of several agents side by side; `join` gets their replies in the list's order and returns a text.

    Without `join` their texts follow each other, each under its agent's name.
    """
    return FanOut(agents, join)


# --- running ----------------------------------------------------------------------------


async def _hop(work: Coordination, number: int, agent: Agent, reply: Reply) -> Reply:
    step = Step(f"{number}.{agent.name}", agent, reply.text, f"{number}.{agent.name}")
    return _reply(work, step, await work.step(step))


def _reply(work: Coordination, step: Step, ended: StepEnded) -> Reply:
    output = step.agent.output.parse(ended.text) if step.agent.output is not None else None
    return Reply(ended.text, "done", f"{work.id}~{step.child}", ended.usage, output=output)


async def _called(step: str, what: str, function: Callable[[Any], Any], argument: Any) -> Any:
    try:
        value = function(argument)
        return await value if hasattr(value, "__await__") else value
    except Exception as error:
        raise StepFailed(step, f"{what} raised {type(error).__name__}: {error}") from error


def _joined(replies: list[Reply]) -> str:
    named = [(r.session_id.rpartition("~")[2].split(".", 2)[2], r.text) for r in replies]
    return "\n\n".join(f"{name}:\n{text}" for name, text in named)


# --- building ---------------------------------------------------------------------------


def _agent(where: str, given: Any) -> Agent:
    if not isinstance(given, Agent):
        raise BadAgent(where, f"its steps are agents, teams, chains, branch(…) or fan_out(…), not {given!r}")
    return given


def _agents(step: Agent | Branch | FanOut) -> list[Agent]:
    return [step] if isinstance(step, Agent) else step.agents


def _named(steps: Sequence[Agent | Branch | FanOut]) -> str:
    return "-".join("+".join(a.name for a in _agents(s)) for s in steps).replace("+", ".")[:100]


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
