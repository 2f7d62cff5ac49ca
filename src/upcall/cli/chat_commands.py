"""A chat's session, and the commands that begin with a slash."""

from __future__ import annotations

import argparse
import re
import secrets
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from upcall.app import open_session
from upcall.cli.output import hung, say, width
from upcall.cli.people import print_inbox
from upcall.cli.sessions import print_sessions
from upcall.core.log.load import load_state
from upcall.core.runtime.usage import Spending
from upcall.core.turns.side_turn import SIDE_TOOLS
from upcall.errors import UpcallError
from upcall.events import AnyEvent
from upcall.hooks import NO_HOOKS
from upcall.hosts.terminal.console import make_console
from upcall.hosts.terminal.screen import WIDEST, PlainView, styled
from upcall.hosts.terminal.story import Story
from upcall.hosts.terminal.unfolding import unfolded
from upcall.messages import Usage
from upcall.observe.plain import one_line, plain, visible

if TYPE_CHECKING:
    from upcall.agent import Agent
    from upcall.app import Runtime
    from upcall.core.runtime.session import Session
    from upcall.core.turns.prepared_agent import PreparedAgent
    from upcall.tools import Tool

KEEP = 10
"""Messages that `/compact` leaves as they are, or half of them where there are fewer."""

FEW = 4
"""Fewer messages than these are not worth a summary."""

_COMMAND = re.compile(r"/([a-z]+)(?:\s+(.*))?\s*", re.DOTALL)
_KEYS = (
    ("Enter", "send; while it works, what you send steers it"),
    ("Alt-Enter", "a new line; pasted ones are kept"),
    ("Ctrl-O", "unfold the last call, again the one before"),
    ("Ctrl-C", "cancel the turn; twice leaves"),
    ("Ctrl-D", "leave"),
    ("Up, Ctrl-R", "what you sent before"),
    ("@", "complete a file's name"),
)


class Talk:
    """A conversation with an agent. Its session begins with the first thing that is said, so that none is empty."""

    def __init__(self, runtime: Runtime, agent: Agent, args: argparse.Namespace, id: str | None = None) -> None:
        self.runtime, self.agent, self.args = runtime, agent, args
        self.id = id or secrets.token_hex(6)
        self.session: Session | None = None

    async def begin(self) -> Session:
        """Load or start the session, where that has not happened yet."""
        if self.session is None:
            self.session, _ = await open_session(self.runtime, self.agent, self.id)
        return self.session

    def renew(self) -> None:
        """Leave the session as it is; what is said next begins another one."""
        self.id, self.session = secrets.token_hex(6), None


class Leave(Exception):
    """The person leaves the chat."""


class Given(NamedTuple):
    """A command as it was typed."""

    name: str
    rest: str


def command_in(text: str) -> Given | None:
    """The command that a line is, if it is one: a slash and a word. A space before it makes it a line to say."""
    found = _COMMAND.fullmatch(text)
    return Given(found[1], (found[2] or "").strip()) if found else None


def needs_rest(given: Given) -> bool:
    """Whether it changes the conversation, so that no turn may run meanwhile."""
    return given.name in ("compact", "new", "exit")


def takes_long(given: Given) -> bool:
    """Whether it asks the model something."""
    return given.name == "compact"


async def run_command(talk: Talk, given: Given) -> None:
    """Do what was typed; UpcallError says why it can't be done, Leave that the person leaves."""
    if given.name not in COMMANDS:
        known = ", ".join(f"/{name}" for name in COMMANDS)
        raise UpcallError(f"there is no /{given.name}; there are {known}. To say it, type a space before it")
    command = COMMANDS[given.name]
    if given.rest and not command.takes:
        raise UpcallError(f"/{given.name} takes nothing after it")
    await command.run(talk, given.rest)


# --- the commands -----------------------------------------------------------------------


async def _compact(talk: Talk, _: str) -> None:
    session = talk.session
    messages = len(session.get_messages()) if session is not None else 0
    keep = min(KEEP, messages // 2)
    if session is None or messages - keep < FEW:
        raise UpcallError(f"there is nothing to compact yet: the conversation has {messages} messages")
    row = await talk.runtime.store.row(session.id)
    before = row.seq if row is not None else 0
    await session.trigger_compaction(keep)
    view, compacted = PlainView(sys.stdout, width=width(), fresh=True), False
    async for event in talk.runtime.events(session.id, before):
        view.feed(event)
        compacted = compacted or event.type in ("compacted", "compaction_asked")
    if not compacted:
        raise UpcallError("there is no summary, so nothing was changed")


async def _tools(talk: Talk, _: str) -> None:
    agent = talk.agent
    actor = talk.runtime.actor(agent, NO_HOOKS, asks=agent.ask)
    aside = {tool.name for tool in SIDE_TOOLS}
    tools = [tool for name, tool in actor.toolbox.items() if name not in aside]
    if not tools:
        say(f"{visible(agent.name)} has no tools")
    longest = max((len(tool.name) for tool in tools), default=0)
    for tool in tools:
        asks = "asks first: " if _asks_first(actor, tool) else ""
        about = one_line(asks + tool.description, max(width() - longest - 2, 20))
        say(f"{visible(tool.name):<{longest}}  {about}")


def _asks_first(actor: PreparedAgent, tool: Tool) -> bool:
    """Whether a call of it may need an approval."""
    try:
        return bool(tool.needs_approval) or any(rule(tool, {}) for rule in actor.rules)
    except Exception:
        return True  # a rule that wants to see the arguments


async def _sessions(talk: Talk, _: str) -> None:
    await print_sessions(talk.runtime, 20)


async def _cost(talk: Talk, _: str) -> None:
    store, root = talk.runtime.store, talk.id
    state = await load_state(store, root)
    spent = await Spending(store, {root: state} if state is not None else {}).total(root)
    for model, usage in spent.usage.items():
        say(f"{plain(model) or 'a model without a name'}: {_tokens(usage)}")
    calls = f"{spent.calls} model call{'s' if spent.calls != 1 else ''}"
    say(f"{spent.tokens:,} tokens in {calls}, with all that this session started")


def _tokens(usage: Usage) -> str:
    cached = f" ({usage.cached_tokens:,} cached)" if usage.cached_tokens else ""
    return f"{usage.input_tokens:,} tokens in{cached}, {usage.output_tokens:,} out"


async def _inbox(talk: Talk, _: str) -> None:
    await print_inbox(talk.runtime, talk.args, 50)


async def _unfold(talk: Talk, rest: str) -> None:
    if rest and not (rest.isdecimal() and len(rest) < 10 and int(rest)):
        raise UpcallError(f"/unfold {one_line(rest, 20)}: say how far back, /unfold 1 is the last call")
    await unfold(talk, int(rest or 1))


async def unfold(talk: Talk, back: int) -> None:
    """Show the last call that has ended, or the one so far back, with its arguments and its result whole."""
    story = Story()
    for event in await _all_events(talk):
        story.feed(event)
    if len(story.ended) < back:
        what = f"only {len(story.ended)} calls can be unfolded" if story.ended else "no tool was called yet"
        raise UpcallError(what)
    call = story.ended[-back]
    console = make_console(sys.stdout)
    for row in unfolded(call, story.agent_of(call.session), min(width(), WIDEST)):
        console.print(styled(row))


async def _all_events(talk: Talk) -> list[AnyEvent]:
    """What happened in the session and below it, in order; nothing before the first prompt."""
    if talk.session is None:
        return []
    return [event async for event in talk.runtime.events(tree=talk.id)]


async def _new(talk: Talk, _: str) -> None:
    kept = f"; {visible(talk.id)} is kept" if talk.session is not None else ""
    talk.renew()
    say(f"a new session {talk.id}{kept}")


async def _exit(_: Talk, __: str) -> None:
    raise Leave


async def _help(_: Talk, __: str) -> None:
    shown = [(f"/{name}{command.takes}", command.about) for name, command in COMMANDS.items()]
    for name, about in [*shown, *_KEYS]:
        for row in hung(about, f"{name:<13}", width()):
            say(row)


class Command(NamedTuple):
    """A command: what it does, said in the help; `takes` names what may follow it."""

    run: Callable[[Talk, str], Awaitable[None]]
    about: str
    takes: str = ""


COMMANDS = {
    "compact": Command(_compact, "have the model summarise what is old"),
    "tools": Command(_tools, "what the agent can call"),
    "sessions": Command(_sessions, "the newest sessions that are kept"),
    "cost": Command(_cost, "tokens used by this session and all it started"),
    "inbox": Command(_inbox, "what waits for a person, most urgent first"),
    "unfold": Command(_unfold, "the last call whole, or the Nth last", " [N]"),
    "new": Command(_new, "begin a new session; this one is kept"),
    "exit": Command(_exit, "leave, as Ctrl-D does"),
    "help": Command(_help, "this"),
}
