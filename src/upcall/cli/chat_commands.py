"""The session of a chat, and its slash commands."""

from __future__ import annotations

import argparse
import asyncio
import re
import secrets
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from upcall.app import open_session
from upcall.cli import chat_mcp
from upcall.cli.inbox import print_inbox
from upcall.cli.output import hanging_indent, say, width
from upcall.cli.places import redactor, shown_with, story_for
from upcall.cli.sessions import print_sessions
from upcall.core.log.load import load_state
from upcall.core.runtime.usage import Spending
from upcall.core.turns.side_turn import SIDE_TOOLS
from upcall.errors import UpcallError
from upcall.events import AnyEvent
from upcall.hooks import NO_HOOKS
from upcall.hosts.terminal.console import make_console
from upcall.hosts.terminal.layout import WIDEST, print_rows
from upcall.hosts.terminal.unfolding import unfold_call
from upcall.hosts.terminal.views import PlainView
from upcall.messages import Usage
from upcall.observe.phrases import money
from upcall.observe.plain import one_line, plain, visible
from upcall.observe.weight import aside

if TYPE_CHECKING:
    from upcall.agent import Agent
    from upcall.app import Runtime
    from upcall.core.runtime.session import Session
    from upcall.core.turns.prepared_agent import PreparedAgent
    from upcall.tools import Tool

KEPT_MESSAGES = 10
"""The number of recent messages that `/compact` keeps; half of the messages if there are fewer."""

FEWEST_MESSAGES = 4
"""The fewest messages that are worth a summary."""

_COMMAND = re.compile(r"/([a-z]+)(?:\s+(.*))?\s*", re.DOTALL)
_KEYS = (
    ("Enter", "send; while the agent works, this steers it"),
    ("Alt-Enter", "insert a line break"),
    ("Ctrl-O", "unfold the last call; again: the one before it"),
    ("Ctrl-C", "cancel the turn; twice: leave"),
    ("Ctrl-D", "leave"),
    ("Up, Ctrl-R", "earlier input"),
    ("@", "complete a file's name"),
)


class ChatSession:
    """A conversation with an agent. The session starts with the first prompt, so that no session is empty."""

    def __init__(self, runtime: Runtime, agent: Agent, args: argparse.Namespace, id: str | None = None) -> None:
        self.runtime, self.agent, self.args = runtime, agent, args
        self.id = id or secrets.token_hex(6)
        self.session: Session | None = None

    async def open_session(self) -> Session:
        """Return the session; load or start it first if necessary."""
        if self.session is None:
            self.session, _ = await open_session(self.runtime, self.agent, self.id)
        return self.session

    def start_new(self) -> None:
        """Detach from the session; the next prompt starts a new one."""
        self.id, self.session = secrets.token_hex(6), None


class LeaveChat(Exception):
    """Raised when the person leaves the chat."""


class SlashCommand(NamedTuple):
    """A slash command as it was typed."""

    name: str
    argument: str


def parse_command(text: str) -> SlashCommand | None:
    """Parse a line as a slash command; None if it is not one. A leading space makes the line a prompt."""
    found = _COMMAND.fullmatch(text)
    return SlashCommand(found[1], (found[2] or "").strip()) if found else None


def needs_idle_session(command: SlashCommand) -> bool:
    """Return whether the command changes the conversation, so that it must not run during a turn."""
    return command.name in ("compact", "new", "exit")


def calls_model(command: SlashCommand) -> bool:
    """Return whether the command calls the model."""
    return command.name == "compact"


async def run_command(talk: ChatSession, command_line: SlashCommand) -> None:
    """Run a slash command. Raises UpcallError if it can't be done, and LeaveChat if the person leaves."""
    if command_line.name not in COMMANDS:
        known = ", ".join(f"/{name}" for name in COMMANDS)
        hint = f"the commands are {known}. To send it as text, put a space before it"
        raise UpcallError(f"unknown command /{command_line.name}; {hint}")
    command = COMMANDS[command_line.name]
    if command_line.argument and not command.takes:
        raise UpcallError(f"/{command_line.name} takes no argument")
    await command.run(talk, command_line.argument)


# --- the commands -----------------------------------------------------------------------


async def _compact(talk: ChatSession, _: str) -> None:
    session = talk.session
    messages = len(session.get_messages()) if session is not None else 0
    keep = min(KEPT_MESSAGES, messages // 2)
    if session is None or messages - keep < FEWEST_MESSAGES:
        raise UpcallError(f"the conversation is too short to compact: {messages} messages")
    row = await talk.runtime.store.row(session.id)
    before = row.seq if row is not None else 0
    await session.trigger_compaction(keep)
    view, compacted = PlainView(sys.stdout, width=width(), story=story_for(talk.args)), False
    async for event in talk.runtime.events(session.id, before):
        await view.show(event)
        compacted = compacted or event.type in ("compacted", "compaction_asked")
    if not compacted:
        raise UpcallError("the model wrote no summary, so nothing was changed")


async def _tools(talk: ChatSession, _: str) -> None:
    agent = talk.agent
    actor = talk.runtime.agents.prepared(agent, NO_HOOKS, asks=agent.ask)
    side_tools = {tool.name for tool in SIDE_TOOLS}
    tools = [tool for name, tool in actor.toolbox.items() if name not in side_tools]
    if not tools:
        say(f"{visible(agent.name)} has no tools")
    longest = max((len(tool.name) for tool in tools), default=0)
    for tool in tools:
        mark = "needs approval: " if _may_need_approval(actor, tool) else ""
        about = one_line(mark + tool.description, max(width() - longest - 2, 20))
        say(f"{visible(tool.name):<{longest}}  {about}")


def _may_need_approval(actor: PreparedAgent, tool: Tool) -> bool:
    """Return whether calls of the tool may need an approval."""
    try:
        return bool(tool.needs_approval) or any(rule(tool, {}) for rule in actor.rules)
    except Exception:
        return True  # the rule looks at the arguments, which are not known here


async def _sessions(talk: ChatSession, _: str) -> None:
    await print_sessions(talk.runtime, 20)


async def _cost(talk: ChatSession, _: str) -> None:
    store, root = talk.runtime.store, talk.id
    state = await load_state(store, root)
    spent = await Spending(store, {root: state} if state is not None else {}).total(root)
    hides, cost = redactor(), shown_with(talk.args).cost
    for model, usage in spent.usage.items():
        price = f" · {_price(cost(model, usage))}" if cost is not None else ""
        say(f"{plain(hides.text(model)) or 'unnamed model'}: {_tokens(usage)}{price}")
    calls = f"{spent.calls} model call{'s' if spent.calls != 1 else ''}"
    say(f"{spent.tokens:,} tokens in {calls}, including child sessions")


def _price(cost: float | None) -> str:
    return f"cost {money(cost)}" if cost is not None else "no price is known"


def _tokens(usage: Usage) -> str:
    cached = f" ({usage.cached_tokens:,} cached)" if usage.cached_tokens else ""
    return f"{usage.input_tokens:,} tokens in{cached}, {usage.output_tokens:,} out"


async def _inbox(talk: ChatSession, _: str) -> None:
    await print_inbox(talk.runtime, talk.args, 50)


async def _unfold(talk: ChatSession, argument: str) -> None:
    if argument and not (argument.isdecimal() and len(argument) < 10 and int(argument)):
        raise UpcallError(f"/unfold {one_line(argument, 20)}: not a valid number; /unfold 1 is the last call")
    await unfold(talk, int(argument or 1))


async def unfold(talk: ChatSession, back: int) -> None:
    """Print a finished call with its full arguments and result; `back` counts from the last one."""
    story = story_for(talk.args)
    for event in await _all_events(talk):
        await aside(story.feed, event)
    if len(story.ended) < back:
        what = f"only {len(story.ended)} calls can be unfolded" if story.ended else "no tool has been called yet"
        raise UpcallError(what)
    call = story.ended[-back]
    console = make_console(sys.stdout)
    rows = await asyncio.to_thread(unfold_call, call, story.agent_of(call.session), min(width(), WIDEST))
    await print_rows(console, rows)


async def _all_events(talk: ChatSession) -> list[AnyEvent]:
    """Return the events of the session and its descendants, in order; none before the first prompt."""
    if talk.session is None:
        return []
    return [event async for event in talk.runtime.events(tree=talk.id)]


async def _mcp(talk: ChatSession, argument: str) -> None:
    await chat_mcp.mcp(talk.agent, argument)


async def _new(talk: ChatSession, _: str) -> None:
    note = f"; {visible(talk.id)} is stored" if talk.session is not None else ""
    talk.start_new()
    say(f"new session {talk.id}{note}")


async def _exit(_: ChatSession, __: str) -> None:
    raise LeaveChat


async def _help(_: ChatSession, __: str) -> None:
    shown = [(f"/{name}{command.takes}", command.about) for name, command in COMMANDS.items()]
    for name, about in [*shown, *_KEYS]:
        for row in hanging_indent(about, f"{name:<13}", width()):
            say(row)


class Command(NamedTuple):
    """A slash command: the function, its help text, and a placeholder for its argument if it takes one."""

    run: Callable[[ChatSession, str], Awaitable[None]]
    about: str
    takes: str = ""


COMMANDS = {
    "compact": Command(_compact, "have the model summarise older messages"),
    "tools": Command(_tools, "list the agent's tools"),
    "sessions": Command(_sessions, "list the newest sessions"),
    "cost": Command(_cost, "tokens used by this session and its children"),
    "inbox": Command(_inbox, "list open questions, most urgent first"),
    "unfold": Command(_unfold, "show the last call in full, or the Nth last", " [N]"),
    "mcp": Command(_mcp, "list MCP servers, or connect one", " [NAME]"),
    "new": Command(_new, "start a new session; this one is stored"),
    "exit": Command(_exit, "leave (Ctrl-D)"),
    "help": Command(_help, "show this help"),
}
