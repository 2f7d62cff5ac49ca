"""Stop a command on SIGTERM: start nothing new, and let running calls finish.

The first signal drains every runtime of the command: its turns end, wait, or stop between two steps. A second
signal exits at once, as a crash would; the turns are then interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any

from upcall.errors import RuntimeClosed

if TYPE_CHECKING:
    from upcall.core.runtime.sessions import Sessions

DRAIN_SECONDS = 20.0
"""Seconds that running tool calls and model calls have to finish after SIGTERM."""

TERMINATED = 128 + signal.SIGTERM
WAITING = 3
_SHOW_CURSOR = "\x1b[?25h"


class Stopping:
    """The runtimes of a command, and the handling of SIGTERM. `requested` is set when the signal arrives."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.drain_seconds = DRAIN_SECONDS
        self._runtimes: list[Sessions] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._once_drained: Callable[[], object] | None = None
        self._command: asyncio.Task[Any] | None = None
        self._terminal = _terminal_state()

    def register(self, runtime: Sessions) -> None:
        """Drain this runtime on SIGTERM; at once if the signal has already arrived."""
        self._runtimes.append(runtime)
        if self.requested.is_set():
            self._spawn(runtime.drain(0))

    async def run(self, command: Coroutine[Any, Any, int]) -> int:
        """Run a command that SIGTERM stops; returns its exit code."""
        loop, self._command = asyncio.get_running_loop(), asyncio.current_task()
        before = signal.getsignal(signal.SIGTERM)
        loop.add_signal_handler(signal.SIGTERM, self.stop)
        try:
            return await command
        except (RuntimeClosed, asyncio.CancelledError):
            if self.requested.is_set():
                return TERMINATED
            raise
        finally:
            if loop.remove_signal_handler(signal.SIGTERM):
                signal.signal(signal.SIGTERM, before)

    @contextlib.contextmanager
    def on_drained(self, once_drained: Callable[[], object] = lambda: None) -> Generator[None]:
        """If SIGTERM arrives inside the block, call this once everything is drained.

        Outside such a block, SIGTERM cancels the command.
        """
        before, self._once_drained = self._once_drained, once_drained
        try:
            yield
        finally:
            self._once_drained = before

    def stop(self) -> None:
        """Drain everything, as SIGTERM does; after it a signal ends the command at once."""
        if self.requested.is_set():
            return
        self.requested.set()
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
        for number in (signal.SIGTERM, signal.SIGINT):  # not through the loop, which a tool may block
            signal.signal(number, self._exit_at_once)
        self._spawn(self._drain(self._once_drained))

    async def _drain(self, once_drained: Callable[[], object] | None) -> None:
        await asyncio.gather(*[runtime.drain(self.drain_seconds) for runtime in self._runtimes])
        if once_drained is not None:
            once_drained()
        elif self._command is not None:
            self._command.cancel()

    def _exit_at_once(self, *_: object) -> None:
        if self._terminal is not None:
            import termios

            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(0, termios.TCSANOW, self._terminal)
                os.write(1, _SHOW_CURSOR.encode())
        os._exit(TERMINATED)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _terminal_state() -> list[Any] | None:
    """Return the terminal's settings before the command changes them; None if there is no terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    import termios

    with contextlib.suppress(OSError, termios.error):
        return termios.tcgetattr(0)
    return None


async def exit_code_when_stopped(runtime: Sessions, session_id: str) -> int:
    """Return the exit code of a stopped command: 3 if the whole session waits for an answer, otherwise 143."""
    waits = await runtime.status(session_id) == "waiting"
    return WAITING if waits and session_id.partition("~")[0] not in await runtime.ready() else TERMINATED


def stopping_of(args: argparse.Namespace) -> Stopping:
    """Return the `Stopping` of the command that these arguments belong to."""
    stopping: Stopping = args.stopping
    return stopping


@contextlib.contextmanager
def leaving(args: argparse.Namespace, stop: Callable[[], object]) -> Generator[None]:
    """Call `stop` on Ctrl-C, and on SIGTERM once everything is drained. `args.left` says whether it was Ctrl-C."""
    loop = asyncio.get_running_loop()

    def leave() -> None:
        args.left = True
        stop()

    args.left = False
    loop.add_signal_handler(signal.SIGINT, leave)
    try:
        with stopping_of(args).on_drained(stop):
            yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
