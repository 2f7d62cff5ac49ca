"""An agent that decides from its request alone, and counts of what SQLite does."""

# apsw's stubs name a type that Python 3.11 does not have yet.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import apsw

from upcall import Agent, Request, tool
from upcall.messages import Call
from upcall.models import Script, call


@tool
async def look_up(word: str, size: int) -> str:
    """Look a word up.

    word: what to look up
    size: how many characters are wanted
    """
    return (word * size)[:size]


def worker(name: str = "worker", *, calls: int = 1, size: int = 2) -> Agent:
    """One that calls its tool some times at once, then says how often it did in the whole conversation."""

    def decide(request: Request) -> str | list[Call]:
        if request.messages[-1].role == "tool":
            return f"looked up {sum(len(m.results) for m in request.messages)}"
        return [call("look_up", word=str(n), size=size) for n in range(calls)]

    return Agent(name, model=Script(decide), tools=[look_up])


class Work:
    """What all connections of this process did since it was made."""

    def __init__(self) -> None:
        self.statements = 0
        self.steps = 0  # of SQLite's machine
        self.commits = 0
        self._lock = threading.Lock()

    def watch(self, db: apsw.Connection) -> None:
        db.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._note)

    def _note(self, event: dict[str, Any]) -> None:
        with self._lock:
            self.statements += 1
            self.steps += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]
            self.commits += event["sql"] == "COMMIT"


@contextmanager
def counted() -> Generator[Work]:
    """Count what every connection made from here on does."""
    work = Work()
    apsw.connection_hooks.append(work.watch)
    try:
        yield work
    finally:
        apsw.connection_hooks.remove(work.watch)
