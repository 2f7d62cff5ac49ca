"""Recognise requests that an agent's command sends to a server on this machine.

Whoever has the token may answer, and a command of an agent can read the token. So the server looks which process is
at the other end of a connection: Linux lists the sockets of the machine, and what each process has open.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from upcall.safety.agent_commands import session_of_process

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_MOST_TABLE = 32_000_000
"""Bytes of a table of sockets that are read."""

_MOST_FILES = 200_000
"""Open files of agents' processes that are looked at. If there are more, every client counts as one of theirs."""

_ROW = re.compile(r"^ *\d+: \w+:(\w{4}) \w+:(\w{4}) \w\w \S+ \S+ \S+ +\d+ +\d+ (\d+)", re.MULTILINE)
_GONE = "0"
"""The inode of a socket that no process has open any more."""

_Sockets = dict[tuple[int, int], set[str]]


class Connection(NamedTuple):
    """The addresses and ports of both ends of a connection."""

    client: str
    client_port: int
    server: str
    server_port: int


def sessions_of_clients(connections: Iterable[Connection]) -> dict[Connection, str | None]:
    """Return the sessions whose commands are the clients of connections; None if there is none, or nobody knows.

    The session is "" for a command of an unknown session, and for a client on this machine that closed its
    connection before it could be looked at.
    """
    sockets, found, open_ones = _sockets(), dict[Connection, str | None](), dict[Connection, set[str]]()
    for one in connections:
        inodes = _client_inodes(one, sockets)
        found[one] = "" if inodes is not None and _GONE in inodes else None
        if inodes and found[one] is None:
            open_ones[one] = inodes
    held = _Held(set[str]().union(*open_ones.values())) if open_ones else None
    sockets = _sockets() if open_ones else {}  # the client may have ended while its processes were looked at
    for one, inodes in open_ones.items():
        assert held is not None
        still_open = _client_inodes(one, sockets) == inodes
        found[one] = held.by(inodes) if still_open or held.by(inodes) is not None else ""
    return found


def _sockets() -> _Sockets:
    """Return the inodes of all TCP sockets by their own and the other port."""
    found: _Sockets = {}
    for table in _TABLES:
        with suppress(OSError), open(table, encoding="ascii") as file:  # noqa: PTH123
            for own, other, inode in _ROW.findall(file.read(_MOST_TABLE)):
                found.setdefault((int(own, 16), int(other, 16)), set()).add(inode)
    return found


def _client_inodes(one: Connection, sockets: _Sockets) -> set[str] | None:
    """Return the inodes of a client's socket; None if it is not on this machine, or nobody knows.

    Ports are enough: other sockets with both of them are connections to the same program.
    """
    if (one.server_port, one.client_port) not in sockets:  # the tables don't show our own end either
        return None
    found = sockets.get((one.client_port, one.server_port))
    return found or ({_GONE} if _is_local(one) else None)


def _is_local(one: Connection) -> bool:
    try:
        return one.client == one.server or ipaddress.ip_address(one.client).is_loopback
    except ValueError:
        return False


class _Held:
    """The sockets, of some that are looked for, that agents' processes have open."""

    def __init__(self, inodes: set[str]) -> None:
        self._sessions: dict[str, str] = {}
        self._hiding: str | None = None
        left = _MOST_FILES
        links = {f"socket:[{inode}]": inode for inode in inodes}
        for pid, session_id in _marked():
            try:
                for link in _open_files(pid):
                    left -= 1
                    if link in links:
                        self._sessions.setdefault(links[link], session_id)
                    if left < 0:
                        raise PermissionError  # noqa: TRY301 - it hides its sockets behind others
            except PermissionError:
                self._hiding = session_id
                break
        self._others = _open_elsewhere(links) if self._hiding is not None else set[str]()

    def by(self, inodes: set[str]) -> str | None:
        """Return the session that has one of these sockets open."""
        for inode in inodes:
            if inode in self._sessions:
                return self._sessions[inode]
        return self._hiding if self._hiding is not None and not inodes & self._others else None


def _marked() -> Iterator[tuple[str, str]]:
    """Yield the processes of agents' commands, with their sessions."""
    known: dict[str, str | None] = {}
    for pid in _processes():
        if (session_id := session_of_process(pid, known)) is not None:
            yield pid, session_id


def _open_elsewhere(links: dict[str, str]) -> set[str]:
    """Return those of the sockets that a process without marks has open."""
    found, known = set[str](), dict[str, str | None]()
    for pid in _processes():
        if session_of_process(pid, known) is None:
            with suppress(OSError):
                found.update(links[link] for link in _open_files(pid) if link in links)
    return found


def _processes() -> list[str]:
    try:
        return [name for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208 - quicker than a Path
    except OSError:
        return []


def _open_files(pid: str) -> Iterator[str]:
    """Yield what the threads of a process have open; PermissionError if it is not shown.

    Each thread may have files of its own.
    """
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            yield from _open_files_of_thread(f"/proc/{pid}/task/{thread}/fd")


def _open_files_of_thread(folder: str) -> Iterator[str]:
    with suppress(FileNotFoundError, ProcessLookupError):
        for name in os.listdir(folder):  # noqa: PTH208
            with suppress(FileNotFoundError, ProcessLookupError):
                yield os.readlink(f"{folder}/{name}")  # noqa: PTH115
