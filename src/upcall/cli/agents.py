"""Commands over declarations: check agent files, explain where a question would go."""

from __future__ import annotations

import argparse
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upcall.callbacks import KINDS, Callback
from upcall.cli.options import Commands, agent_argument, as_json
from upcall.cli.output import clock, dump, hung, room, say
from upcall.cli.places import viewing
from upcall.core.error_texts import nearest
from upcall.errors import SetupError, UnknownAgent, UnknownCallback
from upcall.hosts.terminal.host import outcome_text
from upcall.hosts.terminal.question import wrapped
from upcall.hosts.terminal.screen import WIDEST
from upcall.observe.plain import one_line, plain, shell_word

if TYPE_CHECKING:
    from upcall.agentfiles.load import Askers
    from upcall.agentfiles.markdown import AgentFile
    from upcall.agentfiles.sidecar import Problem

_MOST_WAYS = 20
_INTENTS = ("query", "clarification", "blocker", "error", "approval", "user_input", "preference")
"""Intents with a meaning of their own; any other word is treated as a query."""


def add(commands: Commands) -> None:
    """The commands `check` and `explain`."""
    parser = commands.add(
        "check",
        "find every mistake in a folder of agent files",
        _check,
        about="Reads each NAME.md and the NAME.json beside it, and team.toml; imports the tools and\n"
        "script: models; tells what is wrong and what can't have been meant. Exit code 1 if there\n"
        "are errors.",
        examples=["upcall check agents/"],
    )
    parser.add_argument("folder", metavar="FOLDER", help="a folder of agent files, or one NAME.md")
    as_json(parser)
    parser = commands.add(
        "explain",
        "draw whom a question would reach, or did reach, and why",
        _explain,
        about="With the id of a callback: what became of it. With an AGENT: what would become of its\n"
        "question. KIND is where to look for the answer, INTENT what kind of question it is: query,\n"
        "clarification, blocker, error, approval (as raised before a tool runs), or your own word.",
        examples=[
            "upcall explain agents/developer.md callback_to_caller blocker",
            "upcall explain agents/ request_user_input query --agent developer",
            "upcall explain agents/developer.md callback_to_caller error --under manager,lead",
            "upcall explain q4f0c2a9d11e7",
        ],
    )
    agent_argument(parser, "AGENT|CALLBACK")
    parser.add_argument("kind", metavar="KIND", nargs="?", help=", ".join(KINDS))
    parser.add_argument("intent", metavar="INTENT", nargs="?", help="what kind of question it is")
    under = "the agents above it, from the top down (default: each way that `agents:` makes)"
    parser.add_argument("--under", metavar="NAMES", help=under)


# --- check ------------------------------------------------------------------------------


def _check(args: argparse.Namespace) -> int:
    from upcall.agentfiles.load import find_problems

    agents, problems = find_problems(args.folder)
    errors = [problem for problem in problems if problem.severity == "error"]
    if args.json:
        fields = ("severity", "file", "line", "key", "text")
        dump([{name: getattr(problem, name) for name in fields} for problem in problems])
    else:
        for problem in problems:
            for row in hung(plain(str(problem)), f"{problem.severity:<8} ", room()):
                say(row)
        say(f"{'' if not problems else chr(10)}{_summary(agents, problems)}")
    return 1 if errors else 0


def _summary(agents: Sequence[AgentFile], problems: Sequence[Problem]) -> str:
    errors = sum(problem.severity == "error" for problem in problems)
    teams = sum(agent.team is not None for agent in agents)
    counts = [(len(agents) - teams, "agent"), (errors, "error"), (len(problems) - errors, "warning")]
    counted = ", ".join(f"{count} {what}{'s' if count != 1 else ''}" for count, what in counts)
    return f"1 team, {counted}" if teams else counted


# --- explain ----------------------------------------------------------------------------


def _explain(args: argparse.Namespace) -> int | Coroutine[Any, Any, int]:
    names_agents = Path(args.agent).exists() or ":" in args.agent
    if args.kind is None and not names_agents and not ("/" in args.agent or args.agent.endswith(".md")):
        return _explain_callback(args)
    if not names_agents:
        return _explain_agent(args)  # which says what is not there
    if args.kind in KINDS and args.intent is not None:
        return _explain_agent(args)
    raise SetupError(_explain_usage(args.agent, [word for word in (args.kind, args.intent) if word]))


def _explain_usage(agent: str, words: list[str]) -> str:
    """What to type instead, with the kind and the intent that were probably meant."""
    kinds = {word: word if word in KINDS else _near_kind(word) for word in words}
    given = next((word for word in words if kinds[word]), "")
    if not given and len(words) > 1:
        given = words[0]  # it stands where the kind belongs
    intent = next((word for word in words if word != given), "") or "blocker"
    if given and given not in KINDS:
        problem = f"there is no kind {given!r}. {'Did you mean:' if kinds[given] else 'Say one, such as:'}"
    else:
        problem = "say an agent, and KIND and INTENT of its question, such as:"
    return (
        f"{problem}\n"
        f"  upcall explain {shell_word(agent)} {kinds.get(given) or KINDS[0]} {shell_word(intent)}\n"
        f"KIND is one of {', '.join(KINDS)}.\n"
        f"Or say the id of a callback, as `upcall inbox` lists them."
    )


def _near_kind(word: str) -> str:
    return "" if word in _INTENTS else nearest(word, KINDS)


async def _explain_callback(args: argparse.Namespace) -> int:
    """What became of a callback: its route with what happened in place of what was planned."""
    from upcall.core.routing.answer import callback_of, route_of
    from upcall.observe.route import draw

    async with viewing(args) as runtime:
        held = await runtime.store.callback(args.agent)
        if held is None:
            raise UnknownCallback(args.agent)
    callback = callback_of(held)
    _say_rows(callback.message)
    if callback.reworded:
        _say_rows(one_line(f"reworded: {callback.reworded}", WIDEST * 3))
    say(draw(route_of(held.raised), callback, room()))
    _say_rows(f"{callback.status}{_settling(callback)}")
    return 0


def _say_rows(text: str) -> None:
    for row in wrapped(text, room()):
        say(row)


def _settling(callback: Callback) -> str:
    said = callback.answer
    if said is None:
        return f" since {clock(callback.created)}" if callback.status == "open" else ""
    value = outcome_text(callback).removeprefix("answered: ").removeprefix("declined").removeprefix(": ")
    what = f": {value}" if value else ""
    return f" by {plain(said.by) or 'somebody'} ({plain(said.right)}) on {clock(said.at)}{what}"


def _explain_agent(args: argparse.Namespace) -> int:
    from upcall.agentfiles.ancestry import ancestor_chains
    from upcall.agentfiles.load import load_askers

    askers = load_askers(args.agent, args.agent_name)
    ways = ancestor_chains(askers.name, askers.seats, _MOST_WAYS)
    if args.under is not None:
        ways = [_under(args.under, askers, ways)]
    for index, way in enumerate(ways):
        if len(ways) > 1:
            say(("" if not index else "\n") + "under " + (plain(", ".join(reversed(way))) or "nobody"))
        say(_drawn(askers, way, args))
    return 0


def _drawn(askers: Askers, way: Sequence[str], args: argparse.Namespace) -> str:
    from upcall.core.routing.route import Ancestor, RouteQuery, route
    from upcall.observe.route import draw

    raised = RouteQuery(
        askers.name,
        askers.policies[askers.name],
        args.intent,
        args.kind,
        gate=args.intent == "approval",
        known=tuple(sorted(askers.policies)),
    )
    return draw(route(raised, [Ancestor(above, askers.policies[above]) for above in way]), width=room())


def _under(given: str, askers: Askers, ways: Sequence[Sequence[str]]) -> list[str]:
    """The chain, nearest first. It is written from the top down; where the declarations say so, bottom up."""
    names = [one.strip() for one in given.split(",") if one.strip()]
    if not names:
        raise SetupError("--under names the agents above, such as --under manager,lead")
    for one in names:
        if one not in askers.policies:
            raise UnknownAgent(one, askers.policies, "Name those above it, such as --under manager,lead")
    return names if any(list(way[: len(names)]) == names for way in ways) else names[::-1]
