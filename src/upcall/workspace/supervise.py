"""Run one shell command and end everything that it started. A separate program, started by the tool `shell`.

`python supervise.py MARK SLACK COMMAND`. The mark names the session, so that `upcall` finds it among its ancestors.
The timer slack marks all processes below, for systems where ancestors can't be seen. Standard input is a socket to
the process that started this one. When the command ends, or when that socket is closed, all processes below get
SIGTERM, and SIGKILL a second later. The exit code is the command's, or 128 plus the number of the signal that ended
it.

If possible, the command gets a process namespace: then it can't see or kill its supervisor, and the system ends all
of it at once. Otherwise there are two supervisors, one above the other, and both are subreapers: detached processes
become their children, and if the command kills one supervisor, the other one ends the rest. At the end a byte on
the socket says whether everything has ended.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL."""

KILL_TIMEOUT = 10.0
"""Seconds after which a process counts as unkillable: it is another user's, or stuck in the system."""

ALL_ENDED, SOME_LEFT = b"+", b"-"
"""The last byte on the socket: all of the command's processes have ended, or some may still run."""

_SET_PDEATHSIG, _SET_TIMERSLACK, _SET_CHILD_SUBREAPER = 1, 29, 36
_NEW_MOUNTS, _NEW_PROCESSES = 0x20000, 0x20000000
_RECURSIVE_SLAVE = 0x4000 | 0x80000
_NOSUID_NODEV_NOEXEC = 2 | 4 | 8
_IGNORED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

Ending = Callable[[int, int | None], tuple[int | None, bool]]
"""Ends the processes that a child left; returns the child's status, and whether all have ended."""


def main() -> int:
    """Run the command in its own namespace, or below two supervisors; return its exit code."""
    if sys.platform == "linux":
        _libc().prctl(_SET_TIMERSLACK, ctypes.c_ulong(int(sys.argv[2])), 0, 0, 0)
        if _libc().unshare(_NEW_MOUNTS | _NEW_PROCESSES) == 0:
            return _watch(_first_in_namespace, _end_namespace)
        _libc().prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return _watch(_second_watcher, _end_all)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _second_watcher() -> int:
    if sys.platform == "linux":
        _libc().prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return _watch(lambda: _run_command(report=True), _end_all)


def _first_in_namespace() -> int:
    """Run as process 1 of the namespace: when it ends, the system kills all others. It ends with its supervisor."""
    libc = _libc()
    libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if libc.mount(b"none", b"/", None, _RECURSIVE_SLAVE, None) == 0:  # mounts stay inside the namespace
        libc.mount(b"proc", b"/proc", b"proc", _NOSUID_NODEV_NOEXEC, None)
    return _watch(lambda: _watch(_run_command, _leave_the_rest, report=False), _end_below_first, report=False)


def _watch(work: Callable[[], int], end: Ending, *, report: bool = True) -> int:
    """Run `work` in a child until it ends or our input closes, then end all that it left; return its exit code."""
    wake_read, wake_write = os.pipe()
    for pipe in (wake_read, wake_write):
        os.set_blocking(pipe, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _wake_up)
    for number in _IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # a supervisor ends only when its input does
    child = os.fork()
    if child == 0:
        os._exit(work())
    devnull = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(devnull, stream)  # so that the output ends when the last of the command's processes does
    status: int | None = None
    while status is None:
        ready, _, _ = select.select([0, wake_read], [], [])
        if 0 in ready:
            break
        with suppress(BlockingIOError):
            os.read(wake_read, 4096)
        status, _ = _reap(child)
    status, all_ended = end(child, status)
    if report:
        with suppress(OSError):
            os.write(0, ALL_ENDED if all_ended else SOME_LEFT)
    code = 0 if status is None else os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _run_command(*, report: bool = False) -> int:
    """Start a new session without input, restore the default signals, and become the shell."""
    os.setsid()
    if report:
        with suppress(OSError):
            os.write(0, f"{os.getpid()}\n".encode())
    signal.set_wakeup_fd(-1)
    for number in (*_IGNORED_SIGNALS, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        os.execv("/bin/sh", ["/bin/sh", "-c", sys.argv[3]])
    except OSError as error:
        os.write(2, f"/bin/sh: {error.strerror}\n".encode())
    return 126


def _wake_up(number: int, frame: object) -> None:
    """Handle SIGCHLD by doing nothing. Only a signal with a handler wakes up `select`."""


def _reap(child: int) -> tuple[int | None, bool]:
    """Reap all that have ended; return the child's status if it is among them, and whether none is left."""
    child_status: int | None = None
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == child:
                child_status = status
            if pid == 0:
                return child_status, False
    except ChildProcessError:
        return child_status, True


# --- endings ------------------------------------------------------------------------------


def _end_namespace(child: int, status: int | None) -> tuple[int | None, bool]:
    """End a namespace from outside: wait for its process 1 to end the others; kill it if that takes too long."""
    until = time.monotonic() + GRACE + 1.0
    while status is None and time.monotonic() < until:
        status, _ = _reap(child)
        time.sleep(0.005)
    if status is None:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    return status, True


def _end_below_first(child: int, status: int | None) -> tuple[int | None, bool]:
    """End a namespace as its process 1: send SIGTERM to all others; the rest ends with this process."""
    until = time.monotonic() + GRACE
    with suppress(ProcessLookupError, PermissionError):
        os.kill(-1, signal.SIGTERM)
    while time.monotonic() < until:
        found, none_left = _reap(child)
        status = found if status is None else status
        if none_left:
            break
        time.sleep(0.005)
    return status, True


def _leave_the_rest(child: int, status: int | None) -> tuple[int | None, bool]:
    """Wait for the command's own status; process 1 ends the rest."""
    until = time.monotonic() + 2 * GRACE
    while status is None and time.monotonic() < until:
        status, _ = _reap(child)
        time.sleep(0.005)
    return status, True


def _end_all(child: int, status: int | None) -> tuple[int | None, bool]:
    """Send SIGTERM to everything below, and SIGKILL to those that don't end."""
    started, none_left = time.monotonic(), False
    _send(child, signal.SIGTERM)
    while time.monotonic() - started < GRACE + KILL_TIMEOUT:
        found, none_left = _reap(child)
        status = found if status is None else status
        if none_left and not _group_exists(child):
            return status, True
        if time.monotonic() - started > GRACE:
            _send(child, signal.SIGSTOP)  # a stopped process can't fork
            _send(child, signal.SIGKILL)
        time.sleep(0.005)
    return status, False


def _group_exists(child: int) -> bool:
    """Return whether processes of the group may be left. On Linux they would be children of this process."""
    if sys.platform == "linux":
        return False
    try:
        os.killpg(child, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _send(child: int, number: int) -> None:
    """Send a signal to all processes below, and to their groups: a whole group gets it, however fast it forks."""
    if sys.platform != "linux":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, number)
        return
    below = processes_below(os.getpid())
    for group in {group for _, group in below} - {os.getpgrp()}:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
    for pid, _ in below:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def processes_below(*roots: int) -> list[tuple[int, int]]:
    """Return every process below these, with its process group."""
    children: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - without pathlib we start quicker
        if name.isdecimal():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:  # noqa: PTH123
                parent, group = map(int, stat.read().rpartition(b")")[2].split()[1:3])
                children.setdefault(parent, []).append((int(name), group))
    found: list[tuple[int, int]] = []
    todo = list(roots)
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += [pid for pid, _ in below]
    return found


if __name__ == "__main__":
    os._exit(main())
