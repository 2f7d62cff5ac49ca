"""The command `chat`: a conversation at a terminal, or line by line through a pipe.

May import: app, cli.options, cli.output, cli.places, cli.resume, cli.run, errors, hosts.terminal, observe.plain,
runtime.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from upcall.cli.options import Commands, agent_argument, events_file
from upcall.cli.output import tell
from upcall.cli.places import HOME, load, make_home, open_session, person_here, program, runtime_for
from upcall.cli.resume import go_on
from upcall.cli.run import CODES, tell_waiting, turn, watched
from upcall.errors import SessionWaiting, UpcallError
from upcall.hosts.terminal import make_console
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
    events_file(parser)


async def _chat(args: argparse.Namespace) -> int:
    loaded = load(args)
    person = person_here(args)
    async with runtime_for(args, loaded.agents, person) as runtime:
        session, new = await open_session(runtime, loaded.agent, args.id)
        if person is None:
            return await _lines(runtime, session, args)
        how = "a new session" if new else "going on with session"
        header = f"{plain(session.agent)} · {how} {plain(session.id)} · Ctrl-C cancels a turn, Ctrl-D leaves"
        make_console(sys.stdout).print(header, style="dim")
        await _converse(_Talk(runtime, session, args))
        again = f" --agent {args.agent_name}" if args.agent_name else ""
        tell(f"kept; go on with: {program()} chat {plain(args.agent)}{again} --id {plain(session.id)}")
        return 0


# --- through a pipe ---------------------------------------------------------------------


async def _lines(runtime: Runtime, session: Session, args: argparse.Namespace) -> int:
    """Each line a prompt; a turn that fails is told and the next line is read."""
    worst = 0
    while (line := _next_line()) is not None:
        if not line.strip():
            continue
        try:
            reply = await turn(runtime, session, line.strip(), None)
        except SessionWaiting:
            await tell_waiting(runtime, session.id, args)
            return CODES["waiting"]
        except Exception as error:
            tell(f"upcall: {_said(error)}")
            worst = worst or 1
            continue
        if reply.status == "waiting":
            await tell_waiting(runtime, session.id, args)
            return CODES["waiting"]
        sys.stdout.write(plain(reply.text).strip() + "\n")
        sys.stdout.flush()
        if reply.status != "done":
            worst = CODES[reply.status]
            tell(f"upcall: the turn ended with {reply.limit or reply.status}")
        if reply.status == "cancelled":
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


class _Talk(NamedTuple):
    """A conversation."""

    runtime: Runtime
    session: Session
    args: argparse.Namespace


async def _converse(talk: _Talk) -> None:
    """Ask, run, show, until the person leaves: Ctrl-D, or Ctrl-C twice with nothing in between."""
    reader = _reader()
    pressed = False
    if await talk.runtime.status(talk.session.id) == "waiting":
        await _turn(talk, None)
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
            pressed = await _turn(talk, text)
        except asyncio.CancelledError:
            return


async def _turn(talk: _Talk, text: str | None) -> bool:
    """One turn on the screen, or the rest of one that waits; says whether it was cancelled."""
    cancelled = False
    runtime, session, args = talk
    try:
        async with watched(runtime, sys.stdout, fresh=False) as view:
            if text is None or await runtime.status(session.id) == "waiting":
                reply = await go_on(runtime, session.id, view)
                if text is not None and reply.status != "waiting":
                    reply = await turn(runtime, session, _clean(text), view)
            else:
                reply = await turn(runtime, session, _clean(text), view)
        cancelled = reply.status == "cancelled"
        if reply.status == "waiting":
            await tell_waiting(runtime, session.id, args)
    except Exception as error:
        tell(f"upcall: {_said(error)}")
    if cancelled:
        tell("Ctrl-C again leaves")
    sys.stdout.write("\n")
    return cancelled


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _said(error: Exception) -> str:
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
