"""Commands over declarations: check agent files, explain where a question would go.

May import: agentfiles, callbacks, cli.options, cli.output, errors, loading, observe.plain, policy, routing.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from upcall.callbacks import KINDS
from upcall.cli.options import Commands, agent_argument, as_json
from upcall.cli.output import dump, say
from upcall.errors import SetupError, UnknownAgent
from upcall.observe.plain import plain

if TYPE_CHECKING:
    from upcall.loading import Asker
    from upcall.policy import Problem

_MOST_WAYS = 20


def add(commands: Commands) -> None:
    """The commands `check` and `explain`."""
    parser = commands.add(
        "check",
        "find every mistake in a folder of agent files",
        _check,
        about="Reads each NAME.md and the NAME.json beside it, imports their tools, and tells what is\n"
        "wrong and what can't have been meant. Exit code 1 if there are errors.",
        examples=["upcall check agents/"],
    )
    parser.add_argument("folder", metavar="FOLDER", help="a folder of agent files, or one NAME.md")
    as_json(parser)
    parser = commands.add(
        "explain",
        "draw whom an agent's question would reach, and why",
        _explain,
        about="KIND is where to look for the answer, INTENT what kind of question it is: query,\n"
        "clarification, blocker, error, approval (as raised before a tool runs), or your own word.",
        examples=[
            "upcall explain agents/developer.md callback_to_caller blocker",
            "upcall explain agents/ request_user_input query --agent developer",
            "upcall explain agents/developer.md callback_to_caller error --under manager,lead",
        ],
    )
    agent_argument(parser)
    parser.add_argument("kind", metavar="KIND", choices=KINDS, help=", ".join(KINDS))
    parser.add_argument("intent", metavar="INTENT", help="what kind of question it is")
    under = "the agents above it, from the top down (default: each way that `agents:` makes)"
    parser.add_argument("--under", metavar="NAMES", help=under)


# --- check ------------------------------------------------------------------------------


def _check(args: argparse.Namespace) -> int:
    from upcall.agentfiles import read_agents
    from upcall.loading import tool_problems

    agents, problems = read_agents(args.folder)
    problems = sorted([*problems, *tool_problems(agents)], key=lambda p: (p.file, p.line))
    errors = [problem for problem in problems if problem.severity == "error"]
    if args.json:
        fields = ("severity", "file", "line", "key", "text")
        dump([{name: getattr(problem, name) for name in fields} for problem in problems])
    else:
        for problem in problems:
            say(f"{problem.severity:<8} {plain(str(problem))}")
        say(f"{'' if not problems else chr(10)}{_summary(len(agents), problems)}")
    return 1 if errors else 0


def _summary(agents: int, problems: Sequence[Problem]) -> str:
    errors = sum(problem.severity == "error" for problem in problems)
    counts = [(agents, "agent"), (errors, "error"), (len(problems) - errors, "warning")]
    return ", ".join(f"{count} {what}{'s' if count != 1 else ''}" for count, what in counts)


# --- explain ----------------------------------------------------------------------------


def _explain(args: argparse.Namespace) -> int:
    from upcall.loading import load_askers

    name, known = load_askers(args.agent, args.agent_name)
    ways = [_under(args.under, name, known)] if args.under is not None else _ways(name, known)
    for index, way in enumerate(ways):
        if len(ways) > 1:
            say(("" if not index else "\n") + "under " + plain(", ".join(reversed(way))))
        say(_drawn(name, way, known, args))
    return 0


def _drawn(name: str, way: Sequence[str], known: Mapping[str, Asker], args: argparse.Namespace) -> str:
    from upcall.routing import Ancestor, Raised, draw, route

    raised = Raised(
        name,
        known[name].policy,
        args.intent,
        args.kind,
        gate=args.intent == "approval",
        known=tuple(sorted(known)),
    )
    return draw(route(raised, [Ancestor(above, known[above].policy) for above in way]))


def _under(given: str, name: str, known: Mapping[str, Asker]) -> list[str]:
    """The chain, nearest first. It is written from the top down; where the declarations say so, bottom up."""
    names = [one.strip() for one in given.split(",") if one.strip()]
    if not names:
        raise SetupError("--under names the agents above, such as --under manager,lead")
    for one in names:
        if one not in known:
            raise UnknownAgent(one, known)
    upwards = all(low in known[high].below for low, high in zip([name, *names], names, strict=False))
    return names if upwards else names[::-1]


def _ways(name: str, known: Mapping[str, Asker]) -> list[list[str]]:
    """Each way from a root down to the agent, nearest ancestor first."""
    finished: list[list[str]] = []
    todo: list[list[str]] = [[]]
    while todo and len(finished) < _MOST_WAYS:
        way = todo.pop(0)
        lowest = way[-1] if way else name
        above = [one.name for one in known.values() if lowest in one.below and one.name not in way]
        if above:
            todo += [[*way, one] for one in above]
        else:
            finished.append(way)
    return finished
