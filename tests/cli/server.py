"""A process that has imported the command, and forks another process for each one that is asked for.

Starting Python and importing cost several times what most commands do. A forked process has a number, streams, a
folder, an environment, signals and an exit code of its own, like one that was started; only what Python reads as it
starts (`PYTHON…`, `LANG`) is the server's. `cli.forked` asks for it.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import os
import runpy
import signal
import socket
import sys
import termios
import threading
from collections.abc import Sequence
from contextlib import suppress

import msgspec

IMPORTED = [
    "upcall.app", "upcall.cli", "upcall.hosts.terminal.host", "upcall.agentfiles.load", "upcall.models",
    "upcall.store.sqlite.store", "upcall.workspace", "fastjsonschema", "prompt_toolkit", "rich.markdown",
    "rich.table", "yaml", "importlib.metadata", "runpy", "encodings.ascii", "encodings.utf_8_sig",
    "upcall.observe.route",
]  # fmt: skip


class Asked(msgspec.Struct):
    """One command: its words, where it runs, and whether its standard input is the terminal that it lives at."""

    args: Sequence[str]
    folder: str
    environment: dict[str, str]
    terminal: bool


_lines: dict[int, socket.socket] = {}
"""Where to tell how each command ended, by its process."""


def serve(asking: socket.socket) -> None:
    """Fork for each that asks, until nobody does; returns in a process that is to be the command."""
    signal.signal(signal.SIGCHLD, tell_ended)
    asking.sendall(b"!")
    while True:
        said, files, _, _ = socket.recv_fds(asking, 1, 4)
        if not said:
            sys.exit()
        line, streams = socket.socket(fileno=files[0]), files[1:]
        with line.makefile("rb") as asked:
            wanted = msgspec.json.decode(asked.readline(), type=Asked)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # none ends before its line is known
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
            for other in (asking, line, *_lines.values()):
                other.close()
            become(wanted, streams)
            return
        for stream in streams:
            os.close(stream)
        line.sendall(b"%d\n" % pid)
        _lines[pid] = line
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def tell_ended(*_: object) -> None:
    """Tell how the commands ended that have."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with _lines.pop(ended[0]) as line, suppress(BrokenPipeError):  # it may have left
                line.sendall(b"%d\n" % os.waitstatus_to_exitcode(ended[1]))


def become(wanted: Asked, streams: Sequence[int]) -> None:
    """Take up what a process is started with."""
    if wanted.terminal:
        os.setsid()
        fcntl.ioctl(streams[0], termios.TIOCSCTTY, 0)  # so that Ctrl-C reaches it
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(wanted.folder)
    os.environ.clear()
    os.environ.update(wanted.environment)
    sys.path[0] = wanted.folder
    sys.argv[1:] = wanted.args


def leave(code: int) -> None:
    """End as Python does, without taking apart what was imported, for which each page of it would be copied."""
    if threading.active_count() == 1:
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
        gc.collect()  # what was not closed is told
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    for module in IMPORTED:
        importlib.import_module(module)
    gc.freeze()  # else the first collection of each process writes to, and so copies, all that was imported
    serve(socket.socket(fileno=int(sys.argv[1])))
    try:
        runpy.run_module("upcall.cli", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if isinstance(ended.code, int):
            leave(ended.code)
        raise
