"""A terminal as people have it: tmux draws it, and gives back what stands on the screen."""

from __future__ import annotations

import shlex
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from cli.command import COMMAND, environment


class Terminal:
    """One command in a tmux window of its own; use it with `with`. `line` runs another shell line instead."""

    def __init__(
        self, *args: str, cwd: Path, columns: int = 80, rows: int = 40, line: str = "", **env: str
    ) -> None:
        self._socket = cwd / "tmux.socket"
        asked = {k: v for k, v in environment(**env).items() if k not in ("TERM", "PROMPT_TOOLKIT_NO_CPR", "TMUX")}
        line = line or f"{shlex.join([*COMMAND, *args])}; echo left with $?; exec cat"
        self._tmux(
            "-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(rows), line, env=asked, cwd=cwd
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._tmux("kill-server")

    @property
    def rows(self) -> list[str]:
        """What stands on the screen."""
        return self._tmux("capture-pane", "-p").rstrip("\n").split("\n")

    @property
    def screen(self) -> str:
        """The same as one text."""
        return "\n".join(self.rows)

    def press(self, *keys: str) -> None:
        """Press keys by their names, as tmux has them; other words are typed."""
        for key in keys:
            self._tmux("send-keys", key)

    def paste(self, text: str) -> None:
        """Paste, as a terminal does it."""
        self._tmux("set-buffer", text)
        self._tmux("paste-buffer", "-p")

    def see(self, wanted: str, seconds: float = 30.0) -> str:
        """Wait until a text stands on the screen; returns the screen."""
        until = time.monotonic() + seconds
        while wanted not in (screen := self.screen):
            assert time.monotonic() < until, f"{wanted!r} is not on the screen:\n{screen}"
            time.sleep(0.05)
        assert "Traceback" not in screen, screen
        return screen

    def _tmux(self, *args: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
        done = subprocess.run(
            ["tmux", "-S", str(self._socket), *args],
            env=env,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        return done.stdout
