"""Lines over two file descriptors, such as the standard input and output of a process.

Reading never holds more than one line, and of a line that is too long nothing. Writing never blocks the event loop:
lines are joined and written when the other side takes them, and `drained` waits until it has taken enough.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections import deque
from collections.abc import Callable

READ_SIZE = 65_536
MOST_WAITING = 262_144
"""Bytes that wait to be written before `drained` waits."""

_MOST_AT_ONCE = 65_536


class LineReader:
    """Splits what is read into lines of at most `most` bytes.

    line: gets each line
    too_long: called for each line that is longer
    """

    def __init__(self, line: Callable[[bytes], None], too_long: Callable[[], None], most: int) -> None:
        self._line, self._too_long, self._most = line, too_long, most
        self._parts: list[bytes] = []
        self._size = 0
        self._skipping = False

    def feed(self, data: bytes) -> None:
        """Take what was read next."""
        *ended, rest = data.split(b"\n")
        for part in ended:
            self._add(part)
            self._end()
        self._add(rest)

    def close(self) -> None:
        """Take the end: a last line without a line end is a line, too."""
        if self._size or self._skipping:
            self._end()

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._most:
            self._skipping = True
            self._parts.clear()
        elif part and not self._skipping:
            self._parts.append(part)

    def _end(self) -> None:
        parts, skipped = self._parts, self._skipping
        self._parts, self._size, self._skipping = [], 0, False
        if skipped:
            self._too_long()
        else:
            self._line(b"".join(parts))


class LineWriter:
    """Writes lines to a file descriptor. `lost` is called once, if nobody reads them any more."""

    def __init__(self, fd: int, lost: Callable[[], None]) -> None:
        self._fd, self._lost = fd, lost
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._scheduled = self._blocked = self._is_lost = False
        self._room: asyncio.Event = asyncio.Event()
        self._room.set()
        self._can_block = stat.S_ISREG(os.fstat(fd).st_mode)  # a file always takes what is written
        if not self._can_block:
            os.set_blocking(fd, False)

    def send(self, line: bytes) -> None:
        """Write a line, together with others of this moment."""
        if self._is_lost:
            return
        self._waiting.append(line)
        self._waiting.append(b"\n")
        self._size += len(line) + 1
        if self._size > MOST_WAITING:
            self._room.clear()
        if not self._scheduled and not self._blocked:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._write)

    @property
    def is_full(self) -> bool:
        """True while so much waits that nothing should be added."""
        return not self._room.is_set()

    async def drained(self) -> None:
        """Return once there is room for more, or nobody reads any more."""
        await self._room.wait()

    async def flushed(self, seconds: float) -> None:
        """Return once everything is written, or after so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._size and not self._is_lost:
                    self._room.clear()
                    await self._room.wait()

    def close(self) -> None:
        """Write nothing more."""
        self._lose()

    def _write(self) -> None:
        self._scheduled = False
        while self._waiting:
            piece = self._next_piece()
            try:
                written = os.write(self._fd, piece)
            except BlockingIOError:
                written = 0
            except OSError:
                self._lose()
                self._lost()
                return
            self._size -= written
            if written < len(piece):
                self._waiting.appendleft(piece[written:])
                self._wait_for_room()
                return
        if self._blocked:
            self._blocked = False
            asyncio.get_running_loop().remove_writer(self._fd)
        self._room.set()

    def _next_piece(self) -> bytes:
        if len(self._waiting[0]) >= _MOST_AT_ONCE:
            return self._waiting.popleft()
        pieces: list[bytes] = []
        size = 0
        while self._waiting and size < _MOST_AT_ONCE:
            pieces.append(self._waiting.popleft())
            size += len(pieces[-1])
        return b"".join(pieces)

    def _wait_for_room(self) -> None:
        if self._size <= MOST_WAITING // 2:
            self._room.set()
        if not self._blocked:
            self._blocked = True
            asyncio.get_running_loop().add_writer(self._fd, self._write)

    def _lose(self) -> None:
        self._is_lost = True
        if self._blocked:
            self._blocked = False
            asyncio.get_running_loop().remove_writer(self._fd)
        self._waiting.clear()
        self._size = 0
        self._room.set()


async def read_lines(fd: int, reader: LineReader, ended: asyncio.Event) -> None:
    """Feed a reader from a file descriptor until its end, which sets the event, or until somebody else sets it."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        data = _read(fd)
        if data:
            reader.feed(data)
        elif data is not None:
            reader.close()
            ended.set()

    try:
        loop.add_reader(fd, read)
    except PermissionError:  # a regular file is always readable
        while not ended.is_set():
            read()
            await asyncio.sleep(0)
        return
    try:
        await ended.wait()
    finally:
        loop.remove_reader(fd)


def _read(fd: int) -> bytes | None:
    """Return what can be read, b"" at the end, and None where there is nothing yet."""
    try:
        return os.read(fd, READ_SIZE)
    except BlockingIOError:
        return None
    except OSError:
        return b""
