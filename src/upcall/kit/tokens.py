"""How many tokens a text may have, where nobody has counted: four bytes each.

May import: messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from upcall.messages import Call, Image, Message, Part, Result, Text

BYTES = 4
_MOST_SESSIONS = 1_000
_NOTHING = (None, 0, 0)
_IMAGE = 1_500
"""About what providers count for a picture, whatever its bytes."""

_PICTURE = b'"part":"image"'
_LITTLE = 16_384
"""Bytes of JSON beyond which what is new in a conversation is counted, lest it be encoded again and again."""


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

    def of(self, session: str, messages: Sequence[Message], enough: int = 0) -> int:
        """About how many tokens a session's conversation has; where it is surely no more than `enough`, at most."""
        last, count, tokens = self._counted.get(session, _NOTHING)
        if count and (count > len(messages) or messages[count - 1] is not last):  # it was compacted, or loaded
            count = tokens = 0
        new = messages[count:]
        if enough and (most := _at_most(new)) and tokens + most <= enough:
            return tokens + most
        at, end, before = count, count, tokens
        for message in new:
            if message.role == "assistant":  # the newest response, and what comes after it, may still change
                end, before = at, tokens
            at, tokens = at + 1, tokens + tokens_of((message,))
        if end > count:
            if len(self._counted) >= _MOST_SESSIONS:
                self._counted.clear()
            self._counted[session] = (messages[end - 1], end, before)
        return tokens


def _at_most(messages: Sequence[Message]) -> int:
    """More tokens than these have, told without looking at each; 0 if there is no telling, or too much to encode.

    As JSON each part is longer than what is counted of it, unless it is a picture.
    """
    try:
        body = msgspec.json.encode(messages)
    except UnicodeEncodeError:
        return 0
    return 0 if len(body) > _LITTLE or _PICTURE in body else len(body) // BYTES


def _tokens(part: Part) -> int:
    if type(part) is Text:  # most of them
        return tokens_in(part.text)
    if isinstance(part, Call):
        return tokens_in(part.name) + len(msgspec.json.encode(part.args)) // BYTES
    if isinstance(part, Result):
        return tokens_in(part.text) + _IMAGE * len(part.images)
    return _IMAGE if isinstance(part, Image) else tokens_in(part.text)
