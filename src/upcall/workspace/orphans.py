"""Find and kill the processes of a command that has killed its supervisors.

If commands can't have a process namespace, this process is a subreaper while one runs, so that orphans become its
children. A command's processes are recognised by its id in their environment, and by their process session. A
process without either mark can't be told from others, and is not touched.
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
    """Be a subreaper while a command runs, unless it gets a process namespace or this process is one already."""
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
    """Set or clear the flag; return whether it changed."""
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
    """Kill and reap the processes that a command left below this one, and their children. Blocks for a while."""
    if sys.platform != "linux":
        return
    deadline, known = time.monotonic() + supervise.KILL_TIMEOUT, set[int]()
    while time.monotonic() < deadline:
        known = _remaining(command_id, session, known)
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


def _remaining(command_id: str, session: int, known: set[int]) -> set[int]:
    """Return the processes below this one that belong to the command, by their marks or by their parents."""
    below = {pid for pid, _ in supervise.processes_below(os.getpid())}
    roots = {pid for pid in below if pid in known or _belongs_to(pid, command_id, session)}
    return roots | {pid for pid, _ in supervise.processes_below(*roots)}


def _belongs_to(pid: int, command_id: str, session: int) -> bool:
    with suppress(OSError, ValueError, IndexError):
        process = Path(f"/proc/{pid}")
        if session and int((process / "stat").read_bytes().rpartition(b")")[2].split()[3]) == session:
            return True
        return command_id.encode() in (process / "environ").read_bytes()
    return False
