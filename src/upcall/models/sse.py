"""Server-sent events out of raw bytes, however the network cut them."""

from __future__ import annotations

EVENT_BYTES = 4_000_000
"""Bytes of one event of a stream, or of a response that comes in one piece."""

_LARGE = 65_536  # bytes of an event above which its values are counted before it is read
_VALUES = 500_000  # values in one event
_LINE = 64  # bytes that a line of an event counts besides its own


class EventTooLarge(ValueError):
    """An event exceeds a bound; the text says which."""


class Feed:
    """Takes bytes as they come and gives back the `data` of every event that is complete.

    It works on bytes, so that a packet may end inside a character or between `\\r` and `\\n`. Names, ids and
    comments are skipped: both wires repeat an event's type inside its data.

    An event of more than `most` bytes, or of so many values that reading it would take many times its size, is
    EventTooLarge.
    """

    __slots__ = ("_after_cr", "_data", "_held", "_most", "_rest")

    def __init__(self, most: int = EVENT_BYTES) -> None:
        self._most, self._held = most, 0  # bytes of the line that has not ended
        self._rest: list[bytes] = []  # pieces of a line without its end; a list, since lines may be huge
        self._data: list[bytes] = []
        self._after_cr = False

    def take(self, data: bytes) -> list[bytes]:
        """The events that these bytes complete."""
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
                self._hold(data)
                return []
            self._hold(lines[0])
            lines[0] = self._joined()
        if not whole:
            self._hold(lines.pop())
        return self._events(lines)

    def end(self) -> list[bytes]:
        """What an event without its closing blank line still holds: many servers end so."""
        return self._events([self._joined(), b""])

    def _hold(self, piece: bytes) -> None:
        self._rest.append(piece)
        self._held += len(piece)
        if self._held > self._most:
            raise EventTooLarge(f"more than {self._most:,} bytes in one line")

    def _joined(self) -> bytes:
        line = b"".join(self._rest)
        self._rest.clear()
        self._held = 0
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
    """Raise EventTooLarge for JSON of so many values that they would take many times its size in memory."""
    if data.count(b",") + data.count(b"[") + data.count(b"{") > _VALUES:
        raise EventTooLarge(f"more than {_VALUES:,} values in one event")
