"""The interpreter for programs that a model wrote: pydantic-monty in its own process, driven from a thread.

Monty's asyncio interface is not used: with it, one process in eight aborted on exit (1.4.0). A snapshot includes
the limits and the time used so far, which does not count calls out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import signal
import sys
import sysconfig
import time
from collections.abc import Awaitable, Callable, Collection
from datetime import UTC, datetime
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, TYPE_CHECKING, Any

from upcall.core.turns.process_limit import ProcessSlot
from upcall.core.turns.thread_cache import Threads
from upcall.messages import Value
from upcall.workspace.sites import Span, awaited

if TYPE_CHECKING:
    from pydantic_monty import FunctionSnapshot, Monty, MontyError, MontySession, SyncSnapshot

_SUSPENDABLE_PART = 1 / 8
"""A program that uses more than this part of its memory limit is not suspended: saving it needs memory too."""

_MAX_IN_MEMORY = 256 * 1024
"""Bytes of a suspended program that stay in memory; a larger one is stored in a temporary file."""

_KILL_TIMEOUT = 5.0
"""Seconds to wait for the thread of a killed interpreter."""

_MAX_ERROR = 1_000_000
"""Characters of an error that are processed."""


class PausedAtCall(Value, frozen=True):
    """The program is paused at a call of one of its functions. `plain`: it needs the value to continue."""

    call_id: int
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    plain: bool


class PausedAtAwait(Value, frozen=True):
    """The program is paused until one of these calls has a value."""

    call_ids: tuple[int, ...]


class Finished(Value, frozen=True):
    """The program has finished; `value` is that of its last expression."""

    value: Any


Stop = PausedAtCall | PausedAtAwait | Finished


class ProgramFailed(Exception):
    """The program ended with an error, described for its author. `lost`: its variables can't be used any more."""

    def __init__(self, text: str, lost: bool) -> None:
        super().__init__(text)
        self.lost = lost


def version() -> str:
    """Return the interpreter's version. Only the version that wrote a snapshot can read it."""
    import pydantic_monty

    return pydantic_monty.__version__


class Interpreter:
    """One interpreter. Its process starts when it is first needed and ends with `close`.

    `sources`: the programs it has run, oldest first. `on_print`: called in another thread. `now`: the time that
    programs see; their clock does not move.
    """

    def __init__(
        self,
        threads: Threads,
        limits: dict[str, Any],
        functions: Collection[str],
        now: float,
        on_print: Callable[[str], None],
        reserve_slot: Callable[[Callable[[], Awaitable[None]]], ProcessSlot],
    ) -> None:
        self._threads, self._limits, self._functions, self._now = threads, limits, functions, now
        self._on_print = on_print
        self._pool: Monty | None = None
        self._session: MontySession | None = None
        self._pid: int | None = None
        self._thread: asyncio.Future[SyncSnapshot] | None = None  # while a thread drives the interpreter
        self._snapshot: Any = None
        self._closed = False
        self._slot = reserve_slot(self._suspend)
        self._suspended: IO[bytes] | None = None  # its snapshot, if its process was ended to free the slot
        self._empty_size = 0  # memory of its process before it ran anything, in bytes
        self.sources: list[str] = []
        self._awaited: dict[int, frozenset[Span]] = {}  # by the program's index in `sources`
        self.seconds = 0.0
        self.paused = False  # at a call out: only then it can be saved
        sysconfig.get_config_vars()  # finds the binary; the first call is not thread-safe

    async def feed(self, code: str, variables: bytes | None) -> Stop:
        """Start a program with the variables of earlier ones; run it to its first stop."""
        self.sources.append(code)

        def work() -> SyncSnapshot:
            session = self._start()
            if variables is not None:
                session.load_session(variables)
            return session.feed_start(code, print_callback=self._print)

        return await self._run(work)

    async def load(self, dump: bytes) -> Stop:
        """Load a program where it was saved."""
        return await self._run(lambda: self._start().load_snapshot(dump, print_callback=self._print))

    async def answer(self, value: Any, error: str = "", kind: str = "RuntimeError") -> Stop:
        """Resume with the outcome of the call at which the program is paused."""
        return await self._run(lambda: self._snapshot.resume(_outcome(value, error, kind)))

    async def answer_later(self) -> Stop:
        """Resume without the value; the program awaits it later."""
        return await self._run(lambda: self._snapshot.resume({"future": ...}))

    async def settle(self, call_id: int, value: Any, error: str = "") -> Stop:
        """Resume with the outcome of one of the awaited calls."""
        return await self._run(lambda: self._snapshot.resume({call_id: _outcome(value, error)}))

    def dump(self) -> bytes | None:
        """Return a snapshot: about three kilobytes plus its variables; None if the process has died."""
        from pydantic_monty import MontyError

        if self._suspended is not None:
            self._suspended.seek(0)
            return self._suspended.read()
        try:
            return self._session.dump() if self._session is not None else None
        except (MontyError, RuntimeError):
            return None

    def rest(self) -> None:
        """Let another process use its slot until it runs again."""
        if self.paused:
            self._slot.rest()

    async def _suspend(self) -> None:
        """End its process; another one continues the program later.

        A program that uses much memory keeps its process.
        """
        used = _size(self._pid) - self._empty_size
        if sys.platform != "linux" or used > self._limits["max_memory"] * _SUSPENDABLE_PART:
            return
        dump = self.dump()
        if dump is not None:
            self._suspended = SpooledTemporaryFile(_MAX_IN_MEMORY)  # noqa: SIM115 - closed when it runs again
            self._suspended.write(dump)
        await self._threads.run(self._stop)

    async def close(self) -> None:
        """End its process, whatever it is doing."""
        await self._slot.leave(self._end)

    async def _end(self) -> None:
        self._forget_suspended()
        self._closed, self.paused = True, False
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        if self._thread is not None:
            await asyncio.wait([self._thread], timeout=_KILL_TIMEOUT)
            if self._thread.done():
                self._thread.exception()  # retrieved, because it was killed on purpose
        if self._pool is not None:
            await self._threads.run(self._stop)

    # --- in a thread ----------------------------------------------------------------------

    def _start(self) -> MontySession:
        from pydantic_monty import Monty

        self._pool = Monty(min_processes=1, max_processes=1)
        self._pool.__enter__()
        self._session = self._pool.checkout(
            limits=self._limits,  # pyright: ignore[reportArgumentType]
            os_policy={
                "datetime": datetime.fromtimestamp(self._now, UTC),
                "sleep": "zero",
                "random_start": {"seed": self._now},
            },
        )
        self._session.__enter__()
        self._pid = self._session.worker_pid
        self._empty_size = _size(self._pid)
        if self._closed:
            raise ProgramFailed("it was stopped", lost=True)
        return self._session

    def _stop(self) -> None:
        for part in (self._session, self._pool):
            if part is not None:
                with contextlib.suppress(Exception):  # its process may be dead
                    part.__exit__(None, None, None)
        self._session = self._pool = self._pid = None

    def _print(self, _stream: str, text: str) -> None:
        self._on_print(text)

    async def _run(self, work: Callable[[], SyncSnapshot]) -> Stop:
        from pydantic_monty import MontyError

        await self._slot.take()
        self.paused, began = False, time.monotonic()
        self._thread = self._threads.run(lambda: self._run_to_stop(self._restart_and_run(work)))
        try:
            self._snapshot = await asyncio.shield(self._thread)
        except MontyError as error:
            raise _program_error(error, len(self.sources) - 1) from None
        finally:
            self.seconds += time.monotonic() - began
        self._thread = None
        return self._stop_at(self._snapshot)

    def _restart_and_run(self, work: Callable[[], SyncSnapshot]) -> SyncSnapshot:
        """Do the work, in a new process if the old one was ended."""
        if self._session is None and self._snapshot is not None:
            dump = self.dump()
            if dump is None:
                raise ProgramFailed("the program's process ended while the program waited", lost=True)
            self._snapshot = self._start().load_snapshot(dump, print_callback=self._print)
            self._forget_suspended()
        return work()

    def _forget_suspended(self) -> None:
        if self._suspended is not None:
            self._suspended.close()
            self._suspended = None

    def _run_to_stop(self, snapshot: SyncSnapshot) -> SyncSnapshot:
        """Run until the program needs something from outside."""
        from pydantic_monty import FunctionSnapshot, NameLookupSnapshot

        while True:
            if isinstance(snapshot, NameLookupSnapshot):
                name = snapshot.variable_name
                known = name in self._functions
                snapshot = snapshot.resume(value=_function_named(name)) if known else snapshot.resume()
            elif not isinstance(snapshot, FunctionSnapshot):
                return snapshot
            elif snapshot.is_os_function:
                snapshot = snapshot.resume_not_handled()
            elif snapshot.function_name not in self._functions:
                missing = f"name {snapshot.function_name!r} is not defined"
                snapshot = snapshot.resume({"exc_type": "NameError", "message": missing})
            else:
                self._is_plain(snapshot)  # parses the program in this thread, if needed
                return snapshot

    # --- where it stopped -----------------------------------------------------------------

    def _stop_at(self, snapshot: Any) -> Stop:
        from pydantic_monty import FutureSnapshot, MontyComplete

        self.paused = not isinstance(snapshot, MontyComplete)
        if isinstance(snapshot, MontyComplete):
            return Finished(snapshot.output)
        if isinstance(snapshot, FutureSnapshot):
            return PausedAtAwait(tuple(snapshot.pending_call_ids))
        plain = self._is_plain(snapshot)
        return PausedAtCall(snapshot.call_id, snapshot.function_name, snapshot.args, snapshot.kwargs, plain)

    def _is_plain(self, snapshot: FunctionSnapshot) -> bool:
        where = snapshot.position
        found = re.fullmatch(r"<python-input-(\d+)>", where.filename)
        number = int(found[1]) if found else len(self.sources)
        if number >= len(self.sources):  # code that the program passed to eval
            return not snapshot.allow_eager_await
        if number not in self._awaited:
            self._awaited[number] = awaited(self.sources[number])
        return (where.start, where.end) not in self._awaited[number]


def _size(pid: int | None) -> int:
    """Return the bytes of memory that a process uses; 0 if that is unknown."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    return 0


def _function_named(name: str) -> Callable[[], None]:
    def function() -> None: ...

    function.__name__ = name
    return function


def _outcome(value: Any, error: str, kind: str = "RuntimeError") -> Any:
    return {"exc_type": kind, "message": error} if error else {"return_value": value}


def _program_error(error: MontyError, newest: int) -> ProgramFailed:
    """Return the error for the model, with lines as the model wrote them."""
    from pydantic_monty import MontyCrashedError, MontyRuntimeError, MontySyntaxError

    shown = error.display() if isinstance(error, MontyRuntimeError | MontySyntaxError) else str(error)
    lost = isinstance(error, MontyCrashedError) or isinstance(error.exception(), TimeoutError | MemoryError)
    shown = shown[:_MAX_ERROR].replace(f'File "<python-input-{newest}>"', 'File "program"')
    return ProgramFailed(re.sub(r'File "<python-input-\d+>"', 'File "an earlier program"', shown), lost)
