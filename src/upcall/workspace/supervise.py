"""Runs one shell command and sees that nothing of it is left: a program of its own, started by `shell`.

`python supervise.py MARK SLACK COMMAND`. The mark names the session, for `upcall` to find among its ancestors; the
timer slack marks all processes below us, for where ancestors can't be seen. Standard input is a socket to whoever
started us. When the command ends, or when that socket is closed, everything below is asked to end, and a second
later killed. The exit code is the command's; 128 and the signal's number where a signal ended it.

Where we may, the command gets a process namespace: it can't see or kill what watches it, and the system ends all of
it at once. Elsewhere we are two subreapers, one above the other: what detaches itself comes back to us, and if the
command kills one of us the other sees to it. At the end we say on the socket whether all has ended.
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
"""Seconds between asking to end and killing."""

PATIENCE = 10.0
"""Seconds of killing after which something can't be killed, being another user's or stuck in the system."""

ALL_ENDED, LEFT = b"+", b"-"
"""What is said on the socket at the end: nothing of the command runs, or something may."""

_SET_PDEATHSIG, _SET_TIMERSLACK, _SET_CHILD_SUBREAPER = 1, 29, 36
_NEW_MOUNTS, _NEW_PROCESSES = 0x20000, 0x20000000
_RECURSIVE_SLAVE = 0x4000 | 0x80000
_NOSUID_NODEV_NOEXEC = 2 | 4 | 8
_OURS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

Ending = Callable[[int, int | None], tuple[int | None, bool]]
"""Ends what is left of a child whose status may be known; returns its status, and whether all has ended."""


def main() -> int:
    """Run the command in a namespace of its own, or below two of us; its exit code."""
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
    return _watch(lambda: _run_command(tell=True), _end_all)


def _first_in_namespace() -> int:
    """Process 1 of the namespace: when it ends, the system kills all others. It ends with whoever watches it."""
    libc = _libc()
    libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if libc.mount(b"none", b"/", None, _RECURSIVE_SLAVE, None) == 0:  # what is mounted here stays here
        libc.mount(b"proc", b"/proc", b"proc", _NOSUID_NODEV_NOEXEC, None)
    return _watch(lambda: _watch(_run_command, _leave_the_rest, tell=False), _end_below_first, tell=False)


def _watch(work: Callable[[], int], end: Ending, *, tell: bool = True) -> int:
    """Run `work` in a process below us until it ends or is not wanted, and end all that it left; its exit code."""
    woken, wakes = os.pipe()
    for pipe in (woken, wakes):
        os.set_blocking(pipe, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _noted)
    for number in _OURS:
        signal.signal(number, signal.SIG_IGN)  # we end when our input does
    child = os.fork()
    if child == 0:
        os._exit(work())
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for ours in (1, 2):
        os.dup2(nowhere, ours)  # so that the output ends when the last of the command's processes does
    status: int | None = None
    while status is None:
        ready, _, _ = select.select([0, woken], [], [])
        if 0 in ready:
            break
        with suppress(BlockingIOError):
            os.read(woken, 4096)
        status, _ = _reap(child)
    status, all_ended = end(child, status)
    if tell:
        with suppress(OSError):
            os.write(0, ALL_ENDED if all_ended else LEFT)
    code = 0 if status is None else os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _run_command(*, tell: bool = False) -> int:
    """A group of its own, no input, the signals as they are everywhere, and then the shell."""
    os.setsid()
    if tell:
        with suppress(OSError):
            os.write(0, f"{os.getpid()}\n".encode())
    signal.set_wakeup_fd(-1)
    for number in (*_OURS, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        os.execv("/bin/sh", ["/bin/sh", "-c", sys.argv[3]])
    except OSError as error:
        os.write(2, f"/bin/sh: {error.strerror}\n".encode())
    return 126


def _noted(number: int, frame: object) -> None:
    """A child has ended: that wakes us up, and a signal without a handler would not."""


def _reap(child: int) -> tuple[int | None, bool]:
    """Take leave of all that have ended; the child's status if it is among them, and whether none is left."""
    found: int | None = None
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == child:
                found = status
            if pid == 0:
                return found, False
    except ChildProcessError:
        return found, True


# --- endings ------------------------------------------------------------------------------


def _end_namespace(child: int, status: int | None) -> tuple[int | None, bool]:
    """From outside: process 1 ends the others by itself; if it takes too long, the system does."""
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
    """As process 1: ask all others to end; those that have not after a while end with us."""
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
    """Process 1 ends what is left; until then the command's own status may come."""
    until = time.monotonic() + 2 * GRACE
    while status is None and time.monotonic() < until:
        status, _ = _reap(child)
        time.sleep(0.005)
    return status, True


def _end_all(child: int, status: int | None) -> tuple[int | None, bool]:
    """Ask everything below to end, kill what has not."""
    asked, none_left = time.monotonic(), False
    _send(child, signal.SIGTERM)
    while time.monotonic() - asked < GRACE + PATIENCE:
        found, none_left = _reap(child)
        status = found if status is None else status
        if none_left and not _is_listed(child):
            return status, True
        if time.monotonic() - asked > GRACE:
            _send(child, signal.SIGSTOP)  # what is stopped starts no more of its kind
            _send(child, signal.SIGKILL)
        time.sleep(0.005)
    return status, False


def _is_listed(child: int) -> bool:
    """True where processes may be left that are no longer ours: only Linux brings them back to us."""
    if sys.platform == "linux":
        return False
    try:
        os.killpg(child, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _send(child: int, number: int) -> None:
    """Send a signal to all below us, and to each of their groups: a group gets it whole, however fast it forks."""
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
    """Every process below these, with its process group."""
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
