"""The interpreter that runs what a model wrote: pydantic-monty, in a process of its own, driven from a thread.

Its own asyncio interface is not used: with that, one process in eight aborted when it exited (1.4.0). The time it
has used, without that of calls out, and its other limits are part of a snapshot.
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

_SMALL = 1 / 8
"""Of the memory that a program may hold; to save a program that holds a quarter of it takes more than it may."""

_MOST_IN_MEMORY = 256 * 1024
"""Bytes of a suspended program that stay in memory; a larger one waits in a file without a name."""

_PATIENCE = 5.0
"""Seconds that the thread which drives a killed interpreter is waited for."""

_LONGEST_ERROR = 1_000_000
"""Characters of an error that are looked at."""


class Called(Value, frozen=True):
    """It stands at a call of one of the functions it was given; `plain`: and needs the value to go on."""

    call_id: int
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    plain: bool


class Awaits(Value, frozen=True):
    """It can't go on before one of these calls has a value."""

    call_ids: tuple[int, ...]


class Ended(Value, frozen=True):
    """The program is through; the value of its last expression."""

    value: Any


Stop = Called | Awaits | Ended


class Failed(Exception):
    """The program ended with an error, told for its author; `lost`: and its variables can't be relied on."""

    def __init__(self, text: str, lost: bool) -> None:
        super().__init__(text)
        self.lost = lost


def version() -> str:
    """Which interpreter this is: a snapshot can only be read by the one that wrote it."""
    import pydantic_monty

    return pydantic_monty.__version__


class Interpreter:
    """One interpreter: its process is started when it is first needed, and is gone after `close`.

    `sources` are the programs it has been fed, oldest first. `printed` is called in another thread. The clock in it
    stands still at `now`.
    """

    def __init__(
        self,
        threads: Threads,
        limits: dict[str, Any],
        functions: Collection[str],
        now: float,
        printed: Callable[[str], None],
        place: Callable[[Callable[[], Awaitable[None]]], ProcessSlot],
    ) -> None:
        self._threads, self._limits, self._functions, self._now = threads, limits, functions, now
        self._printed = printed
        self._pool: Monty | None = None
        self._session: MontySession | None = None
        self._pid: int | None = None
        self._thread: asyncio.Future[SyncSnapshot] | None = None  # of the work that goes on in one
        self._snapshot: Any = None
        self._closed = False
        self._place = place(self._suspend)
        self._suspended: IO[bytes] | None = None  # where it stood when its process was ended for another's sake
        self._empty_size = 0  # bytes of its process before it holds anything
        self.sources: list[str] = []
        self._awaited: dict[int, frozenset[Span]] = {}  # by the number of the program
        self.seconds = 0.0
        self.standing = False  # at a call out, so that it can be saved
        sysconfig.get_config_vars()  # by which the binary is found; several threads must not be the first to ask

    async def feed(self, code: str, before: bytes | None) -> Stop:
        """Begin a program, with the variables that earlier ones left."""
        self.sources.append(code)

        def work() -> SyncSnapshot:
            session = self._start()
            if before is not None:
                session.load_session(before)
            return session.feed_start(code, print_callback=self._print)

        return await self._run(work)

    async def load(self, dump: bytes) -> Stop:
        """Take up a program where it was saved."""
        return await self._run(lambda: self._start().load_snapshot(dump, print_callback=self._print))

    async def answer(self, value: Any, error: str = "", kind: str = "RuntimeError") -> Stop:
        """Go on with what the call came to that it stands at."""
        return await self._run(lambda: self._snapshot.resume(_outcome(value, error, kind)))

    async def answer_later(self) -> Stop:
        """Go on without the value, which is awaited."""
        return await self._run(lambda: self._snapshot.resume({"future": ...}))

    async def settle(self, call_id: int, value: Any, error: str = "") -> Stop:
        """Go on with what one of the awaited calls came to."""
        return await self._run(lambda: self._snapshot.resume({call_id: _outcome(value, error)}))

    def dump(self) -> bytes | None:
        """Where it stands: about three kilobytes, and what its variables hold; None if it has died."""
        from pydantic_monty import MontyError

        if self._suspended is not None:
            self._suspended.seek(0)
            return self._suspended.read()
        try:
            return self._session.dump() if self._session is not None else None
        except (MontyError, RuntimeError):
            return None

    def rest(self) -> None:
        """Let another process have its place, until it runs again."""
        if self.standing:
            self._place.rest()

    async def _suspend(self) -> None:
        """End its process, to be continued in another one. A program that holds much keeps its process."""
        held = _size(self._pid) - self._empty_size
        if sys.platform != "linux" or held > self._limits["max_memory"] * _SMALL:
            return
        dump = self.dump()
        if dump is not None:
            self._suspended = SpooledTemporaryFile(_MOST_IN_MEMORY)  # noqa: SIM115 - closed when it runs again
            self._suspended.write(dump)
        await self._threads.run(self._stop)

    async def close(self) -> None:
        """End its process, whatever it does at the moment."""
        await self._place.leave(self._end)

    async def _end(self) -> None:
        self._forget_suspended()
        self._closed, self.standing = True, False
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        if self._thread is not None:
            await asyncio.wait([self._thread], timeout=_PATIENCE)
            if self._thread.done():
                self._thread.exception()  # that it was killed
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
            raise Failed("it was stopped", lost=True)
        return self._session

    def _stop(self) -> None:
        for part in (self._session, self._pool):
            if part is not None:
                with contextlib.suppress(Exception):  # that its process is dead
                    part.__exit__(None, None, None)
        self._session = self._pool = self._pid = None

    def _print(self, _stream: str, text: str) -> None:
        self._printed(text)

    async def _run(self, work: Callable[[], SyncSnapshot]) -> Stop:
        from pydantic_monty import MontyError

        await self._place.take()
        self.standing, began = False, time.monotonic()
        self._thread = self._threads.run(lambda: self._to_stop(self._revived(work)))
        try:
            self._snapshot = await asyncio.shield(self._thread)
        except MontyError as error:
            raise _failed(error, len(self.sources) - 1) from None
        finally:
            self.seconds += time.monotonic() - began
        self._thread = None
        return self._stop_at(self._snapshot)

    def _revived(self, work: Callable[[], SyncSnapshot]) -> SyncSnapshot:
        """Go on, in a new process if the old one was ended meanwhile."""
        if self._session is None and self._snapshot is not None:
            dump = self.dump()
            if dump is None:
                raise Failed("its process had ended while it waited", lost=True)
            self._snapshot = self._start().load_snapshot(dump, print_callback=self._print)
            self._forget_suspended()
        return work()

    def _forget_suspended(self) -> None:
        if self._suspended is not None:
            self._suspended.close()
            self._suspended = None

    def _to_stop(self, snapshot: SyncSnapshot) -> SyncSnapshot:
        """Run on until it stands at something that is not settled here."""
        from pydantic_monty import FunctionSnapshot, NameLookupSnapshot

        while True:
            if isinstance(snapshot, NameLookupSnapshot):
                name = snapshot.variable_name
                known = name in self._functions
                snapshot = snapshot.resume(value=_named(name)) if known else snapshot.resume()
            elif not isinstance(snapshot, FunctionSnapshot):
                return snapshot
            elif snapshot.is_os_function:
                snapshot = snapshot.resume_not_handled()
            elif snapshot.function_name not in self._functions:
                missing = f"name {snapshot.function_name!r} is not defined"
                snapshot = snapshot.resume({"exc_type": "NameError", "message": missing})
            else:
                self._is_plain(snapshot)  # which reads the program, if it has not been read
                return snapshot

    # --- where it stands ------------------------------------------------------------------

    def _stop_at(self, snapshot: Any) -> Stop:
        from pydantic_monty import FutureSnapshot, MontyComplete

        self.standing = not isinstance(snapshot, MontyComplete)
        if isinstance(snapshot, MontyComplete):
            return Ended(snapshot.output)
        if isinstance(snapshot, FutureSnapshot):
            return Awaits(tuple(snapshot.pending_call_ids))
        plain = self._is_plain(snapshot)
        return Called(snapshot.call_id, snapshot.function_name, snapshot.args, snapshot.kwargs, plain)

    def _is_plain(self, snapshot: FunctionSnapshot) -> bool:
        where = snapshot.position
        found = re.fullmatch(r"<python-input-(\d+)>", where.filename)
        number = int(found[1]) if found else len(self.sources)
        if number >= len(self.sources):  # in a text that the program evaluates
            return not snapshot.allow_eager_await
        if number not in self._awaited:
            self._awaited[number] = awaited(self.sources[number])
        return (where.start, where.end) not in self._awaited[number]


def _size(pid: int | None) -> int:
    """The bytes of memory that a process uses; 0 where that can't be told."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    return 0


def _named(name: str) -> Callable[[], None]:
    def function() -> None: ...

    function.__name__ = name
    return function


def _outcome(value: Any, error: str, kind: str = "RuntimeError") -> Any:
    return {"exc_type": kind, "message": error} if error else {"return_value": value}


def _failed(error: MontyError, newest: int) -> Failed:
    """What the model is told: lines and places as it wrote them."""
    from pydantic_monty import MontyCrashedError, MontyRuntimeError, MontySyntaxError

    shown = error.display() if isinstance(error, MontyRuntimeError | MontySyntaxError) else str(error)
    lost = isinstance(error, MontyCrashedError) or isinstance(error.exception(), TimeoutError | MemoryError)
    shown = shown[:_LONGEST_ERROR].replace(f'File "<python-input-{newest}>"', 'File "program"')
    return Failed(re.sub(r'File "<python-input-\d+>"', 'File "an earlier program"', shown), lost)
