"""What is left of a command that has killed its supervisors: found by its marks among the processes below us.

Where the system gives commands no process namespace, orphans of a command come to us while it runs, because we
are a subreaper then. Which of our descendants are the command's is seen by its id in their environment, and by
their session of processes. A process that has lost both marks can't be told from others, and is left alone.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from upcall.core.turns.process_limit import ProcessLimit
from upcall.workspace import supervise

_SET_CHILD_SUBREAPER, _GET_CHILD_SUBREAPER = 36, 37
_SYS_ADMIN = 21


@contextmanager
def adopting(limit: ProcessLimit) -> Generator[None]:
    """Be a subreaper while a command runs, unless it gets a process namespace or the program is one anyway."""
    needed = limit.commands == 0 and sys.platform == "linux" and not _may_make_namespaces()
    ours = needed and _change_subreaper(on=True)
    limit.commands += 1
    limit.adopts = limit.adopts or ours
    try:
        yield
    finally:
        limit.commands -= 1
        if limit.commands == 0 and limit.adopts:
            limit.adopts = False
            _change_subreaper(on=False)


def _change_subreaper(*, on: bool) -> bool:
    """True where that changed anything."""
    import ctypes

    libc, before = ctypes.CDLL(None), ctypes.c_int(0)
    libc.prctl(_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    return bool(before.value) != on and libc.prctl(_SET_CHILD_SUBREAPER, int(on), 0, 0, 0) == 0


def _may_make_namespaces() -> bool:
    with suppress(OSError, ValueError, IndexError):
        status = Path("/proc/self/status").read_text()
        return bool(int(status.split("\nCapEff:")[1].split()[0], 16) >> _SYS_ADMIN & 1)
    return False


def end_orphans(command_id: str, session: int) -> None:
    """Kill what is left of a command below us, and all that is below that; only this is reaped. Takes a while."""
    if sys.platform != "linux":
        return
    until, known = time.monotonic() + supervise.PATIENCE, set[int]()
    while time.monotonic() < until:
        known = _left(command_id, session, known)
        if not known:
            return
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in known:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        for pid in known:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.005)


def _left(command_id: str, session: int, known: set[int]) -> set[int]:
    """The processes below us that are the command's, by their marks, or below one that is."""
    below = {pid for pid, _ in supervise.processes_below(os.getpid())}
    roots = {pid for pid in below if pid in known or _is_of(pid, command_id, session)}
    return roots | {pid for pid, _ in supervise.processes_below(*roots)}


def _is_of(pid: int, command_id: str, session: int) -> bool:
    with suppress(OSError, ValueError, IndexError):
        process = Path(f"/proc/{pid}")
        if session and int((process / "stat").read_bytes().rpartition(b")")[2].split()[3]) == session:
            return True
        return command_id.encode() in (process / "environ").read_bytes()
    return False
