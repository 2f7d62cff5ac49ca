"""The JSON that commands and servers give to programs. Names in it never change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from upcall.callbacks import PUBLIC_FIELDS, Approve, Callback, Reject
from upcall.events import AnyEvent


def all_fields(value: Any) -> Any:
    """Convert a value for JSON with all public fields, empty ones too. Approvals say `approve: true` or `false`."""
    if isinstance(value, msgspec.Struct):
        names = PUBLIC_FIELDS if isinstance(value, Callback) else value.__struct_fields__
        fields = {name: all_fields(getattr(value, name)) for name in names}
        return {"approve": isinstance(value, Approve), **fields} if isinstance(value, Approve | Reject) else fields
    if isinstance(value, list | tuple):
        return [all_fields(one) for one in cast("Sequence[Any]", value)]
    return value


def event_json(event: AnyEvent) -> dict[str, Any]:
    """Return the event's JSON object: session, seq, time, type, then its own fields."""
    body = msgspec.to_builtins(event)
    head = {"session": event.session, "seq": event.seq, "time": event.time, "type": event.type}
    return head | body
