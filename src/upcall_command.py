"""The command `upcall` as it is installed: Ctrl-C ends it quietly from the first moment on, and SIGTERM a worker.

It stands beside the package, as importing that is most of what there is to interrupt.
"""

from __future__ import annotations

import os
import signal
import sys

CANCELLED = 130


def main() -> int:
    """Run the command; returns its exit code."""
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:  # a KeyboardInterrupt would show where Python is, and can be lost inside an import
        signal.signal(signal.SIGINT, _leave)
    if sys.argv[1:2] == ["worker"] and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _stop)  # before it has taken anything, and after it has left everything
    from upcall.cli import main as run

    if heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return run()
    except KeyboardInterrupt:
        return CANCELLED


def _leave(*_: object) -> None:
    os._exit(CANCELLED)


def _stop(*_: object) -> None:
    os._exit(0)
