"""Who a process is, so that another can tell whether an owner still lives.

May import: nothing.
"""

from __future__ import annotations

import os
import platform
import uuid
from pathlib import Path

LATE = 5.0
"""Seconds without a heartbeat after which an owner counts as dead."""


class Identity:
    """This process, as it signs its claims: one per open store."""

    def __init__(self) -> None:
        self.id = uuid.uuid4().hex[:16]
        self.pid = os.getpid()
        self.machine = machine()
        self.born = born(self.pid)
        self.name = f"process {self.pid} on {platform.node() or 'this machine'}"


def machine() -> str:
    """The same for processes that can see each other's process ids, also through a restart of the machine."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return platform.node()


def born(pid: int) -> str:
    """When a process started, as its system counts; "" where that can't be known."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def is_gone(pid: int, born_at: str) -> bool:
    """Whether a process of this machine has ended: its id is free, reused, or a zombie's."""
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
