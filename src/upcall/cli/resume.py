"""The command `resume`: go on with one session, or with every one that can, as they become ready."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from upcall.cli.options import Commands, as_json, events_file
from upcall.cli.output import confirmed, described_turn, dump, failure_line, tell, tell_no_log
from upcall.cli.places import agents_for_resume, existing, far_source, has_log, origin_of, person_here, runtime_for
from upcall.cli.run import CODES, interruptible, shown
from upcall.cli.stopping import DRAIN, TERMINATED, stopping_of
from upcall.contracts import Reply
from upcall.core.runtime.worker import STOP_LIMIT
from upcall.errors import RuntimeClosed, SessionBusy, SetupError
from upcall.observe.plain import one_line, visible

if TYPE_CHECKING:
    from upcall.app import Runtime

AT_ONCE = 16
"""Trees that `--all` runs side by side; those that wait again hold no place."""

CANCELLED = CODES["cancelled"]


def add(commands: Commands) -> None:
    """The command `resume`."""
    parser = commands.add(
        "resume",
        "go on with what was answered, interrupted or failed",
        _resume,
        about="What has finished is not done again. A session knows where its agents come from;\n"
        "--agents names them where it does not, or where they have moved.\n"
        "--all takes every session that can go on now, and leaves alone what still waits or what\n"
        "another process runs; with --follow it stays, and takes what becomes ready, until Ctrl-C.",
        examples=[
            "upcall resume 4f0c2a9d11e7",
            "upcall resume readme --agents agents/",
            "upcall resume --all",
            "upcall resume --all --follow",
        ],
        takes="session",
    )
    parser.add_argument("id", metavar="ID", nargs="?", help="the session")
    parser.add_argument("--all", action="store_true", help="every session that can go on")
    parser.add_argument("--follow", action="store_true", help="with --all: go on until Ctrl-C")
    parser.add_argument("--agents", metavar="AGENT", help="where its agents are")
    events_file(parser)
    as_json(parser)


async def _resume(args: argparse.Namespace) -> int:
    if bool(args.id) == args.all:
        raise SetupError("name one session, or say --all: upcall resume ID, upcall resume --all")
    if args.follow and not args.all:
        raise SetupError("--follow goes with --all: upcall resume --all --follow")
    return await (_all(args) if args.all else _one(args))


# --- one session ------------------------------------------------------------------------


async def _one(args: argparse.Namespace) -> int:
    async with existing(args) as runtime:
        origin = await origin_of(runtime, args.id)
    if problem := far_source(origin, args.agents, args.id, args):
        _ask_to_import(problem, args)
    loaded = agents_for_resume(origin, args.agents, args.id)
    async with runtime_for(args, loaded.agents, person_here(args)) as runtime:
        return await shown(runtime, args.id, args, lambda view: go_on(runtime, args.id, view))


def _ask_to_import(problem: str, args: argparse.Namespace) -> None:
    """Ask the person who is here whether to import what a log names; SetupError where nobody is, or says no."""
    if person_here(args) is None:
        raise SetupError(problem)
    tell(f"upcall: {problem}")
    if not confirmed("Import them now?", yes=False):
        raise SetupError("nothing was imported, and nothing was resumed")


async def go_on(runtime: Runtime, session_id: str, view: Any) -> Reply:
    """Resume a session, shown; Ctrl-C cancels it."""
    task = asyncio.ensure_future(resumed(runtime, session_id, view))
    with interruptible(runtime, session_id, task):
        return await task


async def resumed(runtime: Runtime, session_id: str, view: Any) -> Reply:
    """Resume a session under a view that knows what came before."""
    if view is not None:
        await _recall(runtime, session_id, view)
    return await runtime.resume(session_id, sink=view.feed if view is not None else None)


async def _recall(runtime: Runtime, session_id: str, view: Any) -> None:
    """Let the view know what the sessions of the tree were doing when they stopped."""
    root = session_id.partition("~")[0]
    async for event in runtime.events(tree=root):
        view.recall(event)


# --- all of them ------------------------------------------------------------------------


async def _all(args: argparse.Namespace) -> int:
    if not has_log(args):
        tell_no_log(args, "waiting for the first run" if args.follow else "so there is nothing to resume")
        if not args.follow:
            return 0
    async with contextlib.AsyncExitStack() as stack:
        watcher = await stack.enter_async_context(runtime_for(args) if args.follow else existing(args))
        fleet = _Fleet(args, watcher, stack)
        with _on_ctrl_c(fleet.leave), stopping_of(args).then():
            if args.follow:
                await watcher.work(fleet.stop, resume=fleet.resume, concurrency=AT_ONCE, drain=DRAIN + STOP_LIMIT)
            else:
                await fleet.resume_ready()
    if fleet.unread is not None:
        raise fleet.unread
    if not fleet.codes and not args.follow and not args.json:
        tell("nothing to go on with")
    return fleet.exit_code()


@contextlib.contextmanager
def _on_ctrl_c(leave: Callable[[], object]) -> Generator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, leave)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


class _LeftAlone(Exception):
    """A session whose agents are not imported without asking."""


class _Fleet:
    """The trees that this process took: a runtime for each place that agents come from.

    `codes` has the last exit code of each tree; `stop` is set when nothing more is to be taken.
    """

    def __init__(self, args: argparse.Namespace, watcher: Runtime, stack: contextlib.AsyncExitStack) -> None:
        self._args, self._watcher, self._stack = args, watcher, stack
        self._runtimes: dict[tuple[str, str], Runtime] = {}
        self._loading = asyncio.Lock()
        self._leaving: list[asyncio.Task[None]] = []
        self.stop = asyncio.Event()
        self.unread: BrokenPipeError | None = None  # nobody reads what is printed any more
        self.codes: dict[str, int] = {}

    def leave(self) -> None:
        """Stop everything where it is: it can be resumed."""
        self.stop.set()
        self._leaving += [asyncio.ensure_future(runtime.drain(0)) for runtime in self._runtimes.values()]

    async def resume_ready(self) -> None:
        """Resume every tree that is ready now."""
        places = asyncio.Semaphore(AT_ONCE)

        async def resume(root: str) -> None:
            async with places:
                await self.resume(root)

        await asyncio.gather(*[resume(root) for root in await self._watcher.ready()])

    async def resume(self, root: str) -> bool:
        """Resume a tree and tell what came of it; False where it failed: that would only be repeated."""
        seen: list[Any] = []
        try:
            if self._stops:
                return True
            runtime = await self._runtime(root)
            reply = await runtime.resume(root, sink=lambda item: seen.append(item) if not seen else None)
        except SessionBusy:
            return True
        except _LeftAlone as left:
            self.codes[root] = 0
            tell(f"upcall: left alone: {left}")
            return False
        except RuntimeClosed:
            if seen:
                self.codes[root] = CANCELLED if self.stop.is_set() else TERMINATED
                await self._say(root, None)
            return True
        except Exception as error:
            self.codes[root] = 1
            await self._say(root, None, error)
            return False
        if seen:  # else another process was faster and has told it
            self.codes[root] = CODES[reply.status]
            await self._say(root, reply)
        return True

    def exit_code(self) -> int:
        """The worst of all; where it was stopped, 3 if all that is left waits for an answer."""
        if self.stop.is_set():
            return CANCELLED
        codes = set(self.codes.values())
        if stopping_of(self._args).asked.is_set():
            return CODES["waiting"] if codes and codes <= {0, CODES["waiting"]} and any(codes) else TERMINATED
        return 1 if 1 in codes else max(codes, default=0)

    @property
    def _stops(self) -> bool:
        return self.stop.is_set() or stopping_of(self._args).asked.is_set()

    async def _runtime(self, root: str) -> Runtime:
        origin = await origin_of(self._watcher, root)
        if problem := far_source(origin, self._args.agents, root, self._args):
            raise _LeftAlone(problem)
        key = (self._args.agents or origin.source, origin.agent)
        async with self._loading:
            if key not in self._runtimes:
                loaded = agents_for_resume(origin, self._args.agents, root)
                made = runtime_for(self._args, loaded.agents)
                self._runtimes[key] = await self._stack.enter_async_context(made)
        return self._runtimes[key]

    async def _say(self, root: str, reply: Reply | None, error: Exception | None = None) -> None:
        shown = await described_turn(self._watcher, root, reply, error) if self._args.json else None
        try:
            if error is not None:
                tell(f"upcall: session {visible(root)}: {failure_line(error)}")
            if shown is not None:
                dump(shown, lines=True)
            elif reply is not None:
                text = f": {one_line(reply.text, 200)}" if reply.text.strip() and reply.status != "waiting" else ""
                sys.stdout.write(f"{visible(root)} {reply.limit or reply.status}{text}\n")
            elif error is None:
                sys.stdout.write(f"{visible(root)} interrupted\n")
            sys.stdout.flush()
        except BrokenPipeError as unread:
            self.unread = unread
            self.leave()
