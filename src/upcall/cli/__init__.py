"""The command `upcall`: one module for each group of commands, and what happens when one fails."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Coroutine, Sequence
from io import StringIO, TextIOWrapper
from typing import Any

from upcall.cli import about, adopt, agents, chat, completion, demo, events, new, people, resume, run, sessions
from upcall.cli.options import Commands
from upcall.cli.output import clock
from upcall.cli.places import command_line, program
from upcall.cli.stopping import Stopping
from upcall.errors import AlreadySettled, SessionBusy, SessionWaiting, SetupError, UnknownAgent, UpcallError
from upcall.hosts.terminal.console import plain_output
from upcall.observe.plain import plain, shortened
from upcall.safety.agent_commands import calling_session
from upcall.safety.secrets import deny_debuggers, without_password

CANCELLED = 130
READER_LEFT = 128 + signal.SIGPIPE
GRACE = 1.0
_LONGEST_ERROR = 10_000
"""Characters of an error that are shown: its text may be a server's answer."""

READING = frozenset(
    ("help", "version", "check", "explain", "completion", "events", "inbox", "new", "sessions", "show")
)
"""The commands that agents may run too, because they change no session. `sessions delete` is not among them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    if argv is None:  # else it is a part of somebody's program
        deny_debuggers()
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # whoever began this process closed it
            setattr(sys, name, StringIO())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a narrow terminal shows ? where it can't show more
    with plain_output():
        try:
            code = _parsed_and_run(argv)
            sys.stdout.flush()
        except BrokenPipeError:
            code = _reader_left()
        if argv is None:
            _leave(code)
    return code


def _parsed_and_run(argv: Sequence[str] | None) -> int:
    commands = build()
    try:
        args = commands.parse(argv)
    except SystemExit as left:  # the help, or wrong usage: both have been told
        return left.code if isinstance(left.code, int) else 0
    if args.version:
        return about.print_version()
    if args.command is None:
        commands.parser.print_help(sys.stderr)
        return 2
    return _run(args)


def _reader_left() -> int:
    """End as a program that the system stops for writing where nobody reads; Python would complain at its exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a StringIO has no number
            os.dup2(nowhere, stream.fileno())
    return READER_LEFT


def build() -> Commands:
    """Every command, in the order of the help."""
    commands = Commands()
    commands.group("Begin")
    demo.add(commands)
    new.add(commands)
    commands.group("Run agents")
    run.add(commands)
    chat.add(commands)
    resume.add(commands)
    run.add_more(commands)
    commands.group("Answer what they ask")
    people.add(commands)
    commands.group("Look at what happened")
    sessions.add(commands)
    events.add(commands)
    commands.group("Check agents before they run")
    agents.add(commands)
    commands.group("Set up")
    adopt.add(commands)
    completion.add(commands)
    about.add(commands)
    return commands


def _refuse_agents(args: argparse.Namespace) -> None:
    """Refuse a command that writes where an agent's command runs it: it would speak for the person."""
    name = args.parser.prog.removeprefix("upcall ")
    session_id = None if name in READING else calling_session()
    if session_id is not None:
        who = f"a command of an agent (session {session_id!r})" if session_id else "a command of an agent"
        raise UpcallError(f"{who} may not run `upcall {name}`; a person types it in a terminal of their own")


def _run(args: argparse.Namespace) -> int:
    try:
        _refuse_agents(args)
        done: int | Coroutine[Any, Any, int] = args.run(args)
        code = done if isinstance(done, int) else _run_stoppable(args, done)
    except BrokenPipeError:
        raise
    except (KeyboardInterrupt, asyncio.CancelledError):
        return CANCELLED
    except SystemExit as error:  # only code of an agent's: its number would be taken for one of ours
        left = UpcallError(f"the program called sys.exit({error.code!r}), which ended the command")
        return _failed(left, args)
    except Exception as error:
        return _failed(error, args)
    return code


def _run_stoppable(args: argparse.Namespace, command: Coroutine[Any, Any, int]) -> int:
    args.stopping = Stopping()
    return asyncio.run(args.stopping.run(command))


def _failed(error: Exception, args: argparse.Namespace) -> int:
    if args.trace:
        traceback.print_exc()
    known = isinstance(error, UpcallError | OSError)
    text = str(error) if known else f"{type(error).__name__}: {error}. --trace shows where"
    if isinstance(error, AlreadySettled):
        by = f" by {error.by}" if error.by else ""
        text = f"callback {error.callback_id} was {error.status}{by} on {clock(error.at)}; nothing was changed"
    if isinstance(error, SessionBusy):
        text = f"session {error.session_id!r} is being run by {error.owner}; wait for it, or end its turn: "
        text += command_line(args, "cancel", error.session_id)
    if isinstance(error, SessionWaiting):
        ids = ", ".join(error.callbacks)
        text = f"session {error.session_id!r} waits for an answer to {ids}; answer with "
        text += f"`{program()} answer ID`, then `{command_line(args, 'resume', error.session_id)}`"
    if isinstance(error, OSError) and error.filename and error.strerror:
        text = f"{error.filename}: {error.strerror}"
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.write(f"upcall: {shortened(plain(without_password(text)).strip(), _LONGEST_ERROR)}\n")
    if isinstance(error, SessionWaiting):
        return 3
    # a plain SetupError is about what was typed; its kinds are about what was found there
    return 2 if type(error) is SetupError or isinstance(error, UnknownAgent) else 1


def _leave(code: int) -> None:
    """Leave although a tool's thread still runs: it can't be stopped, and its turn has ended."""
    until = time.monotonic() + GRACE
    while any(thread.name.startswith("upcall-tool") for thread in threading.enumerate()):
        if time.monotonic() > until:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
        time.sleep(0.01)
