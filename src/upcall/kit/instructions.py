"""Adding to what a model is instructed."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from upcall.messages import Instruction, Request, Text

More = str | Text | Instruction | Iterable[str | Text | Instruction]


def add_instructions(request: Request, more: More) -> Request:
    """Return the request with text added after its instructions.

    request: the request, as a `before_model` hook gets it
    more: a text, or text parts; if there is nothing to add, the request is returned as it is
    """
    text = more if isinstance(more, str) else joined([more] if isinstance(more, Text | Instruction) else more)
    if not text or text.isspace():
        return request
    return request.replace(instructions=f"{request.instructions}\n\n{text}" if request.instructions else text)


class Adding:
    """`add_instructions` for a piece that adds the same text to the same instructions nearly every time."""

    __slots__ = ("_before", "_more", "_now")

    def __init__(self) -> None:
        self._before: str = ""
        self._more: str = ""
        self._now: str = ""

    def to(self, request: Request, text: str) -> Request:
        """The request with the text after its instructions."""
        if not text:
            return request
        if text != self._more or request.instructions != self._before:
            self._before, self._more = request.instructions, text
            self._now = add_instructions(request, text).instructions
        return replace(request, instructions=self._now)


def joined(pieces: Iterable[str | Text | Instruction]) -> str:
    """Texts and text parts as one text, a blank line between them; empty ones are left out."""
    texts = [piece if isinstance(piece, str) else piece.text for piece in pieces]
    return "\n\n".join(text for text in texts if text and not text.isspace())
