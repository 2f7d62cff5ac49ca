"""Runs one shell command and sees that nothing of it is left: a program of its own, started by `shell`.

`python supervise.py MARK COMMAND`. The mark names the session, for `upcall` to find among its ancestors. Whatever
the command starts, however it detaches, comes back to us when its parent ends, because we are the subreaper of
all below. When the command ends, or when whoever holds the other end of our standard input closes it or dies,
everything below is asked to end, and shortly after killed. We are two processes, one above the other, so that a
command that kills the one above it is still seen to. The exit code is the command's; 128 and the signal's number
where a signal ended it.
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

_SET_CHILD_SUBREAPER = 36
_OURS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def watch(work: Callable[[], int]) -> int:
    """Run `work` in a process below us until it ends or is not wanted, and end all that it left; its exit code."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
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
        status = _reap(child)
    return _end_all(child, status)


def run_command() -> int:
    """A group of its own, no input, the signals as they are everywhere, and then the shell."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (*_OURS, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        os.execv("/bin/sh", ["/bin/sh", "-c", sys.argv[2]])
    except OSError as error:
        os.write(2, f"/bin/sh: {error.strerror}\n".encode())
    return 126


def _noted(number: int, frame: object) -> None:
    """A child has ended: that wakes us up, and a signal without a handler would not."""


def _reap(child: int) -> int | None:
    """Take leave of all that have ended; the child's status if it is among them."""
    found: int | None = None
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == child:
                found = status
            if pid == 0:
                break
    return found


def _end_all(child: int, status: int | None) -> int:
    """Ask everything below to end, kill what has not; the exit code."""
    asked = time.monotonic()
    _send(child, signal.SIGTERM)
    while time.monotonic() - asked < GRACE + PATIENCE:
        found = _reap(child)
        status = found if status is None else status
        if not _send(child, 0):
            break
        if time.monotonic() - asked > GRACE:
            _send(child, signal.SIGSTOP)  # what is stopped starts no more of its kind
            _send(child, signal.SIGKILL)
        time.sleep(0.005)
    code = 0 if status is None else os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _send(child: int, number: int) -> bool:
    """Send a signal to all below us; whether there is anybody."""
    below = _below(child)
    for pid in below:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    return bool(below)


def _below(child: int) -> list[int]:
    """Every process below us; where the system does not list them, the child's group while it is there."""
    if sys.platform != "linux":
        try:
            os.killpg(child, 0)
        except (ProcessLookupError, PermissionError):
            return []
        return [-child]
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - without pathlib we start quicker
        if name.isdecimal():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:  # noqa: PTH123
                parent = int(stat.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    todo = [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


if __name__ == "__main__":
    os._exit(watch(lambda: watch(run_command)))
