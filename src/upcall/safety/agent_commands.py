"""Mark the commands that agents run, so that `upcall` knows when an agent calls it.

A person's answer counts as the person's because it comes from the person's account. A shell tool runs in the same
account. So each of its commands carries the session's id in its environment, and runs below a supervisor whose
command line carries it too: a command can clear its environment, but it can't choose its ancestors. In a process
namespace of its own it can hide them. So the supervisor also sets an odd timer slack, which every process below
inherits, and which is seen without /proc.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress

VARIABLE = "UPCALL_AGENT_COMMAND"
"""The environment variable with the id of the session that runs a command."""

SUPERVISOR = "supervise.py"
TIMER_SLACK = 50_947
"""Nanoseconds. The system's own is 50,000, so that nothing is measurably late."""

_OPTION = "--upcall-session="
_GET_TIMERSLACK = 30
_MOST_ANCESTORS = 1000


def mark(session_id: str) -> str:
    """Return the supervisor's first argument."""
    return _OPTION + session_id


def marked_environment(variables: Mapping[str, str], session_id: str, command_id: str) -> dict[str, str]:
    """Return a command's environment with the session's mark and the command's own id."""
    return {**variables, VARIABLE: f"{session_id} {command_id}"}


def calling_session() -> str | None:
    """Return the id of the session whose command this process belongs to; None if a person runs it.

    Returns "" if the session is unknown, because the command hides its ancestors.
    """
    if VARIABLE in os.environ:
        return _id_in(os.environ[VARIABLE])
    found = session_of_process("self")
    return "" if found is None and _has_timer_slack() else found


def session_of_process(pid: str, known: dict[str, str | None] | None = None) -> str | None:
    """Return the id of the session whose command a process belongs to, by the marks of it and its ancestors.

    Returns "" if there are too many ancestors to look at all of them: one further up may be marked.

    known: what was found for other processes just now; it is added to
    """
    known, seen, found = {} if known is None else known, list[str](), None
    for count, one in enumerate(_ancestors(pid)):
        if count >= _MOST_ANCESTORS:
            found = ""
            break
        found = known[one] if one in known else _session_of(one)
        if one in known or found is not None:
            break
        seen.append(one)
    known.update(dict.fromkeys((*seen, pid), found))
    return found


def _id_in(value: str) -> str:
    return value.partition(" ")[0]


def _has_timer_slack() -> bool:
    """Return whether this process inherited a supervisor's timer slack."""
    if sys.platform != "linux":
        return False
    import ctypes

    return ctypes.CDLL(None).prctl(_GET_TIMERSLACK, 0, 0, 0, 0) == TIMER_SLACK


def _ancestors(pid: str) -> Iterator[str]:
    """Yield a process and its ancestors. `/proc/self` is also right in a process namespace."""
    while True:
        yield pid
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - quicker than a Path
                pid = file.read().rpartition(b")")[2].split()[1].decode()
        except (OSError, IndexError):
            return
        if pid == "0":
            return


def _session_of(pid: str) -> str | None:
    """Return the session in the marks of one process: a supervisor's command line, or its first environment."""
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
        words = file.read(4096).split(b"\0")[:8]
        for program, word in itertools.pairwise(words):
            if program.endswith(SUPERVISOR.encode()) and word.startswith(_OPTION.encode()):
                return word.decode("utf-8", "replace").removeprefix(_OPTION)
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
        for variable in file.read().split(b"\0"):
            if variable.startswith(f"{VARIABLE}=".encode()):
                return _id_in(variable.decode("utf-8", "replace").partition("=")[2])
    return None
