"""Worker processes on one database, each with its own output, that end in the way the test asked for."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos.processes import TESTS

START_SECONDS = 60.0
END_SECONDS = 120.0


def eventually(true: Callable[[], bool], what: str, seconds: float = END_SECONDS) -> None:
    """Wait until something is true."""
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, f"not in {seconds:g} s: {what}"
        time.sleep(0.01)


class WorkerProcess:
    """One `upcall worker` and what it has written."""

    def __init__(self, command: list[str], environment: Mapping[str, str], output: Path) -> None:
        self._out, self._errors = output.with_suffix(".out"), output.with_suffix(".err")
        with self._out.open("wb") as out, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(command, env=environment, stdout=out, stderr=errors)
        self.pid = self._process.pid

    @property
    def code(self) -> int | None:
        """How it exited; None while it runs."""
        return self._process.poll()

    @property
    def output(self) -> str:
        return self._out.read_text()

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def is_ready(self) -> bool:
        """Whether it takes sessions: it says so where a supervisor would ask."""
        assert self.code is None, f"a worker exited with {self.code}: {self.errors}"
        first = self.errors.partition("\n")
        if not first[1] or "metrics on" not in first[0]:
            return False
        with contextlib.suppress(urllib.error.HTTPError):
            url = first[0].split()[-1].replace("/metrics", "/readyz")
            with urllib.request.urlopen(url, timeout=10) as response:
                return response.status == 200
        return False

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ended(self) -> int:
        """How it exited, once it has."""
        return self._process.wait(END_SECONDS)

    def kill(self) -> None:
        """Kill it, and see that this ended it."""
        self.signal(signal.SIGKILL)
        assert self.ended() == -signal.SIGKILL

    def stop(self) -> None:
        """Ask it to stop, and see that it did so in order."""
        self.signal(signal.SIGTERM)
        assert self.ended() == 0, (self.code, self.errors[-3000:])

    def abandon(self) -> None:
        """End it whatever state it is in, so that it does not outlive the test."""
        self._process.kill()
        self._process.wait()


class Workers:
    """Workers of one kind. Every worker that was ever started is kept, for what it wrote."""

    def __init__(self, url: str, folder: Path, agents: Sequence[str], *options: str, **environment: str) -> None:
        arguments = ["worker", "--store", url, "--agents", *agents, "--json", "--metrics-port", "0", *options]
        self._command = [sys.executable, "-m", "upcall", *arguments]
        paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment}
        self._folder = folder
        self.all: list[WorkerProcess] = []
        self.running: list[WorkerProcess] = []

    def start(self, count: int = 1) -> None:
        """Start workers."""
        for _ in range(count):
            made = WorkerProcess(self._command, self._environment, self._folder / f"worker{len(self.all)}")
            self.all.append(made)
            self.running.append(made)

    def wait_until_ready(self) -> None:
        """Wait until all that run take sessions."""
        for one in self.running:
            eventually(one.is_ready, "a worker is ready", START_SECONDS)

    def by_pid(self, pid: int) -> WorkerProcess:
        return next(one for one in self.running if one.pid == pid)

    def kill(self, one: WorkerProcess) -> None:
        """Kill a worker and start another one in its place, as a supervisor does."""
        one.kill()
        self.running.remove(one)
        self.start()

    def replace(self, one: WorkerProcess) -> None:
        """Start a worker, and stop another one in order once the new one is ready."""
        self.start()
        self.wait_until_ready()
        one.stop()
        self.running.remove(one)

    def stop(self) -> None:
        """Stop all that run, in order."""
        self.wait_until_ready()
        for one in self.running:
            one.signal(signal.SIGTERM)
        assert [one.ended() for one in self.running] == [0] * len(self.running), self.errors[-3000:]
        self.running.clear()

    @property
    def errors(self) -> str:
        return "".join(one.errors for one in self.all)

    @property
    def segments(self) -> list[dict[str, Any]]:
        """What the workers said of the sessions that they ran."""
        return [json.loads(line) for one in self.all for line in one.output.splitlines(True) if line.endswith("\n")]

    @property
    def failures(self) -> list[dict[str, Any]]:
        """What they said of sessions that failed."""
        return [one for one in self.segments if one["outcome"] == "failed"]


@contextlib.contextmanager
def workers(url: str, folder: Path, agents: Sequence[str], *options: str, **environment: str) -> Generator[Workers]:
    """Workers that don't outlive the test."""
    made = Workers(url, folder, agents, *options, **environment)
    try:
        yield made
    finally:
        for one in made.all:
            one.abandon()
