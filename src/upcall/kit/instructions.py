"""Add text to a request's instructions."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from upcall.messages import Instruction, Request, Text

Addition = str | Text | Instruction | Iterable[str | Text | Instruction]


def add_instructions(request: Request, more: Addition) -> Request:
    """Return the request with text added after its instructions.

    request: the request, as a `before_model` hook gets it
    more: a text, or text parts; if it is empty, the request is returned unchanged
    """
    text = more if isinstance(more, str) else join_texts([more] if isinstance(more, Text | Instruction) else more)
    if not text or text.isspace():
        return request
    return request.replace(instructions=f"{request.instructions}\n\n{text}" if request.instructions else text)


class CachedAddition:
    """`add_instructions` for a kit that nearly always adds the same text to the same instructions."""

    __slots__ = ("_added", "_before", "_result")

    def __init__(self) -> None:
        self._before: str = ""
        self._added: str = ""
        self._result: str = ""

    def add_to(self, request: Request, text: str) -> Request:
        """Return the request with the text after its instructions."""
        if not text:
            return request
        if text != self._added or request.instructions != self._before:
            self._before, self._added = request.instructions, text
            self._result = add_instructions(request, text).instructions
        return replace(request, instructions=self._result)


def join_texts(pieces: Iterable[str | Text | Instruction]) -> str:
    """Join texts and text parts with blank lines; empty ones are left out."""
    texts = [piece if isinstance(piece, str) else piece.text for piece in pieces]
    return "\n\n".join(text for text in texts if text and not text.isspace())
