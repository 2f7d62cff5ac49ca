"""The commands `run` and `cancel`, and the running of one turn with a view."""

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
from upcall.cli.identity import principal_for, token_option
from upcall.cli.options import (
    Commands,
    agent_argument,
    events_file_option,
    json_option,
    tag_option,
    tags_of,
    watching_options,
)
from upcall.cli.output import damage_reported, dump, tell
from upcall.cli.places import (
    command_line,
    load_agent,
    open_log,
    origin_of,
    os_user,
    person_here,
    program,
    redactor,
    resume_command,
    runtime_for,
    store_option,
    story_for,
)
from upcall.cli.stopping import TERMINATED, stopping_of
from upcall.contracts import Reply
from upcall.errors import RuntimeClosed, SessionWaiting, SetupError
from upcall.hosts.terminal.console import make_console
from upcall.hosts.terminal.host import TerminalHost
from upcall.hosts.terminal.live_view import open_view
from upcall.hosts.terminal.question import answer_command
from upcall.hosts.terminal.views import Drawing, View
from upcall.observe.hidden_question import hide_secrets, is_approval
from upcall.observe.phrases import args_line
from upcall.observe.plain import one_line, plain, visible
from upcall.observe.session_json import SessionJson
from upcall.observe.weight import aside
from upcall.safety.bounds import DATA, read_bounded_json

if TYPE_CHECKING:
    from upcall.core.runtime.session import Session

CODES = {"done": 0, "failed": 1, "limit": 1, "waiting": 3, "cancelled": 130}
_UNFINISHED = {
    "limit": "the limit {limit} ended the turn",
    "cancelled": "the turn was cancelled",
}


def add(commands: Commands) -> None:
    """Add the command `run`."""
    parser = commands.add(
        "run",
        "give an agent one task and wait for its reply",
        _run,
        about="At a terminal you see the work as it happens. In a pipe, only the reply is printed.\n"
        "With the id of an existing session, the conversation continues.",
        examples=[
            "upcall run agents/ 'Summarise README.md'",
            "upcall run agents/writer.md 'Make it shorter' --id readme",
            "upcall run team:manager - < task.txt",
            "upcall run agents/ 'Check the order' --tag customer=acme --data '{\"order\": 17}'",
        ],
    )
    agent_argument(parser)
    parser.add_argument("prompt", metavar="PROMPT", help="the task; - reads it from standard input")
    parser.add_argument("--id", metavar="ID", help="the id of a new session, or of one to continue")
    tag_option(parser, "a tag for the new session, to filter by")
    about = "data for the new session, which tools read as ctx.data: a JSON object, or a file with one"
    parser.add_argument("--data", metavar="JSON|FILE", help=about)
    events_file_option(parser)
    watching_options(parser)
    json_option(parser)


def add_cancel(commands: Commands) -> None:
    """Add the command `cancel`."""
    parser = commands.add(
        "cancel",
        "cancel a running, waiting or queued turn, in any process",
        _cancel,
        about="Ends the turn, withdraws its open questions, and removes later turns of the session\n"
        "from the queue. You can submit those turns again, with the next turn number.",
        examples=["upcall cancel 4f0c2a9d11e7"],
        takes="session",
    )
    parser.add_argument("id", metavar="ID", help="the session")
    token_option(parser)


# --- the commands -----------------------------------------------------------------------


async def _run(args: argparse.Namespace) -> int:
    prompt = _prompt(args.prompt)
    options = {"data": _data(args.data), "tags": tags_of(args) or None}
    loaded = load_agent(args)
    async with runtime_for(args, loaded.agents, person_here(args)) as runtime:
        session, _ = await open_session(runtime, loaded.agent, args.id, **options)
        return await run_and_show(runtime, session.id, args, lambda view: run_turn(runtime, session, prompt, view))


async def _cancel(args: argparse.Namespace) -> int:
    async with open_log(args) as runtime:
        by, right = await principal_for(args, runtime.store, "operator", "cancel", args.id)
        before = await runtime.status(args.id)
        if before not in ("running", "interrupted", "waiting", "queued"):
            tell(f"nothing to cancel: session {visible(args.id)} is {before}")
            return 0
        await runtime.cancel(args.id, "by `upcall cancel`", by=by, right=right)
        status = await _wait_for_end(runtime, args.id)
    tell(f"session {visible(args.id)}: {status}")
    return 0


async def _wait_for_end(runtime: Runtime, session_id: str) -> str:
    for _ in range(50):
        status = await runtime.status(session_id)
        if status not in ("running", "interrupted"):
            return status
        await asyncio.sleep(0.1)
    return "cancellation requested; the turn has not ended yet"


_LONGEST_PROMPT = 4_000_000
"""The longest prompt, in characters: far more than any model accepts."""


def _prompt(argument: str) -> str:
    text = sys.stdin.read(_LONGEST_PROMPT + 1) if argument == "-" else argument
    if len(text) > _LONGEST_PROMPT:
        raise SetupError(
            f"the prompt has more than {_LONGEST_PROMPT} characters; put the text into a file and give its path"
        )
    if not text.strip():
        raise SetupError("the prompt is empty; write what the agent should do")
    return text.encode("utf-8", "replace").decode()


def _data(argument: str | None) -> Any:
    """Return the data that --data gives, as JSON or in a file."""
    if argument is None:
        return None
    where, text = "--data", argument.encode("utf-8", "replace")
    try:
        if text.lstrip()[:1] not in (b"{", b"["):
            where = f"--data {argument}"
            text = Path(argument).read_bytes()
        return read_bounded_json(text, DATA)
    except OSError as error:
        raise SetupError(f"{where}: neither a JSON object nor a file ({error.strerror})") from None
    except ValueError as error:
        raise SetupError(f"{where}: {error}") from None


# --- one turn ---------------------------------------------------------------------------


async def run_and_show(
    runtime: Runtime, session_id: str, args: argparse.Namespace, work: Callable[[Any], Awaitable[Reply]]
) -> int:
    """Run a turn with a view if there is a screen; then print the reply if it has not been seen.

    Returns the exit code.
    """
    out, made = progress_stream(quiet=args.json), turn_json_of(runtime)
    if out is not None:
        make_console(out).print(f"session {visible(session_id)}", style="dim")
    try:
        with stopping_of(args).on_drained():
            async with view_for(runtime, args, out, fresh=False) as view:
                reply = await work(view)
    except RuntimeClosed:
        return await report_stopped(runtime, session_id, args)
    except SessionWaiting:
        if args.json:
            dump(await made.turn(session_id, whole_reply=not sys.stdout.isatty()))
        await report_waiting(runtime, session_id, args)
        return CODES["waiting"]
    except Exception as error:
        if args.json:
            dump(await made.turn(session_id, error=error, whole_reply=not sys.stdout.isatty()))
        raise
    if args.json:
        dump(await made.turn(session_id, reply, whole_reply=not sys.stdout.isatty()))
    elif out is not sys.stdout and reply.text.strip() and reply.status != "waiting":
        # while a turn waits, the last reply is an earlier one's
        text = redactor().text(reply.text) if sys.stdout.isatty() else reply.text
        sys.stdout.write(plain(text).strip() + "\n")
    sys.stdout.flush()
    if reply.status == "waiting" and not args.json:
        await report_waiting(runtime, session_id, args)
    elif reply.status in _UNFINISHED and not args.json:
        agent = getattr(args, "agent", "") or (await origin_of(runtime, session_id)).source or "AGENT"
        named = getattr(args, "agent_name", None)
        again = command_line(args, "run", agent, "continue", id=session_id, agent=named)
        tell(f"upcall: {_UNFINISHED[reply.status].format(limit=reply.limit)}; continue with: {again}")
    return CODES[reply.status]


def turn_json_of(runtime: Runtime) -> SessionJson:
    """Return what makes the JSON of this log's sessions."""
    return SessionJson(runtime, redactor(), damage_reported)


async def report_stopped(runtime: Runtime, session_id: str, args: argparse.Namespace) -> int:
    """Print how to resume a session that SIGTERM stopped; returns the exit code."""
    if getattr(args, "json", False):
        dump(await turn_json_of(runtime).turn(session_id, whole_reply=not sys.stdout.isatty()))
    tell(f"upcall: stopped; continue with: {await resume_command(runtime, session_id, args)}")
    return TERMINATED


@contextlib.asynccontextmanager
async def view_for(
    runtime: Runtime, args: argparse.Namespace, out: TextIO | None, drawing: Drawing | None = None, **options: Any
) -> AsyncGenerator[View | None]:
    """Open the right view; it makes room when the person at this terminal is asked something."""
    async with open_view(out, drawing, story=story_for(args), **options) as view:
        host = runtime.host
        if isinstance(host, TerminalHost):
            host.view = view
        try:
            yield view
        finally:
            if isinstance(host, TerminalHost):
                await host.finish()
                host.view = None


async def report_waiting(runtime: Runtime, session_id: str, args: argparse.Namespace) -> None:
    """Print what a session waits for, the commands that answer it, and the command that resumes it."""
    store = store_option(args)
    root = session_id.partition("~")[0]
    groups: dict[tuple[str, ...], list[Callback]] = {}
    hides = redactor()
    for one in await runtime.store.callbacks(root=root, limit=1000):
        if one.status == "open":
            groups.setdefault(one.group_key, []).append(one)
    answers = f"{len(groups)} answer{'s' if len(groups) != 1 else ''}"
    tell(f"upcall: session {visible(session_id)} is waiting for {answers}")
    for first, *equal in groups.values():
        callback = (await aside(hide_secrets, first, hides)).callback
        others = f" (and {len(equal)} equal question{'s' if len(equal) > 1 else ''})" if equal else ""
        tell(f"  {one_line(_question_text(callback), 76 - len(others))}{others}")
        tell(f"    {answer_command(callback, store, program())}")
    tell(f"then: {await resume_command(runtime, session_id, args)}")


def _question_text(callback: Callback) -> str:
    if is_approval(callback):
        return f"{callback.agent} wants to run {callback.tool} {args_line(callback.args or {})}"
    return f"{callback.agent} asks: {callback.message}"


def progress_stream(*, quiet: bool = False) -> TextIO | None:
    """Return the stream to show a run on: a terminal, or None."""
    if quiet:
        return None
    return next((stream for stream in (sys.stdout, sys.stderr) if stream.isatty()), None)


async def run_turn(runtime: Runtime, session: Session, text: str, view: Any) -> Reply:
    """Run one turn and show it. Ctrl-C cancels it; a second Ctrl-C stops waiting for it."""
    task = asyncio.ensure_future(stream_turn(session, text, view))
    with interruptible(runtime, session.id, task):
        return await task


async def stream_turn(session: Session, text: str, view: Any) -> Reply:
    """Run one turn and feed its events to the view."""
    async for item in session.stream(text, by=os_user()):
        if view is not None:
            view.feed(item)
    assert session.reply is not None
    return session.reply


@contextlib.contextmanager
def interruptible(runtime: Runtime, session_id: str, task: asyncio.Task[Any]) -> Generator[None]:
    """Let Ctrl-C cancel the turn if it runs here; before that, and the second time, it cancels the task."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, interrupter(runtime, session_id, task))
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def interrupter(runtime: Runtime, session_id: str, task: asyncio.Task[Any]) -> Callable[[], None]:
    """Return the handler for Ctrl-C: it cancels the turn if it runs here, otherwise the task."""
    requests: list[asyncio.Task[None]] = []

    def interrupt() -> None:
        if requests or not any(one == session_id or one.startswith(f"{session_id}~") for one in runtime.turns):
            task.cancel()
        else:
            requests.append(asyncio.ensure_future(runtime.cancel(session_id, "Ctrl-C")))

    return interrupt
