"""Commands in processes that are forked from one that has imported everything: `cli.server` is its other side."""

from __future__ import annotations

import atexit
import functools
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec

from cli import server


@functools.cache
def _server() -> socket.socket:
    """Where to ask; the server ends with this process."""
    asking, its = socket.socketpair()
    with its:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", server.__file__, str(its.fileno())],
            pass_fds=[its.fileno()],
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,  # pipes, as Python keeps in mind for good what its streams can do
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    assert asking.recv(1), process.communicate()
    atexit.register(process.communicate)
    atexit.register(asking.close)
    return asking


class Forked:
    """One command in a process of its own; the streams that it is given stay the caller's to close."""

    returncode: int | None = None

    def __init__(
        self, *args: str, cwd: Path, env: dict[str, str], streams: tuple[int, int, int], terminal: bool = False
    ) -> None:
        line, its = socket.socketpair()
        with line, its:
            socket.send_fds(_server(), [b"+"], [its.fileno(), *streams])
            line.sendall(msgspec.json.encode(server.Asked(args, str(cwd), env, terminal)) + b"\n")
            self._line = line.makefile("rb", buffering=0)
        self.pid = int(self._line.readline())

    def poll(self) -> int | None:
        """Its exit code once it has ended, as `subprocess` has it."""
        if self.returncode is None and select.select([self._line], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self) -> int:
        """Wait for its end."""
        if self.returncode is None:
            with self._line:
                self.returncode = int(self._line.readline())
        return self.returncode

    def kill(self) -> None:
        """End it at once."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def run(
    *args: str, cwd: Path, env: dict[str, str], given: str | None, seconds: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, between pipes."""
    with ExitStack() as ends:
        stdin = os.open(os.devnull, os.O_RDONLY) if given is None else _filled(given)
        (said, stdout), (told, stderr) = os.pipe(), os.pipe()
        for end in (said, told):
            ends.callback(os.close, end)
        command = Forked(*args, cwd=cwd, env=env, streams=(stdin, stdout, stderr))
        ends.callback(command.kill)
        for end in (stdin, stdout, stderr):
            os.close(end)
        out, err = _drained(said, told, seconds=seconds)
        return subprocess.CompletedProcess(args, command.wait(), out, err)


def _filled(text: str) -> int:
    """A pipe that has a text in it; a file where the text is longer than a pipe holds."""
    if len(text) > 60_000:
        with tempfile.TemporaryFile() as file:
            file.write(text.encode())
            file.seek(0)
            return os.dup(file.fileno())
    read, write = os.pipe()
    with open(write, "wb", buffering=0) as file:
        assert file.write(text.encode()) == len(text.encode())
    return read


def _drained(*ends: int, seconds: float) -> list[str]:
    """All that comes out of some pipes."""
    until, open_, said = time.monotonic() + seconds, list(ends), dict.fromkeys(ends, b"")
    while open_:
        ready, _, _ = select.select(open_, [], [], max(until - time.monotonic(), 0.0))
        assert ready, f"not in {seconds:g} s: its end, after {said}"
        for end in ready:
            got = os.read(end, 65536)
            said[end] += got
            if not got:
                open_.remove(end)
    return [text.decode() for text in said.values()]
