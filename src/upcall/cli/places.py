"""Where the log, the agents and a session are. Only this module and model names read the environment."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import stat
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from upcall.errors import SetupError, StoreUnavailable, UnknownSession, UpcallError
from upcall.events import SessionStarted
from upcall.observe.plain import shell_word, visible
from upcall.safety.secrets import without_password
from upcall.store.home import HISTORY, NAME, check_home, ignore_home, make_home

if TYPE_CHECKING:
    from upcall.agent import Agent
    from upcall.agentfiles.load import Loaded
    from upcall.app import Runtime
    from upcall.cli.stopping import Stopping
    from upcall.hosts.terminal.host import TerminalHost

HOME = Path(NAME)
_AS_LONG_AS_IT_TAKES = 1e9
"""Seconds that a run stays in memory while somebody sits before its question."""


def store_of(args: argparse.Namespace) -> str:
    """The log that a command means."""
    return _named_store(args)[1] or str(HOME / "log.db")


def _named_store(args: argparse.Namespace) -> tuple[str, str]:
    """What named the log, and the name; two empty texts where it is the default one."""
    if given := getattr(args, "store", ""):
        return "--store", given
    given = os.environ.get("UPCALL_STORE", "")
    return ("UPCALL_STORE", given) if given else ("", "")


def is_default(args: argparse.Namespace) -> bool:
    """Tell whether nobody named the log: it is the one that is found in the current folder."""
    return not _named_store(args)[0]


def is_url(store: str) -> bool:
    """Whether it names a server and not a file."""
    return "://" in store


def runtime_for(
    args: argparse.Namespace, agents: Sequence[Agent] = (), host: TerminalHost | None = None
) -> Runtime:
    """A runtime over the log, which is made where there is none; with the person who is here, if one is."""
    from upcall.app import Runtime, open_store

    make_place(args)
    store = open_store(store_of(args), found=is_default(args))
    file = getattr(args, "events_file", None)
    if host is None:
        runtime = Runtime(store, agents=agents, events_file=file)
    else:
        runtime = Runtime(store, agents=agents, host=host, hold=_AS_LONG_AS_IT_TAKES, events_file=file)
    stopping: Stopping | None = getattr(args, "stopping", None)
    if stopping is not None:
        stopping.register(runtime)
    return runtime


def person_here(args: argparse.Namespace) -> TerminalHost | None:
    """Whoever sits at this terminal; None where nobody can be asked."""
    if getattr(args, "json", False) or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    from upcall.hosts.terminal.host import TerminalHost

    return TerminalHost(os_user(), editor=editor(), store=given_store(args), program=program())


def trusts_store() -> bool:
    """Tell whether the files of logs are to be taken as they are."""
    return os.environ.get("UPCALL_TRUST_STORE", "") == "1"


def program() -> str:
    """What to type for this command, to be pasted: its name where a shell finds it, else its path."""
    own = Path(sys.argv[0]).absolute()
    if own.stem != "upcall":  # python -m upcall
        own = Path(sys.executable).with_name("upcall")
    found = shutil.which("upcall")
    if found is not None and Path(found).resolve() == own.resolve():
        return "upcall"
    return shlex.quote(str(own)) if own.exists() else f"{shlex.quote(sys.executable)} -m upcall"


def os_user() -> str:
    """Who runs this, as the system knows it; a variable could say anything."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def editor() -> str:
    """The editor that the person prefers, or ""."""
    return os.environ.get("VISUAL", "") or os.environ.get("EDITOR", "")


def given_store(args: argparse.Namespace) -> str:
    """The log as it was named on the command line, for commands that are printed; "" where it need not be.

    A password in a URL is never printed: whoever types the command has it in PGPASSWORD, .pgpass or UPCALL_STORE.
    """
    return without_password(getattr(args, "store", ""))


def has_log(args: argparse.Namespace) -> bool:
    """Whether there is a log to read; SetupError where one was named and is not there. Looking makes none."""
    how, store = _named_store(args)[0], store_of(args)
    if is_url(store):
        return True
    if store == ":memory:":
        raise _unusable(args, "it is empty in every new process; name a file")
    try:
        if stat.S_ISDIR(Path(store).stat().st_mode):
            raise _unusable(args, "it is a folder; name a file in it")
    except FileNotFoundError:
        if how:
            raise _unusable(args, "it does not exist; name a log that `upcall run` has made") from None
        return False
    except (OSError, ValueError) as error:
        raise _unusable(args, _why_unusable(Path(store), error)) from error
    return True


def no_log(args: argparse.Namespace) -> str:
    """What to say where the default log was never made."""
    return f"no log here yet: {without_password(store_of(args))} does not exist"


def make_place(args: argparse.Namespace) -> None:
    """Make the folder of the log; the error names the log where that can't be done."""
    store = store_of(args)
    if is_url(store) or store == ":memory:":
        return
    try:
        make_home(Path(store).parent)
        if not is_default(args):  # the default one is judged first
            ignore_home(Path(store).parent)
        if Path(store).is_dir():
            raise _unusable(args, "it is a folder; name a file in it")
    except (OSError, ValueError) as error:
        raise _unusable(args, _why_unusable(Path(store), error)) from error


def make_history_home() -> None:
    """Make the folder for the history of what is typed, whichever log is used."""
    if not trusts_store():
        check_home(HOME, str(HOME / HISTORY))
    make_home(HOME)
    ignore_home(HOME)


def _unusable(args: argparse.Namespace, why: str) -> UpcallError:
    """The error for a log that can't be used: wrong usage where it was named."""
    how, named = _named_store(args)
    return SetupError(f"{how} {without_password(named)}: {why}") if how else StoreUnavailable(store_of(args), why)


def _why_unusable(path: Path, error: OSError | ValueError) -> str:
    for above in path.parents:
        with contextlib.suppress(OSError, ValueError):
            if stat.S_ISDIR(above.stat().st_mode):
                break
            return f"it can't exist, because {above} is not a folder"
    return f"it can't be used: {error.strerror if isinstance(error, OSError) else error}"


def existing(args: argparse.Namespace) -> Runtime:
    """A runtime over a log that has to be there, to change something in it."""
    _need_log(args)
    return runtime_for(args)


@contextlib.asynccontextmanager
async def viewing(args: argparse.Namespace) -> AsyncGenerator[Runtime]:
    """A runtime over a log that has to be there, to look at it; of a foreign one a line says so."""
    from upcall.app import Runtime, open_store

    _need_log(args)
    store = open_store(store_of(args), found=is_default(args), view=True)
    async with Runtime(store) as runtime:
        if getattr(store, "foreign", False):
            path = shlex.quote(store_of(args))
            sys.stderr.write(f"upcall: {path} is not your log, so it is only shown (`upcall adopt {path}`)\n")
            sys.stderr.flush()
        yield runtime


def _need_log(args: argparse.Namespace) -> None:
    if not has_log(args):
        raise UpcallError(f"{no_log(args)}; `upcall run` makes one, and --store PATH names another")


def load(args: argparse.Namespace) -> Loaded:
    """The agents that AGENT and --agent name."""
    from upcall.agentfiles.load import load_spec

    return load_spec(args.agent, args.agent_name)


class Origin(NamedTuple):
    """Where a session's agents can be loaded from, its root's agent, and the main module that declares it."""

    source: str
    agent: str
    program: str


async def origin_of(runtime: Runtime, session_id: str) -> Origin:
    """What a session noted when its root began."""
    row = await runtime.store.row(session_id)
    if row is None:
        raise UnknownSession(session_id)
    first = (await runtime.store.read(row.root, 0, 1))[0]
    assert isinstance(first, SessionStarted)
    return Origin(first.source, first.agent, first.program)


def command_line(args: argparse.Namespace, command: str, *operands: str, **options: str | None) -> str:
    """A command to paste: every word quoted, with the log that was named on this command line.

    Options without a value are left out.
    """
    given = {"store": given_store(args), **options}
    named = [_option(name.replace("_", "-"), value) for name, value in given.items() if value]
    words = [shell_word(operand) for operand in operands]
    if any(operand.startswith("-") for operand in operands):
        return " ".join([program(), command, *named, "--", *words])
    return " ".join([program(), command, *words, *named])


def _option(name: str, value: str) -> str:
    return f"--{name}{'=' if value.startswith('-') else ' '}{shell_word(value)}"


async def resume_command(runtime: Runtime, session_id: str, args: argparse.Namespace) -> str:
    """The command that resumes a session: by its root's id, or, if the root has ended, by its own.

    A child that was prompted by its own id waits although all above it has ended.
    """
    origin, names = await origin_of(runtime, session_id), session_id.split("~")
    for count in range(1, len(names)):
        row = await runtime.store.row("~".join(names[:count]))
        if row is not None and row.status in ("running", "waiting", "failed"):
            session_id = row.id
            break
    return command_line(args, "resume", session_id, agents=None if origin.source else "MODULE:ATTRIBUTE")


def agents_for_resume(origin: Origin, given: str | None, session_id: str) -> Loaded:
    """The agents to resume with: those that were given, else where the session noted they come from."""
    from upcall.agentfiles.load import load_spec

    if not given and not origin.source:
        why = f"session {session_id!r} does not say where its agent {origin.agent!r} comes from"
        if origin.program:
            why = f"the agent {origin.agent!r} of session {session_id!r} is declared in a program's main module "
            why += f"({origin.program}), and importing that would run the program again"
        how = f"upcall resume {shell_word(session_id)} --agents AGENT (a folder, a .md file, or module:attribute)"
        raise SetupError(f"{why}; name another place: {how}" if origin.program else f"{why}; name it: {how}")
    return load_spec(given or origin.source, origin.agent)


def far_source(origin: Origin, given: str | None, session_id: str, args: argparse.Namespace) -> str:
    """Say why a session's agents are not imported unasked, and what to type; "" where they may be.

    A log that is one's own may still name a module of somebody else: whoever wrote to it chose what is imported.
    """
    from upcall.agentfiles.source_places import strange_place

    place = "" if given or not origin.source else strange_place(origin.source, Path.cwd())
    if not place:
        return ""
    why = f"session {visible(session_id)} names agents in {visible(place)}"
    again = command_line(args, "resume", session_id, agents=origin.source)
    return f"{why}, which is neither below this folder nor installed; if you trust them: {again}"
