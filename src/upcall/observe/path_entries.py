"""The path of a callback in words: who was asked or skipped, and what they did with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from upcall.callbacks import Step

_DONE = {
    "asked": "is asked",
    "skipped": "was skipped",
    "passed": "passed it up",
    "reworded": "reworded it and passed it up",
}


class PathEntry(NamedTuple):
    """One station of a callback's path.

    done: what happened there, in words: "passed it up"
    reason: why, as the policy or the agent says it
    """

    agent: str
    step: str
    done: str
    reason: str


def path_entries(path: Sequence[Step]) -> list[PathEntry]:
    """Return the stations so far, in order. That an agent was asked is left out once it has done something."""
    entries: list[PathEntry] = []
    for at, step in enumerate(path):
        acted_later = any(later.agent == step.agent for later in path[at + 1 :])
        if step.step != "asked" or step.agent == "user" or not acted_later:
            entries.append(PathEntry(step.agent, step.step, _DONE[step.step], step.reason))
    return entries
