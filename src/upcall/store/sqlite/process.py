"""Identify processes, so that others can see whether an owner is still alive; and run background threads."""

from __future__ import annotations

import _thread
import functools
import os
import platform
import threading
from collections.abc import Callable
from pathlib import Path

LEASE = 5.0
"""Seconds without a heartbeat after which an owner counts as dead, unless the store is given another lease."""


class Identity:
    """The identity of this process in its claims: one per open store."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.machine, self.born, self.name, self._free = _self(self.pid)
        self.id = self._free.pop() if self._free else os.urandom(8).hex()

    def free(self) -> None:
        """Give the identity back: the next store of this process reuses it, and its row."""
        self._free.append(self.id)

    def beat(self, now: float) -> tuple[str, str, str, int, str, float]:
        """Return its row in the table of living processes."""
        return (self.id, self.name, self.machine, self.pid, self.born, now)


@functools.cache
def _self(pid: int) -> tuple[str, str, str, list[str]]:
    """Return the values that are constant for this process, and the ids that are free."""
    return machine(), born(pid), f"process {pid} on {platform.node() or 'this machine'}", []


class Background:
    """A thread that ends with the process at the latest.

    Not a `threading.Thread`: its `start` waits until the new thread runs, 2 ms on a busy machine, and most stores
    that a command opens are closed again before their threads have anything to do.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._ended = threading.Lock()
        self._ended.acquire()
        _thread.start_new_thread(self._run, (work,))

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            self._ended.release()

    def join(self) -> None:
        """Wait until the thread has ended."""
        with self._ended:
            pass


def machine() -> str:
    """Return an id that is equal for processes that can see each other's process ids, and survives a reboot."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return platform.node()


def born(pid: int) -> str:
    """Return when a process started, in the system's own unit; "" if that is unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def is_gone(pid: int, born_at: str) -> bool:
    """Return whether a process of this machine has ended: its id is free, reused, or a zombie's."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] in "ZX" or bool(born_at and fields[19] != born_at)
