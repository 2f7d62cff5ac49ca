"""Starting the driver as a real process, and looking at what it left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from upcall.contracts import Store
from upcall.core.log.state import SessionState
from upcall.events import AnyEvent, Responded, ToolEnded, ToolStarted

TESTS = Path(__file__).parents[1]


class Driver:
    """One driver process and what it has said."""

    def __init__(self, *arguments: object, module: str = "chaos.driver") -> None:
        paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        self.said: list[str] = []

    def read_line(self) -> str:
        """The next line; "" at the end."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        if line.endswith("\n"):
            self.said.append(line[:-1])
        return line.strip()

    def read_until(self, words: str) -> None:
        """Read on until it has said this."""
        while words not in self.said:
            if not self.read_line():
                raise AssertionError(f"it ended without saying {words!r}: {self.said} {self.errors()}")

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill it, and read what it had said before."""
        self.process.kill()
        while self.read_line():
            pass
        self.process.wait()

    def end(self) -> list[str]:
        """Let it end by itself; returns all it said."""
        while self.read_line():
            pass
        assert self.process.wait() == 0, self.errors()
        return self.said


@contextmanager
def driver(*arguments: object, module: str = "chaos.driver") -> Generator[Driver]:
    """A driver process that does not outlive the test."""
    started = Driver(*arguments, module=module)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()
        for pipe in (started.process.stdout, started.process.stderr):
            if pipe is not None:
                pipe.close()


class Found:
    """A whole store, read and folded: nothing in it may contradict itself or the effects outside it."""

    def __init__(self, events: list[AnyEvent], effects: list[list[str]]) -> None:
        self.events, self.effects = events, effects
        self.states: dict[str, SessionState] = {}
        for event in events:
            self.states.setdefault(event.session, SessionState(event.session)).apply(event)

    def check_log(self) -> None:
        """Positions and sequence numbers have no gaps."""
        assert [e.pos for e in self.events] == list(range(1, len(self.events) + 1))
        for session in self.states:
            seqs = [e.seq for e in self.events if e.session == session]
            assert seqs == list(range(1, len(seqs) + 1))

    def check_effects(self) -> None:
        """No call ran twice or before it was written down; none that is written down as having run did not."""
        starts = Counter((w[1], w[2]) for w in self.effects if w[0] == "start")
        ends = Counter((w[1], w[2]) for w in self.effects if w[0] == "end")
        assert not [call for call, times in starts.items() if times > 1]
        logged = {(e.session, e.call_id) for e in self.events if isinstance(e, ToolStarted)}
        assert set(starts) <= logged
        ran = [(e.session, e.call_id) for e in self.events if isinstance(e, ToolEnded) and e.how == "ran"]
        assert len(ran) == len(set(ran))
        assert set(ran) <= set(ends)

    def check_said(self, said: list[str]) -> None:
        """What a process was told is stored is in the log."""
        stored = {(e.session, str(e.seq), e.type) for e in self.events}
        for line in said:
            words = line.split()
            if words[0] == "stored":
                assert (words[1], words[2], words[3]) in stored, line
            if words[0] == "done":
                ended = [e for e in self.events if e.session == words[1] and e.type == "turn_ended"]
                assert len(ended) > int(words[2]), line

    @property
    def responses(self) -> int:
        return sum(isinstance(e, Responded) for e in self.events)

    @property
    def interrupted(self) -> int:
        return sum(isinstance(e, ToolEnded) and e.how == "interrupted" for e in self.events)

    @property
    def model_calls(self) -> int:
        return sum(w[0] == "model" for w in self.effects)


async def look(store: Store, effects: Path) -> Found:
    """Read and fold everything."""
    events: list[AnyEvent] = []
    while page := await store.read_all(len(events) and events[-1].pos):
        events += page
    lines = effects.read_text().splitlines() if effects.exists() else []
    found = Found(events, [line.split() for line in lines])
    found.check_log()
    found.check_effects()
    return found
