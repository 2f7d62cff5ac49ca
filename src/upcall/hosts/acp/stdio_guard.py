"""Keep the protocol's output apart from whatever else is printed.

The editor's pipes move to private file descriptors. What tools, imports and child processes print then goes to
standard error, through a pipe of our own: a standard error that nobody reads must not block the agent.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
from collections.abc import Generator

_SLOW = 0.2
_PIECE = 4096
"""Bytes that a pipe which is writable takes without blocking."""


@contextlib.contextmanager
def private_stdio() -> Generator[tuple[int, int]]:
    """Return file descriptors of the editor's input and output, which nothing else can read or write."""
    sys.stdout.flush()
    sys.stderr.flush()
    given, taken, errors = os.dup(0), os.dup(1), os.dup(2)
    reading, writing = os.pipe()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(writing, 1)
    os.dup2(writing, 2)
    os.close(nothing)
    os.close(writing)
    copying = threading.Thread(target=_copy, args=(reading, errors), name="upcall-stderr", daemon=True)
    copying.start()
    try:
        yield given, taken
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        copying.join(_SLOW)


def _copy(reading: int, errors: int) -> None:
    """Copy what is printed to standard error, and drop it while nobody takes it."""
    while data := os.read(reading, 65_536):
        for at in range(0, len(data), _PIECE):
            try:
                if not select.select([], [errors], [], _SLOW)[1]:
                    break
                os.write(errors, data[at : at + _PIECE])
            except (OSError, ValueError):
                break
