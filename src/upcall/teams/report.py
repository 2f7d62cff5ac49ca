"""What a team's work came to, in words: for its manager, its reviewer, and whoever asked for it."""

from __future__ import annotations

from collections.abc import Sequence

from upcall.callbacks import Callback
from upcall.events import StepEnded
from upcall.safety.framing import framed, harmless, is_one_word, json_line
from upcall.teams.plan import Assignment

Ends = Sequence[tuple[Assignment, StepEnded]]


def results(ends: Ends) -> str:
    """Every worker's result, in the order of the plan."""
    return "\n\n".join(_result(assignment, ended) for assignment, ended in ends) or "Nobody has worked yet."


def _result(assignment: Assignment, ended: StepEnded) -> str:
    worker = assignment.worker
    why = f" ({_json(ended.error)})" if ended.error else ""
    head = f"{worker} ({assignment.role}): {ended.status}{why}"
    body = framed(f"result-{worker}", ended.text) if ended.text else "It said nothing."
    return f"{head}\nTask: {harmless(assignment.task)}\n{body}"


def review(task: str, ends: Ends, left: Sequence[Assignment], asked: Sequence[Callback], stopped: bool) -> str:
    """What the reviewer reads: the task, what was asked and how it was settled, and every result."""
    parts = [f"The task was:\n{task}", questions(asked), f"What the workers came to:\n\n{results(ends)}"]
    if stopped:
        parts.append(f"The work was stopped after a failure. Not started:\n{assignments(left) or '- nothing'}")
    return "\n\n".join(parts)


def assignments(left: Sequence[Assignment]) -> str:
    """A line for each."""
    return "\n".join(f"- {a.worker}, sequence {a.sequence}: {harmless(a.task)}" for a in left)


def questions(asked: Sequence[Callback]) -> str:
    """Every callback with how it was settled; those without an answer come first."""
    if not asked:
        return "Nobody asked anything."
    first = sorted(asked, key=lambda callback: callback.status == "answered")
    lines = "\n".join(f"- {_question(callback)}" for callback in first)
    return f"What was asked, the unsettled first:\n{lines}"


def _question(callback: Callback) -> str:
    """One line: whatever somebody else wrote is in it as JSON."""
    intent = callback.intent if is_one_word(callback.intent) else _json(callback.intent[:200])
    about = f" for {callback.tool}({_json(callback.args)})" if callback.tool else ""
    said = f"{callback.agent}, {intent}{about}: {_json(callback.message)}"
    if callback.reworded:
        said += f", reworded as {_json(callback.reworded)}"
    answer = callback.answer
    if answer is not None and callback.status == "declined":
        return f"{said}; declined by {answer.by or 'somebody'}: {_json(answer.reason)}"
    if answer is not None:
        return f"{said}; answered by {answer.by or 'somebody'}: {_json(answer.value)}"
    told = {s: f" ({_json(s.reason)})" if s.reason and s.step != "asked" else "" for s in callback.path}
    passed = ", ".join(f"{s.agent} {s.step}{told[s]}" for s in callback.path)
    return f"{said}; {callback.status}" + (f" after: {passed}" if passed else "")


def _json(value: object) -> str:
    return harmless(json_line(value))
