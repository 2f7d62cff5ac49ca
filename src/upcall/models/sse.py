"""Server-sent events out of raw bytes, however the network cut them."""

from __future__ import annotations


class Feed:
    """Takes bytes as they come and gives back the `data` of every event that is complete.

    It works on bytes, so that a packet may end inside a character or between `\\r` and `\\n`. Names, ids and
    comments are skipped: both wires repeat an event's type inside its data.
    """

    __slots__ = ("_after_cr", "_data", "_rest")

    def __init__(self) -> None:
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
                self._rest.append(data)
                return []
            self._rest.append(lines[0])
            lines[0] = b"".join(self._rest)
            self._rest.clear()
        if not whole:
            self._rest.append(lines.pop())
        return self._events(lines)

    def end(self) -> list[bytes]:
        """What an event without its closing blank line still holds: many servers end so."""
        lines = [b"".join(self._rest), b""]
        self._rest.clear()
        return self._events(lines)

    def _events(self, lines: list[bytes]) -> list[bytes]:
        events: list[bytes] = []
        pending = self._data
        for line in lines:
            if not line:
                if pending:
                    events.append(pending[0] if len(pending) == 1 else b"\n".join(pending))
                    pending.clear()
            elif line.startswith(b"data: "):
                pending.append(line[6:])
            elif line.startswith(b"data:"):
                pending.append(line[5:])
        return events
