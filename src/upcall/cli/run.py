"""Commands that make agents work: run, cancel. And one turn that a person watches."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from upcall.app import Runtime, open_session
from upcall.callbacks import Callback
from upcall.cli.options import Commands, agent_argument, as_json, events_file, tag_option, tags_of
from upcall.cli.output import described_turn, dump, tell
from upcall.cli.places import (
    command_line,
    existing,
    given_store,
    load,
    origin_of,
    person_here,
    program,
    resume_command,
    runtime_for,
)
from upcall.cli.stopping import TERMINATED, stopping_of
from upcall.contracts import Reply
from upcall.core.routing.answer import callback_of
from upcall.errors import RuntimeClosed, SessionWaiting, SetupError
from upcall.hosts.terminal.console import make_console
from upcall.hosts.terminal.host import TerminalHost
from upcall.hosts.terminal.phrases import args_line
from upcall.hosts.terminal.question import command, is_approval
from upcall.hosts.terminal.screen import Drawing, View, view_on
from upcall.observe.plain import one_line, plain, visible
from upcall.safety.bounds import DATA, read_bounded_json

if TYPE_CHECKING:
    from upcall.core.runtime.session import Session

CODES = {"done": 0, "failed": 1, "limit": 1, "waiting": 3, "cancelled": 130}
_UNFINISHED = {
    "limit": "the limit {limit} ended the turn",
    "cancelled": "the turn was cancelled",
}


def add(commands: Commands) -> None:
    """The command `run`."""
    parser = commands.add(
        "run",
        "give an agent one task and wait for its reply",
        _run,
        about="At a terminal you see the work as it happens. In a pipe only the reply is printed.\n"
        "With the id of an existing session, the conversation goes on.",
        examples=[
            "upcall run agents/ 'Summarise README.md'",
            "upcall run agents/writer.md 'Make it shorter' --id readme",
            "upcall run team:manager - < task.txt",
            "upcall run agents/ 'Check the order' --tag customer=acme --data '{\"order\": 17}'",
        ],
    )
    agent_argument(parser)
    parser.add_argument("prompt", metavar="PROMPT", help="the task; - reads it from standard input")
    parser.add_argument("--id", metavar="ID", help="the session's id: a new one, or one to go on with")
    tag_option(parser, "a tag of the new session, to find it by")
    about = "data of the new session, which its tools read as ctx.data: a JSON object, or a file with one"
    parser.add_argument("--data", metavar="JSON|FILE", help=about)
    events_file(parser)
    as_json(parser)


def add_more(commands: Commands) -> None:
    """The command `cancel`."""
    parser = commands.add(
        "cancel",
        "end a running turn, in whichever process it runs",
        _cancel,
        examples=["upcall cancel 4f0c2a9d11e7"],
        takes="session",
    )
    parser.add_argument("id", metavar="ID", help="the session")


# --- the commands -----------------------------------------------------------------------


async def _run(args: argparse.Namespace) -> int:
    prompt = _prompt(args.prompt)
    given = {"data": _data(args.data), "tags": tags_of(args) or None}
    loaded = load(args)
    async with runtime_for(args, loaded.agents, person_here(args)) as runtime:
        session, _ = await open_session(runtime, loaded.agent, args.id, **given)
        return await shown(runtime, session.id, args, lambda view: turn(runtime, session, prompt, view))


async def _cancel(args: argparse.Namespace) -> int:
    async with existing(args) as runtime:
        before = await runtime.status(args.id)
        if before not in ("running", "interrupted", "waiting"):
            tell(f"nothing to cancel: session {visible(args.id)} is {before}")
            return 0
        await runtime.cancel(args.id, "by `upcall cancel`")
        status = await _ended(runtime, args.id)
    tell(f"session {visible(args.id)}: {status}")
    return 0


async def _ended(runtime: Runtime, session_id: str) -> str:
    for _ in range(50):
        status = await runtime.status(session_id)
        if status not in ("running", "interrupted"):
            return status
        await asyncio.sleep(0.1)
    return "asked to end; it has not yet"


_LONGEST_PROMPT = 4_000_000
"""Characters; far more than any model takes."""


def _prompt(given: str) -> str:
    text = sys.stdin.read(_LONGEST_PROMPT + 1) if given == "-" else given
    if len(text) > _LONGEST_PROMPT:
        raise SetupError(f"the prompt has more than {_LONGEST_PROMPT} characters; give it as a file")
    if not text.strip():
        raise SetupError("the prompt is empty; say what the agent should do")
    return text.encode("utf-8", "replace").decode()


def _data(given: str | None) -> Any:
    """The data that --data gives: JSON itself, or a file's."""
    if given is None:
        return None
    where, text = "--data", given.encode("utf-8", "replace")
    try:
        if text.lstrip()[:1] not in (b"{", b"["):
            where = f"--data {given}"
            text = Path(given).read_bytes()
        return read_bounded_json(text, DATA)
    except OSError as error:
        raise SetupError(f"{where}: neither a JSON object nor a file ({error.strerror})") from None
    except ValueError as error:
        raise SetupError(f"{where}: {error}") from None


# --- one turn ---------------------------------------------------------------------------


async def shown(
    runtime: Runtime, session_id: str, args: argparse.Namespace, work: Callable[[Any], Awaitable[Reply]]
) -> int:
    """Run a turn with a view where somebody looks, then print its reply where nobody has seen it."""
    out = progress_stream(quiet=args.json)
    if out is not None:
        make_console(out).print(f"session {visible(session_id)}", style="dim")
    try:
        with stopping_of(args).then():
            async with watched(runtime, out, fresh=False) as view:
                reply = await work(view)
    except RuntimeClosed:
        return await stopped(runtime, session_id, args)
    except SessionWaiting:
        if args.json:
            dump(await described_turn(runtime, session_id))
        await tell_waiting(runtime, session_id, args)
        return CODES["waiting"]
    except Exception as error:
        if args.json:
            dump(await described_turn(runtime, session_id, error=error))
        raise
    if args.json:
        dump(await described_turn(runtime, session_id, reply))
    elif out is not sys.stdout and reply.text.strip() and reply.status != "waiting":  # then it is an earlier one's
        sys.stdout.write(plain(reply.text).strip() + "\n")
    sys.stdout.flush()
    if reply.status == "waiting" and not args.json:
        await tell_waiting(runtime, session_id, args)
    elif reply.status in _UNFINISHED and not args.json:
        agent = getattr(args, "agent", "") or (await origin_of(runtime, session_id)).source or "AGENT"
        named = getattr(args, "agent_name", None)
        again = command_line(args, "run", agent, "continue", id=session_id, agent=named)
        tell(f"upcall: {_UNFINISHED[reply.status].format(limit=reply.limit)}; continue with: {again}")
    return CODES[reply.status]


async def stopped(runtime: Runtime, session_id: str, args: argparse.Namespace) -> int:
    """Tell how a session that SIGTERM stopped is resumed; returns the exit code."""
    if getattr(args, "json", False):
        dump(await described_turn(runtime, session_id))
    tell(f"upcall: stopped; continue with: {await resume_command(runtime, session_id, args)}")
    return TERMINATED


@contextlib.asynccontextmanager
async def watched(
    runtime: Runtime, out: TextIO | None, drawing: Drawing | None = None, **options: Any
) -> AsyncGenerator[View | None]:
    """The view that fits, which makes room where the person at this terminal is asked something."""
    async with view_on(out, drawing, **options) as view:
        host = runtime.host
        if isinstance(host, TerminalHost):
            host.view = view
        try:
            yield view
        finally:
            if isinstance(host, TerminalHost):
                await host.rest()
                host.view = None


async def tell_waiting(runtime: Runtime, session_id: str, args: argparse.Namespace) -> None:
    """What a session waits for, what to type to answer it, and how it goes on then."""
    store = given_store(args)
    root = session_id.partition("~")[0]
    held = await runtime.store.callbacks(root=root, limit=1000)
    groups: dict[tuple[str, ...], list[Callback]] = {}
    for one in held:
        if one.status == "open":
            groups.setdefault(one.group_in(root), []).append(callback_of(one))
    answers = f"{len(groups)} answer{'s' if len(groups) != 1 else ''}"
    tell(f"upcall: session {visible(session_id)} waits for {answers}")
    for callback, *equal in groups.values():
        others = f" (and {len(equal)} equal question{'s' if len(equal) > 1 else ''})" if equal else ""
        tell(f"  {one_line(_asks(callback), 76 - len(others))}{others}")
        tell(f"    {command(callback, store, program())}")
    tell(f"then: {await resume_command(runtime, session_id, args)}")


def _asks(callback: Callback) -> str:
    if is_approval(callback):
        return f"{callback.agent} wants to run {callback.tool} {args_line(callback.args or {})}"
    return f"{callback.agent} asks: {callback.message}"


def progress_stream(*, quiet: bool = False) -> TextIO | None:
    """Where to show a run: the screen, if there is one."""
    if quiet:
        return None
    return next((stream for stream in (sys.stdout, sys.stderr) if stream.isatty()), None)


async def turn(runtime: Runtime, session: Session, text: str, view: Any) -> Reply:
    """One turn, shown; Ctrl-C cancels it, twice leaves it where it is."""
    task = asyncio.ensure_future(streamed(session, text, view))
    with interruptible(runtime, session.id, task):
        return await task


async def streamed(session: Session, text: str, view: Any) -> Reply:
    """One turn, shown."""
    async for item in session.stream(text):
        if view is not None:
            view.feed(item)
    assert session.reply is not None
    return session.reply


@contextlib.contextmanager
def interruptible(runtime: Runtime, session_id: str, task: asyncio.Task[Any]) -> Generator[None]:
    """Ctrl-C ends the turn if it runs here; before that, and the second time, it ends the waiting for it."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, interrupter(runtime, session_id, task))
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def interrupter(runtime: Runtime, session_id: str, task: asyncio.Task[Any]) -> Callable[[], None]:
    """What Ctrl-C does: ends the turn if it runs here; before that, and the second time, the waiting for it."""
    asked: list[asyncio.Task[None]] = []

    def interrupt() -> None:
        if asked or not any(one == session_id or one.startswith(f"{session_id}~") for one in runtime.turns):
            task.cancel()
        else:
            asked.append(asyncio.ensure_future(runtime.cancel(session_id, "Ctrl-C")))

    return interrupt
