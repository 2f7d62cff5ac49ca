"""Starts a command, passes its input and output through, and writes every line of both to a file.

Usage: python tap.py FILE COMMAND ARGUMENTS...
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any


def copy(source: IO[bytes], target: Any, mark: bytes, log: IO[bytes], writing: threading.Lock) -> None:
    """Copy lines, and write each with a mark to the log."""
    for line in source:
        with writing:
            log.write(mark + line.rstrip(b"\n") + b"\n")
            log.flush()
        try:
            target.write(line)
            target.flush()
        except (OSError, ValueError):
            break
    with contextlib.suppress(OSError):
        target.close()


def main() -> int:
    """Run the command."""
    writing = threading.Lock()
    with Path(sys.argv[1]).open("ab") as log:
        process = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        log.write(b"# %d\n" % process.pid)
        log.flush()
        sent = (sys.stdin.buffer, process.stdin, b"> ", log, writing)
        threading.Thread(target=copy, args=sent, daemon=True).start()
        copy(process.stdout, sys.stdout.buffer, b"< ", log, writing)
        return process.wait()


if __name__ == "__main__":
    sys.exit(main())
