"""Teams and chains by script: each decides from its request alone, so it goes on in any process."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from callbacks.doubles import Decide, results
from upcall import Agent, Request, Team
from upcall.models import Script, call


def entry(role: str, task: str, sequence: int = 1, **more: Any) -> dict[str, Any]:
    """An entry of a plan; its caller is the manager unless `caller=None` leaves it out."""
    made = {"role": role, "task": task, "sequence": sequence, "caller": "manager", **more}
    return {key: value for key, value in made.items() if value is not None}


def plan(*entries: dict[str, Any]) -> str:
    return json.dumps(entries)


def turns(request: Request) -> int:
    """How often this agent has spoken before in its conversation."""
    return sum(m.role == "assistant" for m in request.messages)


def manages(*plans: str, aside: Decide | None = None, name: str = "manager", **options: Any) -> Agent:
    """A manager with one plan for each time it is asked."""

    def decide(request: Request) -> Any:
        if request.purpose == "side_turn":
            assert aside is not None, "nobody was to ask the manager"
            return aside(request)
        return plans[turns(request)]

    return Agent(name, model=Script(decide), **options)


def task_of(request: Request) -> str:
    """The newest prompt."""
    return [m for m in request.messages if m.role == "user"][-1].text


def works(name: str = "developer", *tools: Any, **options: Any) -> Agent:
    """A worker that calls each tool once and says what they said; without tools, what it was told."""

    def decide(request: Request) -> Any:
        said = results(request.messages)
        if tools and not said:
            return [call(t.name) for t in tools]
        return "; ".join(r.text for r in said) or f"{request.agent} did {task_of(request)}"

    return Agent(name, model=Script(decide), tools=list(tools), **options)


def reviews(**options: Any) -> Agent:
    """A reviewer that repeats what it was shown."""
    return Agent("reviewer", model=Script(lambda r: "REPORT\n" + task_of(r)), **options)


def team_of(*plans: str, aside: Decide | None = None, **options: Any) -> Team:
    """A manager with these plans above developers and testers, and a reviewer."""
    roles = options.pop("roles", None) or {"developer": works(), "tester": works("tester")}
    manager = options.pop("manager", None) or manages(*plans, aside=aside)
    options.setdefault("reviewer", reviews())
    return Team(manager, roles, **options)


def says(name: str, said: Callable[[str], str] | None = None, **options: Any) -> Agent:
    """An agent that wraps what it was told: `a(x)`."""

    def decide(request: Request) -> str:
        told = task_of(request)
        return said(told) if said is not None else f"{name}({told})"

    return Agent(name, model=Script(decide), **options)


def broken(name: str = "developer", tasks: Sequence[str] = (), error: str = "boom") -> Agent:
    """A worker whose model fails at these tasks, or at all of them."""

    def decide(request: Request) -> Any:
        return RuntimeError(error) if not tasks or task_of(request) in tasks else f"{request.agent} did it"

    return Agent(name, model=Script(decide))
