"""Adding to what a model is instructed.

May import: messages.
"""

from __future__ import annotations

from collections.abc import Iterable

from upcall.messages import Instruction, Request, Text

More = str | Text | Instruction | Iterable[str | Text | Instruction]


def add_instructions(request: Request, more: More) -> Request:
    """The request with text, or text parts, after its instructions; nothing to add gives it back as it is."""
    pieces = [more] if isinstance(more, str | Text | Instruction) else more
    texts = [piece if isinstance(piece, str) else piece.text for piece in pieces]
    added = [text for text in texts if text.strip()]
    if not added:
        return request
    return request.replace(instructions="\n\n".join(filter(None, [request.instructions, *added])))
