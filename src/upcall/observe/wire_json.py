"""What went over the wire, as JSON without secrets.

A provider streams a text in pieces, each in an event of its own, so a secret may be split between two events. The
pieces of one text are put together before secrets are looked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import msgspec

from upcall.contracts import Exchange
from upcall.observe.masks import mask
from upcall.observe.redact import Redactor
from upcall.safety.bounds import DEPTH, is_too_deep

_DATA = "data:"


def exchange_json(exchange: Exchange, redactor: Redactor) -> dict[str, Any]:
    """Return one exchange as JSON: the request, and the answer as JSON or as the list of its events."""
    return {
        "url": redactor.text(exchange.url),
        "status": exchange.status,
        "request": redactor.show(_parsed(exchange.request)),
        "response": _response(exchange.response, redactor),
        "received_bytes": exchange.received_bytes,
    }


def _response(text: str, redactor: Redactor) -> Any:
    lines = [line.removeprefix(_DATA).strip() for line in text.splitlines() if line.startswith(_DATA)]
    if not lines:
        return redactor.show(_parsed(text))
    events = [_parsed(line) for line in lines]
    _hide_split_secrets(events, redactor)
    return redactor.show(events)


def _parsed(text: str) -> Any:
    """Return the JSON that a text is; the text itself if it is none."""
    body = text.encode("utf-8", "replace")
    try:
        return text if is_too_deep(body, DEPTH) else msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return text


class _Piece(NamedTuple):
    """A text in an event: what it is part of, where it stands, and the place of that in all events."""

    holder: Any
    key: Any
    path: tuple[Any, ...]

    @property
    def text(self) -> str:
        text: str = self.holder[self.key]
        return text


def _pieces(value: Any, path: tuple[Any, ...] = ()) -> Iterator[_Piece]:
    items: Any = ()
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
    elif isinstance(value, list):
        items = enumerate(cast("list[Any]", value))
    for key, one in items:
        if isinstance(one, str):
            yield _Piece(value, key, (*path, key))
        else:
            yield from _pieces(one, (*path, key))


def _hide_split_secrets(events: list[Any], redactor: Redactor) -> None:
    """Hide secrets that are split between the texts that stand at one place of several events."""
    texts: dict[tuple[Any, ...], list[_Piece]] = {}
    for event in events:
        for piece in _pieces(event):
            texts.setdefault(piece.path, []).append(piece)
    for pieces in texts.values():
        if len(pieces) > 1:
            _hide_in(pieces, redactor)


def _hide_in(pieces: list[_Piece], redactor: Redactor) -> None:
    spans = redactor.spans("".join(piece.text for piece in pieces))
    at = 0
    for piece in pieces if spans else ():
        text, begin = piece.text, at
        at += len(text)
        out, done = list[str](), begin
        for number, (start, end) in enumerate(spans, 1):
            if end > done and start < at and end > begin:
                out += (text[done - begin : max(start, done) - begin], mask(end - start, number))
                done = min(end, at)
        piece.holder[piece.key] = "".join((*out, text[done - begin :]))
