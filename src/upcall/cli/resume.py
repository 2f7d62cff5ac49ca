"""The command `resume`: go on with one session, or with every one that can, as they become ready."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from upcall.cli.options import Commands, as_json, events_file
from upcall.cli.output import described_turn, dump, failure_line, tell, tell_no_log
from upcall.cli.places import agents_for_resume, existing, has_log, origin_of, person_here, runtime_for
from upcall.cli.run import CODES, interruptible, shown
from upcall.contracts import Reply
from upcall.errors import SessionBusy, SetupError
from upcall.events import SETTLING, Parked, TurnEnded
from upcall.observe.plain import one_line, plain

if TYPE_CHECKING:
    from upcall.app import Runtime

AT_ONCE = 16
"""Trees that `--all` runs side by side; those that wait again hold no place."""

LOOK_AGAIN = 10.0
"""Seconds after which `--follow` looks without being woken: expiries and dead owners write no event."""


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
    loaded = agents_for_resume(origin, args.agents, args.id)
    async with runtime_for(args, loaded.agents, person_here(args)) as runtime:
        return await shown(runtime, args.id, args, lambda view: go_on(runtime, args.id, view))


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
    for row in reversed(await runtime.rows(limit=1_000_000)):
        if row.root == root:
            async for event in runtime.events(row.id):
                view.recall(event)


# --- all of them ------------------------------------------------------------------------


async def _all(args: argparse.Namespace) -> int:
    if not has_log(args):
        tell_no_log(args, "waiting for the first run" if args.follow else "so there is nothing to resume")
        if not args.follow:
            return 0
    async with contextlib.AsyncExitStack() as stack:
        watcher = await stack.enter_async_context(runtime_for(args) if args.follow else existing(args))
        with _until_ctrl_c() as stopped:
            fleet = _Fleet(args, watcher, stack, stopped)
            await fleet.take()
            if args.follow:
                await _follow(fleet, watcher, stopped)
            await fleet.finish()
    if fleet.unread is not None:
        raise fleet.unread
    if not fleet.taken and not args.follow and not args.json:
        tell("nothing to go on with")
    return 130 if stopped.is_set() else fleet.worst


@contextlib.contextmanager
def _until_ctrl_c() -> Generator[asyncio.Event]:
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGINT, stopped.set)
    try:
        yield stopped
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def _follow(fleet: _Fleet, watcher: Runtime, stopped: asyncio.Event) -> None:
    """Look again whenever something was settled, parked or ended by any process."""
    stop = asyncio.ensure_future(stopped.wait())
    position = await watcher.store.last()
    try:
        while not stopped.is_set():
            more = asyncio.ensure_future(watcher.store.wait(position, LOOK_AGAIN))
            await asyncio.wait({stop, more}, return_when=asyncio.FIRST_COMPLETED)
            if stopped.is_set():
                more.cancel()
                return
            page = await watcher.store.read_all(position)
            position = page[-1].pos if page else position
            if not page or any(isinstance(event, (*SETTLING, Parked, TurnEnded)) for event in page):
                await fleet.take()
    finally:
        stop.cancel()


class _Fleet:
    """The trees that this process took: a runtime for each place that agents come from."""

    def __init__(
        self,
        args: argparse.Namespace,
        watcher: Runtime,
        stack: contextlib.AsyncExitStack,
        stopped: asyncio.Event,
    ) -> None:
        self._args, self._watcher, self._stack, self._stopped = args, watcher, stack, stopped
        self.unread: BrokenPipeError | None = None  # nobody reads what is printed any more
        self._runtimes: dict[tuple[str, str], Runtime] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(AT_ONCE)
        self._given_up: set[str] = set()
        self.taken = self.worst = 0

    async def take(self) -> None:
        """Begin with every tree that can go on and is not running here already."""
        for root in await self._watcher.ready():
            if root not in self._running and root not in self._given_up:
                task = self._running[root] = asyncio.ensure_future(self._run(root))
                task.add_done_callback(lambda _, root=root: self._running.pop(root, None))

    async def finish(self) -> None:
        """Wait for what runs; after Ctrl-C it is left where it is and can be resumed."""
        stop = asyncio.ensure_future(self._stopped.wait())
        while self._running and not self._stopped.is_set():
            await asyncio.wait({*self._running.values(), stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        for task in tuple(self._running.values()):
            task.cancel()

    async def _run(self, root: str) -> None:
        seen: list[Any] = []
        async with self._places:
            try:
                runtime = await self._runtime(root)
                reply = await runtime.resume(root, sink=lambda item: seen.append(item) if not seen else None)
            except SessionBusy:
                return
            except Exception as error:
                self._given_up.add(root)  # a failure would only be repeated; a new process may try again
                self._note(1)
                await self._say(root, None, error)
                return
        if seen:  # else another process was faster and has told it
            self._note(CODES[reply.status])
            await self._say(root, reply)

    def _note(self, code: int) -> None:
        self.taken += 1
        self.worst = 1 if 1 in (code, self.worst) else max(code, self.worst)

    async def _runtime(self, root: str) -> Runtime:
        origin = await origin_of(self._watcher, root)
        key = (self._args.agents or origin.source, origin.agent)
        if key not in self._runtimes:
            loaded = agents_for_resume(origin, self._args.agents, root)
            self._runtimes[key] = await self._stack.enter_async_context(runtime_for(self._args, loaded.agents))
        return self._runtimes[key]

    async def _say(self, root: str, reply: Reply | None, error: Exception | None = None) -> None:
        shown = await described_turn(self._watcher, root, reply, error) if self._args.json else None
        try:
            if error is not None:
                tell(f"upcall: session {plain(root)}: {failure_line(error)}")
            if shown is not None:
                dump(shown, lines=True)
            elif reply is not None:
                text = f": {one_line(reply.text, 200)}" if reply.text.strip() and reply.status != "waiting" else ""
                sys.stdout.write(f"{plain(root)} {reply.limit or reply.status}{text}\n")
            sys.stdout.flush()
        except BrokenPipeError as unread:
            self.unread = unread
            self._stopped.set()
