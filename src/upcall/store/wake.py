"""Telling other processes on the same file that something was written: one empty datagram after each commit.

Each process that watches has a socket in a folder beside the database. What a datagram says is only "look":
a lost or forged one harms nothing, and a slow look at the file's own change counter stands behind it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

_LONGEST = 100  # a socket's address holds little more


class Wake:
    """The sockets of one store file: `listen` to the others, `call` them."""

    def __init__(self, path: str, name: str) -> None:
        self._where = f"{path}-wake"
        self._name = name
        self._fd: int | None = None
        self.socket: socket.socket | None = None
        self._seen = -1
        self._others: list[str] = []
        self._sender: socket.socket | None = None

    def listen(self) -> socket.socket | None:
        """A socket that becomes readable when another process has written, or None where there can't be one."""
        self._forget_folder()
        try:
            Path(self._where).mkdir(mode=0o700, exist_ok=True)
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.socket.setblocking(False)
            self.socket.bind(self._address(self._name))
        except (OSError, AttributeError):
            self._close(self.socket)
            self.socket = None
        return self.socket

    def drain(self) -> None:
        """Forget the datagrams that have come."""
        with contextlib.suppress(BlockingIOError):
            while self.socket is not None:
                self.socket.recv(16)

    def call(self) -> None:
        """Tell every other watcher, if that can be done. Costs one look when there is none."""
        if not os.access(self._where, os.F_OK):
            return
        try:
            changed = os.stat(self._where).st_mtime_ns  # noqa: PTH116 (after each commit)
            if changed != self._seen:
                self._seen = changed
                self._forget_folder()  # it may be another one of the same name
                self._others = [n for n in os.listdir(self._where) if n != self._name]  # noqa: PTH208
            for name in self._others:
                self._send(name)
        except OSError:  # no folder, or none of ours: they look by themselves now and then
            return

    def _send(self, name: str) -> None:
        if self._sender is None:
            self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._sender.setblocking(False)
        try:
            self._sender.sendto(b"", self._address(name))
        except (ConnectionRefusedError, FileNotFoundError):  # it ended without taking its socket away
            with contextlib.suppress(OSError):
                Path(self._where, name).unlink()
        except OSError:  # its queue is full: it has been told already
            return

    def _address(self, name: str) -> str:
        plain = f"{self._where}/{name}"
        if len(plain.encode()) < _LONGEST:
            return plain
        if self._fd is None:  # a short way to the same folder, where the system has one
            self._fd = os.open(self._where, os.O_RDONLY | os.O_DIRECTORY)
        return f"/proc/self/fd/{self._fd}/{name}"

    def close(self) -> None:
        """Take this process's socket away, and the folder with the last one."""
        self.stop()
        self._close(self._sender)
        self._sender = None
        self._forget_folder()
        if self._seen >= 0:
            with contextlib.suppress(OSError):  # others may be there
                Path(self._where).rmdir()

    def _forget_folder(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def stop(self) -> None:
        """Stop listening."""
        if self.socket is not None:
            self._close(self.socket)
            self.socket = None
            self._forget_folder()
            with contextlib.suppress(OSError):
                Path(self._where, self._name).unlink()
                Path(self._where).rmdir()

    @staticmethod
    def _close(one: socket.socket | None) -> None:
        if one is not None:
            one.close()
