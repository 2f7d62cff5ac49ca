"""Text that a model is writing, as the chunks of one message.

The log has the whole text once it is written. So a chunk that was never sent, because the editor was too slow, is
sent then: the chunks of a message, joined, are always its whole text, without its secrets.
"""

from __future__ import annotations

import hashlib
from typing import Any

from upcall.observe.plain import plain
from upcall.observe.redact import Redactor

LONGEST_CHUNK = 16_384
"""Characters of one chunk."""

ENOUGH = 1000
"""Characters that are sent at once; fewer wait a moment for more."""


class Writing:
    """One message: `add` what the model writes, `finish` with the whole text that the log has.

    kind: the kind of update that its chunks are, such as `agent_message_chunk`
    """

    def __init__(self, kind: str, message_id: str, redactor: Redactor) -> None:
        self.kind, self.message_id = kind, message_id
        self._redactor = redactor
        self._shown = redactor.stream(numbered=False)
        self._waiting: list[str] = []
        self._size = self._fed = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self._attempt = 0

    @property
    def has_begun(self) -> bool:
        """True if some of it was written already."""
        return self._fed > 0 or self._attempt > 0

    def add(self, text: str) -> bool:
        """Take a piece of text; returns whether enough waits to be sent."""
        self._waiting.append(text)
        self._size += len(text)
        return self._size >= ENOUGH

    def flush(self) -> list[dict[str, Any]]:
        """Return the chunks for what was added."""
        if not self._waiting:
            return []
        text = "".join(self._waiting)
        self._waiting.clear()
        self._size = 0
        return self._chunks(self._feed(text))

    def drop(self) -> None:
        """Forget what was written: the model begins anew, and so does a new message."""
        if self.has_begun or self._waiting:
            self._restart()

    def finish(self, whole: str) -> list[dict[str, Any]]:
        """Return the chunks that are missing of the whole text; of a changed text all, as a new message."""
        chunks = self.flush()
        if whole and self._fed and not self._is_beginning_of(whole):
            chunks += self._chunks(self._shown.close())
            self._restart()
        rest = self._feed(whole[self._fed :])
        return chunks + self._chunks(rest + self._shown.close())

    def close(self) -> list[dict[str, Any]]:
        """Return the chunks for all that was added, where the log will not have more."""
        return self.flush() + self._chunks(self._shown.close())

    def _restart(self) -> None:
        self._attempt += 1
        self.message_id = f"{self.message_id.partition('+')[0]}+{self._attempt}"
        self._shown = self._redactor.stream(numbered=False)
        self._waiting.clear()
        self._size = self._fed = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def _is_beginning_of(self, whole: str) -> bool:
        known = hashlib.blake2b(whole[: self._fed].encode("utf-8", "replace"), digest_size=16)
        return known.digest() == self._digest.digest()

    def _feed(self, text: str) -> str:
        """Take the next piece of the text; returns what can be shown by now."""
        self._fed += len(text)
        self._digest.update(text.encode("utf-8", "replace"))
        return self._shown.feed(text) if text else ""

    def _chunks(self, text: str) -> list[dict[str, Any]]:
        shown = plain(text)
        return [
            {
                "sessionUpdate": self.kind,
                "content": {"type": "text", "text": shown[at : at + LONGEST_CHUNK]},
                "messageId": self.message_id,
            }
            for at in range(0, len(shown), LONGEST_CHUNK)
        ]


class Output:
    """The output of a running tool: its end, without secrets."""

    LONGEST = 4_000

    def __init__(self, redactor: Redactor) -> None:
        self._shown = redactor.stream(numbered=False)
        self._tail, self._is_new = "", False

    def add(self, text: str) -> None:
        """Take a piece of output."""
        if shown := self._shown.feed(text):
            self._tail, self._is_new = (self._tail + shown)[-self.LONGEST :], True

    def take(self) -> str | None:
        """Return the end of the output as it may be shown; None if it was taken before."""
        is_new, self._is_new = self._is_new, False
        return plain(self._tail) if is_new else None
