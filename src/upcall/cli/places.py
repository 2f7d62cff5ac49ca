"""Find the log, the agents and the origin of a session.

Only this module and the model names read the environment.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import stat
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from upcall.errors import SetupError, StoreUnavailable, UnknownSession, UpcallError
from upcall.observe.plain import shell_word, visible
from upcall.safety.secrets import without_password
from upcall.store.home import HISTORY, NAME, check_home, ignore_home, make_home

if TYPE_CHECKING:
    from upcall.agent import Agent
    from upcall.agentfiles.load import Loaded
    from upcall.app import Runtime
    from upcall.cli.stopping import Stopping
    from upcall.contracts import Host, Workspace
    from upcall.events import SessionStarted
    from upcall.hosts.terminal.host import TerminalHost
    from upcall.observe.labels import Labels
    from upcall.observe.redact import Redactor
    from upcall.observe.story import Story
    from upcall.prices import Cost, Prices

HOME = Path(NAME)
_NO_HOLD_LIMIT = 1e9
"""Seconds that a run stays in memory while a person is at its terminal."""


def store_of(args: argparse.Namespace) -> str:
    """Return the path or URL of the log to use."""
    return _named_store(args)[1] or str(HOME / "log.db")


def _named_store(args: argparse.Namespace) -> tuple[str, str]:
    """Return the option or variable that names the log, and its value; two empty strings for the default log."""
    if name := getattr(args, "store", ""):
        return "--store", name
    name = os.environ.get("UPCALL_STORE", "")
    return ("UPCALL_STORE", name) if name else ("", "")


def is_default(args: argparse.Namespace) -> bool:
    """Return whether no log was named, so that the one in the current folder is used."""
    return not _named_store(args)[0]


def is_url(store: str) -> bool:
    """Return whether the log is on a server rather than in a file."""
    return "://" in store


def runtime_for(args: argparse.Namespace, agents: Sequence[Agent] = (), host: Host | None = None) -> Runtime:
    """Open a runtime over the log, and create the log if there is none; `host` asks the person who is here."""
    from upcall.app import Runtime, open_store

    make_log_folder(args)
    store = open_store(store_of(args), found=is_default(args))
    person: dict[str, Any] = {"host": host, "hold": _NO_HOLD_LIMIT} if host is not None else {}
    runtime = Runtime(store, agents=agents, redactor=redactor(), **person, **_watched_with(args))
    runtime.workspaces.restore = _editor_workspace
    stopping: Stopping | None = getattr(args, "stopping", None)
    if stopping is not None:
        stopping.register(runtime)
    return runtime


def _editor_workspace(header: SessionStarted) -> Workspace | None:
    """Return the workspace of a session that was started in an editor; None for any other."""
    from upcall.hosts.acp.editor_files import folder_workspace

    is_editors = "acp" in header.data and bool(header.folder)
    return folder_workspace(header.folder, header.roots) if is_editors else None


def _watched_with(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a runtime that say what people get to see of it."""
    made: dict[str, Any] = {
        "events_file": getattr(args, "events_file", None),
        "log_dir": getattr(args, "log_dir", None),
        "capture": getattr(args, "capture", False),
    }
    if made["log_dir"] is not None:
        shows = shown_with(args)
        made |= {"labels": shows.labels, "prices": shows.prices}
    return made


def person_here(args: argparse.Namespace) -> TerminalHost | None:
    """Return a host for the person at this terminal; None if nobody can be asked."""
    if getattr(args, "json", False) or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    from upcall.hosts.terminal.host import TerminalHost

    return TerminalHost(
        os_user(), editor=editor(), redactor=redactor(), store=store_option(args), program=program()
    )


def trusts_store() -> bool:
    """Return whether log files are trusted without checking whose they are."""
    return os.environ.get("UPCALL_TRUST_STORE", "") == "1"


def redactor() -> Redactor:
    """Return what hides secrets in everything that is printed, with the additions of the file in UPCALL_HIDE."""
    from upcall.observe.redact import Redactor

    file = os.environ.get("UPCALL_HIDE", "")
    return Redactor.read(file, os.environ) if file else Redactor(environ=os.environ)


def story_for(args: argparse.Namespace, *, results: bool = False) -> Story:
    """Return what turns events into lines, with the labels and prices that were given."""
    from upcall.observe.story import Story

    shows = shown_with(args)
    return Story(results=results, redactor=redactor(), labels=shows.labels, cost=shows.cost)


class ShownWith(NamedTuple):
    """The labels and the prices that were given; None without."""

    labels: Labels | None
    prices: Prices | None

    @property
    def cost(self) -> Cost | None:
        """What tokens of a model cost."""
        from upcall.observe.capture import price_list

        return price_list(self.prices) if self.prices is not None else None


def shown_with(args: argparse.Namespace) -> ShownWith:
    """Read the files of --labels and --prices."""
    from upcall.observe.capture import read_prices
    from upcall.observe.labels import Labels

    labels, prices = getattr(args, "labels", None), getattr(args, "prices", None)
    return ShownWith(Labels.read(labels) if labels else None, read_prices(prices) if prices else None)


def program() -> str:
    """Return the name of this command, to paste: `upcall` if a shell finds it, otherwise its path."""
    own = Path(sys.argv[0]).absolute()
    if own.stem != "upcall":  # run as `python -m upcall`
        own = Path(sys.executable).with_name("upcall")
    found = shutil.which("upcall")
    if found is not None and Path(found).resolve() == own.resolve():
        return "upcall"
    return shlex.quote(str(own)) if own.exists() else f"{shlex.quote(sys.executable)} -m upcall"


def os_user() -> str:
    """Return the user's name from the system; an environment variable could be forged."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def token_variable() -> str | None:
    """Return the token that the environment gives to commands; None without one."""
    return os.environ.get("UPCALL_TOKEN")


def editor() -> str:
    """Return the person's preferred editor, or ""."""
    return os.environ.get("VISUAL", "") or os.environ.get("EDITOR", "")


def store_option(args: argparse.Namespace) -> str:
    """Return the log as named by --store, for commands that are printed; "" if it was not named.

    A password in a URL is removed: a person who types the command has it in PGPASSWORD, .pgpass or UPCALL_STORE.
    """
    return without_password(getattr(args, "store", ""))


def has_log(args: argparse.Namespace) -> bool:
    """Return whether there is a log to read. Creates nothing.

    Raises SetupError if a log was named but does not exist.
    """
    how, store = _named_store(args)[0], store_of(args)
    if _is_database(store):
        return True
    if store == ":memory:":
        raise _unusable(args, "a log in memory is empty when a command starts; give the path of a file")
    try:
        if stat.S_ISDIR(Path(store).stat().st_mode):
            raise _unusable(args, "it is a folder; give a file in it")
    except FileNotFoundError:
        if how:
            raise _unusable(args, "it does not exist; give a log that `upcall run` has created") from None
        return False
    except (OSError, ValueError) as error:
        raise _unusable(args, _unusable_reason(Path(store), error)) from error
    return True


def _is_database(store: str) -> bool:
    """Return whether the log is in a database; SetupError for what looks like a URL and is not a database's."""
    from upcall.app import is_database, refuse_url

    if is_database(store):
        return True
    refuse_url(store)
    return False


def no_log_at(args: argparse.Namespace) -> float | None:
    """Return the present time if the log is a file that does not exist yet; otherwise None."""
    store = store_of(args)
    return None if is_url(store) or os.path.lexists(store) else time.time()


def no_log(args: argparse.Namespace) -> str:
    """Say that the default log does not exist."""
    return f"no log here yet: {without_password(store_of(args))} does not exist"


def make_log_folder(args: argparse.Namespace) -> None:
    """Create the folder of the log. Errors name the log."""
    store = store_of(args)
    if _is_database(store) or store == ":memory:":
        return
    try:
        make_home(Path(store).parent)
        if not is_default(args):  # the default folder is checked before it is changed
            ignore_home(Path(store).parent)
        if Path(store).is_dir():
            raise _unusable(args, "it is a folder; give a file in it")
    except (OSError, ValueError) as error:
        raise _unusable(args, _unusable_reason(Path(store), error)) from error


def make_history_home() -> None:
    """Create the folder for the input history, whichever log is used."""
    if not trusts_store():
        check_home(HOME, str(HOME / HISTORY))
    make_home(HOME)
    ignore_home(HOME)


def _unusable(args: argparse.Namespace, why: str) -> UpcallError:
    """Build the error for an unusable log; a SetupError if the log was named on the command line."""
    how, named = _named_store(args)
    return SetupError(f"{how} {without_password(named)}: {why}") if how else StoreUnavailable(store_of(args), why)


def _unusable_reason(path: Path, error: OSError | ValueError) -> str:
    for above in path.parents:
        with contextlib.suppress(OSError, ValueError):
            if stat.S_ISDIR(above.stat().st_mode):
                break
            return f"it can't exist, because {above} is not a folder"
    return f"it can't be used: {error.strerror if isinstance(error, OSError) else error}"


def open_log(args: argparse.Namespace) -> Runtime:
    """Open a runtime over an existing log, to change something in it."""
    _require_log(args)
    return runtime_for(args)


@contextlib.asynccontextmanager
async def view_log(args: argparse.Namespace) -> AsyncGenerator[Runtime]:
    """Open a runtime over an existing log, to read it. Prints a note if the log belongs to somebody else."""
    from upcall.app import Runtime, open_store

    _require_log(args)
    store = open_store(store_of(args), found=is_default(args), view=True)
    async with Runtime(store) as runtime:
        if getattr(store, "foreign", False):
            path = shlex.quote(store_of(args))
            note = f"{path} is not your log, so it is read-only (to adopt it: `upcall adopt {path}`)"
            sys.stderr.write(f"upcall: {note}\n")
            sys.stderr.flush()
        yield runtime


def _require_log(args: argparse.Namespace) -> None:
    if not has_log(args):
        raise UpcallError(f"{no_log(args)}; create one with `upcall run`, or give another log with --store PATH")


def load_agent(args: argparse.Namespace) -> Loaded:
    """Load the agents that AGENT and --agent name."""
    from upcall.agentfiles.load import load_spec

    return load_spec(args.agent, args.agent_name)


class Origin(NamedTuple):
    """The source of a session's agents, its root's agent, and the main module that declares that agent."""

    source: str
    agent: str
    program: str


async def origin_of(runtime: Runtime, session_id: str) -> Origin:
    """Return the origin that a session's root has recorded."""
    row = await runtime.store.row(session_id)
    if row is None:
        raise UnknownSession(session_id)
    from upcall.events import SessionStarted

    first = (await runtime.store.read(row.root, 0, 1))[0]
    assert isinstance(first, SessionStarted)
    return Origin(first.source, first.agent, first.program)


def command_line(args: argparse.Namespace, command: str, *operands: str, **options: str | None) -> str:
    """Build a command to paste: quoted, with the log that this command line names.

    Options without a value are omitted.
    """
    options_given = {"store": store_option(args), **options}
    named = [_option(name.replace("_", "-"), value) for name, value in options_given.items() if value]
    words = [shell_word(operand) for operand in operands]
    if any(operand.startswith("-") for operand in operands):
        return " ".join([program(), command, *named, "--", *words])
    return " ".join([program(), command, *words, *named])


def _option(name: str, value: str) -> str:
    return f"--{name}{'=' if value.startswith('-') else ' '}{shell_word(value)}"


async def resume_command(runtime: Runtime, session_id: str, args: argparse.Namespace) -> str:
    """Return the command that resumes a session: by its root's id, or by its own if the root has ended.

    A child that was prompted by its own id may wait although its ancestors have ended.
    """
    origin, names = await origin_of(runtime, session_id), session_id.split("~")
    for count in range(1, len(names)):
        row = await runtime.store.row("~".join(names[:count]))
        if row is not None and row.status in ("running", "waiting", "failed"):
            session_id = row.id
            break
    return command_line(args, "resume", session_id, agents=None if origin.source else "MODULE:ATTRIBUTE")


def agents_for_resume(origin: Origin, agents_option: str | None, session_id: str) -> Loaded:
    """Load the agents to resume with: those that were given, or those from the session's origin."""
    from upcall.agentfiles.load import load_spec

    if not agents_option and not origin.source:
        why = f"session {session_id!r} does not record where its agent {origin.agent!r} comes from"
        if origin.program:
            why = f"the agent {origin.agent!r} of session {session_id!r} is declared in a program's main module "
            why += f"({origin.program}), and importing that would run the program again"
        how = f"upcall resume {shell_word(session_id)} --agents AGENT (a folder, a .md file, or module:attribute)"
        where = (
            "Say where else the agent can be loaded from" if origin.program else "Say where it can be loaded from"
        )
        raise SetupError(f"{why}. {where}: {how}")
    return load_spec(agents_option or origin.source, origin.agent)


def untrusted_source(origin: Origin, agents_option: str | None, session_id: str, args: argparse.Namespace) -> str:
    """Explain why a session's agents are not imported without asking, with the command to type; "" if they may be.

    Even the user's own log may name somebody else's module: anybody who wrote to it chose what is imported.
    """
    from upcall.agentfiles.source_places import strange_place

    place = "" if agents_option or not origin.source else strange_place(origin.source, Path.cwd())
    if not place:
        return ""
    why = f"session {visible(session_id)} names agents in {visible(place)}"
    again = command_line(args, "resume", session_id, agents=origin.source)
    return f"{why}, which is neither below this folder nor installed; if you trust them: {again}"
