"""The effects of `once`, as the log gives them back: what they returned, or what they raised."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from upcall.errors import OutcomeUnknown, UpcallError
from upcall.events import OnceEnded


def failed_effect(origin: str, name: str, error: Exception) -> OnceEnded:
    """The event for an effect that raised."""
    kind = type(error)
    return OnceEnded(origin, name, error=f"{kind.__name__}: {error}", error_type=_full_name(kind))


def logged_effect(name: str, ended: OnceEnded | None) -> Any:
    """Return what the effect returned when it ran; raises if it failed, or if its end is not known."""
    if ended is None:
        raise OutcomeUnknown(name)
    if ended.error:
        raise _same_error(ended) or UpcallError(f"the effect {name!r} failed when it ran: {ended.error}")
    return ended.value


def _same_error(ended: OnceEnded) -> Exception | None:
    """An exception of the type that the effect raised, so that the code around it continues as it did then.

    It has the text of the first exception, but not its attributes. Returns None if this program has no such type,
    or if the type can't be made from a text. Errors of this package give None: the runtime acts on them.
    """
    found = {kind for kind in _exceptions(Exception) if _full_name(kind) == ended.error_type}
    text = ended.error.partition(": ")[2]
    for kind in found:
        if len(found) > 1 or issubclass(kind, UpcallError):
            return None
        try:
            error = kind.__new__(kind, text)
            error.args = (_Text(text),)
            return error if str(error) == text else None
        except Exception:  # it needs more than a text
            return None
    return None


class _Text(str):
    """A text that an exception shows without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _exceptions(kind: type[Exception]) -> Iterator[type[Exception]]:
    yield kind
    for one in kind.__subclasses__():
        yield from _exceptions(one)


def _full_name(kind: type[Exception]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
