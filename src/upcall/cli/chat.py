"""The command `chat`: a conversation at a terminal, or line by line through a pipe.

May import: app, cli.options, cli.output, cli.places, cli.run, errors, hosts.terminal, observe.plain, runtime.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from upcall.cli.options import Commands, agent_argument
from upcall.cli.output import tell
from upcall.cli.places import HOME, load, make_home, open_session, runtime_for
from upcall.cli.run import CODES, turn
from upcall.hosts.terminal import make_console, view_on
from upcall.observe.plain import plain

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

    from upcall.app import Runtime
    from upcall.runtime import Session


def add(commands: Commands) -> None:
    """The command `chat`."""
    parser = commands.add(
        "chat",
        "talk with an agent",
        _chat,
        about="Ctrl-C cancels the turn, twice leaves; so does Ctrl-D. The conversation is kept:\n"
        "the same --id goes on with it. In a pipe each line is a prompt, each reply is printed.",
        examples=[
            "upcall chat agents/",
            "upcall chat agents/ --id notes",
            "upcall chat team:manager < questions.txt",
        ],
    )
    agent_argument(parser)
    parser.add_argument("--id", metavar="ID", help="the session's id: a new one, or one to go on with")


async def _chat(args: argparse.Namespace) -> int:
    loaded = load(args)
    async with runtime_for(args, loaded.agents) as runtime:
        session, new = await open_session(runtime, loaded.agent, args.id)
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            return await _lines(runtime, session)
        how = "a new session" if new else "going on with session"
        header = f"{plain(session.agent)} · {how} {plain(session.id)} · Ctrl-C cancels a turn, Ctrl-D leaves"
        make_console(sys.stdout).print(header, style="dim")
        await _converse(runtime, session)
        again = f" --agent {args.agent_name}" if args.agent_name else ""
        tell(f"kept; go on with: upcall chat {plain(args.agent)}{again} --id {plain(session.id)}")
        return 0


# --- through a pipe ---------------------------------------------------------------------


async def _lines(runtime: Runtime, session: Session) -> int:
    """Each line a prompt; a turn that fails is told and the next line is read."""
    worst = 0
    while (line := _next_line()) is not None:
        if not line.strip():
            continue
        try:
            reply = await turn(runtime, session, line.strip(), None)
        except Exception as error:
            tell(f"upcall: {_said(error)}")
            worst = worst or 1
            continue
        sys.stdout.write(plain(reply.text).strip() + "\n")
        sys.stdout.flush()
        if reply.status != "done":
            worst = CODES[reply.status]
            tell(f"upcall: the turn ended with {reply.limit or reply.status}")
        if reply.status in ("cancelled", "waiting"):
            break
    return worst


def _next_line() -> str | None:
    # nothing runs between turns, so the loop may stand still; Ctrl-C has to get through all the same
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return sys.stdin.readline() or None
    finally:
        signal.signal(signal.SIGINT, before)


# --- at a terminal ----------------------------------------------------------------------


async def _converse(runtime: Runtime, session: Session) -> None:
    """Ask, run, show, until the person leaves: Ctrl-D, or Ctrl-C twice with nothing in between."""
    reader = _reader()
    pressed = False
    while True:
        try:
            text = await reader.prompt_async("› ")
        except KeyboardInterrupt:
            if pressed:
                return
            pressed = True
            tell("Ctrl-C again leaves")
            continue
        except EOFError:
            return
        pressed = False
        if not text.strip():
            continue
        try:
            pressed = await _turn(runtime, session, text)
        except asyncio.CancelledError:
            return


async def _turn(runtime: Runtime, session: Session, text: str) -> bool:
    """One turn on the screen; says whether it was cancelled."""
    cancelled = False
    try:
        async with view_on(sys.stdout, fresh=False) as view:
            reply = await turn(runtime, session, text.encode("utf-8", "replace").decode(), view)
        cancelled = reply.status == "cancelled"
    except Exception as error:
        tell(f"upcall: {_said(error)}")
    if cancelled:
        tell("Ctrl-C again leaves")
    sys.stdout.write("\n")
    return cancelled


def _said(error: Exception) -> str:
    from upcall.errors import UpcallError

    known = isinstance(error, UpcallError | OSError)
    return plain(str(error) if known else f"{type(error).__name__}: {error}")


def _reader() -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory

    file = HOME / "history"
    kept: History = InMemoryHistory()
    try:
        make_home(HOME)
        Path(file).touch(mode=0o600)
        kept = FileHistory(str(file))
    except OSError:
        tell("the history of what you type is not kept: .upcall can't be written here")
    return PromptSession(history=kept)
