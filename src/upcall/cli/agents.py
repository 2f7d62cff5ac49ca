"""The commands `check` and `explain`, which read declarations and run nothing."""

from __future__ import annotations

import argparse
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upcall.callbacks import KINDS, Callback
from upcall.cli.options import Commands, agent_argument, json_option
from upcall.cli.output import dump, hanging_indent, local_time, say, text_width
from upcall.cli.places import redactor, view_log
from upcall.core.error_texts import nearest
from upcall.errors import SetupError, UnknownAgent, UnknownCallback
from upcall.hosts.terminal.host import outcome_text
from upcall.hosts.terminal.layout import WIDEST
from upcall.hosts.terminal.question import QUOTE, wrap
from upcall.observe.hidden_question import hide_secrets
from upcall.observe.plain import one_line, plain, shell_word

if TYPE_CHECKING:
    from upcall.agentfiles.load import AgentPolicies
    from upcall.agentfiles.markdown import AgentFile
    from upcall.agentfiles.sidecar import Problem

_MOST_CHAINS = 20
_ENDED = ("done", "cancelled", "failed", "limit")
_INTENTS = ("query", "clarification", "blocker", "error", "approval", "user_input", "preference")
"""Intents that the routing rules treat specially; any other word counts as a query."""


def add(commands: Commands) -> None:
    """Add the commands `check` and `explain`."""
    parser = commands.add(
        "check",
        "find mistakes in a folder of agent files",
        _check,
        about="Reads every NAME.md with its NAME.json, and team.toml; imports the tools, and the\n"
        "models that are named script:FILE; prints errors and likely mistakes. The exit code\n"
        "is 1 if there are errors.",
        examples=["upcall check agents/"],
    )
    parser.add_argument("folder", metavar="FOLDER", help="a folder of agent files, or one NAME.md")
    json_option(parser)
    parser = commands.add(
        "explain",
        "show whom a question would reach or did reach, and why",
        _explain,
        about="With a callback's id: its route and how it ended. With an AGENT: the route that a\n"
        "question from that agent would take. KIND is the kind of callback: it says where to look\n"
        "for the answer. INTENT is query, clarification, blocker, error, approval (of a tool\n"
        "call), or a word of your own.",
        examples=[
            "upcall explain agents/developer.md callback_to_caller blocker",
            "upcall explain agents/ request_user_input query --agent developer",
            "upcall explain agents/developer.md callback_to_caller error --under manager,lead",
            "upcall explain q4f0c2a9d11e7",
        ],
    )
    agent_argument(parser, "AGENT|CALLBACK")
    parser.add_argument("kind", metavar="KIND", nargs="?", help=", ".join(KINDS))
    parser.add_argument("intent", metavar="INTENT", nargs="?", help="the type of question, such as blocker")
    under = "the agents above this one, from the top down (default: every chain that the agents declare)"
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
            for row in hanging_indent(plain(str(problem)), f"{problem.severity:<8} ", text_width()):
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
        return _explain_agent(args)  # it reports what does not exist
    if args.kind in KINDS and args.intent is not None:
        return _explain_agent(args)
    raise SetupError(_explain_usage(args.agent, [word for word in (args.kind, args.intent) if word]))


def _explain_usage(agent: str, words: list[str]) -> str:
    """Describe the right command, with the kind and the intent that were probably meant."""
    kinds = {word: word if word in KINDS else _near_kind(word) for word in words}
    kind = next((word for word in words if kinds[word]), "")
    if not kind and len(words) > 1:
        kind = words[0]  # the position of KIND
    intent = next((word for word in words if word != kind), "") or "blocker"
    if kind and kind not in KINDS:
        problem = f"unknown kind {kind!r}. {'Did you mean:' if kinds[kind] else 'For example:'}"
    else:
        problem = "give an agent, and the KIND and INTENT of its question, such as:"
    return (
        f"{problem}\n"
        f"  upcall explain {shell_word(agent)} {kinds.get(kind) or KINDS[0]} {shell_word(intent)}\n"
        f"KIND is one of {', '.join(KINDS)}.\n"
        f"Or give the id of a callback; `upcall inbox` lists them."
    )


def _near_kind(word: str) -> str:
    return "" if word in _INTENTS else nearest(word, KINDS)


async def _explain_callback(args: argparse.Namespace) -> int:
    """Print the route of a callback with what happened at each step."""
    from upcall.core.routing.answer import route_of
    from upcall.observe.route import draw

    async with view_log(args) as runtime:
        found = await runtime.store.callback(args.agent)
        if found is None:
            raise UnknownCallback(args.agent)
        status = await runtime.status(found.session_id)
    callback = hide_secrets(found, redactor()).callback
    _say_quoted(callback.message)
    if callback.reworded:
        say("reworded:")
        _say_quoted(one_line(callback.reworded, WIDEST * 3))
    say(draw(route_of(callback), callback, text_width()))
    _say_rows(f"{callback.status}{_settlement(callback)}")
    if callback.status == "answered" and not callback.delivered and status in _ENDED:
        say(f"not delivered: the turn had ended ({status})")
    return 0


def _say_quoted(text: str) -> None:
    """Print what an agent wrote, with a mark before each row: none of them passes for one of the route."""
    for row in wrap(text, text_width() - len(QUOTE)):
        say(f"{QUOTE}{row}".rstrip())


def _say_rows(text: str) -> None:
    for row in wrap(text, text_width()):
        say(row)


def _settlement(callback: Callback) -> str:
    answer = callback.answer
    if answer is None:
        return f" since {local_time(callback.created)}" if callback.status == "open" else ""
    value = outcome_text(callback).removeprefix("answered: ").removeprefix("declined").removeprefix(": ")
    what = f": {value}" if value else ""
    return f" by {plain(answer.by) or 'somebody'} ({plain(answer.right)}) on {local_time(answer.at)}{what}"


def _explain_agent(args: argparse.Namespace) -> int:
    from upcall.agentfiles.ancestry import ancestor_chains
    from upcall.agentfiles.load import load_policies

    askers = load_policies(args.agent, args.agent_name)
    chains = ancestor_chains(askers.name, askers.positions, _MOST_CHAINS)
    if args.under is not None:
        chains = [_parse_under(args.under, askers, chains)]
    for index, way in enumerate(chains):
        if len(chains) > 1:
            say(("" if not index else "\n") + "under " + (plain(", ".join(reversed(way))) or "nobody"))
        say(_draw_route(askers, way, args))
    return 0


def _draw_route(askers: AgentPolicies, chain: Sequence[str], args: argparse.Namespace) -> str:
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
    return draw(route(raised, [Ancestor(above, askers.policies[above]) for above in chain]), width=text_width())


def _parse_under(text: str, askers: AgentPolicies, chains: Sequence[Sequence[str]]) -> list[str]:
    """Parse --under into a chain, nearest agent first.

    The names are expected from the top down. The other order is accepted if the declarations have it.
    """
    names = [one.strip() for one in text.split(",") if one.strip()]
    if not names:
        raise SetupError("--under needs the names of the agents above, such as --under manager,lead")
    for one in names:
        if one not in askers.policies:
            raise UnknownAgent(one, askers.policies, "Name the agents above it, such as --under manager,lead")
    return names if any(list(way[: len(names)]) == names for way in chains) else names[::-1]
