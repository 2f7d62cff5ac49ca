"""Estimate tokens where no provider has counted them: one token for four bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from upcall.messages import Call, Image, Message, Part, Result, Text

BYTES_PER_TOKEN = 4
_MAX_SESSIONS = 1_000
_NOT_COUNTED = (None, 0, 0)
_TOKENS_PER_IMAGE = 1_500
"""About the number that providers count for an image of any size."""


def tokens_in(text: str) -> int:
    """Estimate the tokens of a text."""
    return (len(text) if text.isascii() else len(text.encode(errors="replace"))) // BYTES_PER_TOKEN + 1


def tokens_of(messages: Iterable[Message]) -> int:
    """Estimate the tokens of a conversation."""
    return sum(_tokens(part) for message in messages for part in message.parts)


class TokenCount:
    """Estimates the tokens of growing conversations, counting each message once.

    A compaction is detected because the message that was counted last has moved. A compaction that replaced a
    single message by its summary is not detected; the error is small enough for an estimate.
    """

    def __init__(self) -> None:
        # by session: the last message that was counted, its number, and the sum up to it
        self._counted: dict[str, tuple[Message | None, int, int]] = {}

    def of(self, session: str, messages: Sequence[Message]) -> int:
        """Estimate the tokens of a session's conversation."""
        last, count, tokens = self._counted.get(session, _NOT_COUNTED)
        if count and (
            count > len(messages) or messages[count - 1] is not last
        ):  # the conversation was compacted or loaded
            count = tokens = 0
        at = end = count
        before = tokens
        for message in messages[count:]:
            if message.role == "assistant":  # the newest response and the messages after it may still change
                end, before = at, tokens
            at += 1
            for part in message.parts:
                if type(part) is Text and part.text.isascii():  # the common case
                    tokens += len(part.text) // BYTES_PER_TOKEN + 1
                else:
                    tokens += _tokens(part)
        if end > count:
            if len(self._counted) >= _MAX_SESSIONS:
                self._counted.clear()
            self._counted[session] = (messages[end - 1], end, before)
        return tokens


def _tokens(part: Part) -> int:
    if isinstance(part, Call):
        return tokens_in(part.name) + len(msgspec.json.encode(part.args)) // BYTES_PER_TOKEN
    if isinstance(part, Image):
        return _TOKENS_PER_IMAGE
    return tokens_in(part.text) + (_TOKENS_PER_IMAGE * len(part.images) if isinstance(part, Result) else 0)
