"""Put hidden values back in place of the masks that an edited value still holds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from upcall.observe.masks import MASK
from upcall.safety.bounds import ARGUMENTS, TooLarge


class Restoring:
    """Restores one edited value.

    A mask of a few characters may stand for a megabyte, and may be in the value many times. So what the masks stand
    for is counted before it is inserted; all of it together has at most as many characters as a call's arguments.
    """

    def __init__(self, hidden: Sequence[Any]) -> None:
        self._hidden, self._texts = hidden, dict[int, str]()
        self._left = ARGUMENTS

    def value(self, value: Any) -> Any:
        """Return a value with the real values in place of its masks.

        A mask that was not shown raises ValueError, and masks that stand for too much raise TooLarge.
        """
        if isinstance(value, str):
            if whole := MASK.fullmatch(value):
                return self._hidden[self._index(whole)]
            return MASK.sub(lambda found: self._text(self._index(found)), value) if "⟦" in value else value
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            return {str(self.value(key)): self.value(one) for key, one in fields.items()}
        if isinstance(value, list | tuple):
            return [self.value(one) for one in cast("Sequence[Any]", value)]
        return value

    def _index(self, found: re.Match[str]) -> int:
        """Return which hidden value a mask stands for, and count that value as inserted."""
        length, index = int(found[1]), int(found[2]) - 1
        if not 0 <= index < len(self._hidden) or len(self._text(index)) != length:
            raise ValueError(
                f"{found[0]} is not a placeholder of a value that was hidden here; write the value itself"
            )
        self._left -= length
        if self._left < 0:
            raise TooLarge(
                f"its masks stand for more than {ARGUMENTS} characters together; leave each where it was"
            )
        return index

    def _text(self, index: int) -> str:
        if index not in self._texts:
            self._texts[index] = as_text(self._hidden[index])
        return self._texts[index]


def as_text(value: Any) -> str:
    """Return a hidden value as a text: a text as it is, any other value as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode("utf-8", "replace")
