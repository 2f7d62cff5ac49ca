"""One redacted line about a prompt, a call, a result or an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from upcall.observe.labels import Labels
from upcall.observe.masks import MASK
from upcall.observe.plain import one_line, plain
from upcall.observe.redact import Redactor

LONGEST = 200
"""Characters of a line."""

_LOOKED_AT = 4_000
_MOST_ARGUMENTS = 20


class Lines:
    """Makes lines for screens: plain, redacted, at most 200 characters long."""

    def __init__(self, redactor: Redactor, labels: Labels) -> None:
        self.redactor, self.labels = redactor, labels

    def text(self, text: str) -> str:
        """Return the first line of a text that says something; JSON is all on one line."""
        start = self.redactor.text(plain(self._beginning(text).lstrip()))
        return one_line(start if start[:1] in ("[", "{") else start.partition("\n")[0], LONGEST)

    def whole(self, text: str) -> str:
        """Return a text on one line."""
        return one_line(self.redactor.text(plain(self._beginning(text))), LONGEST)

    def value(self, value: Any) -> str:
        """Return a JSON value on one line; a text without quotes."""
        shown = self.redactor.show(self._cut(value))
        return one_line(shown if isinstance(shown, str) else _json(shown), LONGEST)

    def call(self, name: str, args: Mapping[str, Any]) -> str:
        """Return the argument that tells most about a call, or all of them."""
        given = dict(list(args.items())[:_MOST_ARGUMENTS])
        shown = cast("dict[str, Any]", self.redactor.show(self._cut(given)))
        telling = self.labels.shown_argument(name, shown)
        if telling and MASK.fullmatch(str(shown[telling])):  # a value that is hidden tells nothing
            telling = ""
        if telling:
            return one_line(str(shown[telling]), LONGEST)
        return one_line(" ".join(f"{key}={_json(value)}" for key, value in shown.items()), LONGEST)

    def approval(self, value: Any) -> str:
        """Return what was decided about a call."""
        match value:
            case {"approve": True, "args": dict()}:
                return "approved with other arguments"
            case {"approve": True, "for_session": True}:
                return "approved for the session"
            case {"approve": True}:
                return "approved"
            case {"approve": False, "reason": str(why)} if why:
                return one_line(f"rejected: {self.text(why)}", LONGEST)
            case _:
                return "rejected"

    def _cut(self, value: Any) -> Any:
        """Return a value with its long texts cut: no more of them could be shown."""
        if isinstance(value, str):
            return plain(self._beginning(value))
        if isinstance(value, dict):
            return {key: self._cut(one) for key, one in list(cast("dict[str, Any]", value).items())[:100]}
        if isinstance(value, list | tuple):
            return [self._cut(one) for one in list(cast("list[Any]", value))[:100]]
        return value

    def _beginning(self, text: str) -> str:
        return self.redactor.beginning(text, _LOOKED_AT)


def _json(value: Any) -> str:
    return plain(msgspec.json.encode(value).decode("utf-8", "replace"))
