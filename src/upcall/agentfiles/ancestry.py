"""Who lies above an agent, as its folder or program declares it: the chains that its questions may climb."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Position(NamedTuple):
    """Where a declaration puts an agent: which one, and who is asked on the step up from it, nearest first.

    Below an agent that is the agent; below a team its manager, for those who carry the plan out, else nobody.
    """

    agent: str
    asks: tuple[str, ...]


def team_seats(manager: str, workers: Sequence[str], reviewer: str) -> list[Position]:
    """A team's members. The team has no model: it only passes on to what lies above it."""
    others = [manager, *([reviewer] if reviewer else [])]
    return [*(Position(worker, (manager,)) for worker in workers), *(Position(other, ()) for other in others)]


def ancestor_chains(name: str, seats: Mapping[str, Sequence[Position]], most: int) -> list[list[str]]:
    """The chains from an agent up to a root, nearest ancestor first, as declared; of very many, the first ones."""
    finished: list[list[str]] = []
    todo: list[tuple[str, list[str]]] = [(name, [])]
    while todo and len(finished) < most:
        at, way = todo.pop()
        above = [(up, seat) for up, held in seats.items() for seat in dict.fromkeys(held) if seat.agent == at]
        if not above:
            finished.append(way)
        todo += [(up, [*way, *seat.asks]) for up, seat in reversed(above)]
    return finished
