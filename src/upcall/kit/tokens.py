"""How many tokens a text may have, where nobody has counted: four bytes each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from upcall.messages import Call, Image, Message, Part, Result, Text

BYTES = 4
_MOST_SESSIONS = 1_000
_NOTHING = (None, 0, 0)
_IMAGE = 1_500
"""About what providers count for a picture, whatever its bytes."""


def tokens_in(text: str) -> int:
    """About how many tokens a text has."""
    return (len(text) if text.isascii() else len(text.encode(errors="replace"))) // BYTES + 1


def tokens_of(messages: Iterable[Message]) -> int:
    """About how many tokens a conversation has."""
    return sum(_tokens(part) for message in messages for part in message.parts)


class TokenCount:
    """Counts conversations that grow: what was counted before is not looked at again.

    A compaction shows by the message that was the last to be counted: it has moved. One that put its summary in the
    place of a single message goes unseen; that is within what "about" means.
    """

    def __init__(self) -> None:
        self._counted: dict[
            str, tuple[Message | None, int, int]
        ] = {}  # of a session: up to which message, and the sum

    def of(self, session: str, messages: Sequence[Message]) -> int:
        """About how many tokens a session's conversation has."""
        last, count, tokens = self._counted.get(session, _NOTHING)
        if count and (count > len(messages) or messages[count - 1] is not last):  # it was compacted, or loaded
            count = tokens = 0
        at = end = count
        before = tokens
        for message in messages[count:]:
            if message.role == "assistant":  # the newest response, and what comes after it, may still change
                end, before = at, tokens
            at += 1
            for part in message.parts:
                if type(part) is Text and part.text.isascii():  # most of them
                    tokens += len(part.text) // BYTES + 1
                else:
                    tokens += _tokens(part)
        if end > count:
            if len(self._counted) >= _MOST_SESSIONS:
                self._counted.clear()
            self._counted[session] = (messages[end - 1], end, before)
        return tokens


def _tokens(part: Part) -> int:
    if isinstance(part, Call):
        return tokens_in(part.name) + len(msgspec.json.encode(part.args)) // BYTES
    if isinstance(part, Image):
        return _IMAGE
    return tokens_in(part.text) + (_IMAGE * len(part.images) if isinstance(part, Result) else 0)
