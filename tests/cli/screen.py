"""A real terminal for a command: a pseudo-terminal of 80 columns, what it shows, and keys to press."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from cli.command import environment
from cli.forked import Forked

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|\x1b[=>]|\x1b\(B")
CTRL_C, CTRL_D, ENTER = "\x03", "\x04", "\r"


class Screen:
    """One command at a terminal; use it with `with`."""

    def __init__(self, *args: str, cwd: Path, **env: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = Forked(*args, cwd=cwd, env=environment(**env), streams=(slave, slave, slave), terminal=True)
        os.close(slave)
        self.raw = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)

    @property
    def text(self) -> str:
        """All that was shown, without colours and movements."""
        return _ESCAPES.sub("", self.raw).replace("\r", "")

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self.master, keys.encode())

    def enter(self, line: str, *wanted: str) -> None:
        """Type a line, and wait until these texts have been shown, one after the other."""
        self.press(line + ENTER)
        for text in wanted:
            self.see(text)

    def see(self, wanted: str, seconds: float = 20.0) -> None:
        """Wait until a text has been shown since the last one that was waited for."""
        until = time.monotonic() + seconds
        while wanted not in self.text[self._seen :]:
            assert time.monotonic() < until, f"{wanted!r} was never shown:\n{self.text}"
            self._read(0.1)
        self._seen = self.text.index(wanted, self._seen) + len(wanted)

    def end(self, seconds: float = 20.0, *, traced: bool = False) -> int:
        """Wait for the command to end; returns its exit code. Only where `traced` there may be a stack trace."""
        until = time.monotonic() + seconds
        while (code := self.process.poll()) is None:
            assert time.monotonic() < until, f"it did not end:\n{self.text}"
            self._read(0.1)
        while self._read(0.1):
            pass
        assert traced or "Traceback" not in self.text, self.text
        return code

    _seen = 0

    def _read(self, seconds: float) -> bool:
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        try:
            got = os.read(self.master, 65536)
        except OSError:  # the other side is closed
            return False
        self.raw += got.decode("utf-8", "replace")
        return bool(got)
