"""The chains of ancestors that an agent's questions may climb, as its folder or program declares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Position(NamedTuple):
    """An agent below another: its name, and the agents that are asked on the step up from it, nearest first.

    Below an agent, that agent is asked. Below a team, workers ask the manager; manager and reviewer ask nobody.
    """

    agent: str
    asks: tuple[str, ...]


def team_positions(manager: str, workers: Sequence[str], reviewer: str) -> list[Position]:
    """Return the positions of a team's members. The team itself has no model and is never asked."""
    others = [manager, *([reviewer] if reviewer else [])]
    return [*(Position(worker, (manager,)) for worker in workers), *(Position(other, ()) for other in others)]


def ancestor_chains(name: str, positions: Mapping[str, Sequence[Position]], most: int) -> list[list[str]]:
    """Return at most `most` chains from an agent up to a root, nearest ancestor first."""
    finished: list[list[str]] = []
    todo: list[tuple[str, list[str]]] = [(name, [])]
    while todo and len(finished) < most:
        current, chain = todo.pop()
        parents = [
            (parent, position)
            for parent, listed in positions.items()
            for position in dict.fromkeys(listed)
            if position.agent == current
        ]
        if not parents:
            finished.append(chain)
        todo += [(parent, [*chain, *position.asks]) for parent, position in reversed(parents)]
    return finished
