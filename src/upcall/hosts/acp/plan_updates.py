"""Plans in an editor: an agent's to-do list, and the steps of a team."""

from __future__ import annotations

from typing import Any, cast

from upcall import events
from upcall.observe.lines import Lines
from upcall.observe.phrases import read_todos

_STATES = ("pending", "in_progress", "completed")

PlanEvent = events.ContextSet | events.Planned | events.StepStarted | events.StepEnded


class PlanUpdates:
    """Folds the events of to-do lists and team plans into updates, each of which shows a session's whole plan."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._steps: dict[str, dict[str, dict[str, str]]] = {}  # a team's entries, by session and step

    def changed(self, event: PlanEvent) -> list[dict[str, Any]]:
        """Return the update to which an event leads."""
        match event:
            case events.ContextSet():
                todos = read_todos(event)
                return [] if todos is None else _plan([self._entry(*one) for one in todos])
            case events.Planned():
                return self._planned(event)
            case events.StepStarted():
                new = self._entry(f"{event.agent} ({event.step})", "pending")
                self._steps.setdefault(event.session, {}).setdefault(event.step, new)
                return self._set_step(event, "in_progress")
            case events.StepEnded():
                return self._set_step(event, "completed")

    def _planned(self, event: events.Planned) -> list[dict[str, Any]]:
        match event.value:
            case [{"worker": _}, *_] as plan:
                rows = sorted(cast("list[dict[str, Any]]", plan), key=lambda one: one.get("sequence", 0))
                before = self._steps.get(event.session, {})
                kept = {name: entry for name, entry in before.items() if entry["status"] != "pending"}
                new = {str(a["worker"]): self._entry(f"{a['worker']}: {a.get('task', '')}", "") for a in rows}
                self._steps[event.session] = {**kept, **new}
                return _plan([*self._steps[event.session].values()])
            case _:
                return []

    def _set_step(self, event: events.StepStarted | events.StepEnded, status: str) -> list[dict[str, Any]]:
        steps = self._steps.get(event.session, {})
        if event.step not in steps:
            return []
        steps[event.step] = {**steps[event.step], "status": status}
        return _plan([*steps.values()])

    def _entry(self, content: str, status: str) -> dict[str, str]:
        state = status if status in _STATES else "pending"
        return {"content": self._lines.whole(content), "priority": "medium", "status": state}


def _plan(entries: list[dict[str, str]]) -> list[dict[str, Any]]:
    return [{"sessionUpdate": "plan", "entries": entries}]
