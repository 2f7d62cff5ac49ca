"""The command `resume`: resume one session, or all that are ready."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from upcall.cli.options import Commands, events_file_option, json_option, watching_options
from upcall.cli.output import confirm, dump, failure_line, report_no_log, tell
from upcall.cli.places import (
    agents_for_resume,
    has_log,
    open_log,
    origin_of,
    person_here,
    redactor,
    runtime_for,
    untrusted_source,
)
from upcall.cli.run import CODES, interruptible, run_and_show, turn_json_of
from upcall.cli.stopping import DRAIN_SECONDS, TERMINATED, stopping_of
from upcall.contracts import Reply
from upcall.core.runtime.running_trees import STOP_LIMIT
from upcall.errors import RuntimeClosed, ServersMissing, SessionBusy, SetupError
from upcall.observe.plain import one_line, visible

if TYPE_CHECKING:
    from upcall.app import Runtime

CONCURRENCY = 16
"""The most trees that `--all` runs at the same time; trees that wait again do not count."""

CANCELLED = CODES["cancelled"]


def add(commands: Commands) -> None:
    """Add the command `resume`."""
    parser = commands.add(
        "resume",
        "continue sessions that got an answer, were interrupted, or failed",
        _resume,
        about="Finished work is not repeated. Most sessions record where their agents come from. Use\n"
        "--agents if a session does not, or if its agents have moved.\n"
        "--all resumes every session that is ready. It skips sessions that are waiting or that\n"
        "another process is running. With --follow it keeps resuming sessions until Ctrl-C.",
        examples=[
            "upcall resume 4f0c2a9d11e7",
            "upcall resume readme --agents agents/",
            "upcall resume --all",
            "upcall resume --all --follow",
        ],
        takes="session",
    )
    parser.add_argument("id", metavar="ID", nargs="?", help="the session")
    parser.add_argument("--all", action="store_true", help="resume every session that is ready")
    parser.add_argument("--follow", action="store_true", help="with --all: keep running until Ctrl-C")
    parser.add_argument("--agents", metavar="AGENT", help="where the session's agents are")
    events_file_option(parser)
    watching_options(parser)
    json_option(parser)


async def _resume(args: argparse.Namespace) -> int:
    if bool(args.id) == args.all:
        raise SetupError("give one session, or --all: upcall resume ID, upcall resume --all")
    if args.follow and not args.all:
        raise SetupError("--follow needs --all: upcall resume --all --follow")
    return await (_resume_all(args) if args.all else _resume_one(args))


# --- one session ------------------------------------------------------------------------


async def _resume_one(args: argparse.Namespace) -> int:
    async with open_log(args) as runtime:
        origin = await origin_of(runtime, args.id)
    if problem := untrusted_source(origin, args.agents, args.id, args):
        _ask_to_import(problem, args)
    loaded = agents_for_resume(origin, args.agents, args.id)
    async with runtime_for(args, loaded.agents, person_here(args)) as runtime:
        return await run_and_show(runtime, args.id, args, lambda view: resume_and_show(runtime, args.id, view))


def _ask_to_import(problem: str, args: argparse.Namespace) -> None:
    """Ask the person whether to import the module that a log names. Raises SetupError without a yes."""
    if person_here(args) is None:
        raise SetupError(problem)
    tell(f"upcall: {problem}")
    if not confirm("Import them now?", yes=False):
        raise SetupError("nothing was imported, and nothing was resumed")


async def resume_and_show(runtime: Runtime, session_id: str, view: Any) -> Reply:
    """Resume a session and show it; Ctrl-C cancels it."""
    task = asyncio.ensure_future(resume_in_view(runtime, session_id, view))
    with interruptible(runtime, session_id, task):
        return await task


async def resume_in_view(runtime: Runtime, session_id: str, view: Any) -> Reply:
    """Resume a session in a view that has been given its earlier events."""
    if view is not None:
        await _feed_history(runtime, session_id, view)
    return await runtime.resume(session_id, sink=view.feed if view is not None else None)


async def _feed_history(runtime: Runtime, session_id: str, view: Any) -> None:
    """Feed the view the earlier events of the run tree, without drawing them."""
    root = session_id.partition("~")[0]
    async for event in runtime.events(tree=root):
        view.recall(event)


# --- all of them ------------------------------------------------------------------------


async def _resume_all(args: argparse.Namespace) -> int:
    if not has_log(args):
        report_no_log(args, "waiting for the first run" if args.follow else "so there is nothing to resume")
        if not args.follow:
            return 0
    async with contextlib.AsyncExitStack() as stack:
        watcher = await stack.enter_async_context(runtime_for(args) if args.follow else open_log(args))
        fleet = _ResumeAll(args, watcher, stack)
        with _on_ctrl_c(fleet.leave), stopping_of(args).on_drained():
            if args.follow:
                await watcher.work(
                    fleet.stop, resume=fleet.resume, concurrency=CONCURRENCY, drain=DRAIN_SECONDS + STOP_LIMIT
                )
            else:
                await fleet.resume_ready()
    if fleet.broken_pipe is not None:
        raise fleet.broken_pipe
    if not fleet.codes and not args.follow and not args.json:
        tell("nothing to resume")
    return fleet.exit_code()


@contextlib.contextmanager
def _on_ctrl_c(leave: Callable[[], object]) -> Generator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, leave)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


class _UntrustedSource(Exception):
    """Raised for a session whose agents are not imported without asking."""


class _ResumeAll:
    """The trees that this process resumes: one runtime for each source of agents.

    `codes` has the last exit code of each tree; `stop` is set when no more trees are to be resumed.
    """

    def __init__(self, args: argparse.Namespace, watcher: Runtime, stack: contextlib.AsyncExitStack) -> None:
        self._args, self._watcher, self._stack = args, watcher, stack
        self._runtimes: dict[tuple[str, str], Runtime] = {}
        self._loading = asyncio.Lock()
        self._leaving: list[asyncio.Task[None]] = []
        self.stop = asyncio.Event()
        self.broken_pipe: BrokenPipeError | None = None  # set when nobody reads our output any more
        self.codes: dict[str, int] = {}

    def leave(self) -> None:
        """Stop everything at once; it can be resumed later."""
        self.stop.set()
        self._leaving += [asyncio.ensure_future(runtime.drain(0)) for runtime in self._runtimes.values()]

    async def resume_ready(self) -> None:
        """Resume all trees that are ready now."""
        places = asyncio.Semaphore(CONCURRENCY)

        async def resume(root: str) -> None:
            async with places:
                await self.resume(root)

        await asyncio.gather(*[resume(root) for root in await self._watcher.ready()])

    async def resume(self, root: str) -> bool:
        """Resume a tree and report the outcome. Returns False if it failed, so that it is not retried."""
        seen: list[Any] = []
        try:
            if self._is_stopping:
                return True
            runtime = await self._runtime_for(root)
            reply = await runtime.resume(root, sink=lambda item: seen.append(item) if not seen else None)
        except SessionBusy:
            return True
        except (_UntrustedSource, ServersMissing) as left:
            self.codes[root] = 0
            tell(f"upcall: skipped: {left}")
            return False
        except RuntimeClosed:
            if seen:
                self.codes[root] = CANCELLED if self.stop.is_set() else TERMINATED
                await self._report(root, None)
            return True
        except Exception as error:
            self.codes[root] = 1
            await self._report(root, None, error)
            return False
        if seen:  # otherwise another process was faster and has reported it
            self.codes[root] = CODES[reply.status]
            await self._report(root, reply)
        return True

    def exit_code(self) -> int:
        """Return the worst exit code; after SIGTERM, 3 if all that is left waits for an answer."""
        if self.stop.is_set():
            return CANCELLED
        codes = set(self.codes.values())
        if stopping_of(self._args).requested.is_set():
            return CODES["waiting"] if codes and codes <= {0, CODES["waiting"]} and any(codes) else TERMINATED
        return 1 if 1 in codes else max(codes, default=0)

    @property
    def _is_stopping(self) -> bool:
        return self.stop.is_set() or stopping_of(self._args).requested.is_set()

    async def _runtime_for(self, root: str) -> Runtime:
        origin = await origin_of(self._watcher, root)
        if problem := untrusted_source(origin, self._args.agents, root, self._args):
            raise _UntrustedSource(problem)
        key = (self._args.agents or origin.source, origin.agent)
        async with self._loading:
            if key not in self._runtimes:
                loaded = agents_for_resume(origin, self._args.agents, root)
                made = runtime_for(self._args, loaded.agents)
                self._runtimes[key] = await self._stack.enter_async_context(made)
        return self._runtimes[key]

    async def _report(self, root: str, reply: Reply | None, error: Exception | None = None) -> None:
        whole, made = not sys.stdout.isatty(), turn_json_of(self._watcher)
        shown = await made.turn(root, reply, error, whole_reply=whole) if self._args.json else None
        try:
            if error is not None:
                tell(f"upcall: session {visible(root)}: {failure_line(error)}")
            if shown is not None:
                dump(shown, lines=True)
            elif reply is not None:
                has_text = reply.text.strip() and reply.status != "waiting"
                text = f": {one_line(redactor().text(reply.text), 200)}" if has_text else ""
                sys.stdout.write(f"{visible(root)} {reply.limit or reply.status}{text}\n")
            elif error is None:
                sys.stdout.write(f"{visible(root)} interrupted\n")
            sys.stdout.flush()
        except BrokenPipeError as unread:
            self.broken_pipe = unread
            self.leave()
