"""The command `chat`: a conversation at a terminal, or line by line through a pipe."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import TYPE_CHECKING

from upcall.app import Runtime
from upcall.cli.chat_commands import COMMANDS, Leave, Talk, command_in, run_command
from upcall.cli.conversation import Conversation
from upcall.cli.options import Commands, agent_argument, events_file
from upcall.cli.output import failure_line, say, tell
from upcall.cli.places import (
    HOME,
    command_line,
    has_log,
    load,
    make_history_home,
    no_log,
    person_here,
    runtime_for,
)
from upcall.cli.run import CODES, stopped, tell_waiting, turn
from upcall.cli.stopping import TERMINATED, stopped_code, stopping_of
from upcall.core.runtime.sessions import checked_id
from upcall.errors import RuntimeClosed, SessionWaiting, SetupError
from upcall.hosts.terminal.console import make_console
from upcall.hosts.terminal.input_line import Heard, Keyboard, PlainTyping, Typing
from upcall.hosts.terminal.screen import markdown, moves
from upcall.observe.plain import one_line, plain, visible
from upcall.store.home import HISTORY

if TYPE_CHECKING:
    from prompt_toolkit.history import History


def add(commands: Commands) -> None:
    """The command `chat`."""
    parser = commands.add(
        "chat",
        "talk with an agent",
        _chat,
        about="What you type while it works steers it. Ctrl-C cancels the turn, twice leaves; so does\n"
        "Ctrl-D. /help lists commands and keys. The conversation is kept: -c goes on with the\n"
        "newest one of this agent, --id with any. In a pipe each line is a prompt, each reply is\n"
        "printed.",
        examples=[
            "upcall chat agents/",
            "upcall chat agents/ -c",
            "upcall chat agents/ --id notes",
            "upcall chat team:manager < questions.txt",
        ],
    )
    agent_argument(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--id", metavar="ID", help="the session's id: a new one, or one to go on with")
    which.add_argument(
        "-c", "--continue", dest="newest", action="store_true", help="go on with the agent's newest session"
    )
    events_file(parser)


async def _chat(args: argparse.Namespace) -> int:
    loaded = load(args)
    person = person_here(args)
    if args.newest and not has_log(args):
        raise SetupError(f"{no_log(args)}, so {loaded.agent.name} has no session to continue; leave out -c")
    async with runtime_for(args, loaded.agents, person) as runtime:
        session_id = await _newest(runtime, loaded.agent.name) if args.newest else args.id
        exists = session_id is not None and await runtime.store.row(session_id) is not None
        if session_id is not None and not exists:
            checked_id(session_id)
        talk = Talk(runtime, loaded.agent, args, session_id)
        if exists:
            await talk.begin()
        if person is None:
            return await _lines(talk)
        _greet(talk)
        keyboard = _keyboard(talk)
        with stopping_of(args).then(lambda: keyboard.heard.put_nowait(Heard("leave"))):
            await Conversation(talk, keyboard).run()
        if talk.session is not None:
            again = command_line(args, "chat", args.agent, agent=args.agent_name, id=talk.id)
            tell(f"kept; continue with: {again}")
        if not stopping_of(args).asked.is_set():
            return 0
        return TERMINATED if talk.session is None else await stopped_code(runtime, talk.id)


async def _newest(runtime: Runtime, agent: str) -> str:
    for row in await runtime.rows(agent=agent, parent="", limit=1):
        return row.id
    raise SetupError(f"{agent} has no session to go on with here; leave out -c to begin one")


# --- through a pipe ---------------------------------------------------------------------


async def _lines(talk: Talk) -> int:
    """Each line a prompt; a turn that fails is told and the next line is read."""
    runtime, args = talk.runtime, talk.args
    worst, given_lines, stopping = 0, _Input(), stopping_of(talk.args)
    while not stopping.asked.is_set() and (line := await given_lines.next_line()) is not None:
        if not line.strip():
            continue
        try:
            given = command_in(line.rstrip("\n"))
            if given is not None:
                await run_command(talk, given)
                continue
            with stopping.then():
                reply = await turn(runtime, await talk.begin(), line.strip(), None)
        except Leave:
            break
        except RuntimeClosed:
            return await stopped(runtime, talk.id, args)
        except SessionWaiting:
            await tell_waiting(runtime, talk.id, args)
            return CODES["waiting"]
        except BrokenPipeError:
            raise
        except Exception as error:
            tell(f"upcall: {failure_line(error)}")
            worst = worst or 1
            continue
        if reply.status == "waiting":
            await tell_waiting(runtime, talk.id, args)
            return CODES["waiting"]
        sys.stdout.write(plain(reply.text).strip() + "\n")
        sys.stdout.flush()
        if reply.status != "done":
            worst = CODES[reply.status]
            tell(f"upcall: the turn ended with {reply.limit or reply.status}")
        if reply.status == "cancelled":
            break
    return TERMINATED if stopping.asked.is_set() else worst


class _Input:
    """The lines of standard input, read while the loop runs: signals are heard meanwhile."""

    def __init__(self) -> None:
        self._read, self._ended = b"", False

    async def next_line(self) -> str | None:
        """The next line, or None at the end."""
        while b"\n" not in self._read and not self._ended:
            try:
                fileno = sys.stdin.fileno()
            except (OSError, ValueError):  # it was closed, or it is not a file
                return sys.stdin.readline() or None
            await _until_readable(fileno)
            more = os.read(fileno, 65536)
            self._read += more
            self._ended = not more
        line, newline, self._read = self._read.partition(b"\n")
        return (line + newline).decode("utf-8", "replace") or None


async def _until_readable(fileno: int) -> None:
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(fileno, readable.set)
    except PermissionError:  # a file on disk, which is always readable
        return
    try:
        await readable.wait()
    finally:
        loop.remove_reader(fileno)


# --- at a terminal ----------------------------------------------------------------------


def _greet(talk: Talk) -> None:
    """Say who is here, and where the conversation had come to."""
    console = make_console(sys.stdout)
    how = "a new session" if talk.session is None else "going on with session"
    console.print(f"{visible(talk.agent.name)} · {how} {visible(talk.id)} · /help, Ctrl-D leaves", style="dim")
    messages = talk.session.get_messages() if talk.session is not None else []
    said_before = [(m.role, m.text) for m in messages if m.text.strip()]
    prompts = [text for role, text in said_before if role == "user"]
    replies = [text for role, text in said_before if role == "assistant"]
    if prompts:
        console.print(f"\n› {one_line(prompts[-1], console.width - 2)}", style="dim")
    if replies:
        console.print()
        console.print(markdown(plain(replies[-1])))
    say()


def _keyboard(talk: Talk) -> Keyboard:
    if not moves(sys.stdout):
        return PlainTyping(sys.stdout)
    from upcall.hosts.terminal.mentions import Words, files_of

    files = files_of(talk.agent.workspace, talk.runtime.store, lambda: talk.id)
    return Typing(_history(), Words(COMMANDS, files))


def _history() -> History:
    from prompt_toolkit.history import InMemoryHistory

    from upcall.cli.typed_history import TypedHistory

    try:
        make_history_home()
        return TypedHistory(HOME / HISTORY)
    except OSError:
        tell("the history of what you type is not kept: .upcall can't be written here")
        return InMemoryHistory()
