"""How many tokens a text may have, where nobody has counted: four bytes each.

May import: messages.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from upcall.messages import Call, Image, Message, Part, Result

BYTES = 4
_IMAGE = 1_500
"""About what providers count for a picture, whatever its bytes."""


def tokens_in(text: str) -> int:
    """About how many tokens a text has."""
    return (len(text) if text.isascii() else len(text.encode(errors="replace"))) // BYTES + 1


def tokens_of(messages: Iterable[Message]) -> int:
    """About how many tokens a conversation has."""
    return sum(_tokens(part) for message in messages for part in message.parts)


def _tokens(part: Part) -> int:
    match part:
        case Image():
            return _IMAGE
        case Call():
            return tokens_in(part.name) + len(msgspec.json.encode(part.args)) // BYTES
        case Result():
            return tokens_in(part.text) + _IMAGE * len(part.images)
        case _:
            return tokens_in(part.text)
