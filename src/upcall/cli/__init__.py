"""The command `upcall`: dispatch to the command modules, and error reporting."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Coroutine, Generator, Sequence
from io import StringIO, TextIOWrapper
from typing import Any

from upcall.cli.options import Commands
from upcall.cli.places import command_line, program, redactor
from upcall.cli.stopping import Stopping
from upcall.errors import AlreadySettled, SessionBusy, SessionWaiting, SetupError, UnknownAgent, UpcallError
from upcall.hosts.terminal.console import plain_output
from upcall.observe.plain import plain, shortened
from upcall.safety.agent_commands import calling_session
from upcall.safety.secrets import deny_debuggers, without_password

CANCELLED = 130
BROKEN_PIPE = 128 + signal.SIGPIPE
EXIT_GRACE = 1.0
_LONGEST_ERROR = 10_000
"""The longest error text to print, in characters. It may contain a server's answer."""

_SOON = ("acp", "mcp")
"""Commands that another program starts and waits for; they are built without the others."""

READ_ONLY_COMMANDS = frozenset(
    (
        "help",
        "version",
        "check",
        "explain",
        "completion",
        "events",
        "inbox",
        "new",
        "sessions",
        "show",
        "status",
        "tree",
    )
)
"""Commands that agents may run too: they change no session. `sessions delete` is not one of them.

What shows secrets is not either: `events --raw` and `inbox --reveal`.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if argv is None:  # otherwise it is called from within a program
        deny_debuggers()
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # the parent process closed it
            setattr(sys, name, StringIO())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # print ? for characters that the terminal can't show
    with plain_output(), _redacted_warnings():
        try:
            code = _parse_and_run(argv)
            sys.stdout.flush()
        except BrokenPipeError:
            code = _on_broken_pipe()
        if argv is None:
            _exit(code)
    return code


def _parse_and_run(argv: Sequence[str] | None) -> int:
    given = sys.argv[1:] if argv is None else list(argv)
    commands = build_commands(given[0] if given and not {"-h", "--help"} & {*given} else "")
    try:
        args = commands.parse(argv)
    except SystemExit as stopped:  # argparse has printed the help or the error
        return stopped.code if isinstance(stopped.code, int) else 0
    if args.version:
        from upcall.cli.about import print_version

        return print_version()
    if args.command is None:
        commands.parser.print_help(sys.stderr)
        return 2
    return _run(args)


def _on_broken_pipe() -> int:
    """Exit as a program that SIGPIPE killed, and keep Python from reporting the broken pipe on exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a StringIO has no file descriptor
            os.dup2(nowhere, stream.fileno())
    return BROKEN_PIPE


def build_commands(only: str = "") -> Commands:
    """Build all commands, in the order of the help; or only one that has to start soon."""
    commands = Commands()
    if only in _SOON:
        from importlib import import_module

        commands.group("Answer questions")
        import_module(f"upcall.cli.{only}").add(commands)
        return commands
    _add_all(commands)
    return commands


def _add_all(commands: Commands) -> None:
    from upcall.cli import (
        about,
        acp,
        adopt,
        agents,
        audit,
        chat,
        completion,
        demo,
        events,
        inbox,
        mcp,
        new,
        resume,
        run,
        serve,
        sessions,
        status,
        submit,
        tokens,
        tree,
        worker,
    )

    commands.group("Get started")
    demo.add(commands)
    new.add(commands)
    commands.group("Run agents")
    run.add(commands)
    chat.add(commands)
    resume.add(commands)
    run.add_cancel(commands)
    commands.group("Queue work")
    submit.add(commands)
    worker.add(commands)
    status.add(commands)
    commands.group("Answer questions")
    inbox.add(commands)
    serve.add(commands)
    acp.add(commands)
    mcp.add(commands)
    tokens.add(commands)
    commands.group("Inspect sessions")
    sessions.add(commands)
    tree.add(commands)
    events.add(commands)
    audit.add(commands)
    commands.group("Check agents")
    agents.add(commands)
    commands.group("Set up")
    adopt.add(commands)
    completion.add(commands)
    about.add(commands)


def _refuse_agents(args: argparse.Namespace) -> None:
    """Refuse a command that writes if an agent's own command runs it: it would speak for the person."""
    name = args.parser.prog.removeprefix("upcall ")
    hides = not getattr(args, "raw", False) and getattr(args, "reveal", None) is None
    session_id = None if name in READ_ONLY_COMMANDS and hides else calling_session()
    if session_id is not None:
        who = "a command that an agent runs" + (f" (session {session_id!r})" if session_id else "")
        what = name if hides else f"{name} {'--raw' if getattr(args, 'raw', False) else '--reveal'}"
        raise UpcallError(f"{who} may not use `upcall {what}`; a person has to run it in their own terminal")


def _run(args: argparse.Namespace) -> int:
    try:
        _refuse_agents(args)
        done: int | Coroutine[Any, Any, int] = args.run(args)
        code = done if isinstance(done, int) else _run_stoppable(args, done)
    except BrokenPipeError:
        raise
    except (KeyboardInterrupt, asyncio.CancelledError):
        return CANCELLED
    except SystemExit as error:  # raised by an agent's code: its exit code must not be taken for ours
        exit_error = UpcallError(f"the program called sys.exit({error.code!r}), which ended the command")
        return _report_failure(exit_error, args)
    except Exception as error:
        return _report_failure(error, args)
    return code


def _run_stoppable(args: argparse.Namespace, command: Coroutine[Any, Any, int]) -> int:
    args.stopping = Stopping()
    return asyncio.run(args.stopping.run(command))


def _report_failure(error: Exception, args: argparse.Namespace) -> int:
    if args.trace:
        traceback.print_exc()
    known = isinstance(error, UpcallError | OSError)
    text = str(error) if known else f"{type(error).__name__}: {error}. --trace shows where"
    if isinstance(error, AlreadySettled):
        from upcall.cli.output import local_time

        by = f" by {error.by}" if error.by else ""
        text = f"callback {error.callback_id} was {error.status}{by} on {local_time(error.at)}; nothing was changed"
    if isinstance(error, SessionBusy):
        text = f"session {error.session_id!r} is running in {error.owner}; wait for it, or cancel its turn: "
        text += command_line(args, "cancel", error.session_id)
    if isinstance(error, SessionWaiting):
        ids = ", ".join(error.callbacks)
        text = f"session {error.session_id!r} is waiting for an answer to {ids}; answer with "
        text += f"`{program()} answer ID`, then `{command_line(args, 'resume', error.session_id)}`"
    if isinstance(error, OSError) and error.filename and error.strerror:
        text = f"{error.filename}: {error.strerror}"
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.write(f"upcall: {shortened(plain(_hide(without_password(text))).strip(), _LONGEST_ERROR)}\n")
    if isinstance(error, SessionWaiting):
        return 3
    # a plain SetupError is about what was typed; its subclasses are about what was found
    return 2 if type(error) is SetupError or isinstance(error, UnknownAgent) else 1


@contextlib.contextmanager
def _redacted_warnings() -> Generator[None]:
    """Hide secrets in what the package logs, until the end of the block: it quotes questions and failures."""

    def hide(record: logging.LogRecord) -> bool:
        record.msg, record.args = _hide(record.getMessage()), ()
        return True

    log = logging.getLogger("upcall")
    log.addFilter(hide)
    try:
        yield
    finally:
        log.removeFilter(hide)


def _hide(text: str) -> str:
    """Hide the secrets in a message; where the file of what to hide can't be read, by the built-in rules."""
    try:
        return redactor().text(text)
    except SetupError:
        from upcall.observe.redact import Redactor

        return Redactor(environ=os.environ).text(text)


def _exit(code: int) -> None:
    """Exit even if a tool's thread still runs: the thread can't be stopped, and its turn has ended."""
    until = time.monotonic() + EXIT_GRACE
    while any(thread.name.startswith("upcall-tool") for thread in threading.enumerate()):
        if time.monotonic() > until:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
        time.sleep(0.01)
