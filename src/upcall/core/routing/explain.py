"""A route in words: for errors, `upcall explain` and the screens.

A route is explained before anything has happened, or with the steps that a callback has taken so far.
"""

from __future__ import annotations

from collections.abc import Sequence

from upcall.callbacks import Step
from upcall.core.routing.route import Route

_DONE = {
    "asked": "asked",
    "skipped": "skipped",
    "passed": "passed it up",
    "reworded": "reworded it and passed it up",
}


def explain_unresolved(route: Route, path: Sequence[Step] = ()) -> list[str]:
    """Return the lines of CallbackUnresolved: who passed it up, why no person was asked, what would have helped."""
    passed = ", ".join(f"{name} ({text})" for name, text in rows(route, path))
    lines = [f"It passed: {passed}." if passed else f"Nobody is above {route.asker}."]
    if route.end != "person":
        lines.append(f"The person was not asked: {route.why}.")
    if route.allow:
        lines.append(f"It could reach others with: {'; '.join(route.allow)}.")
    return [printable(line) for line in (*lines, *(f"Note: {note}." for note in route.notes))]


def rows(route: Route, path: Sequence[Step]) -> list[tuple[str, str]]:
    """Return each station with what happened there, or else what is planned."""
    steps = list(path)
    rows: list[tuple[str, str]] = []
    for station in route.stations:
        mine: list[Step] = []
        while steps and steps[0].agent == station.agent and not (mine and _begins(steps[0], mine[-1])):
            mine.append(steps.pop(0))
        happened = mine[-1] if mine else None
        if station.step == "skip" or not happened:
            rows.append((station.agent, f"{'asked' if station.step == 'ask' else 'skipped'}: {station.reason}"))
        else:
            reason = f": {happened.reason}" if happened.reason else ""
            rows.append((station.agent, f"{_DONE[happened.step]}{reason}"))
    return rows


def _begins(step: Step, before: Step) -> bool:
    """Tell whether a step is the first of its station. An agent that was asked may still be skipped."""
    return step.step == "asked" or (step.step == "skipped" and before.step != "asked")


def printable(text: str) -> str:
    """Replace every character that a terminal would not print, line breaks too, by a blank.

    Reasons are written by models: no escape sequence and no line of its own may reach a terminal.
    """
    return "".join(letter if letter.isprintable() else " " for letter in text)
