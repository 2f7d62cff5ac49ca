"""Describe a team's work as text, for its manager, its reviewer and its caller."""

from __future__ import annotations

from collections.abc import Sequence

from upcall.callbacks import Answer, Approve, Callback, Reject
from upcall.events import StepEnded
from upcall.safety.framing import framed, harmless, is_one_word, json_line
from upcall.teams.plan import Assignment

Ends = Sequence[tuple[Assignment, StepEnded]]


def results(ends: Ends) -> str:
    """Return every worker's result, in the order of the plan."""
    return "\n\n".join(_result(assignment, ended) for assignment, ended in ends) or "Nobody has worked yet."


def _result(assignment: Assignment, ended: StepEnded) -> str:
    worker = assignment.worker
    why = f" ({_json(ended.error)})" if ended.error else ""
    head = f"{worker} ({assignment.role}): {ended.status}{why}"
    body = framed(f"result-{worker}", ended.text) if ended.text else "It said nothing."
    return f"{head}\nTask: {harmless(assignment.task)}\n{body}"


def review(
    task: str, ends: Ends, not_started: Sequence[Assignment], callbacks: Sequence[Callback], stopped: bool
) -> str:
    """Return the reviewer's prompt: the task, the questions with how each was settled, and every result."""
    parts = [f"The task was:\n{task}", questions(callbacks), f"The workers' results:\n\n{results(ends)}"]
    if stopped:
        parts.append(
            f"The work was stopped after a failure. Not started:\n{assignments(not_started) or '- nothing'}"
        )
    return "\n\n".join(parts)


def assignments(listed: Sequence[Assignment]) -> str:
    """Return a line for each assignment."""
    return "\n".join(f"- {a.worker}, sequence {a.sequence}: {harmless(a.task)}" for a in listed)


def questions(callbacks: Sequence[Callback]) -> str:
    """Return every callback with how it was settled; those without an answer come first."""
    if not callbacks:
        return "Nobody asked anything."
    unanswered_first = sorted(callbacks, key=lambda callback: callback.status == "answered")
    lines = "\n".join(f"- {_question(callback)}" for callback in unanswered_first)
    return f"The questions that were asked, unanswered ones first:\n{lines}"


def _question(callback: Callback) -> str:
    """Return one line. Texts that others wrote are in it as JSON."""
    intent = callback.intent if is_one_word(callback.intent) else _json(callback.intent[:200])
    about = f" for {callback.tool}({_json(callback.args)})" if callback.tool else ""
    line = f"{callback.agent}, {intent}{about}: {_json(callback.message)}"
    if callback.reworded:
        line += f", reworded as {_json(callback.reworded)}"
    answer = callback.answer
    if answer is not None and callback.status == "declined":
        return f"{line}; declined by {answer.by or 'somebody'}: {_json(answer.reason)}"
    if answer is not None and callback.gate:
        return f"{line}; {_verdict(answer)}"
    if answer is not None:
        return f"{line}; answered by {answer.by or 'somebody'}: {_json(answer.value)}"
    reasons = {s: f" ({_json(s.reason)})" if s.reason and s.step != "asked" else "" for s in callback.path}
    passed = ", ".join(f"{s.agent} {s.step}{reasons[s]}" for s in callback.path)
    return f"{line}; {callback.status}" + (f" after: {passed}" if passed else "")


def _verdict(answer: Answer) -> str:
    """Return how an approval was settled, in words."""
    by = answer.by or "somebody"
    match answer.value:
        case Approve(args=None):
            return f"approved by {by}"
        case Approve(args=args):
            return f"approved by {by} with {_json(args)}"
        case Reject(reason=reason):
            return f"rejected by {by}" + (f": {_json(reason)}" if reason else "")
        case value:
            return f"answered by {by}: {_json(value)}"


def _json(value: object) -> str:
    return harmless(json_line(value))
