"""Bounds of processor time that mean the same on a slow or busy machine.

They are given in seconds of the quiet machine that they were set on. Where one is exceeded, work whose time is
known shows how much slower the processor is now.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_KNOWN_WORK = 0.013
"""Seconds that the work in `slowness` takes on the quiet machine."""

_KNOWN_START = 0.11
"""Seconds that a fresh interpreter takes there to import asyncio."""

_SLOWEST = 3.0


@contextmanager
def within(seconds: float, *, of: str = "this") -> Generator[None]:
    """Fail where the work inside takes this process more processor time; `of` says in the failure which work."""
    with untraced():
        began = time.process_time()
        yield
        spent = time.process_time() - began
    if spent > seconds:
        seconds *= slowness()
    assert spent <= seconds, f"{of} took {spent:.2f} s of processor time"


def slowness() -> float:
    """How many times slower a loop of Python runs now: from 1 to 3."""
    spent: list[float] = []
    with untraced():
        for _ in range(5):
            began, seen = time.thread_time(), dict[int, str]()
            for number in range(100_000):
                seen[number % 1000] = str(number)
            spent.append(time.thread_time() - began)
    return _between(max(spent) / _KNOWN_WORK)


def slowness_of_start() -> float:
    """How many times slower a fresh interpreter starts and imports now: from 1 to 3."""
    return _between(max(cpu_seconds("import asyncio") for _ in range(3)) / _KNOWN_START)


def cpu_seconds(statement: str) -> float:
    """What a fresh interpreter spends on one statement."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    child = subprocess.Popen([sys.executable, "-I", "-c", statement], env=kept)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return used.ru_utime + used.ru_stime


def cpu_used(pid: int) -> float:
    """Seconds of processor time that another process has used, in hundredths."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def untraced() -> Generator[None]:
    """Count no coverage of what is done inside: that would cost several times what is measured."""
    tool: Any = sys.modules.get("coverage")
    stopped: list[Any] = []  # a worker may have several at once
    while tool is not None and (running := tool.Coverage.current()) is not None:
        running.stop()
        stopped.append(running)
    try:
        yield
    finally:
        for running in reversed(stopped):
            running.start()


def _between(times: float) -> float:
    return min(_SLOWEST, max(1.0, times))
