"""A callback as a person is shown it: its secrets are hidden, and it says how many are."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from upcall.callbacks import PUBLIC_FIELDS, Callback
from upcall.observe.public_json import all_fields
from upcall.observe.redact import Redactor


class HiddenQuestion(NamedTuple):
    """A callback without its secrets, and how many values are hidden in what is asked."""

    callback: Callback
    hidden: int


def is_approval(callback: Callback) -> bool:
    """Tell whether the callback is the approval of a call rather than a question."""
    return bool(callback.tool) and callback.args is not None


def hide_secrets(callback: Callback, redactor: Redactor) -> HiddenQuestion:
    """Hide the secrets of a callback.

    The arguments are redacted by themselves: an answer that edits them names hidden values by their numbers there.
    """
    args, hidden = redactor.hide(callback.args)
    rest = callback.replace(args=None)
    shown = redactor.copy(rest)
    if not is_approval(callback):
        hidden = [] if shown == rest else _hidden_in_question(callback, redactor)
    return HiddenQuestion(shown.replace(args=args), len(hidden))


def _hidden_in_question(callback: Callback, redactor: Redactor) -> list[str]:
    _, hidden = redactor.hide({name: getattr(callback, name) for name in PUBLIC_FIELDS})
    return hidden


def callback_json(callback: Callback, redactor: Redactor) -> dict[str, Any]:
    """Return a callback as `inbox --json` prints it."""
    return all_fields(hide_secrets(callback, redactor).callback)


def shown_answer(value: Any, redactor: Redactor) -> Any:
    """Return an answer as it may be shown: a value, or an Approve, Reject or Decline."""
    return redactor.copy(value) if isinstance(value, msgspec.Struct) else redactor.show(value)


def hidden_note(count: int) -> str:
    """Say how many values are hidden; "" if none is."""
    return f"{count} value{'s are' if count > 1 else ' is'} hidden" if count else ""
