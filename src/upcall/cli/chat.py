"""The command `chat`: a conversation at a terminal, or one prompt per line in a pipe."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import TYPE_CHECKING

from upcall.app import Runtime
from upcall.cli.chat_commands import COMMANDS, ChatSession, LeaveChat, parse_command, run_command
from upcall.cli.chat_mcp import prompt_of
from upcall.cli.conversation import Conversation
from upcall.cli.options import Commands, agent_argument, events_file_option, watching_options
from upcall.cli.output import failure_line, say, tell
from upcall.cli.places import (
    HOME,
    command_line,
    has_log,
    load_agent,
    make_history_home,
    no_log,
    person_here,
    redactor,
    runtime_for,
)
from upcall.cli.run import CODES, report_stopped, report_waiting, run_turn
from upcall.cli.stopping import TERMINATED, exit_code_when_stopped, stopping_of
from upcall.core.runtime.session_data import checked_id
from upcall.errors import RuntimeClosed, SessionWaiting, SetupError
from upcall.hosts.terminal.console import make_console
from upcall.hosts.terminal.input_line import EditorLine, InputEvent, InputLine, PlainLine
from upcall.hosts.terminal.live_view import can_redraw
from upcall.hosts.terminal.markdown_text import markdown
from upcall.observe.plain import one_line, plain, visible
from upcall.store.home import HISTORY

if TYPE_CHECKING:
    from prompt_toolkit.history import History


def add(commands: Commands) -> None:
    """Add the command `chat`."""
    parser = commands.add(
        "chat",
        "talk with an agent",
        _chat,
        about="Text that you send while the agent works steers it. Ctrl-C cancels the turn. Ctrl-D, or\n"
        "Ctrl-C twice, leaves. /help lists commands and keys. The conversation is stored: -c\n"
        "continues this agent's newest session, and --id ID continues any session. In a pipe, each\n"
        "line is a prompt, and each reply is printed.",
        examples=[
            "upcall chat agents/",
            "upcall chat agents/ -c",
            "upcall chat agents/ --id notes",
            "upcall chat team:manager < questions.txt",
        ],
    )
    agent_argument(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--id", metavar="ID", help="the id of a new session, or of one to continue")
    which.add_argument(
        "-c", "--continue", dest="newest", action="store_true", help="continue the agent's newest session"
    )
    events_file_option(parser)
    watching_options(parser)


async def _chat(args: argparse.Namespace) -> int:
    loaded = load_agent(args)
    person = person_here(args)
    if args.newest and not has_log(args):
        raise SetupError(f"{no_log(args)}, so {loaded.agent.name} has no session to continue; omit -c")
    async with runtime_for(args, loaded.agents, person) as runtime:
        session_id = await _newest_session(runtime, loaded.agent.name) if args.newest else args.id
        exists = session_id is not None and await runtime.store.row(session_id) is not None
        if session_id is not None and not exists:
            checked_id(session_id)
        talk = ChatSession(runtime, loaded.agent, args, session_id)
        if exists:
            await talk.open_session()
        if person is None:
            return await _run_lines(talk)
        _greet(talk)
        keyboard = _keyboard(talk)
        with stopping_of(args).on_drained(lambda: keyboard.events.put_nowait(InputEvent("leave"))):
            await Conversation(talk, keyboard).run()
        if talk.session is not None:
            again = command_line(args, "chat", args.agent, agent=args.agent_name, id=talk.id)
            tell(f"stored; continue with: {again}")
        if not stopping_of(args).requested.is_set():
            return 0
        return TERMINATED if talk.session is None else await exit_code_when_stopped(runtime, talk.id)


async def _newest_session(runtime: Runtime, agent: str) -> str:
    for row in await runtime.rows(agent=agent, parent="", limit=1):
        return row.id
    raise SetupError(f"{agent} has no session to continue here; omit -c to start one")


# --- through a pipe ---------------------------------------------------------------------


async def _run_lines(talk: ChatSession) -> int:
    """Run each line of standard input as a prompt. A turn that fails is reported, and the next line is read."""
    runtime, args = talk.runtime, talk.args
    worst, lines, stopping = 0, _Input(), stopping_of(talk.args)
    while not stopping.requested.is_set() and (line := await lines.next_line()) is not None:
        if not line.strip():
            continue
        try:
            prompt = await prompt_of(talk.agent, line.rstrip("\n"))
            command = parse_command(line.rstrip("\n")) if prompt is None else None
            if command is not None:
                await run_command(talk, command)
                continue
            with stopping.on_drained():
                reply = await run_turn(runtime, await talk.open_session(), prompt or line.strip(), None)
        except LeaveChat:
            break
        except RuntimeClosed:
            return await report_stopped(runtime, talk.id, args)
        except SessionWaiting:
            await report_waiting(runtime, talk.id, args)
            return CODES["waiting"]
        except BrokenPipeError:
            raise
        except Exception as error:
            tell(f"upcall: {failure_line(error)}")
            worst = worst or 1
            continue
        if reply.status == "waiting":
            await report_waiting(runtime, talk.id, args)
            return CODES["waiting"]
        sys.stdout.write(plain(redactor().text(reply.text)).strip() + "\n")
        sys.stdout.flush()
        if reply.status != "done":
            worst = CODES[reply.status]
            tell(f"upcall: the turn ended: {reply.limit or reply.status}")
        if reply.status == "cancelled":
            break
    return TERMINATED if stopping.requested.is_set() else worst


class _Input:
    """The lines of standard input, read without blocking the loop, so that signals are handled meanwhile."""

    def __init__(self) -> None:
        self._read, self._at_end = b"", False

    async def next_line(self) -> str | None:
        """Return the next line, or None at the end."""
        while b"\n" not in self._read and not self._at_end:
            try:
                fileno = sys.stdin.fileno()
            except (OSError, ValueError):  # standard input was closed, or is not a file
                return sys.stdin.readline() or None
            await _until_readable(fileno)
            more = os.read(fileno, 65536)
            self._read += more
            self._at_end = not more
        line, newline, self._read = self._read.partition(b"\n")
        return (line + newline).decode("utf-8", "replace") or None


async def _until_readable(fileno: int) -> None:
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(fileno, readable.set)
    except PermissionError:  # a regular file is always readable
        return
    try:
        await readable.wait()
    finally:
        loop.remove_reader(fileno)


# --- at a terminal ----------------------------------------------------------------------


def _greet(talk: ChatSession) -> None:
    """Print the agent, the session and the last exchange."""
    console = make_console(sys.stdout)
    how = "new session" if talk.session is None else "continuing session"
    console.print(f"{visible(talk.agent.name)} · {how} {visible(talk.id)} · /help, Ctrl-D leaves", style="dim")
    messages = talk.session.get_messages() if talk.session is not None else []
    hides = redactor()
    texts = [(m.role, hides.text(m.text)) for m in messages if m.text.strip()]
    prompts = [text for role, text in texts if role == "user"]
    replies = [text for role, text in texts if role == "assistant"]
    if prompts:
        console.print(f"\n› {one_line(prompts[-1], console.width - 2)}", style="dim")
    if replies:
        console.print()
        console.print(markdown(plain(replies[-1])))
    say()


def _keyboard(talk: ChatSession) -> InputLine:
    if not can_redraw(sys.stdout):
        return PlainLine(sys.stdout)
    from upcall.hosts.terminal.mentions import ChatCompleter, files_of

    files = files_of(talk.agent.workspace, talk.runtime.store, lambda: talk.id)
    return EditorLine(_history(), ChatCompleter(COMMANDS, files))


def _history() -> History:
    from prompt_toolkit.history import InMemoryHistory

    from upcall.cli.input_history import InputHistory

    try:
        make_history_home()
        return InputHistory(HOME / HISTORY)
    except OSError:
        tell("the input history is not stored: .upcall can't be written here")
        return InMemoryHistory()
