"""Parse server-sent events from raw bytes, however the network splits them."""

from __future__ import annotations

EVENT_BYTES = 4_000_000
"""The most bytes of one event, or of a response in one piece."""

_LARGE = 65_536  # the size in bytes above which an event's values are counted before parsing
_VALUES = 500_000  # the most values in one event
_LINE = 64  # bytes that each line of an event counts in addition to its own


class EventTooLarge(ValueError):
    """Raised when an event exceeds a limit; the text says which."""


class Feed:
    """Takes bytes as they arrive and returns the `data` of every complete event.

    It works on bytes, so that a packet may end inside a character or between `\r` and `\n`. Names, ids and comments
    are skipped: both APIs repeat an event's type inside its data.

    An event of more than `most` bytes, or with so many values that parsing would take many times its size, raises
    EventTooLarge.
    """

    __slots__ = ("_after_cr", "_data", "_most", "_rest", "_unfinished_size")

    def __init__(self, most: int = EVENT_BYTES) -> None:
        self._most, self._unfinished_size = most, 0  # bytes of the unfinished line
        self._rest: list[bytes] = []  # pieces of the unfinished line; a list, because lines may be huge
        self._data: list[bytes] = []
        self._after_cr = False

    def take(self, data: bytes) -> list[bytes]:
        """Return the events that these bytes complete."""
        if self._after_cr and data[:1] == b"\n":
            data = data[1:]
        if not data:
            return []
        last = data[-1]
        self._after_cr = last == 13
        lines = data.splitlines()
        whole = last in (10, 13)
        if self._rest:
            if not whole and len(lines) == 1:
                self._add_unfinished(data)
                return []
            self._add_unfinished(lines[0])
            lines[0] = self._take_line()
        if not whole:
            self._add_unfinished(lines.pop())
        return self._events(lines)

    def end(self) -> list[bytes]:
        """Return the data of an unfinished last event: many servers end this way."""
        return self._events([self._take_line(), b""])

    def _add_unfinished(self, piece: bytes) -> None:
        self._rest.append(piece)
        self._unfinished_size += len(piece)
        if self._unfinished_size > self._most:
            raise EventTooLarge(f"more than {self._most:,} bytes in one line")

    def _take_line(self) -> bytes:
        line = b"".join(self._rest)
        self._rest.clear()
        self._unfinished_size = 0
        if len(line) > _LARGE:
            check_values(line)
        return line

    def _events(self, lines: list[bytes]) -> list[bytes]:
        events: list[bytes] = []
        pending = self._data
        for line in lines:
            if not line:
                if pending:
                    events.append(pending[0] if len(pending) == 1 else self._several(pending))
                    pending.clear()
            elif line.startswith(b"data: "):
                pending.append(line[6:])
            elif line.startswith(b"data:"):
                pending.append(line[5:])
        if len(pending) > 1:
            self._check_lines(pending)
        return events

    def _several(self, lines: list[bytes]) -> bytes:
        self._check_lines(lines)
        event = b"\n".join(lines)
        if len(event) > _LARGE:
            check_values(event)
        return event

    def _check_lines(self, lines: list[bytes]) -> None:
        if len(lines) * _LINE > self._most or sum(map(len, lines)) + len(lines) * _LINE > self._most:
            raise EventTooLarge(f"more than {self._most:,} bytes in one event")


def check_values(data: bytes) -> None:
    """Raise EventTooLarge for JSON with so many values that they would take many times its size in memory."""
    if data.count(b",") + data.count(b"[") + data.count(b"{") > _VALUES:
        raise EventTooLarge(f"more than {_VALUES:,} values in one event")
