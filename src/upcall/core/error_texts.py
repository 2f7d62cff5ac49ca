"""Parts of error messages: the name that was probably meant, and a value as a message shows it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from upcall.safety.bounds import brief, excess

_LONGEST_NAME = 100
_FEW_BYTES = 10_000


def nearest(given: str, known: Iterable[str]) -> str:
    """The known word that was probably meant, or "" where none is close; case and - for _ do not matter."""
    if len(given) > _LONGEST_NAME:
        return ""
    import difflib  # only a mistake needs it

    alike = {_folded(word): word for word in known}
    close = difflib.get_close_matches(_folded(given), alike, 1)
    return alike[close[0]] if close else ""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """A sentence that names the word that was probably meant, with a blank before it; "" where none is close."""
    near = nearest(given, known)
    return f" Did you mean {near}?" if near and near != given else ""


def _folded(word: str) -> str:
    return word.casefold().replace("-", "_").replace(" ", "_")


def shown(value: Any) -> str:
    """A value as a message shows it."""
    if value is None or isinstance(value, bool):  # nearly always, and every route says some
        return "null" if value is None else str(value).lower()
    if excess(value, _FEW_BYTES):
        return brief(value)
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
