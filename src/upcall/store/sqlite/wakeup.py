"""Wake other processes that use the same file: one empty datagram after each commit.

Each process that watches has a socket in a folder beside the database. What a datagram says is only "look":
a lost or forged one harms nothing, and a slow look at the file's own change counter stands behind it.

The folder may have come with somebody's repository. It is opened without following links, used only if it is the
user's own, and everything in it is reached through that descriptor; nothing but a socket is ever removed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat

_DESCRIPTORS = "/proc/self/fd"


class Wakeup:
    """The sockets of one store file: `listen` to the others, `notify` them."""

    def __init__(self, path: str, name: str, trusted: bool = False) -> None:
        self._where = f"{path}-wake"
        self._name, self._trusted = name, trusted
        self._fd: int | None = None
        self.socket: socket.socket | None = None
        self._seen = -1
        self._others: list[str] = []
        self._sender: socket.socket | None = None

    def listen(self) -> socket.socket | None:
        """Return a socket that becomes readable when another process has written, or None if that is impossible."""
        with contextlib.suppress(FileExistsError, OSError):
            os.mkdir(self._where, mode=0o700)  # noqa: PTH102
        try:
            self._open_folder()
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.socket.setblocking(False)
            self.socket.bind(self._address(self._name))
        except (OSError, AttributeError):
            self._close(self.socket)
            self.socket = None
        return self.socket

    def _open_folder(self) -> int:
        """Open the folder again, because it may have been replaced; PermissionError if it is not the user's own."""
        self._forget_folder()
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        folder = os.open(self._where, flags)
        found = os.fstat(folder)
        if not self._trusted and (found.st_uid != os.geteuid() or found.st_mode & 0o077):
            os.close(folder)
            raise PermissionError(f"{self._where} is not a folder that only this user can access")
        self._fd = folder
        return folder

    def drain(self) -> None:
        """Discard the datagrams that have arrived."""
        with contextlib.suppress(BlockingIOError):
            while self.socket is not None:
                self.socket.recv(16)

    def notify(self) -> None:
        """Notify every other process that listens, if possible. Costs one system call if there is none."""
        if not os.access(self._where, os.F_OK):
            return
        try:
            changed = os.lstat(self._where).st_mtime_ns
            if changed != self._seen:
                self._seen, self._others = changed, []
                self._others = [name for name in self._sockets() if name != self._name]
            for name in self._others:
                self._send(name)
        except OSError:  # no folder of the user's own; the others poll the file anyway
            return

    def _sockets(self) -> list[str]:
        """Return the sockets in the folder, without links."""
        with os.scandir(self._open_folder()) as entries:
            return [one.name for one in entries if stat.S_ISSOCK(one.stat(follow_symlinks=False).st_mode)]

    def _send(self, name: str) -> None:
        if self._sender is None:
            self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._sender.setblocking(False)
        try:
            self._sender.sendto(b"", self._address(name))
        except (ConnectionRefusedError, FileNotFoundError):  # it ended without removing its socket
            self._remove_socket(name)
        except OSError:  # its queue is full: it will wake up anyway
            return

    def _remove_socket(self, name: str) -> None:
        """Remove a socket from the folder; anything else stays."""
        with contextlib.suppress(OSError):
            found = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
            if self._fd is not None and stat.S_ISSOCK(found.st_mode):
                os.unlink(name, dir_fd=self._fd)

    def _address(self, name: str) -> str:
        """Return the address of a socket in the folder: through the descriptor if possible, else by path."""
        if self._fd is not None and os.path.isdir(_DESCRIPTORS):  # noqa: PTH112
            return f"{_DESCRIPTORS}/{self._fd}/{name}"
        return f"{self._where}/{name}"

    def close(self) -> None:
        """Remove this process's socket, and the folder with the last socket."""
        self.stop()
        self._close(self._sender)
        self._sender = None
        if self._seen >= 0:
            self._remove_folder()
        self._forget_folder()

    def _remove_folder(self) -> None:
        with contextlib.suppress(OSError):  # it has other sockets, or is a link
            os.rmdir(self._where)  # noqa: PTH106

    def _forget_folder(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def stop(self) -> None:
        """Stop listening."""
        if self.socket is not None:
            self._close(self.socket)
            self.socket = None
            self._remove_socket(self._name)
            self._forget_folder()
            self._remove_folder()

    @staticmethod
    def _close(one: socket.socket | None) -> None:
        if one is not None:
            one.close()
